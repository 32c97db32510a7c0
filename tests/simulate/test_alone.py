"""New jobs are decided on alone if enough devices are free, with the result of a decision on all
jobs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.decide import decide
from rankfold.policy.incremental import Changes
from rankfold.policy.vocabulary import TIERS, Decision, Fleet, Guaranteed, Job, Rules
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import Simulation, fleet_of
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES, Whole

pytestmark = pytest.mark.unit


class Both:
    """Asks a scheduler that decides on new jobs alone and one that does not, and compares their
    decisions."""

    def __init__(self, fleet: Fleet, rules: Rules):
        self.decided = 0  # on how many jobs, by the one that decides on new jobs alone

        def counting(fleet: Fleet, jobs: list[Job], now: float) -> dict[str, Decision]:
            self.decided += len(jobs)
            return decide(fleet, jobs, rules, now)

        self.alone = Whole(fleet, counting, rules, alone=True)
        self.all = Whole(fleet, lambda fleet, jobs, now: decide(fleet, jobs, rules, now), rules)

    def arrive(self, job: Job) -> None:
        self.alone.arrive(job)
        self.all.arrive(job)

    def end(self, name: str, now: float) -> Guaranteed | None:
        found, expected = self.alone.end(name, now), self.all.end(name, now)
        assert (found is None) == (expected is None)
        if found and expected:
            assert found.violated == expected.violated
            assert found.periods == expected.periods
            assert found.earlier + found.progress == pytest.approx(
                expected.earlier + expected.progress
            )
        return found

    def changes(self, now: float) -> Changes:
        found, expected = self.alone.changes(now), self.all.changes(now)
        assert [(name, each.devices, each.cause) for name, each in found.items()] == [
            (name, each.devices, each.cause) for name, each in expected.items()
        ]
        assert {name: each.admitted for name, each in found.items()} == {
            name: each.admitted for name, each in expected.items()
        }
        return found

    def wakes(self, now: float) -> float:
        return self.all.wakes(now)

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        self.alone.expect(name, remaining, now, pause)
        self.all.expect(name, remaining, now, pause)


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    jobs: list[TraceJob] = []
    arrival = 0.0
    for number in range(draw(st.integers(1, 25))):
        arrival += draw(st.sampled_from([0.0, 0.0, 5.0, 40.0, 300.0]))
        most = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
        least = draw(st.sampled_from([most, most, 0, 1]))
        jobs.append(
            TraceJob(
                f"j{number}",
                arrival,
                most,
                least,
                most,
                draw(st.sampled_from([10.0, 100.0, 500.0, 8000.0])),
                draw(st.integers(0, 1)),
                tier=draw(st.sampled_from(TIERS)),
                min_runtime=draw(st.sampled_from([0.0, 20.0])),
            )
        )
    return jobs


@given(
    jobs=traces(),
    devices=st.tuples(st.integers(4, 12), st.integers(4, 8)),
    guaranteed=st.booleans(),
    delay=st.sampled_from([0.0, 30.0]),
)
def test_the_decisions_are_those_on_all_jobs(
    jobs: list[TraceJob], devices: tuple[int, int], guaranteed: bool, delay: float
) -> None:
    kinds = [Kind("a", devices[0]), Kind("b", devices[1], 2.0)]
    fractions = (0.0, 0.7, 0.95) if guaranteed else (0.0, 0.0, 0.0)
    rules = replace(RULES, fractions=fractions, growth_delay=delay)
    costs = Costs(start=5.0, suspend=1.0, resume=5.0, resize=5.0)
    Simulation(jobs, kinds, Both(fleet_of(kinds), rules), costs).run()


def test_a_job_that_finds_enough_free_devices_takes_no_time_for_the_others() -> None:
    kinds, number = [Kind("gpu", 102)], 50
    jobs = [TraceJob(f"j{at}", float(at), 2, 1, 2, 1000.0, tier="standard") for at in range(number)]
    rules = replace(RULES, fractions=(0.0, 0.7, 0.95))
    both = Both(fleet_of(kinds), rules)
    Simulation(jobs, kinds, both, Costs()).run()
    assert both.decided == number, "each job is decided on once, with no other"
