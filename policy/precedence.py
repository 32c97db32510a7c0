"""Which job goes before which, and which may take devices from which.

The precedence of a job is its tier, then its priority, then whether it has a guarantee, then how
far it is behind its fraction. A job may shrink elastic jobs of its own tier and of lower ones, and
suspend jobs of lower precedence; one that differs only in how far it is behind, if the difference
is the length of a turn. During the minimum run time of a job, no other one of its tier does either.
"""

from __future__ import annotations

import math

from rankfold.policy.vocabulary import TIERS, Job

STEPS = 4  # in a turn: smaller differences between jobs that take turns are ignored

Precedence = tuple[int, float, bool, float]  # the highest goes first


def precedence_of(job: Job) -> Precedence:
    return (tier_of(job), job.priority, job.guarantee != 0, job.behind)


def tier_of(job: Job) -> int:
    """0 for the lowest."""
    return TIERS.index(job.tier)


def is_protected(job: Job, now: float) -> bool:
    """Whether the minimum run time of a job that has devices is not over."""
    if not job.on_devices:  # it is being started
        return job.min_runtime > 0
    return 0 <= now - job.since < job.min_runtime


def suspended_above(job: Job, protected: bool) -> Precedence:
    """Jobs of higher precedence than this may suspend a job."""
    if protected:
        return (tier_of(job), math.inf, True, math.inf)
    return (*precedence_of(job)[:3], job.behind + STEPS)
