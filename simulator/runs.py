"""Traces that can be run with any scheduler, by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from rankfold.policy.decide import decide
from rankfold.policy.incremental import Incremental, incremental
from rankfold.policy.vocabulary import Decision, Fleet, Job, Rules
from rankfold.policy.windows import DAY, Windows, is_open
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import Progress, Simulation, fleet_of, quiet
from rankfold.simulator.pollux import PolluxJob
from rankfold.simulator.published import PUBLISHED, Published, objection
from rankfold.simulator.queued import Queued
from rankfold.simulator.result import Result
from rankfold.simulator.ticks import Nodes, TickSimulation
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES, Decide, Shares, Whole

BUILT_IN = ("fifo", "backfill", "tiers", "srtf")
ELASTIC = ("fifo", "backfill", "tiers")  # those that resize elastic jobs, and know tiers
TICK_S = 60.0
Policies = Mapping[str, Decide]  # those that are not built in


class Trace(Protocol):
    """Jobs that can be run with a scheduler."""

    jobs: int
    devices: dict[str, int]  # type → number

    def objection(self, scheduler: str) -> str:
        """Why a scheduler cannot run it; empty if it can."""

    def run(self, scheduler: str, progress: Progress = quiet) -> Result: ...


class Events:
    """Jobs whose work is known, from event to event. If some are elastic or go before others, or if
    there are fractions or quotas, each decision is on all jobs."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        kinds: Sequence[Kind],
        costs: Costs,
        policies: Policies,
        rules: Rules = RULES,
        windows: Windows = (),
    ):
        """windows: when jobs move so that nodes and domains have no job; the trace begins at
        midnight."""
        self._rules, self._windows = rules, windows
        first = {(job.tier, job.priority) for job in jobs}
        self._ordered = len(first) > 1 or any(job.elastic for job in jobs)
        self._ordered |= any(rules.fractions) or bool(rules.quotas) or rules.max_wait > 0
        self._ordered |= any(each is not None for each in rules.disturbances)
        self._mixed = any(job.capabilities for job in jobs)
        self._ordered |= self._mixed
        # Only jobs with a locality depend on which devices others have.
        self.by_node = any(job.locality != "any" for job in jobs)
        self._ordered |= self.by_node or bool(windows)
        self.jobs, self.devices = len(jobs), {kind.type: kind.devices for kind in kinds}
        self._jobs, self._kinds, self._costs, self._policies = jobs, kinds, costs, policies

    def objection(self, scheduler: str) -> str:
        if scheduler == "srtf" and self.by_node:
            return "srtf knows no nodes and domains, and the trace has jobs with a locality"
        return objection(scheduler, self._jobs) if scheduler in PUBLISHED else ""

    def run(self, scheduler: str, progress: Progress = quiet) -> Result:
        chosen = self._scheduler(scheduler)
        by_node = self._groups_by_node(scheduler)
        jobs = self._jobs
        if self._mixed and scheduler not in ELASTIC:  # only these mix types
            jobs = [replace(job, capabilities=()) for job in jobs]
        simulation = Simulation(jobs, self._kinds, chosen, self._costs, by_node)
        return simulation.run(progress)

    def _scheduler(self, name: str) -> Incremental:
        by_node = self._groups_by_node(name)
        fleet = fleet_of(self._kinds, by_node)
        if name in self._policies:
            return Whole(fleet, self._policies[name])
        if name in PUBLISHED:
            return Published(name, built_in(name), self._kinds, self._costs)
        if name in ELASTIC and self._ordered:
            shares = Shares(self._rules)
            chosen = built_in(name, self._rules, shares, self._windows)
            if self._is_queue(name):
                return Queued(fleet, chosen, self._rules)
            windows = self._windows
            alone = not (by_node or self._mixed)
            return Whole(fleet, chosen, self._rules, shares, alone, windows)
        return incremental(fleet, Rules(RULES.ranks_on_a_device, name))

    def _groups_by_node(self, name: str) -> bool:
        """Whether the scheduler knows nodes and domains."""
        return self.by_node or (bool(self._windows) and name in ELASTIC)

    def _is_queue(self, name: str) -> bool:
        """Whether what `Queued` requires is so."""
        rules = self._rules
        limits = bool(rules.quotas) or rules.max_wait > 0 or rules.preemption_delay > 0
        limits |= any(each is not None for each in rules.disturbances)
        return name != "backfill" and not (limits or self._mixed or self._groups_by_node(name))


class Ticks:
    """Jobs of a Pollux workload, in steps of `tick` seconds."""

    def __init__(
        self,
        jobs: Sequence[PolluxJob],
        nodes: Nodes,
        costs: Costs,
        policies: Policies,
        tick: float = TICK_S,
    ):
        self.jobs, self.devices = len(jobs), {"gpu": nodes.devices}
        self._jobs, self._nodes, self._costs = jobs, nodes, costs
        self._policies, self._tick = policies, tick

    def objection(self, scheduler: str) -> str:
        return ""

    def run(self, scheduler: str, progress: Progress = quiet) -> Result:
        chosen = self._policies.get(scheduler) or built_in(scheduler)
        return TickSimulation(self._jobs, self._nodes, chosen, self._costs, self._tick).run(
            progress
        )


def built_in(
    name: str, rules: Rules = RULES, shares: Shares | None = None, windows: Windows = ()
) -> Decide:
    """The decisions of a built-in scheduler, with what quotas have used until then. windows: as in
    `Events`."""
    rules = replace(rules, scheduler=name)

    def all_jobs(fleet: Fleet, jobs: list[Job], now: float) -> Mapping[str, Decision]:
        seen = shares.seen(rules, now) if shares and rules.quotas else rules
        if windows and is_open(windows, int(now // 60) % DAY):
            seen = replace(seen, compacts=True)
        return decide(fleet, jobs, seen, now)

    return all_jobs
