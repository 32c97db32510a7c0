"""Runs one trace with several schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rankfold.policy.incremental import Incremental, incremental
from rankfold.policy.vocabulary import Rules
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import Simulation, fleet_of
from rankfold.simulator.result import Result
from rankfold.simulator.trace import Kind, TraceJob

NOT_LIMITED = 1 << 30  # ranks on a device: the memory of devices is not simulated
BUILT_IN = ("fifo", "backfill", "srtf")


def scheduler_of(name: str, kinds: Sequence[Kind]) -> Incremental:
    return incremental(fleet_of(kinds), Rules(NOT_LIMITED, name))


def compare(
    jobs: Sequence[TraceJob],
    kinds: Sequence[Kind],
    schedulers: Sequence[str],
    costs: Costs,
    progress: Callable[[str, int], None] = lambda scheduler, done: None,
) -> dict[str, Result]:
    """Scheduler → result. progress: is called with a scheduler and the number of jobs that have
    ended under it."""
    found = {}
    for name in schedulers:
        simulation = Simulation(jobs, kinds, scheduler_of(name, kinds), costs)
        found[name] = simulation.run(lambda done, name=name: progress(name, done))  # type: ignore[misc]
    return found
