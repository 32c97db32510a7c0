"""In a shortage, only the first of the jobs that wait are decided on, with the result of a decision
on all jobs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.decide import decide
from rankfold.policy.vocabulary import TIERS, Decision, Fleet, Job, Rules
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import Simulation, fleet_of
from rankfold.simulator.queued import Queued
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES, Whole

from .test_alone import Both

pytestmark = pytest.mark.unit

COSTS = Costs(start=5.0, suspend=1.0, resume=5.0, resize=5.0)


class QueuedAndAll(Both):
    """Asks a scheduler that leaves jobs out and one that does not, and compares."""

    def __init__(self, fleet: Fleet, rules: Rules):
        super().__init__(fleet, rules)
        self.most = 0  # on how many jobs at once

        def counting(fleet: Fleet, jobs: list[Job], now: float) -> dict[str, Decision]:
            self.most = max(self.most, len(jobs))
            return decide(fleet, jobs, rules, now)

        self.alone = Queued(fleet, counting, rules)

    def wakes(self, now: float) -> float:
        found = self.all.wakes(now)
        assert now == -math.inf or self.alone.wakes(now) in (found, math.inf)
        return found


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    """Many jobs of few kinds, so that lines are long."""
    kinds = []
    for _ in range(draw(st.integers(1, 4))):
        most = draw(st.sampled_from([1, 1, 1, 2, 3]))
        kinds.append(
            TraceJob(
                "",
                0.0,
                draw(st.integers(most, 4)),
                draw(st.sampled_from([most, most, 0, 1])),
                most,
                draw(st.sampled_from([10.0, 100.0, 700.0, 9000.0])),
                draw(st.integers(0, 1)),
                tier=draw(st.sampled_from(TIERS)),
                priority=draw(st.sampled_from([0, 0, 1])),
                min_runtime=draw(st.sampled_from([0.0, 0.0, 20.0])),
            )
        )
    jobs: list[TraceJob] = []
    arrival = 0.0
    for number in range(draw(st.integers(1, 30))):
        arrival += draw(st.sampled_from([0.0, 0.0, 0.0, 5.0, 40.0, 300.0]))
        jobs.append(replace(draw(st.sampled_from(kinds)), name=f"j{number:02}", arrival=arrival))
    return jobs


@given(
    jobs=traces(),
    devices=st.tuples(st.integers(3, 6), st.integers(3, 5)),
    fractions=st.sampled_from(
        [(0.0, 0.0, 0.0), (0.0, 0.7, 0.95), (0.0, 0.0, 0.5), (0.4, 0.7, 0.9)]
    ),
    delay=st.sampled_from([0.0, 30.0]),
)
def test_the_decisions_are_those_on_all_jobs(
    jobs: list[TraceJob],
    devices: tuple[int, int],
    fractions: tuple[float, ...],
    delay: float,
) -> None:
    kinds = [Kind("a", devices[0]), Kind("b", devices[1], 2.0)]
    rules = replace(RULES, fractions=fractions, growth_delay=delay)
    Simulation(jobs, kinds, QueuedAndAll(fleet_of(kinds), rules), COSTS).run()


def test_a_decision_takes_no_time_for_the_jobs_that_wait() -> None:
    kinds, rules = [Kind("gpu", 4)], replace(RULES, fractions=(0.0, 0.7, 0.95))
    jobs = [
        TraceJob(f"j{at:03}", float(at), 1, 1, 1, 500.0, tier=TIERS[at % 3])  # type: ignore[arg-type]
        for at in range(120)
    ]
    both = QueuedAndAll(fleet_of(kinds), rules)
    Simulation(jobs, kinds, both, COSTS).run()
    assert both.most < 20


def test_lines_are_decided_on_until_one_of_their_jobs_waits() -> None:
    """All jobs arrive at once, and eight of them start."""
    kinds = [Kind("gpu", 8)]
    jobs = [TraceJob(f"j{at:02}", 0.0, 1, 1, 1, 10.0) for at in range(20)]
    jobs.append(TraceJob("wide", 0.0, 8, 8, 8, 10.0, tier="basic"))
    both = QueuedAndAll(fleet_of(kinds), RULES)
    result = Simulation(jobs, kinds, both, Costs()).run()
    assert [done.start for done in result.jobs] == [0.0] * 8 + [10.0] * 8 + [20.0] * 4 + [30.0]


@pytest.mark.parametrize(
    ("scheduler", "field", "value"),
    [
        ("backfill", "fractions", (0.0, 0.0, 0.0)),
        ("tiers", "preemption_delay", 10.0),
        ("tiers", "max_wait", 100.0),
        ("tiers", "disturbances", (1, None, None)),
    ],
)
def test_with_other_limits_every_job_is_decided_on(
    scheduler: str, field: str, value: object
) -> None:
    rules = replace(RULES, **{field: value})
    jobs = [TraceJob(f"j{at}", 0.0, 2, 1, 2, 10.0) for at in range(3)]
    whole = Events(jobs, [Kind("gpu", 2)], COSTS, {}, rules)._scheduler(scheduler)
    assert type(whole) is Whole
    usual = Events(jobs, [Kind("gpu", 2)], COSTS, {}, RULES)._scheduler("tiers")
    assert type(usual) is Queued
