"""Elastic jobs grow into devices that are idle when all jobs have had their turn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rankfold.policy.causes import cause_of, keeps
from rankfold.policy.decided import Decided
from rankfold.policy.growth import growing, share
from rankfold.policy.lending import Wanting, is_among, sizes_of
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
    mix = False
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
                    mix |= bool(job.capabilities)
    if mix:
        _mix(decided, alike, now)
        return
    for (_, groups), jobs in alike.items():
        if free := decided.free.count(groups):
            sizes = [growing(speed_of(j, now), _have(decided, j), sizes_of(j), free) for j in jobs]
            share(sizes, free)
            for job, grown in zip(jobs, sizes, strict=True):
                if grown.at:
                    _grow_by(decided, job, [(groups, grown.size - grown.sizes[0])])


def _mix(
    decided: Decided, alike: Mapping[tuple[object, tuple[int, ...]], list[Job]], now: float
) -> None:
    """The same where some jobs may use several types of devices at once: all jobs of a tier and
    priority share the devices of all groups."""
    from rankfold.policy import mixing  # here: only simulated jobs do

    levels: dict[object, list[tuple[Job, mixing.Mixed]]] = {}
    for (level, groups), jobs in alike.items():
        for job in jobs:
            have = _counts(decided, job, groups)
            mixed = mixing.Mixed(groups, have, job.devices, _speed_of(job, groups, now))
            levels.setdefault(level, []).append((job, mixed))
    for each in levels.values():
        free = {group: decided.free.of(group) for group in range(len(decided.groups))}
        mixing.share([mixed for _, mixed in each], free)
        for job, mixed in each:
            have = _counts(decided, job, mixed.groups)
            numbers = zip(mixed.groups, have, mixed.counts, strict=True)
            _grow_by(decided, job, [((group,), most - least) for group, least, most in numbers])


def _counts(decided: Decided, job: Job, groups: Sequence[int]) -> tuple[int, ...]:
    """How many of a job's devices are of each group."""
    own = decided.decisions[job.name].devices or ()
    members = [decided.groups[group].members or decided.groups[group].free for group in groups]
    return tuple(sum(is_among(device, each) for device in own) for each in members)


def _speed_of(job: Job, groups: tuple[int, ...], now: float) -> Callable[[tuple[int, ...]], float]:
    """How fast a job is with numbers of devices of these groups."""
    if job.capabilities:
        from rankfold.policy.mixing import eq_1

        of = dict(zip(job.groups, job.capabilities, strict=True))
        return functools.partial(eq_1, job.world_size, tuple(of[group] for group in groups))
    speed = speed_of(job, now)
    return lambda counts: speed.on(sum(counts))


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


def _grow_by(decided: Decided, job: Job, parts: Sequence[tuple[Sequence[int], int]]) -> None:
    """Give a job more devices: of some groups, how many."""
    decision = decided.decisions[job.name]
    added = sum(number for _, number in parts)
    if not added or decision.devices is None:
        return
    if not decided.memory_allows(job, _have(decided, job) + added):
        return
    new = [device for groups, number in parts for device in decided.free.take(groups, number)]
    # Also in the middle of its move: while it keeps the devices that it is on, and others.
    grows = job.placed > 0 and cause_of(job, decision.devices) is None
    decided.place(
        job,
        tuple(sorted([*decision.devices, *new])),
        cause="growth" if grows else None,
        reason="devices are idle" if grows else "",
    )
