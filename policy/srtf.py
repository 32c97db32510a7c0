"""Shortest remaining time first, preemptive: the job that would end first gets all its devices,
then the next one. A job that does not fit in what is left gets none, and later ones that fit pass
it.

The time that is left of a job is known only in simulations, so this scheduler is for them: each job
is for devices of one group, their number is fixed, and host memory is not limited. A job whose
remaining time is not known comes last. A job that keeps running keeps its devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rankfold.plural import count
from rankfold.policy.causes import cause_of
from rankfold.policy.free import Free
from rankfold.policy.vocabulary import Decision, Disturbance, Fleet, Job, Rules

Rank = tuple[float, float, str]


def rank_of(job: Job) -> Rank:
    """Its place in the order of jobs; the least gets devices first."""
    return (math.inf if job.remaining is None else job.remaining, job.created, job.name)


def decide(fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float) -> dict[str, Decision]:
    """As decide.decide. Raises ValueError for a job that is not for exactly one group. Takes time
    in proportion to jobs times their logarithm, and to devices."""
    wanted = sorted((job for job in jobs if job.wants == "devices"), key=rank_of)
    for job in wanted:
        if len(job.groups) != 1:
            raise ValueError(f"srtf: {job.name} is for {count(len(job.groups), 'group')}, not one")
    free = Free(fleet.groups)
    free.remove({position for job in wanted for position in job.own})
    left = [free.count([position]) for position in range(len(fleet.groups))]
    for job in wanted:
        left[job.groups[0]] += len(job.own)
    fits: set[str] = set()
    decisions: dict[str, Decision] = {}
    for job in wanted:
        group = job.groups[0]
        if job.devices <= left[group]:
            left[group] -= job.devices
            fits.add(job.name)
        else:
            free.put(group, job.own)
            decisions[job.name] = refusal(job, left[group])
    starts: dict[int, str] = {}  # group → the last job so far that starts
    disturbed: dict[str, list[Disturbance]] = {}
    for job in wanted:
        group = job.groups[0]
        if job.name in fits and not is_whole(job):
            free.put(group, job.own)
            starts[group] = job.name
        elif job.name not in fits and job.own and group in starts:
            disturbed.setdefault(starts[group], []).append(Disturbance(job.name, job.pause))
    for job in wanted:
        if job.name in fits:
            decisions[job.name] = grant(job, free, disturbed.get(job.name, ()))
    return decisions


def is_whole(job: Job) -> bool:
    """Whether a job has all the devices that it requests."""
    return len(job.own) == job.devices


def refusal(job: Job, left: int) -> Decision:
    """left: devices of its group that jobs before it leave."""
    reason = f"needs {count(job.devices, 'device')}; jobs that end sooner leave {left}"
    if not job.own:
        return Decision(None, "devices", free=left, reason=reason)
    return Decision((), "devices", free=left, cause="order", reason=reason)


def grant(job: Job, free: Free, disturbs: Iterable[Disturbance]) -> Decision:
    """disturbs: jobs that lose their devices to it."""
    if is_whole(job):
        return Decision(job.own, number=job.devices)
    devices = tuple(free.take(job.groups, job.devices))
    cause = cause_of(job, devices)
    return Decision(devices, number=job.devices, cause=cause, disturbs=tuple(disturbs))
