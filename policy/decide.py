"""Which job gets which devices: one decision on every job, by the scheduler of the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from rankfold.policy import fifo
from rankfold.policy.vocabulary import Decision, Fleet, Job, Rules

Decide = Callable[[Fleet, Iterable[Job], Rules, float], dict[str, Decision]]


def _srtf(fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float) -> dict[str, Decision]:
    from rankfold.policy import srtf  # for simulations only: commands start faster without it

    return srtf.decide(fleet, jobs, rules, now)


def _published(name: str) -> Decide:
    def decide(fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float) -> dict[str, Decision]:
        from rankfold.policy import published  # likewise

        scheduler: Decide = getattr(published, name)
        return scheduler(fleet, jobs, rules, now)

    return decide


SCHEDULERS: Mapping[str, Decide] = {
    "fifo": fifo.decide,
    "backfill": partial(fifo.decide, backfill=True),
    "tiers": fifo.decide,  # that of a fleet
    "srtf": _srtf,
    "las": _published("las"),
    "optimus": _published("optimus"),
}


def decide(fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float) -> dict[str, Decision]:
    """The decision on each job. The order of `jobs` does not matter, and no job is on two devices
    or shares one. now: seconds, on the clock of `Job.created`. Raises KeyError for a scheduler that
    does not exist."""
    return SCHEDULERS[rules.scheduler](fleet, jobs, rules, now)
