"""Why a placement changes, and the reasons of decisions, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfold.plural import count
from rankfold.policy.precedence import tier_of
from rankfold.policy.vocabulary import AGED, BORROWS, PRIORITY_MAX, WITHIN, Cause, Job

if TYPE_CHECKING:
    from rankfold.policy.lending import Lender

LITTLE_MEMORY = "its ranks would need too much host memory"


def cause_of(job: Job, devices: tuple[int, ...]) -> Cause | None:
    """Why a job is placed on these devices, if that changes its placement."""
    if len(devices) == job.placed and (devices == job.own or set(devices) == set(job.own)):
        return None
    if job.drained and job.wants == "devices":
        return "drain"
    lost = len(job.own) < min(job.placed, job.devices)
    if job.wants == "devices" and lost:
        return "fault"
    return "serving" if job.serving else "spec"


def cause_of_loan(lender: Lender) -> Cause:
    if any(each.serving for each in lender.borrowers):
        return "serving"
    if any(_reclaims(each, lender.job) for each in lender.borrowers):
        return "quota"
    higher = any(tier_of(each) > tier_of(lender.job) for each in lender.borrowers)
    return "tier" if higher else "order"


def keeps(job: Job, devices: tuple[int, ...]) -> bool:
    """Whether a job runs on these devices, and nothing has to be done."""
    return job.on_devices and cause_of(job, devices) is None


def _reclaims(job: Job, other: Job) -> bool:
    """Whether a job gets back devices of its quota that another one has borrowed."""
    borrows = other.covered is not None and other.covered < other.placed
    return bool(job.covered) and borrows and job.quota != other.quota


def named(job: Job, other: Job) -> str:
    """A job, and of what quota, tier or priority it is if that is why `other` gives up devices for
    it."""
    if job.basis == AGED:
        return f"{job.name} (has waited too long)"
    if _reclaims(job, other):
        return f"{job.name} ({f'quota {job.quota}' if job.quota else 'no quota'})"
    if job.basis == WITHIN and other.basis == BORROWS:
        return f"{job.name} (within its quota)"
    if job.tier != other.tier:
        return f"{job.name} ({job.tier})"
    if job.priority > other.priority:
        if job.priority > PRIORITY_MAX:  # it is admitted, and `other` takes turns
            return f"{job.name} (guaranteed)"
        return f"{job.name} (priority {job.priority})"
    if job.behind > other.behind:
        return f"{job.name} (its turn)"
    return job.name


def of_drained(job: Job) -> str:
    verb = "is" if job.drained == 1 else "are"
    return f"{job.drained} of its {count(job.placed, 'device')} {verb} drained"


def too_few(wanted: int, free: int, where: str) -> str:
    """where: node or domain that all these devices are in; empty for any."""
    if where:
        return f"needs {count(wanted, 'device')} of one {where}; most that are free: {free}"
    return f"needs {count(wanted, 'device')}; free for it now: {free}"
