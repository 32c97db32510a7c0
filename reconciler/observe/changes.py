"""Measures a change of a running job's devices, from the request to convergence. Pure.

The loop calls `requested` when desired state changes, `decided` when the policy moves a job, and
`follow` after every observation.
"""

from __future__ import annotations

from msgspec.structs import replace

from rankfold.policy.vocabulary import Cause
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.observed import JobOnDevice, Observed
from rankfold.reconciler.model.recorded import Change, Record

# Causes of moves to as many other devices; they are changes, too.
MOVES: tuple[Cause, ...] = ("defragmentation", "drain")


def devices_now(record: Record) -> int:
    """The number of devices of a started job; 0 while it is suspended."""
    return len(set(record.placement))


def requested(
    job: Job, record: Record, commit: str, wanted_at: float, wanted: float
) -> Change | None:
    """The change that a new spec requires of a placed or resting job; None if there is none.

    wanted_at: wall clock; wanted: the same moment, fleet time.
    """
    if record.epoch == 0 or record.step == "ended" or record.ending:
        return None
    if job.elastic and not job.suspended:
        return None  # the policy decides how many devices it gets, and when
    now, gpus = devices_now(record), 0 if job.suspended else job.gpus
    if now == gpus:
        return None
    return Change(0, job.name, now, gpus, commit, wanted_at, epoch=record.epoch, wanted=wanted)


def decided(
    record: Record, gpus: int, cause: str, last: Change | None, wanted_at: float, wanted: float
) -> Change | None:
    """The change that a decision of the policy requires of a job that it begins to move, or of one
    that it brings back; None if it is followed already, or if the job lost its devices and
    restarts.

    gpus: number of devices that the job gets; cause: of the decision; last: its last change.
    """
    if record.epoch == 0 or record.ending or record.step not in ("placed", "detached"):
        return None
    now = devices_now(record)
    followed = last and is_open(last) and (not last.cause or last.to_gpus == gpus)
    restarts = not now and (last is None or last.to_gpus != 0)
    if (now == gpus and cause not in MOVES) or followed or restarts:
        return None
    return Change(
        0, record.name, now, gpus, "", wanted_at, epoch=record.epoch, wanted=wanted, cause=cause
    )


def is_open(change: Change) -> bool:
    """Whether it is still followed."""
    return change.converged_at is None and not change.superseded


def is_withdrawn(change: Change, record: Record, gpus: int | None, elsewhere: bool = False) -> bool:
    """Whether the policy no longer requests a change. gpus: number of devices that the job should
    have now; None: as many as it has. elsewhere: whether they are others than it has."""
    stays = gpus is None or gpus == devices_now(record)
    if change.from_gpus == change.to_gpus:
        stays = not elsewhere
    return bool(change.cause) and stays and record.step == "placed" and record.epoch == change.epoch


def follow(
    change: Change, record: Record, observed: Observed, converged: bool, now: float
) -> Change:
    """Fill in the times of what is observed now (fleet time)."""
    observed_jobs = [
        there
        for device in dict.fromkeys(record.placement)
        if (there_is := observed.devices.get(device))
        and (there := there_is.job(change.job))
        and there.epoch == record.epoch
    ]
    everywhere = bool(observed_jobs) and len(observed_jobs) == devices_now(record)
    if record.epoch == change.epoch and record.step == "placed" and change.cut_at is None:
        if everywhere and all(s.state == "cut" and s.cut_at is not None for s in observed_jobs):
            change = replace(
                change, cut_at=min(s.cut_at for s in observed_jobs if s.cut_at is not None)
            )
    if record.epoch > change.epoch and record.step == "placed" and change.released_at is None:
        free = [s for s in observed_jobs if s.released_at is not None or _untouched(s, observed)]
        if (
            everywhere
            and len(free) == len(observed_jobs)
            and all(s.state == "running" for s in observed_jobs)
        ):
            last = max(
                (s.released_at for s in observed_jobs if s.released_at is not None), default=now
            )
            change = replace(change, released_at=last)
    if change.to_gpus == 0 and change.freed_at is None and record.step == "detached":
        holders = (device.job(change.job) for device in observed.devices.values())
        if not record.placement and all(h is None or h.state == "saved" for h in holders):
            change = replace(change, freed_at=now)
    if (converged or change.cause) and _fulfilled(change, record):
        change = replace(change, converged_at=now)
    return change


def _untouched(there: JobOnDevice, observed: Observed) -> bool:
    """Whether no program of these ranks has requested a device, so that nothing has to be
    released."""
    ranks = [observed.ranks.get((there.job, each.rank)) for each in there.ranks]
    return bool(ranks) and all(each is not None and not each.channel for each in ranks)


def _fulfilled(change: Change, record: Record) -> bool:
    if change.to_gpus == 0:
        return change.freed_at is not None
    return devices_now(record) == change.to_gpus and change.released_at is not None
