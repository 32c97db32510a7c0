"""Status of a fleet as JSON.

The content is stable (docs/status.md); fields may be added.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from rankfold import settings
from rankfold.reconciler import clock, liveness
from rankfold.reconciler.journal.rows import Object
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.observed import ObservedDevice
from rankfold.reconciler.model.recorded import (
    NODE,
    RESTARTING,
    Change,
    Condition,
    Record,
)
from rankfold.reconciler.model.states import RESTING
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.reports import last_lines
from rankfold.reconciler.observe import restarts, sharing
from rankfold.reconciler.report.snapshot import Snapshot
from rankfold.reconciler.wording import silence, some, time_of_day

FORMAT_VERSION = 1
FULL_BYTES = 1 << 20  # the journal's log takes some hundred kilobytes


def status_of(snap: Snapshot) -> Json:
    """``status -o json``."""
    return {
        "format_version": FORMAT_VERSION,
        "revision": snap.meta.get("revision"),
        "reconciler": reconciler_of(snap),
        "trouble": list(snap.trouble),
        "source": source_status(snap),
        "jobs": [job_status(snap, each) for each in snap.objects if each.kind == "Job"],
        "devices": devices_status(snap),
    }


def wrong_with(layout: Layout) -> str:
    """The reason why no reconciler can work here: a full disk, a crash loop; empty: nothing."""
    full = ""
    with contextlib.suppress(FileNotFoundError):
        disk = os.statvfs(layout.state)
        if disk.f_bavail * disk.f_frsize < FULL_BYTES:
            full = (
                f"the disk of {layout.state} is full: no change can be recorded until there is "
                "space; `rankfold cancel JOB` kills a job that fills it"
            )
    return "\n".join(filter(None, [full, restarts.report(layout)]))


def reconciler_of(snap: Snapshot) -> Json:
    """`reconciler_status` of a snapshot."""
    wrong = wrong_with(snap.layout)
    return reconciler_status(snap.reconciler, snap.objects, snap.records, snap.meta, wrong)


def reconciler_status(
    seen: liveness.Seen,
    objects: Iterable[Object],
    records: Mapping[str, Record],
    meta: Json,
    wrong: str,
) -> Json:
    """Whether a reconciler runs and answers, and what is not done if not. `meta`: the journal's
    keys about the source. `wrong`: see `wrong_with`."""
    jobs = [each.name for each in objects if each.kind == "Job"]
    live = [name for name in jobs if records.get(name, Record(name)).step != "ended"]
    unwatched = meta.get("unwatched") or {}
    followed = meta.get("watching") or unwatched.get("source")
    if seen.answers:
        parts = [seen.note, wrong, _unwatched(unwatched) if unwatched else ""]
        return {"running": True, "message": "\n".join(filter(None, parts))}
    lacking = []
    if live:
        lacking.append(f"nothing manages {some(live)}")
    if followed:
        lacking.append(f"nothing follows {followed}")
    if seen.runs:
        return {"running": False, "message": "; ".join([seen.trouble, *lacking])}
    if not lacking:
        return {"running": False, "message": wrong}
    way_out = "`rankfold watch` or `rankfold apply` starts one"
    message = f"no reconciler runs: {'; '.join(lacking)}; {way_out}"
    return {"running": False, "message": f"{message}\n{wrong}" if wrong else message}


def _unwatched(found: Json) -> str:
    return (
        f"nothing has followed {found['source']} since {time_of_day(found['since'])}: its "
        "`rankfold watch` exited; changes there have no effect until it is started again"
    )


def source_status(snap: Snapshot) -> Json:
    attempted, unreachable = snap.meta.get("attempted"), snap.meta.get("unreachable")
    unwatched = snap.meta.get("unwatched")
    followed = snap.meta.get("watching") is not None
    return {
        "name": snap.meta.get("source") or snap.meta.get("watching"),
        "watched": followed and snap.reconciler.answers,
        "attempted": attempted["revision"] if attempted else None,
        "conditions": [_source_ready(snap, attempted or {}, unreachable)]
        if attempted or unreachable or unwatched
        else [],
    }


def _source_ready(snap: Snapshot, attempted: Json, unreachable: Json | None) -> Json:
    faults = attempted.get("faults", [])
    good, reason, message, since = "True", "RevisionAccepted", "", attempted.get("time")
    if faults:
        good, reason, message = "False", "RevisionRefused", "\n".join(faults)
    if unreachable:
        parts = [unreachable["message"], message] if message else [unreachable["message"]]
        good, reason, message, since = (
            "False",
            "Unreachable",
            "\n".join(parts),
            unreachable["since"],
        )
    elif faults:
        pass
    elif (unwatched := snap.meta.get("unwatched")) is not None:
        good, reason, message = "Unknown", "NotFollowed", _unwatched(unwatched)
        since = unwatched["since"]
    elif snap.meta.get("watching") is not None and not snap.reconciler.answers:
        trouble = snap.reconciler.trouble or "no reconciler runs"
        good, reason, message = "Unknown", "NotFollowed", trouble
    return {"type": "Ready", "status": good, "reason": reason, "message": message, "since": since}


def phase(job: Job, record: Record, interrupted: bool = False) -> str:
    if record.step == "ended":
        return record.phase
    if interrupted:
        return "Interrupted"
    if record.step == "new":
        return "Suspended" if job.suspended else "Pending"
    if not record.placement and record.step in RESTING:
        return "Suspended" if job.suspended else "Pending"
    return "Running"


def _interrupted(snap: Snapshot, record: Record) -> list[Condition]:
    """A condition if a job has stopped and no reconciler handles that; empty: it runs, or a
    reconciler will restart it or record its end."""
    if snap.reconciler.answers or record.step == "ended":
        return []
    ending = record.ending or snap.planned_ends.get(record.name)
    if ending is None or ending.reason == "Cancelled":
        return []
    lacks = "the one that runs is unresponsive" if snap.reconciler.runs else "none runs"
    what = "restart it" if ending.phase == RESTARTING else "record how it ended"
    message = f"{ending.message}; a reconciler has to {what}, and {lacks}"
    return [Condition("Stalled", "True", "Interrupted", message)]


def job_status(snap: Snapshot, each: Object) -> Json:
    job = each.effective()
    assert isinstance(job, Job)
    record = snap.records.get(job.name, Record(job.name))
    interrupted = _interrupted(snap, record)
    now = phase(job, record, bool(interrupted))
    conditions = (*snap.plan.conditions.get(job.name, ()), *interrupted, *_unchecked(snap, each))
    converged = job.name in snap.plan.converged
    return {
        "name": job.name,
        "phase": now,
        "suspendedIn": _suspended_in(record) if now == "Suspended" else None,
        "worldSize": job.world_size,
        "gpus": job.gpus,
        "gpusMin": job.gpus_min,
        "demand": job.demand or job.gpus,
        "tier": job.tier,
        "priority": job.priority,
        "minRuntime": job.min_runtime_s,
        "devices": len(set(record.placement)) if record.holds() else 0,
        "placement": {str(r): d for r, d in enumerate(record.placement)} if record.holds() else {},
        "restarts": record.restarts,
        "gpuSeconds": round(record.used_so_far(clock.now()), 3),
        "checkpoints": [
            {"id": each.id, "time": each.time, "bytes": each.bytes} for each in record.checkpoints
        ],
        "conditions": [structs.asdict(c) for c in conditions],
        "epoch": record.epoch,
        "determinism": job.determinism,
        "command": list(job.command),
        "settings": settings.not_in(dict(job.env)),
        "source": {"file": each.origin.file, "line": each.origin.line, "revision": each.revision},
        "generation": each.generation,
        "observedGeneration": each.generation if converged else each.generation - 1,
        "message": record.ending.message if record.ending else "",
        "sharing": sharing.shared_counts(record, snap.observed),
        "guard": sharing.guard(record, snap.observed),
        "overhead": sharing.overhead(record, snap.observed),
        "ranks": [rank_status(snap, record, r) for r in range(job.world_size)],
        "changes": [change_status(c) for c in snap.changes_of.get(job.name, ())],
    }


def _suspended_in(record: Record) -> str | None:
    if record.step == "stored":
        return "node" if record.stored == NODE else "store"
    return "memory" if record.epoch > 0 and record.step != "new" else None


def _unchecked(snap: Snapshot, each: Object) -> list[Condition]:
    """A condition if the source cannot be read: its revision may not be the newest any more."""
    unreachable = snap.meta.get("unreachable")
    if not unreachable or each.source is None:
        return []
    message = f"since {time_of_day(unreachable['since'])} its source cannot be read: "
    return [Condition("SourceUnreachable", "True", "Unreachable", message + unreachable["message"])]


def rank_status(snap: Snapshot, record: Record, rank: int) -> Json:
    """One rank: its process, and the counters of the proxy that serves it."""
    seen = snap.observed.ranks.get((record.name, rank))
    device = record.placement[rank] if record.holds() and rank < len(record.placement) else None
    found: Json = {
        "rank": rank,
        "device": device,
        "pid": seen.pid if seen else None,
        "state": seen.state if seen else ("exited" if record.step == "ended" else "none"),
        "exitStatus": seen.exit_status if seen else None,
    }
    if record.step == "ended":
        found["exitStatus"] = record.exits[rank] if rank < len(record.exits) else None
        found["counters"] = dict(record.counters.get(str(rank), {}))
    there = snap.observed.devices.get(device) if device else None
    on_device = there.job(record.name) if there else None
    for counted in on_device.ranks if on_device else ():
        if counted.rank == rank:
            found["counters"] = dict(counted.counters)
            found["onDevice"] = counted.state
            if counted.at:
                found["at"], found["quietSeconds"] = counted.at, round(counted.quiet_s)
            if counted.error:
                found["error"] = counted.error
    return found


def change_status(change: Change) -> Json:
    return {
        "from": change.from_gpus,
        "to": change.to_gpus,
        "commit": change.commit,
        "wanted_at": change.wanted_at,
        "converge_s": change.converge_s,
        "pause_s": change.pause_s,
        "superseded": change.superseded,
    }


def devices_status(snap: Snapshot) -> list[Json]:
    desired: dict[str, Any] = {}
    for each in snap.objects:
        if not isinstance(each.spec, Job):
            desired.update({d.name: d for d in each.spec.devices})
    found = []
    for name in [*desired, *(n for n in snap.observed.devices if n not in desired)]:
        device, seen = desired.get(name), snap.observed.devices.get(name)
        ready = seen is not None and seen.ready
        ending = not ready and name in (snap.meta.get("told_to_end") or ())
        entry: Json = {
            "name": name,
            "type": device.type if device else (seen.type if seen else ""),
            "memory": seen.memory if seen and ready else (device.memory if device else 0),
            "used": seen.used if seen else 0,
            "ranks": snap.ranks_on.get(name, []),
            "state": _device_state(seen, device is not None, ending),
            "swap": seen.swap if seen else 0,
            "shares": seen.shares if seen else None,
            "counters": dict(seen.counters) if seen else {},
            "kernels": dict(seen.kernels) if seen else {},
        }
        if message := _device_message(snap, name, seen, ending):
            entry["message"] = message
        found.append(entry)
    return found


def _device_message(snap: Snapshot, name: str, seen: ObservedDevice | None, ending: bool) -> str:
    """Why a device is not `Ready`, or what prevents jobs from leaving it."""
    pid = (snap.meta.get("proxies") or {}).get(name, 0)
    if ending and (seen is None or seen.silent_since is None):
        return ""
    if seen is not None and seen.silent_since is not None:
        return silence("its proxy", seen.silent_since, seen.pid or pid)
    if seen is not None and seen.ready:
        return seen.lost or seen.trouble
    words = last_lines(snap.layout.proxy_file(name, ".log"), 1)
    if seen is None and pid:
        return f"its proxy (process {pid}) exited; last line of its log: {words}"
    return words


def _device_state(seen: ObservedDevice | None, desired: bool, ending: bool) -> str:
    """ending: the reconciler requested its proxy to end, and started none since."""
    if seen is None:
        return "Stopped" if ending else "Down"
    if seen.silent_since is not None:
        return "Down"
    if ending or not desired:
        return "Stopping"
    return "Ready" if seen.ready else "Starting"
