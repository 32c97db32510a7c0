"""Follows jobs whose speed changes while they run, in steps of equal length: in each, all jobs
advance, then time does, and then the policy decides on all jobs that have arrived and not ended.

This is how the simulations that Pollux was published with proceed, so that their results can be
compared job by job.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rankfold.policy.vocabulary import Decision, Fleet, Group, Job
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import NotDone, Progress, quiet
from rankfold.simulator.pollux import Placement, PolluxJob, Training
from rankfold.simulator.result import Action, Done, Result, action_of
from rankfold.simulator.whole import Decide

IDLE_MAX = 10_000  # steps in which no job has a device although some wait


class Nodes:
    """Equal nodes with equal devices, which are numbered node by node."""

    def __init__(self, nodes: int, per_node: int):
        self.nodes, self.per_node = nodes, per_node
        self.devices = nodes * per_node

    def fleet(self) -> Fleet:
        positions = tuple(range(self.devices))
        nodes = tuple(
            positions[start : start + self.per_node]
            for start in range(0, self.devices, self.per_node)
        )
        return Fleet((Group(positions, self.devices),), 0, nodes)

    def placement(self, devices: Sequence[int]) -> Placement:
        """The number of devices on each node, in the order of the ranks."""
        nodes = (position // self.per_node for position in devices)
        return tuple(len(list(same)) for _, same in itertools.groupby(nodes))


class _Active:
    """A job that has arrived and has not ended."""

    def __init__(self, job: PolluxJob, nodes: Nodes):
        self.job, self.training = job, Training(job)
        self.devices: tuple[int, ...] = ()
        self.placement: Placement = ()
        self.pause = 0.0  # seconds until it computes
        self.start: float | None = None
        self.got_at = 0.0
        self.served = self.paused = 0.0  # device-seconds; of these, without progress
        self.disturbances, self.note = 0, ""
        self.cause = "spec"
        fits = job.fits(nodes.devices)
        step_s = tuple(job.step_s(number, nodes.per_node) for number in range(1, fits + 1))
        self._step_s, self._most = step_s, max(fits, job.devices)

    def seen(self) -> Job:
        """As the policy sees it."""
        job = self.job
        there = bool(self.devices)
        return Job(
            job.name,
            job.devices,
            job.devices,
            job.arrival,
            (0,),
            self.devices,
            len(self.devices),
            on_devices=there,
            begun=self.start is not None,
            served=self.served,
            steps=job.steps_left(self.training.epoch),
            note=self.note,
            step_s=self._step_s,
            least=1,
            most=self._most,
        )


class TickSimulation:
    """One run of a workload with one policy. tick: seconds of a step."""

    def __init__(
        self, jobs: Sequence[PolluxJob], nodes: Nodes, decide: Decide, costs: Costs, tick: float
    ):
        self._jobs, self._nodes, self._decide = jobs, nodes, decide
        self._costs, self._tick = costs, tick
        self._fleet = nodes.fleet()
        self._active: dict[str, _Active] = {}
        self._result = Result(nodes.devices)

    def run(self, progress: Progress = quiet) -> Result:
        """Raises NotDone, and NotMeasured."""
        now, arrived, idle = 0.0, 0, 0
        while arrived < len(self._jobs) or self._active:
            for active in list(self._active.values()):
                self._advance(active, now)
            now += self._tick
            while arrived < len(self._jobs) and self._jobs[arrived].arrival <= now:
                job = self._jobs[arrived]
                self._active[job.name] = _Active(job, self._nodes)
                arrived += 1
            if self._active:
                self._turn(now)
            waits = self._active and not any(each.devices for each in self._active.values())
            idle = idle + 1 if waits else 0
            if idle > IDLE_MAX:
                raise NotDone(next(iter(self._active)))
            progress(len(self._result.jobs))
        return self._result

    def _advance(self, active: _Active, now: float) -> None:
        if not active.devices:
            return
        devices = len(active.devices)
        pause = min(active.pause, self._tick)
        active.pause -= pause
        active.paused += pause * devices
        self._result.lose(active.cause, pause * devices)
        left = active.training.advance(active.placement, self._tick - pause)
        active.served += (self._tick - left) * devices
        if active.training.done:
            job, end = active.job, now + self._tick - left
            assert active.start is not None
            done = Done(job.name, "standard", job.arrival, active.start, end, active.disturbances)
            self._result.add(done, active.served, active.paused)
            self._count(active, end)
            self._result.actions.append(Action(end, job.name, "end", devices, 0))
            del self._active[job.name]

    def _turn(self, now: float) -> None:
        self._result.decisions += 1
        jobs = [active.seen() for active in self._active.values()]
        for name, decision in self._decide(self._fleet, jobs, now).items():
            active = self._active[name]
            active.note = decision.note
            devices = active.devices if decision.stays else decision.devices or ()
            if devices != active.devices:
                self._change(active, devices, decision, now)

    def _change(
        self, active: _Active, devices: tuple[int, ...], decision: Decision, now: float
    ) -> None:
        first, before = active.start is None, len(active.devices)
        self._count(active, now)
        if active.devices:
            active.disturbances += 1
            active.cause = decision.cause or "order"
        active.devices, active.placement = devices, self._nodes.placement(devices)
        pause = self._costs.suspend
        if devices:
            pause = self._costs.resize if before else self._costs.resume
            pause = self._costs.start if first else pause
            active.pause = pause
            active.start = now if active.start is None else active.start
        action = action_of(before, len(devices), first)
        why = decision.cause or "", decision.reason
        name = active.job.name
        self._result.actions.append(Action(now, name, action, before, len(devices), pause, *why))

    def _count(self, active: _Active, now: float) -> None:
        """Note that it had its devices until now."""
        since, active.got_at = active.got_at, now
        self._result.hold(active.job.name, "standard", "", since, now, len(active.devices))
