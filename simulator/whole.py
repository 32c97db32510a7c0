"""A scheduler that decides on all jobs at each event, behind the interface of one that follows the
fleet. For policies that only have `decide`, and for tests of those that have both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from rankfold.policy.incremental import Changes
from rankfold.policy.vocabulary import Decision, Fleet, Job

Decide = Callable[[Fleet, list[Job], float], Mapping[str, Decision]]


class _Known:
    """A job, what remained of it and when, and what it had been served until then."""

    __slots__ = ("at", "devices", "got_at", "job", "remaining", "served")

    def __init__(self, job: Job):
        self.job, self.remaining, self.at = job, job.remaining or 0.0, 0.0
        self.devices: tuple[int, ...] = ()
        self.served, self.got_at = 0.0, 0.0

    def seen(self, now: float) -> Job:
        devices = self.devices
        left = self.remaining - (now - self.at) if devices else self.remaining
        return replace(
            self.job,
            own=devices,
            placed=len(devices),
            on_devices=bool(devices),
            begun=self.job.begun or bool(devices),
            remaining=max(0.0, left),
            since=self.got_at,
            served=self.served + (now - self.got_at) * len(devices),
        )

    def place(self, devices: tuple[int, ...], now: float) -> None:
        self.served += (now - self.got_at) * len(self.devices)
        self.devices, self.got_at = devices, now
        self.job = replace(self.job, begun=True)


class Whole:
    """Takes time in proportion to jobs and devices at each event. fleet: all devices are free.
    growth_delay: as in `Rules`."""

    def __init__(self, fleet: Fleet, decide: Decide, growth_delay: float = 0.0):
        self._fleet, self._decide, self._growth_delay = fleet, decide, growth_delay
        self._known: dict[str, _Known] = {}

    def arrive(self, job: Job) -> None:
        self._known[job.name] = _Known(job)

    def end(self, name: str) -> None:
        del self._known[name]

    def changes(self, now: float) -> Changes:
        jobs = [known.seen(now) for known in self._known.values()]
        changes: Changes = {}
        for name, decision in self._decide(self._fleet, jobs, now).items():
            known = self._known[name]
            if decision.note != known.job.note:
                known.job = replace(known.job, note=decision.note)
            devices = known.devices if decision.stays else decision.devices or ()
            if devices != known.devices:
                changes[name] = decision
                known.place(devices, now)
        return changes

    def wakes(self, now: float) -> float:
        return min(
            (at for known in self._known.values() for at in self._ends(known, now)),
            default=math.inf,
        )

    def _ends(self, known: _Known, now: float) -> Iterator[float]:
        """When the minimum run time and the growth delay of a job end."""
        if known.devices:
            elastic = known.job.guarantee is not None
            for seconds in (known.job.min_runtime, self._growth_delay if elastic else 0.0):
                end = known.got_at + seconds
                while end - known.got_at < seconds:  # rounded down
                    end = math.nextafter(end, math.inf)
                if end > now:
                    yield end

    def expect(self, name: str, remaining: float, now: float) -> None:
        known = self._known[name]
        known.remaining, known.at = remaining, now
