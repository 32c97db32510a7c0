"""The published policies, las and optimus, for traces whose jobs have a known work. They decide at
each arrival and end of a job, las also when a job has been served for so long that it is demoted.
Jobs of each kind of device are decided on apart, since they have no device in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from rankfold.policy.fractions import folds
from rankfold.policy.published import DEMOTED_S
from rankfold.policy.vocabulary import Decision, Fleet, Job
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import fleet_of, groups_of
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import Decide, Known, Whole

PUBLISHED = ("las", "optimus")


def objection(name: str, jobs: Sequence[TraceJob]) -> str:
    """Why one of these policies cannot run a trace; empty if it can."""
    if any(job.locality != "any" for job in jobs):
        return f"{name} cannot keep the locality of jobs, which the trace has"
    if name == "optimus":
        for job in jobs:
            if job.min > 1:
                return (
                    "optimus gives a job any number of devices from 1 on, and the trace has jobs "
                    f"that need more, such as {job.name}: {job.min}"
                )
    return ""


class Published(Whole):
    """A policy that sees the nodes of the fleet, the seconds of a job's steps and how many are
    left. A step takes a second on as many devices as ranks; on fewer, it is estimated as if the
    ranks could be divided evenly: of numbers on which a job is no faster than on fewer, optimus
    would never give one, nor any larger one."""

    def __init__(self, name: str, decide: Decide, kinds: Sequence[Kind], costs: Costs):
        super().__init__(fleet_of(kinds), _by_kind(decide, _fleets(kinds)))
        self._demotes, self._costs = name == "las", costs
        self._share: dict[str, int] = {}  # job → the number of devices that it had last
        self._step_s: dict[tuple[int, int], tuple[float, ...]] = {}

    def arrive(self, job: Job) -> None:
        super().arrive(job)
        self._share[job.name] = job.devices

    def _decide_on(self, now: float) -> tuple[list[Job], Mapping[str, Decision]]:
        jobs = [self._seen(known, now) for known in self._known.values()]
        return jobs, self._decide(self._fleet, jobs, now)

    def _seen(self, known: Known, now: float) -> Job:
        job = known.seen(now)
        if self._demotes:
            return job
        if job.own:
            self._share[job.name] = len(job.own)
            pause = max(0.0, known.computes_at - now)
        else:
            pause = self._costs.resume if job.begun else self._costs.start
        left = max(0.0, (job.remaining or 0.0) - pause)
        key = (job.world_size, job.devices)
        if (step_s := self._step_s.get(key)) is None:
            found = (job.world_size / number for number in range(1, job.devices + 1))
            step_s = self._step_s[key] = tuple(found)
        steps = left / folds(job.world_size, self._share[job.name])
        return replace(job, steps=steps, step_s=step_s)

    def wakes(self, now: float) -> float:
        return min(self._demotions(), default=math.inf)

    def _demotions(self) -> Iterator[float]:
        """When jobs that run will have been served for so long that las demotes them."""
        if not self._demotes:
            return
        for known in self._known.values():
            devices = len(known.devices)
            if devices and not known.job.note:
                at = known.got_at + (DEMOTED_S - known.served) / devices
                while known.served + (at - known.got_at) * devices < DEMOTED_S:  # rounded down
                    at = math.nextafter(at, math.inf)
                yield at


def _fleets(kinds: Sequence[Kind]) -> list[Fleet]:
    """For each kind, its devices and their nodes, as parts of the fleet."""
    nodes = fleet_of(kinds, by_node=True).groups
    return [
        Fleet((group,), 0, tuple(nodes[at].free for at in its))
        for group, its in zip(fleet_of(kinds).groups, groups_of(kinds, by_node=True), strict=True)
    ]


def _by_kind(decide: Decide, fleets: Sequence[Fleet]) -> Decide:
    def each_kind(fleet: Fleet, jobs: list[Job], now: float) -> Mapping[str, Decision]:
        parts: list[list[Job]] = [[] for _ in fleets]
        for job in jobs:
            parts[job.groups[0]].append(job)
        found: dict[str, Decision] = {}
        for its, part in zip(fleets, parts, strict=True):
            if part:
                found |= decide(its, part, now)
        return found

    return each_kind
