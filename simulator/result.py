"""The results of a simulation: how long jobs took, what the devices did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from rankfold.policy.fractions import is_violated
from rankfold.policy.vocabulary import Guaranteed


class Done(Struct, frozen=True):
    """A job that ended. Times in seconds since the trace began. start: when it first got devices.
    disturbances: how often it lost or changed devices. guaranteed: what it had of its fraction;
    None: none was guaranteed at its end."""

    name: str
    tier: str
    arrival: float
    start: float
    end: float
    disturbances: int
    guaranteed: Guaranteed | None = None

    @property
    def jct(self) -> float:
        """Job completion time: from its arrival to its end."""
        return self.end - self.arrival


class Span(Struct, frozen=True):
    """A job had this number of devices from `start` to `end`, in seconds since the trace began.
    quota: "" if the trace does not say."""

    job: str
    tier: str
    quota: str
    start: float
    end: float
    devices: int


class Action(Struct, frozen=True):
    """A change of a job's devices.

    time: seconds since the trace began.
    action: start, resume, resize (another number of devices), move (as many others), suspend, end.
    before, devices: numbers of devices before and after it.
    pause: seconds for which the job holds devices without progress because of it, unless another
        action comes before that; of suspend: until its devices are free.
    cause, reason: why; empty if the decision does not say.
    """

    time: float
    job: str
    action: str
    before: int
    devices: int
    pause: float = 0.0
    cause: str = ""
    reason: str = ""


def action_of(before: int, devices: int, first: bool) -> str:
    """first: whether the job has had no devices at any time before."""
    if not before:
        return "start" if first else "resume"
    if not devices:
        return "suspend"
    return "resize" if before != devices else "move"


class Result:
    """devices: number in the fleet. decisions: how often the scheduler decided. spans: who had how
    many devices when. actions: all changes of that, in the order of time."""

    def __init__(self, devices: int):
        self.devices = devices
        self.decisions = 0
        self.failures = 0  # decisions that a policy did not give
        self.jobs: list[Done] = []
        self.spans: list[Span] = []
        self.actions: list[Action] = []
        self.lost: dict[str, float] = {}  # cause → device-seconds without progress
        self._held = self._paused = 0.0

    def add(self, job: Done, held: float, paused: float) -> None:
        """held: device-seconds for which it had devices; paused: of these, without progress."""
        self.jobs.append(job)
        self._held += held
        self._paused += paused

    def hold(self, job: str, tier: str, quota: str, start: float, end: float, devices: int) -> None:
        """A job had devices for some time, or none."""
        if devices and start < end:
            self.spans.append(Span(job, tier, quota, start, end, devices))

    def lose(self, cause: str, device_seconds: float) -> None:
        if device_seconds:
            self.lost[cause] = self.lost.get(cause, 0.0) + device_seconds

    @property
    def makespan(self) -> float:
        """From the first arrival to the last end."""
        return max(job.end for job in self.jobs) - min(job.arrival for job in self.jobs)

    @property
    def utilisation(self) -> float:
        """The part of all devices' time, during the makespan, in which they computed."""
        return (self._held - self._paused) / (self.devices * self.makespan)

    def json(self) -> dict[str, Any]:
        """As in schemas/simulation.schema.json."""
        tiers = sorted({job.tier for job in self.jobs})
        return {
            "jct": figures([job.jct for job in self.jobs]),
            "queueing": figures([job.start - job.arrival for job in self.jobs]),
            "makespan": self.makespan,
            "utilisation": self.utilisation,
            "disturbances": sum(job.disturbances for job in self.jobs),
            "lost": {cause: self.lost[cause] for cause in sorted(self.lost)},
            "decisions": self.decisions,
            "failures": self.failures,
            "tiers": {
                tier: {
                    "jobs": sum(job.tier == tier for job in self.jobs),
                    "jct": figures([job.jct for job in self.jobs if job.tier == tier]),
                    **_guaranteed([job for job in self.jobs if job.tier == tier]),
                }
                for tier in tiers
            },
            "jobs": [
                {
                    "name": job.name,
                    "jct": job.jct,
                    "start": job.start,
                    "end": job.end,
                    "disturbances": job.disturbances,
                }
                for job in sorted(self.jobs, key=lambda job: (job.arrival, job.name))
            ],
        }


def _guaranteed(jobs: Sequence[Done]) -> dict[str, Any]:
    """The fractions that jobs of a tier had; empty if none was guaranteed."""
    found = [job.guaranteed for job in jobs if job.guaranteed is not None]
    if not found:
        return {}
    wanted = math.fsum(each.until - each.admitted for each in found)
    had = math.fsum(each.earlier + each.progress for each in found)
    return {
        "admitted": len(found),
        "fraction": had / wanted if wanted else 1.0,
        "periods": sum(each.periods + 1 for each in found),
        "violated": sum(each.violated + is_violated(each) for each in found),
    }


def figures(values: Sequence[float]) -> dict[str, float]:
    """Mean, median and 99th percentile, in seconds. A percentile is the least value that so many
    per cent of the values do not exceed."""
    ordered = sorted(values)

    def percentile(part: int) -> float:
        return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)]

    return {
        "mean": math.fsum(ordered) / len(ordered),
        "p50": percentile(50),
        "p99": percentile(99),
    }
