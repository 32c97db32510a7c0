"""Compares a new revision with the present state: why it is refused, what it changes, which jobs it
disturbs. Pure.

The loop calls this before it accepts a revision. `rankfold plan` calls it, too, and accepts
nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from rankfold.reconciler.journal.rows import Object, in_service
from rankfold.reconciler.model import runtimes
from rankfold.reconciler.model.desired import Desired, Job, Pool
from rankfold.reconciler.model.fields import fields_of
from rankfold.reconciler.model.recorded import NODE, Record
from rankfold.reconciler.node.environment import change_in_words, changed_names
from rankfold.reconciler.node.environment import names as names_of
from rankfold.reconciler.source.invalid import Fault
from rankfold.reconciler.source.spec import File, Loaded
from rankfold.reconciler.wording import count, devices_wanted, first_few, size


def revision_faults(
    loaded: Loaded, records: Mapping[str, Record], by_hand: frozenset[str]
) -> list[Fault]:
    """Conflicts of a revision with running jobs. `by_hand`: live jobs that `run` started."""
    faults: list[Fault] = []
    for job in loaded.desired.jobs.values():
        record = records.get(job.name)
        if job.name in by_hand:
            reason = (
                "a job of this name was started by `rankfold run` and still runs; choose another"
            )
            faults.append(loaded.fault("Job", job.name, "metadata.name", reason))
            continue
        if record is None or record.fixed is None or record.step in ("new", "ended"):
            continue
        for attribute, field in fields_of(Job).items():
            was, now = getattr(record.fixed, attribute), getattr(job, attribute)
            if field.fixed and was != now:
                env = attribute == "env"
                how = change_in_words(was, now) if env else f"it is {was!r}, not {now!r}"
                reason = f"cannot change in a started job: {how}. {_WAY_OUT}"
                faults.append(loaded.fault("Job", job.name, field.path, reason))
        if job.device_types and record.device_type not in job.device_types:
            reason = (
                f"the job started on {record.device_type} devices and keeps that type. {_WAY_OUT}"
            )
            faults.append(loaded.fault("Job", job.name, "spec.deviceTypes", reason))
    return faults


def save_faults(loaded: Loaded, no_processes: str) -> list[Fault]:
    """Jobs whose files request saves although they cannot be saved here: `no_processes` says why no
    process can be. For jobs with the default interval, a condition reports it."""
    faults = []
    for name, job in loaded.desired.jobs.items():
        has_rules = "checkpoint" in loaded.documents["Job", name].value["spec"]
        why = runtimes.no_saves(job, no_processes)
        if why and has_rules and (job.save_every_s or job.save_every_steps):
            faults.append(loaded.fault("Job", name, "spec.checkpoint", f"cannot be: {why}"))
    return faults


def store_faults(loaded: Loaded, now: Desired, records: Mapping[str, Record]) -> list[Fault]:
    """A change of the store while live jobs have checkpoints in the present one."""
    live = [n for n, r in records.items() if r.step != "ended" and _in_store(r)]
    if not live or loaded.desired.checkpoint_store == now.checkpoint_store:
        return []
    was = now.checkpoint_store or "the state directory"
    reason = f"cannot change: {first_few(sorted(live))} has checkpoints in {was}. Cancel it first"
    return [loaded.policy_fault("spec.checkpointStore", reason)]


def _in_store(record: Record) -> bool:
    return bool(record.checkpoints) or record.stored not in ("", NODE)


def emptied_files(loaded: Loaded, objects: Iterable[Object]) -> list[Fault]:
    """Files without content from which objects were accepted, which looks like a failed save. A
    person who wants to remove the objects removes the file."""
    faults = []
    for name, (file, _, lost) in _losses(loaded, objects).items():
        if lost and not file.documents:
            reason = (
                f"holds no document, but {_listed(lost)} came from it: partly saved? Remove the "
                "file to remove what it described"
            )
            faults.append(Fault(name, max(1, file.lines), "-", reason))
    return faults


def cut_files(
    loaded: Loaded, objects: Iterable[Object], never_ended: Collection[str]
) -> list[Fault]:
    """Files of a followed directory that look as if their save was incomplete.

    docs/decisions/0057-when-a-save-of-files-is-complete.md gives the reasons. `never_ended`: paths
    of files whose last line had no newline when they were accepted.
    """
    faults = []
    kept = {
        (origin.file, origin.line)  # the jobs of a service are one object here
        for (kind, _), origin in loaded.origins.items()
        if kind != "Policy"  # policies are not objects yet
    }
    kept_in = Counter(file for file, _ in kept)
    for name, (file, had, lost) in _losses(loaded, objects).items():
        reason, kept_here = "", kept_in[name]
        if not file.documents:
            continue
        if not file.ended and file.path not in never_ended:
            reason = "its last line has no end: partly saved? End it with a newline"
        elif had[-1] in lost and kept_here < len({each.origin.line for each in had}):
            reason = (
                f"ends before {_listed(lost)}, which came from it: partly saved? If that is "
                "intended, run `rankfold apply -f` once"
            )
        if reason:
            faults.append(Fault(name, max(1, file.lines), "-", reason))
    return faults


def _losses(
    loaded: Loaded, objects: Iterable[Object]
) -> dict[str, tuple[File, list[Object], list[Object]]]:
    """File name → the file, the objects that were accepted from it, in the order of their lines,
    and those of them that are in no file now. Only for files that exist and had objects."""
    came: dict[str, list[Object]] = {}
    for each in objects:
        if each.source is not None and not each.removed:
            came.setdefault(each.origin.file, []).append(each)
    losses = {}
    for name, file in loaded.files.items():
        if had := sorted(came.get(file.path, ()), key=lambda each: each.origin.line):
            losses[name] = file, had, [o for o in had if not _is_described(o, loaded)]
    return losses


def _is_described(object: Object, loaded: Loaded) -> bool:
    """Whether files describe an object; of a service, at least its first replica."""
    name = object.name
    if isinstance(object.spec, Job) and object.spec.service is not None:
        name = object.spec.service.replica(0)
    return (object.kind, name) in loaded.origins


def _listed(objects: Iterable[Object]) -> str:
    return ", ".join(f"{each.kind}/{each.name}" for each in objects)


def _of(desired: Desired) -> str:
    """The tiers that guarantee a fraction, for people."""
    tiers = desired.tiers.items()
    found = (f"{name} {each.fraction:g} per {each.period_s:g} s" for name, each in sorted(tiers))
    return ", ".join(found) or "none"


def _numbers(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(numbers.items())) or "none"


def _quotas(desired: Desired) -> str:
    found = (
        f"{name} {each.devices}"
        + (f" weight {each.weight:g}" if each.weight != 1 else "")
        + (f" borrow {each.borrow}" if each.borrow is not None else "")
        + (f" lend {each.lend}" if each.lend is not None else "")
        for name, each in sorted(desired.quotas.items())
    )
    return ", ".join(found) or "none"


_WAY_OUT = "Cancel the job first, or give the new one another name"


@dataclass(frozen=True)
class Difference:
    """One line of the output of `rankfold plan`."""

    object: str
    action: str  # create | update | suspend | resume | remove
    fields: tuple[tuple[str, Any, Any], ...] = ()
    disturbs: bool = False
    note: str = ""


def differences(old: Desired, new: Desired, records: Mapping[str, Record]) -> list[Difference]:
    """The changes to the desired state if `new` is accepted, and which of them stop a running
    job."""
    result: list[Difference] = []
    for name, pool in new.pools.items():
        if name not in old.pools:
            result.append(
                Difference(f"Pool/{name}", "create", note=count(len(pool.devices), "device"))
            )
        elif old.pools[name] != pool:
            fields = _pool_changed(old.pools[name], pool)
            result.append(Difference(f"Pool/{name}", "update", fields))
    result += [Difference(f"Pool/{name}", "remove") for name in old.pools if name not in new.pools]
    if old.checkpoint_store != new.checkpoint_store:
        urls = (old.checkpoint_store or "default", new.checkpoint_store or "default")
        result.append(Difference("Policy", "update", (("spec.checkpointStore", *urls),)))
    if old.growth_delay_s != new.growth_delay_s:
        seconds = (f"{old.growth_delay_s:g}s", f"{new.growth_delay_s:g}s")
        result.append(Difference("Policy", "update", (("spec.growthDelay", *seconds),)))
    if old.preemption_delay_s != new.preemption_delay_s:
        seconds = (f"{old.preemption_delay_s:g}s", f"{new.preemption_delay_s:g}s")
        result.append(Difference("Policy", "update", (("spec.preemptionDelay", *seconds),)))
    if old.max_wait_s != new.max_wait_s:
        seconds = (f"{old.max_wait_s:g}s", f"{new.max_wait_s:g}s")
        result.append(Difference("Policy", "update", (("spec.maxWait", *seconds),)))
    if old.disturbances != new.disturbances:
        shown = (_numbers(old.disturbances), _numbers(new.disturbances))
        result.append(Difference("Policy", "update", (("spec.disturbances", *shown),)))
    if old.defragmentation != new.defragmentation:
        shown = (str(old.defragmentation), str(new.defragmentation))
        result.append(Difference("Policy", "update", (("spec.defragmentation", *shown),)))
    if old.quotas != new.quotas:
        shown = (_quotas(old), _quotas(new))
        result.append(Difference("Policy", "update", (("spec.quotas", *shown),)))
    if old.tiers != new.tiers:
        result.append(Difference("Policy", "update", (("spec.tiers", _of(old), _of(new)),)))
    for name, job in new.jobs.items():
        if name not in old.jobs:
            result.append(
                Difference(
                    f"Job/{name}",
                    "create",
                    note=f"{count(job.world_size, 'rank')} on "
                    f"{devices_wanted(job.gpus_min, job.gpus)}",
                )
            )
        elif not job.orphaned and (fields := _changed(old.jobs[name], job)):
            result.append(_job_difference(job, fields, records.get(name, Record(name))))
    for name, job in old.jobs.items():
        is_removed = name not in new.jobs or new.jobs[name].orphaned
        if is_removed and not job.orphaned:
            live = records.get(name, Record(name)).step not in ("new", "ended")
            note = "its job is suspended (Orphaned)" if live else "it does not run"
            result.append(Difference(f"Job/{name}", "remove", disturbs=live, note=note))
    return result


def _pool_changed(old: Pool, new: Pool) -> tuple[tuple[str, Any, Any], ...]:
    """The number of devices, if that changes, and the fields that differ."""
    more = len(old.devices) != len(new.devices)
    changes: list[tuple[str, Any, Any]] = []
    if more:
        changes.append(("spec.devices", len(old.devices), len(new.devices)))
    for attribute, label in _OF_DEVICES.items():
        was, now = (
            [_shown(attribute, getattr(d, attribute)) for d in p.devices] for p in (old, new)
        )
        if (set(was) != set(now)) if more else (was != now):
            changes.append((f"spec.devices[].{label}", _runs(was), _runs(now)))
    was, now = ([d.name for d in p.devices if d.drained] for p in (old, new))
    if was != now:
        changes.append(("spec.drain", was, now))
    return tuple(changes)


_OF_DEVICES = {"type": "type", "memory": "memory", "cc": "computeCapability", "speed": "speed"}
_OF_DEVICES |= {"domain": "domain", "node": "node", "core_count": "cores", "runtime": "runtime"}


def _shown(attribute: str, value: object) -> str:
    return size(value) if attribute == "memory" else str(value or "none")  # type: ignore[arg-type]


def _runs(values: list[str]) -> str:
    """``1 GiB``, or if values differ, the number of devices with each: ``1 GiB × 2, 2 GiB × 1``"""
    runs = [(value, len(list(equal))) for value, equal in itertools.groupby(values)]
    return runs[0][0] if len(runs) == 1 else ", ".join(f"{v} × {n}" for v, n in runs)


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
    stops = names & {"spec.suspend", "file"}
    if "spec.gpus" in names:
        now = len(set(record.placement))
        stops |= set() if job.elastic and job.least <= now <= job.gpus else {"spec.gpus"}
    disturbs = live and not resting and bool(stops)
    return Difference(f"Job/{job.name}", action, fields, disturbs)


def _changed(old: Job, new: Job) -> tuple[tuple[str, Any, Any], ...]:
    names = {a: field.path for a, field in fields_of(Job).items()} | {"orphaned": "file"}
    names["service"] = "spec.replicas"
    pairs = (
        (label, _requested(old, a), _requested(new, a))
        for a, label in names.items()
        if a != "gpus_min"
    )
    changes = [(label, was, now) for label, was, now in pairs if was != now]
    return tuple(
        (f, names_of(was), changed_names(was, now)) if f == "spec.env" else (f, was, now)
        for f, was, now in changes
    )


def _requested(job: Job, attribute: str) -> Any:
    """The value of a field; of a range of devices, both ends."""
    if attribute == "gpus" and job.gpus_min is not None:
        return f"{job.gpus_min} to {job.gpus}"
    if attribute == "service":
        return job.service and str(job.service)
    return getattr(job, attribute)


def merged(
    desired: Desired,
    loaded: Loaded,
    hand_made: frozenset[tuple[str, str]],
    records: Mapping[str, Record],
    overridden: Mapping[str, Job],
) -> Desired:
    """The desired state if `loaded` were accepted: objects of `run` stay, and so do started jobs
    whose file was removed.

    overridden: the source's version of jobs that were overridden; an override lasts while that
        version is unchanged.
    """
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
            jobs[name] = in_service(job, {})
            if known:
                jobs[name] = replace(job, created=known.created, idle=known.idle)
    return replace(loaded.desired, pools=pools, jobs=jobs)
