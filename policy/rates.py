"""Growth that made a job slower is taken back, and not tried again for a while.

A job's rate is measured on each number of devices that it runs on (reconciler/rates.py). If it is
lower on more devices than it was on fewer, the job returns to the fewer ones, and does not grow
beyond them for RETRY_S. Then it may grow again, and is measured again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rankfold.plural import count
from rankfold.policy.lending import least_of
from rankfold.policy.speed import Speed, speed
from rankfold.policy.vocabulary import Decision, Disturbance, Job, Rate

SLOWER = 0.95  # of the rate on fewer devices: what is above counts as equal
DEVIATIONS = 2.0  # standard errors by which a rate is lower even if both were measured badly
RETRY_S = 3600.0


class Limit(NamedTuple):
    """The most devices that a job may have for now, and why."""

    devices: int
    reason: str


def is_slower(rate: Rate) -> bool:
    """Whether the job was slower than before, when it had fewer devices."""
    before = rate.before
    if before is None or before.devices >= rate.devices:
        return False
    noise = DEVIATIONS * math.hypot(rate.error, before.error)
    return rate.per_s + noise < SLOWER * before.per_s


def slower(rates: Sequence[Rate], now: float) -> Rate | None:
    """The number of devices on which a job was slower, so that it gets fewer now; of several, the
    smallest. now: seconds, on the clock of `Rate.at`; a clock that is set back ends the limit."""
    found = [each for each in rates if 0 <= now - each.at < RETRY_S and is_slower(each)]
    return min(found, key=lambda each: each.devices, default=None)


def believed(rates: Sequence[Rate], now: float) -> tuple[Rate, ...]:
    """The rates that tell how fast a job is: that more devices made it slower, for RETRY_S only."""
    return tuple(
        each
        for each in rates
        if 0 <= now - each.at < RETRY_S
        or all(fewer.devices >= each.devices or fewer.per_s < each.per_s for fewer in rates)
    )


def speed_of(job: Job, now: float) -> Speed:
    """How fast a job is on any number of devices. now: as above."""
    if not job.rates and not job.history:
        return _unmeasured(job.world_size)
    return speed(job.world_size, believed(job.rates, now), believed(job.history, now))


def estimate(
    ranks: int, devices: int, rates: Sequence[Rate], history: Sequence[Rate], now: float
) -> float | None:
    """Steps per second on a number of devices, from everything except the job's own rate there.
    None: nothing was measured."""
    others = [each for each in rates if each.devices != devices]
    found = speed(ranks, believed(others, now), believed(history, now))
    return found.on(devices) if found.points else None


_unmeasured = functools.lru_cache(maxsize=1024)(Speed)  # most jobs


def limits(jobs: Sequence[Job], spent: Collection[str], now: float) -> dict[str, Limit]:
    """The jobs that get fewer devices than they could use. spent: jobs that have been disturbed as
    often as they may be; they keep what they have."""
    found = {}
    for job in jobs:
        if not job.rates or job.guarantee is None or job.wants != "devices":
            continue
        rate = slower(job.rates, now)
        if rate is None or rate.before is None:
            continue
        most = max(rate.before.devices, least_of(job))
        if job.name in spent:
            most = max(most, job.placed)
        if most < job.devices:
            found[job.name] = Limit(most, in_words(rate, rate.before))
    return found


def limited(jobs: Sequence[Job], found: dict[str, Limit]) -> list[Job]:
    """The jobs, with no more devices than they may have."""
    return [
        replace(job, devices=found[job.name].devices) if job.name in found else job for job in jobs
    ]


def with_reasons(
    decisions: dict[str, Decision], jobs: Sequence[Job], found: dict[str, Limit]
) -> dict[str, Decision]:
    """Decisions that say why a job gives up devices that made it slower. jobs: before they were
    limited."""
    for job in jobs:
        limit = found.get(job.name)
        if limit is None or job.placed <= limit.devices:
            continue
        decision = decisions[job.name]
        if decision.cause == "spec" and decision.devices:
            disturbs = (Disturbance(job.name, job.pause),) if job.on_devices else ()
            decisions[job.name] = replace(
                decision, cause="growth", reason=limit.reason, disturbs=disturbs
            )
    return decisions


def in_words(rate: Rate, before: Rate) -> str:
    """Why a job does not keep the devices with which it has grown."""
    return (
        f"it was slower on {count(rate.devices, 'device')} ({rate.per_s:.3g} steps per s) than on "
        f"{before.devices} ({before.per_s:.3g})"
    )
