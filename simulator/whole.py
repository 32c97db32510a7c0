"""A scheduler that decides on all jobs at each event, behind the interface of one that follows the
fleet. For policies that only have `decide`, and for tests of those that have both."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from rankfold.policy.incremental import Changes
from rankfold.policy.vocabulary import Decision, Fleet, Group, Job

Decide = Callable[[Fleet, list[Job], float], Mapping[str, Decision]]


class _Known:
    """A job, what remained of it and when."""

    __slots__ = ("at", "devices", "job", "remaining")

    def __init__(self, job: Job):
        self.job, self.remaining, self.at = job, job.remaining or 0.0, 0.0
        self.devices: tuple[int, ...] = ()

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
        )


class Whole:
    """Takes time in proportion to jobs and devices at each event."""

    def __init__(self, fleet: Fleet, decide: Decide):
        self._fleet, self._decide = fleet, decide
        self._known: dict[str, _Known] = {}

    def arrive(self, job: Job) -> None:
        self._known[job.name] = _Known(job)

    def end(self, name: str) -> None:
        del self._known[name]

    def changes(self, now: float) -> Changes:
        taken = {at for known in self._known.values() for at in known.devices}
        groups = tuple(
            Group(tuple(at for at in group.free if at not in taken), group.to_come)
            for group in self._fleet.groups
        )
        jobs = [known.seen(now) for known in self._known.values()]
        decisions = self._decide(replace(self._fleet, groups=groups), jobs, now)
        found: Changes = {}
        for name, decision in decisions.items():
            known = self._known[name]
            devices = known.devices if decision.stays else decision.devices or ()
            if devices != known.devices:
                found[name] = decision
                known.devices = devices
                known.job = replace(known.job, begun=True)
        return found

    def expect(self, name: str, remaining: float, now: float) -> None:
        known = self._known[name]
        known.remaining, known.at = remaining, now
