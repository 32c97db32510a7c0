"""A scheduler that decides on all jobs at each event, behind the interface of one that follows the
fleet. For policies that only have `decide`, and for tests of those that have both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from rankfold.policy.fractions import admit, counted, rate_of, wakes
from rankfold.policy.incremental import Changes
from rankfold.policy.vocabulary import Decision, Fleet, Guaranteed, Job, Rules

RULES = Rules(ranks_on_a_device=1 << 30)  # not limited: the memory of devices is not simulated
Decide = Callable[[Fleet, list[Job], float], Mapping[str, Decision]]


class _Known:
    """A job, what remained of it and when, and what it had been served until then."""

    __slots__ = (
        "at",
        "computes_at",
        "devices",
        "got_at",
        "guaranteed",
        "job",
        "remaining",
        "served",
    )

    def __init__(self, job: Job):
        self.job, self.remaining, self.at = job, job.remaining or 0.0, 0.0
        self.devices: tuple[int, ...] = ()
        self.served, self.got_at = 0.0, 0.0
        self.computes_at = -math.inf  # when the pause of its last change is over
        self.guaranteed: Guaranteed | None = None

    def seen(self, now: float) -> Job:
        devices = self.devices
        self._count(now)
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
            guaranteed=self.guaranteed,
            waits_since=self.got_at,
        )

    def _count(self, now: float) -> None:
        """Count its progress, in what is guaranteed to it, until `now`."""
        found = self.guaranteed
        if found is None:
            return
        if self.computes_at > found.until:
            found = counted(found, 0.0, min(now, self.computes_at))
        rate = rate_of(found, self.job.world_size, len(self.devices))
        self.guaranteed = counted(found, rate, now)

    def admit(self, admitted: bool | None, rules: Rules, now: float) -> None:
        if not admitted:
            self.guaranteed = None
        elif self.guaranteed is None:
            self.guaranteed = admit(self.job, rules, now)

    def end(self, now: float) -> Guaranteed | None:
        self._count(now)
        return self.guaranteed

    def place(self, devices: tuple[int, ...], now: float) -> None:
        self.served += (now - self.got_at) * len(self.devices)
        self.devices, self.got_at = devices, now
        self.job = replace(self.job, begun=True)


class Whole:
    """Takes time in proportion to jobs and devices at each event. fleet: all devices are free."""

    def __init__(self, fleet: Fleet, decide: Decide, rules: Rules = RULES):
        self._fleet, self._decide, self._rules = fleet, decide, rules
        self._known: dict[str, _Known] = {}

    def arrive(self, job: Job) -> None:
        self._known[job.name] = _Known(job)

    def end(self, name: str, now: float) -> Guaranteed | None:
        return self._known.pop(name).end(now)

    def changes(self, now: float) -> Changes:
        jobs = [known.seen(now) for known in self._known.values()]
        changes: Changes = {}
        for name, decision in self._decide(self._fleet, jobs, now).items():
            known = self._known[name]
            known.admit(decision.admitted, self._rules, now)
            if decision.note != known.job.note:
                known.job = replace(known.job, note=decision.note)
            devices = known.devices if decision.stays else decision.devices or ()
            if devices != known.devices:
                changes[name] = decision
                known.place(devices, now)
        return changes

    def wakes(self, now: float) -> float:
        jobs = (
            replace(known.job, own=known.devices, guaranteed=known.guaranteed)
            for known in self._known.values()
        )
        turn = now + wakes(jobs, self._rules) if any(self._rules.fractions) else math.inf
        ends = (at for known in self._known.values() for at in self._ends(known, now))
        return min(turn, min(ends, default=math.inf))

    def _ends(self, known: _Known, now: float) -> Iterator[float]:
        """When the minimum run time and the growth delay of a job end, or its preemption delay."""
        if not known.devices and self._rules.preemption_delay:
            end = max(known.job.created, known.got_at) + self._rules.preemption_delay
            if end > now:
                yield end
        if known.devices:
            elastic = known.job.guarantee is not None
            for seconds in (known.job.min_runtime, self._rules.growth_delay if elastic else 0.0):
                end = known.got_at + seconds
                while end - known.got_at < seconds:  # rounded down
                    end = math.nextafter(end, math.inf)
                if end > now:
                    yield end

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        known = self._known[name]
        known.remaining, known.at, known.computes_at = remaining, now, now + pause
