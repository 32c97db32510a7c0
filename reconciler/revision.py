"""A new revision against what is: why it is refused, what it changes, whom it disturbs. Pure.

Called by the daemon before it accepts a revision, and by `rankfold plan`, which accepts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankfold.reconciler.environment import change_in_words, changed_names
from rankfold.reconciler.environment import names as names_of
from rankfold.reconciler.model import FIXED_FIELDS, Desired, Job, Record, count
from rankfold.reconciler.spec import Fault, Loaded


def revision_faults(
    loaded: Loaded, records: Mapping[str, Record], by_hand: frozenset[str]
) -> list[Fault]:
    """Why a revision cannot follow what runs. `by_hand`: live jobs that `run` started."""
    faults: list[Fault] = []
    for job in loaded.desired.jobs.values():
        record = records.get(job.name)
        if job.name in by_hand:
            reason = (
                "a job of this name was started by `rankfold run` and still lives; choose another"
            )
            faults.append(loaded.fault("Job", job.name, "metadata.name", reason))
            continue
        if record is None or record.fixed is None or record.step in ("new", "ended"):
            continue
        for attribute, name in FIXED_FIELDS:
            was, now = getattr(record.fixed, attribute), getattr(job, attribute)
            if was != now:
                env = attribute == "env"
                how = change_in_words(was, now) if env else f"it is {was!r}, not {now!r}"
                reason = f"cannot change in a started job: {how}. {_WAY_OUT}"
                faults.append(loaded.fault("Job", job.name, name, reason))
        if job.device_types and record.device_type not in job.device_types:
            reason = f"the job started on {record.device_type} devices and stays there. {_WAY_OUT}"
            faults.append(loaded.fault("Job", job.name, "spec.deviceTypes", reason))
    return faults


_WAY_OUT = "Cancel the job first, or give the new one another name"


@dataclass(frozen=True)
class Difference:
    """One line of `rankfold plan`."""

    object: str
    action: str  # create | update | suspend | resume | remove
    fields: tuple[tuple[str, Any, Any], ...] = ()
    disturbs: bool = False
    note: str = ""


def differences(old: Desired, new: Desired, records: Mapping[str, Record]) -> list[Difference]:
    """What accepting `new` changes in the desired state, and which of it stops a running job."""
    found: list[Difference] = []
    for name, pool in new.pools.items():
        if name not in old.pools:
            found.append(
                Difference(f"Pool/{name}", "create", note=count(len(pool.devices), "device"))
            )
        elif old.pools[name] != pool:
            was, now = len(old.pools[name].devices), len(pool.devices)
            found.append(Difference(f"Pool/{name}", "update", (("spec.devices", was, now),)))
    found += [Difference(f"Pool/{name}", "remove") for name in old.pools if name not in new.pools]
    for name, job in new.jobs.items():
        if name not in old.jobs:
            found.append(
                Difference(
                    f"Job/{name}",
                    "create",
                    note=f"{count(job.world_size, 'rank')} on {count(job.gpus, 'device')}",
                )
            )
        elif not job.orphaned and (fields := _changed(old.jobs[name], job)):
            found.append(_job_difference(job, fields, records.get(name, Record(name))))
    for name, job in old.jobs.items():
        gone = name not in new.jobs or new.jobs[name].orphaned
        if gone and not job.orphaned:
            live = records.get(name, Record(name)).step not in ("new", "ended")
            note = "its job is suspended (Orphaned)" if live else "it does not run"
            found.append(Difference(f"Job/{name}", "remove", disturbs=live, note=note))
    return found


def _job_difference(
    job: Job, fields: tuple[tuple[str, Any, Any], ...], record: Record
) -> Difference:
    if record.step == "ended":
        note = f"it has {record.phase.lower()} and does not run again under this name"
        return Difference(f"Job/{job.name}", "update", fields, note=note)
    names = {name for name, _, _ in fields}
    live = record.step != "new"
    action = "update"
    if names & {"spec.suspend", "file"}:
        action = "suspend" if job.suspended else "resume"
    resting = record.step == "detached" and not record.placement
    disturbs = live and not resting and bool(names & {"spec.gpus", "spec.suspend", "file"})
    return Difference(f"Job/{job.name}", action, fields, disturbs)


def _changed(old: Job, new: Job) -> tuple[tuple[str, Any, Any], ...]:
    names = {
        "command": "spec.command", "workdir": "spec.workdir", "world_size": "spec.worldSize",
        "gpus": "spec.gpus", "env": "spec.env", "device_types": "spec.deviceTypes",
        "determinism": "spec.determinism", "suspend": "spec.suspend", "orphaned": "file",
    }  # fmt: skip
    pairs = ((label, getattr(old, a), getattr(new, a)) for a, label in names.items())
    found = [(label, was, now) for label, was, now in pairs if was != now]
    return tuple(
        (f, names_of(was), changed_names(was, now)) if f == "spec.env" else (f, was, now)
        for f, was, now in found
    )


def merged(
    desired: Desired,
    loaded: Loaded,
    hand_made: frozenset[tuple[str, str]],
    records: Mapping[str, Record],
    overridden: Mapping[str, Job],
) -> Desired:
    """What would be desired if `loaded` were accepted: what `run` made stays, and so do started
    jobs whose file is gone. `overridden`: what the source says of jobs that were changed by hand;
    the change lasts while the source says the same."""
    pools = {n: p for n, p in desired.pools.items() if ("Pool", n) in hand_made}
    jobs = {n: j for n, j in desired.jobs.items() if ("Job", n) in hand_made}
    pools.update(loaded.desired.pools)
    for name, old in desired.jobs.items():
        if name not in jobs and records.get(name, Record(name)).step not in ("new", "ended"):
            jobs[name] = replace(old, orphaned=True)
    for name, job in loaded.desired.jobs.items():
        known = desired.jobs.get(name)
        if known and overridden.get(name) == job:
            jobs[name] = replace(known, orphaned=False)
        else:
            jobs[name] = replace(job, created=known.created) if known else job
    return Desired(pools, jobs)
