"""When the jobs that wait will get devices, if each job that has a time limit runs until then, and
the others do not end. The decisions are those of a fleet, from its present state on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rankfold.policy.incremental import Changes
from rankfold.policy.vocabulary import Cause, Fleet, Job, Rules
from rankfold.simulator.runs import built_in
from rankfold.simulator.whole import Shares, Whole

EVENTS_MIN = 100  # that are followed, at most
WORK_MAX = 50_000  # events times jobs and devices, if that is more events


class Expected(Struct, frozen=True):
    """The expectations of a job. Times in seconds from now.

    devices: positions of those that it has or gets at `start`; () if that is not known.
    start: when it has devices: 0 if it has some after the decisions of this moment; None: not
        known.
    end: when its time limit ends it; None: not known.
    before, now: number of devices before and after the decisions of this moment.
    cause, reason: why they change the devices that it has; None and empty if they do not.
    """

    devices: tuple[int, ...] = ()
    start: float | None = None
    end: float | None = None
    before: int = 0
    now: int = 0
    cause: Cause | None = None
    reason: str = ""


class Forecast(Struct, frozen=True):
    """jobs: those that were given, by name.
    until: seconds from now up to which it was computed, if more would happen later; None: nothing
        happens later, as far as is known."""

    jobs: Mapping[str, Expected]
    until: float | None


class _Run:
    """A job that is followed. left: seconds of devices with one rank each; None: not known."""

    __slots__ = ("devices", "end", "ended", "expected", "job", "left", "since")

    def __init__(self, job: Job, left: float | None, now: float):
        self.job, self.left, self.since, self.ended = job, left, now, False
        self.devices = len(job.own)
        self.end = self._end()  # infinity: not known
        start = 0.0 if job.own else None
        self.expected = Expected(job.own, start, before=job.placed, now=len(job.own))

    def place(self, devices: tuple[int, ...], now: float) -> None:
        if self.left is not None and self.devices:
            self.left = max(0.0, self.left - (now - self.since) / self._ranks())
        self.devices, self.since = len(devices), now
        self.end = self._end()

    def _ranks(self) -> int:
        """Those of the device that has the most."""
        return math.ceil(self.job.world_size / self.devices)

    def _end(self) -> float:
        if self.left is None or not self.devices:
            return math.inf
        return self.since + max(0.0, self.left) * self._ranks()


def forecast(
    fleet: Fleet,
    jobs: Sequence[Job],
    rules: Rules,
    now: float,
    left: Mapping[str, float | None],
) -> Forecast:
    """fleet: all devices that work are free, also those that jobs have. jobs: without those that
    end. left: seconds until each job's time limit, on devices with one rank each."""
    shares = Shares(rules, now)
    whole = Whole(fleet, built_in("tiers", rules, shares), rules, shares)
    runs = {job.name: _Run(job, left.get(job.name), now) for job in jobs}
    for job in jobs:
        if job.own:
            shares.change(job, len(job.own), now)
        whole.arrive(job)
    for name, decision in _place(runs, whole, now).items():
        run, devices = runs[name], decision.devices or ()
        run.expected = replace(
            run.expected,
            devices=devices,
            start=0.0 if devices else None,
            now=len(devices),
            cause=decision.cause if run.expected.before else None,
            reason=decision.reason if run.expected.before else "",
        )
    until = _follow(runs, whole, now, max(EVENTS_MIN, WORK_MAX // _size(fleet, jobs)))
    found = {}
    for name, run in runs.items():
        end = None if run.end == math.inf else run.end - now
        found[name] = replace(run.expected, end=end)
    return Forecast(found, until)


def _size(fleet: Fleet, jobs: Sequence[Job]) -> int:
    return 1 + len(jobs) + sum(len(group.free) for group in fleet.groups)


def _follow(runs: Mapping[str, _Run], whole: Whole, now: float, events: int) -> float | None:
    """Follow the jobs until each one that waits has had devices. Returns `Forecast.until`."""
    waiting = {n for n, run in runs.items() if not run.devices and run.job.wants == "devices"}
    at = now
    while waiting:
        ends = (run.end for run in runs.values() if not run.ended)
        at = min(min(ends, default=math.inf), whole.wakes(at))
        if at == math.inf:
            return None
        if not events:
            return at - now
        events -= 1
        for name, run in runs.items():
            if run.end <= at and not run.ended:
                run.ended = True
                whole.end(name, at)
        for name, decision in _place(runs, whole, at).items():
            if decision.devices and name in waiting:
                run = runs[name]
                run.expected = replace(run.expected, devices=decision.devices, start=at - now)
                waiting.remove(name)
    return None


def _place(runs: Mapping[str, _Run], whole: Whole, at: float) -> Changes:
    changes = whole.changes(at)
    for name, decision in changes.items():
        runs[name].place(decision.devices or (), at)
    return changes
