"""The GPU fractions that tiers guarantee: to which jobs, and what each job has had of its own.

A fraction is the progress of a job in a period, as the seconds that it would have taken on `demand`
devices of its own, divided by the seconds of the period. The first period begins when the job is
admitted. A job is admitted if the devices that all admitted jobs need fit the fleet; any other job
of its tier is treated as basic.

An admitted job needs the fewest devices on which its fraction holds all the time, and keeps as
many. Only jobs of one device take turns, where the fraction is less than 1: one that is behind by
the length of a turn, compared with another one, gets that one's device. The need of such a job is
its fraction, and a little more for turns and pauses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec.structs import replace

from rankfold.policy.places import Places, places_of
from rankfold.policy.precedence import STEPS, tier_of
from rankfold.policy.sizes import useful
from rankfold.policy.vocabulary import (
    GUARANTEED,
    PRIORITY_MAX,
    TIERS,
    Fleet,
    Guaranteed,
    Job,
    Rules,
)

TURNS = 24  # in a period
FIT = 1e-6  # devices


def fraction_of(job: Job, rules: Rules) -> float:
    """The fraction that its tier guarantees; 0: none."""
    return rules.fractions[tier_of(job)]


def _guaranteeing(rules: Rules) -> frozenset[str]:
    """The tiers that guarantee a fraction."""
    return frozenset(tier for tier, each in zip(TIERS, rules.fractions, strict=True) if each)


def period_of(job: Job, rules: Rules) -> float:
    return rules.periods[tier_of(job)]


def demand_of(job: Job) -> int:
    return job.demand or job.devices


def folds(world_size: int, devices: int) -> int:
    """The ranks of the device that has the most."""
    return -(-world_size // devices)


def fewest_for(job: Job, fraction: float) -> int:
    """The fewest devices on which a job always makes this fraction of its progress."""
    if job.guarantee is None:
        return job.devices
    return _fewest(job.world_size, demand_of(job), job.guarantee, job.devices, fraction)


@functools.lru_cache(maxsize=4096)  # called for the same jobs at every turn
def _fewest(world_size: int, demand: int, least: int, most: int, fraction: float) -> int:
    slowest = folds(world_size, demand) / fraction
    sizes = useful(world_size, max(1, least), most)
    return next((each for each in sizes if folds(world_size, each) <= slowest), sizes[-1])


def need_of(job: Job, rules: Rules) -> float:
    """The devices that a job needs for its fraction; less than 1 if it takes turns."""
    if job.devices > 1:
        return fewest_for(job, fraction_of(job, rules))
    if job.guaranteed is not None:  # pauses that were measured since then change nothing
        return job.guaranteed.need
    behind = (1 + 2 / STEPS) / TURNS  # part of the period by which it may be behind at the end
    pauses = job.pause * TURNS / 2 / period_of(job, rules)
    return min(1.0, fraction_of(job, rules) + behind + pauses)


def admitted(fleet: Fleet, jobs: Iterable[Job], rules: Rules) -> dict[str, float]:
    """The jobs whose fraction is guaranteed, with the devices that each needs. Jobs that have been
    admitted come first; the others are in the order of tier, priority and creation. jobs: in the
    order of creation. One that has to be in one node or domain is admitted if there is one that has
    enough in addition to what admitted jobs need there."""
    left = [float(group.to_come) for group in fleet.groups]
    found: dict[str, float] = {}
    places = places_of(fleet.groups)
    guarantees = _guaranteeing(rules)
    for job in _in_order(each for each in jobs if each.tier in guarantees):
        need = need_of(job, rules)
        if job.covered is not None and need > job.covered + FIT:
            continue  # it is beyond its quota
        if job.wants not in ("devices", "nothing") or job.blocked or not job.groups:
            continue
        groups = job.groups
        if places is not None:
            groups = _where(places, job, need, left)
        there = left[groups[0]] if len(groups) == 1 else sum(left[at] for at in groups)
        if there < need - FIT:
            continue
        found[job.name] = need
        for at in groups:
            part = min(left[at], need)
            left[at] -= part
            if (need := need - part) <= 0:
                break
    return found


def _where(places: Places, job: Job, need: float, left: Sequence[float]) -> tuple[int, ...]:
    """The groups from which a job gets what it needs: first those that it has devices of. If it has
    to be in one node or domain, these are the groups of the one in which it is, or else of the one
    that has the fewest devices left and enough."""

    has = places.counts(job.own)
    units = places.units_of(job)
    unit = units[0]
    if len(units) > 1:
        there = [sum(left[at] for at in each) for each in units]
        order = [
            (each < need - FIT, -sum(has[at] for at in groups), each, number)
            for number, (each, groups) in enumerate(zip(there, units, strict=True))
        ]
        unit = units[min(order)[-1]]
    return tuple(sorted(unit, key=lambda at: -has[at])) if has else unit


def _in_order(jobs: Iterable[Job]) -> list[Job]:
    """Jobs in the order in which they are admitted; equal ones in the order that they have."""
    admitted: dict[tuple[int, int], list[Job]] = {}
    others: dict[tuple[int, int], list[Job]] = {}
    for job in jobs:
        key = (tier_of(job), job.priority)
        (others if job.guaranteed is None else admitted).setdefault(key, []).append(job)
    first = [job for key in sorted(admitted, reverse=True) for job in admitted[key]]
    first.sort(key=attrgetter("guaranteed.admitted"))
    return first + [job for key in sorted(others, reverse=True) for job in others[key]]


def as_guaranteed(jobs: Sequence[Job], needs: dict[str, float], rules: Rules) -> list[Job]:
    """Jobs as the scheduler treats them. One that is admitted keeps the devices that it needs
    from all others, or takes turns; one that is not is basic."""
    found = []
    guarantees = _guaranteeing(rules)
    for job in jobs:
        need = needs.get(job.name)
        if job.tier not in guarantees:
            found.append(job)
        elif need is None:
            found.append(replace(job, tier=TIERS[0], admitted=False))
        elif need < 1:
            behind = math.floor(_behind(job, rules) / _step(job, rules))
            found.append(replace(job, basis=GUARANTEED, priority=0, behind=behind, admitted=True))
        else:
            least = job.guarantee if job.guarantee is None else math.ceil(need)
            priority = PRIORITY_MAX + 1
            found.append(
                replace(job, basis=GUARANTEED, priority=priority, guarantee=least, admitted=True)
            )
    return found


def _behind(job: Job, rules: Rules) -> float:
    """Seconds of progress that a job lacks in this period to what it needs for its fraction; below
    0 if it is ahead."""
    found = job.guaranteed
    if found is None:
        return 0.0
    return need_of(job, rules) * (found.until - found.begun) - found.progress


def _step(job: Job, rules: Rules) -> float:
    return period_of(job, rules) / TURNS / STEPS


def wakes(jobs: Iterable[Job], rules: Rules) -> float:
    """Seconds until a turn may be over although no job arrives or ends; infinity: no job waits for
    its turn."""
    waits: dict[str, float] = {}  # tier → steps by which the last of those that wait is behind
    runs: dict[str, float] = {}  # the same of the first of those that run
    steps: dict[str, float] = {}
    for job in jobs:
        if job.guaranteed is not None and job.wants == "devices":
            tier, step = job.tier, _step(job, rules)
            behind, steps[tier] = _behind(job, rules) / step, step
            if job.own:
                runs[tier] = min(behind, runs.get(tier, math.inf))
            else:
                waits[tier] = max(behind, waits.get(tier, -math.inf))
    # The difference grows by a second in each second.
    found = (
        steps[tier] * max(1.0, STEPS - (waits[tier] - runs.get(tier, math.inf))) for tier in waits
    )
    return min(found, default=math.inf)


# ---- what a job has had


def admit(job: Job, rules: Rules, now: float) -> Guaranteed:
    fraction, period = fraction_of(job, rules), period_of(job, rules)
    demand, need = demand_of(job), need_of(job, rules)
    return Guaranteed(fraction, period, demand, now, now, now, need=need)


def is_violated(guaranteed: Guaranteed) -> bool:
    """Whether the job has lost more time in this period than its fraction allows."""
    lost = guaranteed.until - guaranteed.begun - guaranteed.progress
    allowed = (1 - guaranteed.fraction) * guaranteed.period
    return lost > allowed + FIT * guaranteed.period


def rate_of(guaranteed: Guaranteed, world_size: int, devices: int) -> float:
    """Its progress in a second on so many devices."""
    if not devices:
        return 0.0
    return folds(world_size, guaranteed.demand) / folds(world_size, devices)


def counted(guaranteed: Guaranteed, rate: float, now: float) -> Guaranteed:
    """With the progress until `now`, at a constant rate. A clock that is set back changes
    nothing."""
    while now >= guaranteed.begun + guaranteed.period:
        guaranteed = _next_period(guaranteed, rate, now)
    more = max(0.0, now - guaranteed.until)
    return replace(
        guaranteed,
        progress=guaranteed.progress + rate * more,
        until=max(now, guaranteed.until),
    )


def _next_period(guaranteed: Guaranteed, rate: float, now: float) -> Guaranteed:
    """At the end of its period, or, if that has just begun, of all whole periods until `now`."""
    period = guaranteed.period
    whole = 1
    if guaranteed.until <= guaranteed.begun:
        whole = max(1, math.floor((now - guaranteed.begun) / period))
    end = guaranteed.begun + whole * period
    progress = guaranteed.progress + rate * max(0.0, end - guaranteed.until)
    before = replace(guaranteed, until=guaranteed.begun + period, progress=progress / whole)
    return replace(
        guaranteed,
        begun=end,
        until=max(end, guaranteed.until),
        progress=0.0,
        earlier=guaranteed.earlier + progress,
        periods=guaranteed.periods + whole,
        violated=guaranteed.violated + whole * is_violated(before),
    )
