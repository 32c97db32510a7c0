"""Decides how often the loop plans, and how long it sleeps between two turns, so that a fleet at
rest uses almost no CPU time, however large it is.

Planning takes time in proportion to the fleet. A plan without actions is kept until its input
changes. Time is part of the input, and always changes: a kept plan is renewed after an interval
that grows with the cost of planning and is at most `KEPT_MAX_S`. In a large fleet the end of an
interval (the next checkpoint, the next query to the store) is noticed that much later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec.structs import replace

from rankfold.reconciler import plan
from rankfold.reconciler.model.desired import Desired
from rankfold.reconciler.model.observed import (
    JobOnDevice,
    Observed,
    ObservedDevice,
    RankOnDevice,
    Spent,
)
from rankfold.reconciler.model.recorded import Record

PLAN_SHARE = 0.004  # of a core, for renewing plans when only time has passed
KEPT_MAX_S = 5.0
TURN_SHARE = 0.005  # of a core, for turns that find nothing new
SLEEP_MAX_S = 1.0


class LastPlan:
    """plan: the newest plan."""

    def __init__(self) -> None:
        self.plan = plan.Plan()
        self._input: object = None  # the input of `plan`; None: plan again
        self._due = 0.0  # CLOCK_MONOTONIC: when to plan again although only time has passed

    def renew(
        self,
        version: object,
        desired: Desired,
        records: Mapping[str, Record],
        observed: Observed,
        now: float,
        in_flight: frozenset[str],
    ) -> bool:
        """Plan again unless the result would be the same; returns whether it did. `version` differs
        whenever `desired` or `records` do; `now` and `in_flight` are as `plan` takes them.

        A plan with actions is never kept, because actions contain the time at which they were
        planned.
        """
        basis = version, in_flight, without_measurements(desired, observed)
        kept = basis == self._input and not self.plan.actions
        if kept and time.monotonic() < self._due:
            return False
        self._input = None  # if planning fails, the next call plans again
        begun = time.thread_time()
        self.plan = plan.plan(desired, records, observed, now, in_flight)
        self._input, took_s = basis, time.thread_time() - begun
        self._due = time.monotonic() + min(KEPT_MAX_S, took_s / PLAN_SHARE)
        return True

    def outdate(self) -> None:
        """Make the next `renew` plan, whatever its input is."""
        self._input = None


def sleep_after(turn_s: float, least_s: float) -> float:
    """Seconds to sleep after a turn of `turn_s` CPU seconds that found nothing new."""
    return max(least_s, min(SLEEP_MAX_S, turn_s / TURN_SHARE))


def without_measurements(desired: Desired, observed: Observed) -> Observed:
    """Only what a plan depends on: counters and usage change without any event."""
    devices = {
        name: _device(desired, observed_device)
        for name, observed_device in observed.devices.items()
    }
    minute = observed.minute if desired.defragmentation.windows else -1
    return replace(observed, devices=devices, minute=minute)


def _device(desired: Desired, observed: ObservedDevice) -> ObservedDevice:
    jobs = tuple(_job(desired, each) for each in observed.jobs)
    return replace(observed, used=0, swap=0, counters={}, kernels={}, jobs=jobs)


def _job(desired: Desired, report: JobOnDevice) -> JobOnDevice:
    job = desired.jobs.get(report.job)
    counts_steps = bool(job and job.save_every_steps)
    ranks = tuple(_rank(each, counts_steps) for each in report.ranks)
    return replace(report, ranks=ranks, shared=0, spent=Spent(), guard=None)


def _rank(rank: RankOnDevice, counts_steps: bool) -> RankOnDevice:
    return replace(rank, counters=rank.counters if counts_steps else {}, quiet_s=0.0)
