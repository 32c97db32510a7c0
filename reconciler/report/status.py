"""Status of a fleet as JSON.

The content is stable (docs/status.md); fields may be added.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from rankfold import settings
from rankfold.policy.serving import bounded
from rankfold.policy.vocabulary import Rate
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
from rankfold.reconciler.wording import first_few, time_of_day, unresponsive

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
        "services": services_status(snap),
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
    reconciler: liveness.Liveness,
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
    if reconciler.answers:
        parts = [reconciler.note, wrong, _unwatched(unwatched) if unwatched else ""]
        return {"running": True, "message": "\n".join(filter(None, parts))}
    lacking = []
    if live:
        lacking.append(f"nothing manages {first_few(live)}")
    if followed:
        lacking.append(f"nothing follows {followed}")
    if reconciler.runs:
        return {"running": False, "message": "; ".join([reconciler.trouble, *lacking])}
    if not lacking:
        return {"running": False, "message": wrong}
    way_out = "`rankfold watch` or `rankfold apply` starts one"
    message = f"no reconciler runs: {'; '.join(lacking)}; {way_out}"
    return {"running": False, "message": f"{message}\n{wrong}" if wrong else message}


def _unwatched(problem: Json) -> str:
    return (
        f"nothing has followed {problem['source']} since {time_of_day(problem['since'])}: its "
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


def services_status(snap: Snapshot) -> list[Json]:
    """The services that files describe."""
    jobs = [each.effective() for each in snap.objects if each.kind == "Job" and not each.removed]
    services = {j.service.name: j.service for j in jobs if isinstance(j, Job) and j.service}
    numbers = snap.meta.get("replicas") or {}
    problems = snap.meta.get("load_problems") or {}
    return [
        {
            "name": name,
            "replicas": bounded(numbers.get(name), each.least, each.most)
            if each.load
            else each.most,
            "min": each.least,
            "max": each.most,
            "onDevices": sum(_is_on_devices(snap, each.replica(at)) for at in range(each.most)),
            "load": each.load or None,
            "perReplica": each.per_replica if each.load else None,
            "message": problems.get(name, ""),
        }
        for name, each in sorted(services.items())
    ]


def _is_on_devices(snap: Snapshot, job: str) -> bool:
    return job in snap.records and bool(snap.records[job].holds())


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
    next_step = "restart it" if ending.phase == RESTARTING else "record how it ended"
    message = f"{ending.message}; a reconciler has to {next_step}, and {lacks}"
    return [Condition("Stalled", "True", "Interrupted", message)]


def job_status(snap: Snapshot, each: Object) -> Json:
    job = each.effective()
    assert isinstance(job, Job)
    job = structs.replace(job, idle=job.name in snap.idle)
    record = snap.records.get(job.name, Record(job.name))
    interrupted = _interrupted(snap, record)
    now = phase(job, record, bool(interrupted))
    conditions = (*snap.plan.conditions.get(job.name, ()), *interrupted, *_unchecked(snap, each))
    converged = job.name in snap.plan.converged
    return {
        "name": job.name,
        "service": job.service.name if job.service else None,
        "phase": now,
        "suspendedIn": _suspended_in(record) if now == "Suspended" else None,
        "worldSize": job.world_size,
        "gpus": job.gpus,
        "gpusMin": job.gpus_min,
        "demand": job.demand or job.gpus,
        "tier": job.tier,
        "quota": job.quota or None,
        "locality": job.locality,
        "priority": job.priority,
        "minRuntime": job.min_runtime_s,
        "timeLimit": job.time_limit_s or None,
        "timeLeft": _time_left(job, record),
        "devices": len(set(record.placement)) if record.holds() else 0,
        "placement": {str(r): d for r, d in enumerate(record.placement)} if record.holds() else {},
        "restarts": record.restarts,
        "guaranteed": _guaranteed(record),
        "queue": _queue(snap, job, record),
        "rates": rates_of(job, record, snap.history_of(job, record)),
        "slower": _slower(record),
        "pauses": {kind: round(record.pauses[kind], 6) for kind in sorted(record.pauses)},
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
        "collectives": sharing.collectives(record, snap.observed),
        "overhead": sharing.overhead(record, snap.observed),
        "ranks": [rank_status(snap, record, r) for r in range(job.world_size)],
        "changes": [change_status(c) for c in snap.changes_of.get(job.name, ())],
    }


def _time_left(job: Job, record: Record) -> float | None:
    left = record.time_left(job, clock.now())
    return None if left is None else round(max(0.0, left), 3)


def _guaranteed(record: Record) -> Json | None:
    found = record.guaranteed_so_far(clock.now())
    if found is None:
        return None
    since, here = found.until - found.admitted, found.until - found.begun
    return {
        "fraction": found.fraction,
        "demand": found.demand,
        "measured": round((found.earlier + found.progress) / since, 4) if since else None,
        "measuredInPeriod": round(found.progress / here, 4) if here else None,
        "periods": found.periods,
        "violated": found.violated,
    }


def _queue(snap: Snapshot, job: Job, record: Record) -> Json | None:
    position = snap.plan.queue.get(job.name)
    if position is None:
        return None
    since = max(job.created, record.rested_at)
    first_at = clock.wall(since + snap.max_wait_s) if snap.max_wait_s else None
    return {
        "position": position,
        "waiting": len(snap.plan.queue),
        "since": clock.wall(since),
        "firstAt": first_at,
    }


def rates_of(job: Job, record: Record, history: Sequence[Rate]) -> list[Json]:
    """How fast a job was on each number of devices, and how fast it would be on the others of its
    range. history: the rates of other jobs with its program."""
    if not record.rates and not history:
        return []
    from rankfold.policy.rates import estimate  # here: most jobs have not been measured
    from rankfold.policy.sizes import useful

    sizes: tuple[int, ...] = (job.gpus,)
    if job.gpus_min is not None:
        sizes = useful(job.world_size, max(1, job.gpus_min), job.gpus)
    measured = {each.devices: each for each in record.rates}
    found: list[Json] = []
    for devices in sorted({*sizes, *measured}):
        rate = measured.get(devices)
        guess = estimate(job.world_size, devices, record.rates, history, clock.now())
        if (per_s := guess if rate is None else rate.per_s) is None:
            continue
        entry = {
            "devices": devices,
            "perSecond": _digits(per_s),
            "basis": "estimated" if rate is None else "measured",
            "at": None if rate is None else clock.wall(rate.at),
            "estimate": None if guess is None else _digits(guess),
        }
        found.append(entry)
    return found


def _digits(number: float) -> float:
    return float(f"{number:.4g}")


def _slower(record: Record) -> Json | None:
    if not record.rates:
        return None
    from rankfold.policy.rates import RETRY_S, slower  # here: most jobs have not been measured

    rate = slower(record.rates, clock.now())
    if rate is None or rate.before is None:
        return None
    until = clock.wall(rate.at + RETRY_S)
    return {"devices": rate.devices, "than": rate.before.devices, "until": until}


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
    observed = snap.observed.ranks.get((record.name, rank))
    device = record.placement[rank] if record.holds() and rank < len(record.placement) else None
    status: Json = {
        "rank": rank,
        "device": device,
        "pid": observed.pid if observed else None,
        "state": observed.state if observed else ("exited" if record.step == "ended" else "none"),
        "exitStatus": observed.exit_status if observed else None,
    }
    if record.step == "ended":
        status["exitStatus"] = record.exits[rank] if rank < len(record.exits) else None
        status["counters"] = dict(record.counters.get(str(rank), {}))
    observed_device = snap.observed.devices.get(device) if device else None
    on_device = observed_device.job(record.name) if observed_device else None
    if observed_device and observed_device.cores:
        status["cores"] = list(observed_device.cores)
    for counted in on_device.ranks if on_device else ():
        if counted.rank == rank:
            status["counters"] = dict(counted.counters)
            status["onDevice"] = counted.state
            if counted.at:
                status["at"], status["quietSeconds"] = counted.at, round(counted.quiet_s)
            if counted.error:
                status["error"] = counted.error
    return status


def change_status(change: Change) -> Json:
    return {
        "from": change.from_gpus,
        "to": change.to_gpus,
        "commit": change.commit,
        "wanted_at": change.wanted_at,
        "converge_s": change.converge_s,
        "pause_s": change.pause_s,
        "superseded": change.superseded,
        "cause": change.cause or "spec",
    }


def devices_status(snap: Snapshot) -> list[Json]:
    desired: dict[str, Any] = {}
    for each in snap.objects:
        if not isinstance(each.spec, Job):
            desired.update({d.name: d for d in each.spec.devices})
    entries = []
    for name in [*desired, *(n for n in snap.observed.devices if n not in desired)]:
        device, observed = desired.get(name), snap.observed.devices.get(name)
        ready = observed is not None and observed.ready
        ending = not ready and name in (snap.meta.get("told_to_end") or ())
        entry: Json = {
            "name": name,
            "type": device.type if device else (observed.type if observed else ""),
            "domain": device.domain or None if device else None,
            "node": device.node or None if device else None,
            "memory": observed.memory if observed and ready else (device.memory if device else 0),
            "cores": list(observed.cores) if observed and observed.cores else None,
            "used": observed.used if observed else 0,
            "ranks": snap.ranks_on.get(name, []),
            "state": _device_state(observed, device is not None, ending),
            "drain": _drain(snap, name) if device and device.drained else None,
            "swap": observed.swap if observed else 0,
            "shares": observed.shares if observed else None,
            "counters": dict(observed.counters) if observed else {},
            "kernels": dict(observed.kernels) if observed else {},
        }
        if message := _device_message(snap, name, observed, ending):
            entry["message"] = message
        entries.append(entry)
    return entries


def _drain(snap: Snapshot, device: str) -> str:
    """Whether a device that is drained is empty."""
    used = any(device in record.holds() for record in snap.records.values())
    return "draining" if used or snap.ranks_on.get(device) else "drained"


def _device_message(
    snap: Snapshot, name: str, observed: ObservedDevice | None, ending: bool
) -> str:
    """Why a device is not `Ready`, or what prevents jobs from leaving it."""
    pid = (snap.meta.get("proxies") or {}).get(name, 0)
    if ending and (observed is None or observed.silent_since is None):
        return ""
    if observed is not None and observed.silent_since is not None:
        return unresponsive("its proxy", observed.silent_since, observed.pid or pid)
    if observed is not None and observed.ready:
        return observed.lost or observed.trouble
    words = last_lines(snap.layout.proxy_file(name, ".log"), 1)
    if observed is None and pid:
        return f"its proxy (process {pid}) exited; last line of its log: {words}"
    return words


def _device_state(observed: ObservedDevice | None, desired: bool, ending: bool) -> str:
    """ending: the reconciler requested its proxy to end, and started none since."""
    if observed is None:
        return "Stopped" if ending else "Down"
    if observed.silent_since is not None:
        return "Down"
    if ending or not desired:
        return "Stopping"
    return "Ready" if observed.ready else "Starting"
