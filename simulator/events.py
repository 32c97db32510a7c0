"""Follows each job of a trace from event to event: arrivals, ends, moments at which a minimum run
time or a growth delay is over, and what is decided then.

All that happens at one moment is one event, after which the scheduler decides once: first jobs end,
then others arrive.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

from rankfold.policy.incremental import Incremental
from rankfold.policy.mixing import eq_1
from rankfold.policy.vocabulary import Cause, Decision, Fleet, Group, Job
from rankfold.simulator.costs import Costs
from rankfold.simulator.result import Action, Done, Result, action_of
from rankfold.simulator.trace import Kind, TraceJob

Progress = Callable[[int], None]  # is called with the number of jobs that have ended


def quiet(done: int) -> None:
    """Reports no progress."""


class NotDone(Exception):
    """A job waits, and nothing will happen any more: the scheduler gives it no devices."""


def fleet_of(kinds: Sequence[Kind], by_node: bool = False) -> Fleet:
    """The fleet as a policy sees it while no job runs: one group for each kind, or for the devices
    of a kind in each node. Host memory is not limited."""
    groups, first = [], 0
    for kind in kinds:
        places = kind.places if by_node and kind.places else (("", "", kind.devices),)
        for domain, node, devices in places:
            positions = tuple(range(first, first + devices))
            groups.append(Group(positions, devices, domain=domain, node=node))
            first += devices
    return Fleet(tuple(groups), 0)


def groups_of(kinds: Sequence[Kind], by_node: bool = False) -> list[tuple[int, ...]]:
    """The groups of `fleet_of` for each kind."""
    found: list[tuple[int, ...]] = []
    first = 0
    for kind in kinds:
        number = len(kind.places) if by_node and kind.places else 1
        found.append(tuple(range(first, first + number)))
        first += number
    return found


class _Active:
    """A job that has arrived and has not ended. Times in seconds.

    left: seconds that remain when it computes next, without pauses, with this slowness.
    computes_at: when it computes again after it got these devices.
    """

    __slots__ = (
        "cause", "computes_at", "devices", "disturbances", "end", "got_at", "held", "job", "left",
        "paused", "slowness", "start", "version",
    )  # fmt: skip

    def __init__(self, job: TraceJob):
        self.job = job
        self.devices: tuple[int, ...] = ()
        self.left = 0.0
        self.slowness = 1.0
        self.computes_at = self.got_at = self.end = 0.0
        self.start = -1.0  # it has had no device yet
        self.held = self.paused = 0.0  # device-seconds; of these, without progress
        self.disturbances = self.version = 0
        self.cause: Cause = "spec"


class Simulation:
    """One run of a trace with one scheduler."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        kinds: Sequence[Kind],
        scheduler: Incremental,
        costs: Costs,
        by_node: bool = False,
    ):
        """by_node: as in `fleet_of`."""
        self._groups = groups_of(kinds, by_node)
        self._last = list(itertools.accumulate(kind.devices for kind in kinds))  # of each kind
        self._jobs, self._kinds, self._scheduler, self._costs = jobs, kinds, scheduler, costs
        self._active: dict[str, _Active] = {}
        self._ends: list[tuple[float, int, str]] = []  # end, version, job
        self._free_at: dict[int, float] = {}  # device that is being released → when it is free
        self._result = Result(sum(kind.devices for kind in kinds))

    def run(self, progress: Progress = quiet) -> Result:
        """Raises NotDone."""
        index, count, now = 0, len(self._jobs), -math.inf
        while True:
            arrival = self._jobs[index].arrival if index < count else math.inf
            now = min(arrival, self._scheduler.wakes(now))
            while self._ends and self._ends[0][0] <= now:
                end, version, name = self._ends[0]
                active = self._active.get(name)
                if active is None or active.version != version:
                    heapq.heappop(self._ends)
                    continue
                now = end
                heapq.heappop(self._ends)
                self._end(active, now)
            if now == math.inf:
                break
            while index < count and self._jobs[index].arrival == now:
                self._arrive(self._jobs[index])
                index += 1
            self._result.decisions += 1
            changes = self._scheduler.changes(now)
            for name in sorted(changes, key=lambda each: not self._releases(each, changes[each])):
                self._change(self._active[name], changes[name], now)
            progress(len(self._result.jobs))
        if self._active:
            raise NotDone(next(iter(self._active)))
        return self._result

    def _arrive(self, job: TraceJob) -> None:
        active = self._active[job.name] = _Active(job)
        kind = self._kinds[job.kind]
        groups, capabilities = self._groups[job.kind], ()
        devices = min(job.max, kind.most(job.locality))
        active.left, active.slowness = job.seconds(devices, kind.speed), job.folds(devices)
        if job.capabilities:
            pairs = zip(self._groups, job.capabilities, strict=True)
            of_groups = [(group, each) for its, each in pairs for group in its if each]
            groups, capabilities = zip(*of_groups, strict=True)
            devices = min(job.max, self._last[-1])
            active.left, active.slowness = job.work, 1.0
        self._scheduler.arrive(
            Job(
                job.name,
                job.world_size,
                devices,
                job.arrival,
                groups,
                remaining=active.left + self._costs.start,
                pause=self._costs.suspend + self._costs.resume,
                least=max(1, job.min),
                most=devices,
                guarantee=job.min if job.elastic else None,
                tier=job.tier,
                priority=job.priority,
                min_runtime=job.min_runtime,
                demand=min(job.demand, devices),
                quota=job.quota,
                locality=job.locality,
                capabilities=capabilities,
            )
        )

    def _end(self, active: _Active, now: float) -> None:
        self._count(active, now)
        job = active.job
        self._result.actions.append(Action(now, job.name, "end", len(active.devices), 0))
        del self._active[job.name]
        guaranteed = self._scheduler.end(job.name, now)
        self._result.add(
            Done(
                job.name,
                job.tier,
                job.arrival,
                active.start,
                now,
                active.disturbances,
                guaranteed,
            ),
            active.held,
            active.paused,
        )

    def _releases(self, name: str, decision: Decision) -> bool:
        """Whether a job gives up devices, which another one may then wait for."""
        return not set(self._active[name].devices) <= set(decision.devices or ())

    def _change(self, active: _Active, decision: Decision, now: float) -> None:
        before, devices = active.devices, decision.devices or ()
        if before:
            active.disturbances += 1
            active.left = max(0.0, active.end - max(now, active.computes_at))
            self._count(active, now)
        active.version += 1
        if self._costs.suspend:
            given = set(before).difference(devices)
            self._free_at.update(dict.fromkeys(given, now + self._costs.suspend))
        if before:
            active.cause = decision.cause or "spec"
        if not devices:
            active.devices = ()
            self._scheduler.expect(active.job.name, active.left + self._costs.resume, now)
            self._note(active, now, len(before), decision, self._costs.suspend)
            return
        pause = self._costs.start if active.start < 0 else self._costs.resume
        if before:
            pause = self._costs.resize
        if (slowness := self._slowness(active.job, devices)) != active.slowness:
            active.left *= slowness / active.slowness
            active.slowness = slowness
        if self._free_at:
            pause += max(0.0, max(self._free_at.pop(position, now) for position in devices) - now)
        active.devices, active.got_at = devices, now
        self._note(active, now, len(before), decision, pause)
        active.start = now if active.start < 0 else active.start
        active.computes_at = now + pause
        active.end = active.computes_at + active.left
        heapq.heappush(self._ends, (active.end, active.version, active.job.name))
        self._scheduler.expect(active.job.name, pause + active.left, now, pause)

    def _slowness(self, job: TraceJob, devices: Sequence[int]) -> float:
        """How long its work takes, up to a factor."""
        if not job.capabilities:
            return job.folds(len(devices))
        counts = Counter(bisect_right(self._last, position) for position in devices)
        used = [(counts[kind], each) for kind, each in enumerate(job.capabilities) if each]
        numbers, capabilities = zip(*used, strict=True)
        return 1.0 / eq_1(job.world_size, capabilities, numbers)

    def _note(
        self, active: _Active, now: float, before: int, decision: Decision, pause: float
    ) -> None:
        devices = len(active.devices)
        action = action_of(before, devices, active.start < 0)
        why = decision.cause or "", decision.reason
        self._result.actions.append(
            Action(now, active.job.name, action, before, devices, pause, *why)
        )

    def _count(self, active: _Active, now: float) -> None:
        """Add up the device-seconds since it got its devices."""
        job, devices = active.job, len(active.devices)
        self._result.hold(job.name, job.tier, job.quota, active.got_at, now, devices)
        paused = (min(now, active.computes_at) - active.got_at) * devices
        active.held += (now - active.got_at) * devices
        active.paused += paused
        self._result.lose(active.cause, paused)
