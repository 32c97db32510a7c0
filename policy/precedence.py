"""Which job goes before which, and which may take devices from which.

The precedence of a job is its level, then its priority, then whether it has a guarantee, then how
far it is behind its fraction, or its quota behind its share. Its level is its basis (its
quota, for example), then its tier. A job may shrink elastic jobs of its own level and of lower
ones, and suspend jobs of lower precedence; one that differs only in how far it is behind, if the
difference is the length of a turn. During the minimum run time of a job, no other one of its level
does either. A job that has been disturbed as often as it may be gives up devices only for
guarantees.

Devices with which an elastic job has grown are given up as if it were within its quota only, and
those beyond its quota as if it had borrowed all.
"""

from __future__ import annotations

import math

from msgspec import Struct, field

from rankfold.policy.vocabulary import (
    AGED,
    BORROWS,
    BUDGET_S,
    GUARANTEED,
    TIERS,
    WITHIN,
    Job,
    Rules,
)

_NUMBERS = {tier: number for number, tier in enumerate(TIERS)}
STEPS = 4  # in a turn: smaller differences between jobs that take turns are ignored

Precedence = tuple[int, float, bool, float]  # the highest goes first


class Terms(Struct, frozen=True, gc=False):
    """When a job gives up devices.

    importance: the least gives up devices first: the lowest level, the lowest priority, the job
        that is the furthest ahead of its fraction, or whose quota is of its share.
    shrinks_for: the lowest level whose jobs may shrink it; shrinks_beyond: the same, for devices
        beyond its quota.
    suspended_above: jobs of higher precedence may suspend it.
    moves_for: the lowest level for whose jobs it moves to other devices.
    """

    importance: tuple[float, ...]
    shrinks_for: int
    shrinks_beyond: int
    suspended_above: Precedence
    moves_for: int


class Alike(Struct, eq=False):
    """The properties of jobs that are equal in line.

    first: the highest goes first.
    """

    precedence: Precedence
    first: tuple[bool, Precedence, bool, bool]
    _terms: dict[int, Terms] = field(default_factory=dict)

    def terms(self, job: Job, protected: bool, spent: bool) -> Terms:
        """As `terms_of`, and the same object each time. job: one of these jobs."""
        key = protected + 2 * spent
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = terms_of(job, protected, spent)
        return found


class AlikeJobs:
    """The properties of each job's place in line, found once for all jobs that are alike."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Alike] = {}

    def of(self, job: Job) -> Alike:
        key = (
            job.tier, job.priority, job.basis, job.behind, job.guarantee != 0, job.begun,
            job.blocked, job.late and not job.on_devices,
        )  # fmt: skip
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Alike(precedence_of(job), first_in_line(job))
        return found


def first_in_line(job: Job) -> tuple[bool, Precedence, bool, bool]:
    """The highest goes first. A job that has started goes before one that has not: it uses host
    memory already. A job that cannot start (its folder is missing), or did not start in time, goes
    last: its devices would be idle."""
    starts = not job.blocked
    in_time = job.on_devices or not job.late
    return (in_time and (starts or job.begun), precedence_of(job), job.begun, starts)


def precedence_of(job: Job) -> Precedence:
    if job.basis == AGED:
        return (level_of(job), 0.0, True, 0.0)
    return (level_of(job), job.priority, job.guarantee != 0, job.behind)


def tier_of(job: Job) -> int:
    """0 for the lowest."""
    return _NUMBERS[job.tier]


def level_of(job: Job) -> int:
    """0 for the lowest; those that waited too long are equal."""
    return len(TIERS) * job.basis + (0 if job.basis == AGED else tier_of(job))


def level_of_growth(job: Job) -> int:
    """The level of devices with which it has grown within its quota."""
    return len(TIERS) * min(job.basis, WITHIN) + tier_of(job)


def level_beyond_quota(job: Job) -> int:
    return len(TIERS) * BORROWS + tier_of(job)


def is_protected(job: Job, now: float) -> bool:
    """Whether the minimum run time of a job that has devices is not over."""
    if not job.on_devices:  # it is being started
        return job.min_runtime > 0
    return 0 <= now - job.since < job.min_runtime


def is_spent(job: Job, rules: Rules, now: float) -> bool:
    """Whether a job has been disturbed as often as it may be."""
    most = rules.disturbances[tier_of(job)]
    if most is None:
        return False
    return sum(0 <= now - at < BUDGET_S for at in job.disturbed) >= most


def level_when_spent(borrows: bool) -> int:
    """The lowest level whose jobs may disturb a job that has been disturbed as often as it may be.
    A fraction is guaranteed to them, or they are within their quotas and it borrows."""
    return len(TIERS) * (WITHIN if borrows else GUARANTEED)


def suspended_above(job: Job, protected: bool, spent: bool = False) -> Precedence:
    """Jobs of higher precedence than this may suspend a job."""
    above: Precedence = (*precedence_of(job)[:3], job.behind + STEPS)
    if protected:
        above = (level_of(job), math.inf, True, math.inf)
    if spent:
        level = level_when_spent(job.basis == BORROWS) - 1
        above = max(above, (level, math.inf, True, math.inf))
    return above


def terms_of(job: Job, protected: bool, spent: bool) -> Terms:
    """protected: whether its minimum run time is not over; spent: whether it has been disturbed as
    often as it may be."""
    level = level_of_growth(job) + protected
    beyond = level_beyond_quota(job) + protected
    if spent:
        level = max(level, level_when_spent(job.basis == BORROWS))
        beyond = max(beyond, level_when_spent(borrows=True))
    importance = (level_of(job), job.priority, job.behind)
    moves_for = level_of(job) + protected
    if spent:
        moves_for = max(moves_for, level_when_spent(borrows=False))
    return Terms(importance, level, beyond, suspended_above(job, protected, spent), moves_for)
