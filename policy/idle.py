"""Elastic jobs grow into devices that are idle when all jobs have had their turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rankfold.policy.causes import cause_of, keeps
from rankfold.policy.decided import Decided
from rankfold.policy.growth import growing, share
from rankfold.policy.lending import Wanting, sizes_of
from rankfold.policy.rates import speed_of
from rankfold.policy.vocabulary import Decision, Job


def grow(
    decided: Decided,
    line: Iterable[Wanting],
    spent: Collection[str],
    delay: float,
    now: float,
) -> None:
    """Give elastic jobs that have a place what is left, as far as that makes them faster: first
    those of the highest tier and priority, among these as growth.py shares devices. A job that
    would have to move has been where it is for `delay` seconds, and is not among `spent`: those
    that have been disturbed as often as they may be."""
    alike: dict[tuple[object, tuple[int, ...]], list[Job]] = {}
    for each in line:
        job = each.job
        decision = decided.decisions[job.name]
        if _may_grow(decision, job, spent, delay, now):
            groups: tuple[int, ...] | None = job.groups
            if decided.free.places is not None:
                groups = decided.unit_with(job, decided.decisions[job.name].devices or ())
            if groups is not None:
                key = (each.alike.precedence[:2], groups)
                its = alike.setdefault(key, [])
                if len(decision.devices or ()) < sizes_of(job)[-1]:
                    its.append(job)
    for (_, groups), jobs in alike.items():
        if free := decided.free.count(groups):
            sizes = [growing(speed_of(j, now), _have(decided, j), sizes_of(j), free) for j in jobs]
            share(sizes, free)
            for job, grown in zip(jobs, sizes, strict=True):
                if grown.at:
                    _grow_to(decided, job, groups, grown.size)


def _have(decided: Decided, job: Job) -> int:
    return len(decided.decisions[job.name].devices or ())


def _may_grow(
    decision: Decision, job: Job, spent: Collection[str], delay: float, now: float
) -> bool:
    if not decision.devices or decision.stays or decision.outcome != "granted":
        return False
    if not keeps(job, decision.devices):
        return True
    if job.late:
        return False
    return job.name not in spent and not 0 <= now - job.since < delay


def _grow_to(decided: Decided, job: Job, groups: Sequence[int], size: int) -> None:
    decision = decided.decisions[job.name]
    have = _have(decided, job)
    if size <= have or decision.devices is None or not decided.memory_allows(job, size):
        return
    new = decided.free.take(groups, size - have)
    # Also in the middle of its move: while it keeps the devices that it is on, and others.
    grows = job.placed > 0 and cause_of(job, decision.devices) is None
    decided.place(
        job,
        tuple(sorted([*decision.devices, *new])),
        cause="growth" if grows else None,
        reason="devices are idle" if grows else "",
    )
