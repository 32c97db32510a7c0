"""A simulation reports what happened, which is what `decide` decides on all jobs at each event."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.decide import decide
from rankfold.policy.incremental import Incremental
from rankfold.policy.vocabulary import TIERS, Fleet, Job, Rules
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import NotDone, Simulation, fleet_of
from rankfold.simulator.result import Done, Result, figures
from rankfold.simulator.runs import BUILT_IN, Events
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES, Whole

pytestmark = pytest.mark.unit

FREE = Costs()


def job(name: str, arrival: float, devices: int, work: float, kind: int = 0) -> TraceJob:
    return TraceJob(name, arrival, devices, devices, devices, work, kind)


def run(
    jobs: Sequence[TraceJob], devices: int, scheduler: str, costs: Costs = FREE
) -> dict[str, Done]:
    result = Events(jobs, [Kind("gpu", devices)], costs, {}).run(scheduler)
    return {done.name: done for done in result.jobs}


def times(done: dict[str, Done]) -> dict[str, tuple[float, float]]:
    return {name: (each.start, each.end) for name, each in done.items()}


# ---- three schedulers on the same jobs; two devices

JOBS = [
    job("long", 0.0, 1, 10.0),
    job("wide", 1.0, 2, 3.0),
    job("short", 2.0, 1, 4.0),
    job("last", 2.0, 1, 1.0),
]


def test_first_come_first_served_lets_the_first_wait_for_enough_devices() -> None:
    assert times(run(JOBS, 2, "fifo")) == {
        "long": (0, 10),
        "wide": (10, 13),
        "short": (13, 17),
        "last": (13, 14),
    }


def test_backfill_uses_devices_that_the_first_leaves() -> None:
    """Jobs that arrive at the same moment are in the order of their names."""
    assert times(run(JOBS, 2, "backfill")) == {
        "long": (0, 10),
        "last": (2, 3),
        "short": (3, 7),
        "wide": (10, 13),
    }


def test_shortest_remaining_time_first_takes_devices_from_longer_jobs() -> None:
    done = run(JOBS, 2, "srtf")
    assert times(done) == {
        "long": (0, 14),  # computes from 0 to 1, and from 5 to 14
        "wide": (1, 5),  # from 1 to 2, and from 3 to 5
        "last": (2, 3),
        "short": (2, 8),  # from 2 to 3, and from 5 to 8
    }
    assert {name: each.disturbances for name, each in done.items()} == {
        "long": 1,
        "wide": 1,
        "last": 0,
        "short": 1,
    }


# ---- what is counted


def test_a_job_with_fewer_devices_than_ranks_takes_longer() -> None:
    """The device with the most ranks determines the time: 2 of 3 ranks on one of two devices."""
    folded = TraceJob("folded", 0.0, 3, 2, 2, 10.0)
    assert times(run([folded], 8, "fifo")) == {"folded": (0, 20)}
    slow = Events([folded], [Kind("gpu", 8, speed=0.5)], FREE, {}).run("fifo")
    assert slow.makespan == 40


def test_a_job_gets_no_more_devices_than_there_are() -> None:
    """So it takes 20 s, which `short` does not."""
    jobs = [TraceJob("large", 0.0, 4, 1, 4, 10.0), TraceJob("short", 0.0, 2, 2, 2, 15.0)]
    assert times(run(jobs[:1], 2, "fifo")) == {"large": (0, 20)}
    assert times(run(jobs, 2, "srtf")) == {"short": (0, 15), "large": (15, 35)}


def test_costs_delay_jobs_and_are_counted_as_lost() -> None:
    """`b` takes the device of `a` after 4 s: `a` is suspended for 1 s, `b` starts for 2 s and runs
    for 3 s; then `a` resumes for 5 s and runs for its last 8 s."""
    jobs = [job("a", 0.0, 1, 10.0), job("b", 4.0, 1, 3.0)]
    costs = Costs(start=2.0, suspend=1.0, resume=5.0)
    result = Events(jobs, [Kind("gpu", 1)], costs, {}).run("srtf")
    assert {each.name: (each.start, each.end) for each in result.jobs} == {
        "b": (4, 10),
        "a": (0, 23),
    }
    assert result.lost == {"spec": 2.0 + 1.0 + 2.0, "order": 5.0}
    assert result.utilisation == pytest.approx(13 / 23)


def test_a_pause_that_a_suspension_cuts_short_counts_as_long_as_it_was() -> None:
    jobs = [job("a", 0.0, 1, 10.0), job("b", 1.0, 1, 1.0)]
    result = Events(jobs, [Kind("gpu", 1)], Costs(start=3.0), {}).run("srtf")
    assert {each.name: each.end for each in result.jobs} == {"b": 5.0, "a": 15.0}
    assert result.lost == {"spec": 1.0 + 3.0} and result.utilisation == pytest.approx(11 / 15)


def test_percentiles_are_values_that_occur() -> None:
    assert figures([4.0, 1.0, 2.0]) == {"mean": pytest.approx(7 / 3), "p50": 2.0, "p99": 4.0}
    assert figures([float(n) for n in range(1, 201)])["p99"] == 198.0


def test_the_report_has_each_tier() -> None:
    jobs = [job("a", 0.0, 1, 1.0), TraceJob("b", 0.0, 1, 1, 1, 3.0, tier="basic")]
    found = Events(jobs, [Kind("gpu", 1)], FREE, {}).run("fifo").json()
    assert {name: tier["jobs"] for name, tier in found["tiers"].items()} == {
        "basic": 1,
        "standard": 1,
    }
    assert found["tiers"]["basic"]["jct"]["mean"] == 4.0
    assert found["queueing"] == {"mean": 0.5, "p50": 0.0, "p99": 1.0}


def test_a_scheduler_that_leaves_a_job_without_devices_ends_the_simulation() -> None:
    kinds = [Kind("gpu", 1)]
    stubborn = Whole(fleet_of(kinds), lambda fleet, jobs, now: {})
    with pytest.raises(NotDone, match="a"):
        Simulation([job("a", 0.0, 1, 1.0)], kinds, stubborn, FREE).run()


# ---- against deciding on everything

Case = tuple[list[Kind], list[TraceJob], Costs]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = [Kind(name, draw(st.integers(1, 6))) for name in ("a", "b")]
    now, jobs = 0.0, []
    for number in range(draw(st.integers(1, 16))):
        now += draw(st.integers(0, 4))
        kind = draw(st.integers(0, 1))
        world = draw(st.integers(1, 6))
        most = draw(st.integers(1, world))
        jobs.append(TraceJob(f"j{number}", now, world, most, most, draw(st.integers(1, 12)), kind))
    seconds = st.integers(0, 3).map(float)
    return kinds, jobs, Costs(draw(seconds), draw(seconds), draw(seconds), 0.0)


@st.composite
def elastic_cases(draw: st.DrawFn) -> Case:
    kinds, jobs, costs = draw(cases())
    most = [min(each.max, kinds[each.kind].devices) for each in jobs]
    fewest = [draw(st.integers(0, number)) for number in most]
    jobs = [
        replace(
            job,
            min=least,
            tier=draw(st.sampled_from(TIERS)),
            priority=draw(st.integers(0, 1)),
            min_runtime=float(draw(st.integers(0, 3))),
        )
        for job, least in zip(jobs, fewest, strict=True)
    ]
    return kinds, jobs, replace(costs, resize=float(draw(st.integers(0, 3))))


def whole(kinds: Sequence[Kind], scheduler: str) -> Incremental:
    rules = Rules(RULES.ranks_on_a_device, scheduler)

    def all_jobs(fleet: Fleet, jobs: list[Job], now: float) -> Any:
        return decide(fleet, jobs, rules, now)

    return Whole(fleet_of(kinds), all_jobs)


@pytest.mark.parametrize("scheduler", BUILT_IN)
@given(case=cases())
def test_it_decides_as_the_planner_would_on_all_jobs(scheduler: str, case: Case) -> None:
    kinds, jobs, costs = case
    fast = Events(jobs, kinds, costs, {}).run(scheduler)
    slow = Simulation(jobs, kinds, whole(kinds, scheduler), costs).run()
    assert fast.json() == slow.json()


@pytest.mark.parametrize("scheduler", BUILT_IN)
@given(case=cases())
def test_work_is_conserved(scheduler: str, case: Case) -> None:
    """Jobs compute exactly their work; what they hold beyond that is in `lost`."""
    kinds, jobs, costs = case
    result = Events(jobs, kinds, costs, {}).run(scheduler)
    work = 0.0
    for each in jobs:
        devices = min(each.max, kinds[each.kind].devices)
        work += devices * each.seconds(devices, 1.0)
    assert result.utilisation * result.devices * result.makespan == pytest.approx(work)
    ends = {done.name: done for done in result.jobs}
    assert set(ends) == {each.name for each in jobs}
    for each in jobs:
        assert ends[each.name].start >= each.arrival
        assert ends[each.name].end > ends[each.name].start
    assert result.utilisation <= 1 + 1e-9


# ---- elastic jobs

ELASTIC = [TraceJob("wide", 0.0, 4, 1, 4, 10.0), job("new", 2.0, 2, 3.0)]


@pytest.mark.parametrize("scheduler", ["fifo", "backfill"])
def test_an_elastic_job_shrinks_for_one_that_waits_and_grows_again(scheduler: str) -> None:
    """`wide` has 4 devices until 2, and from 5; in between, on 2, it takes twice as long."""
    assert times(run(ELASTIC, 4, scheduler)) == {"wide": (0, 11.5), "new": (2, 5)}


def test_a_resize_takes_as_long_as_the_costs_say() -> None:
    """The devices are free at 3, when `new` starts; `wide` stands still from 2 to 4 and, as `new`
    has ended, from 6 to 8."""
    costs = Costs(suspend=1.0, resize=2.0)
    result = Events(ELASTIC, [Kind("gpu", 4)], costs, {}).run("fifo")
    done = {each.name: each for each in result.jobs}
    assert times(done) == {"new": (2, 6), "wide": (0, 15)}
    assert done["wide"].disturbances == 2
    assert result.lost == {"order": 2 * 2.0, "growth": 2 * 4.0, "spec": 2 * 1.0}


def test_a_job_without_a_guarantee_runs_on_what_is_idle() -> None:
    jobs = [TraceJob("spare", 0.0, 1, 0, 1, 5.0), job("new", 1.0, 1, 3.0)]
    assert times(run(jobs, 1, "fifo")) == {"new": (1, 4), "spare": (0, 8)}


def test_a_job_of_a_lower_tier_is_suspended_for_one_of_a_higher() -> None:
    jobs = [TraceJob("b", 0.0, 2, 2, 2, 5.0, tier="basic"), job("s", 1.0, 1, 3.0)]
    assert times(run(jobs, 2, "fifo")) == {"s": (1, 4), "b": (0, 8)}
    result = Events(jobs, [Kind("gpu", 2)], Costs(suspend=1.0, resume=2.0), {}).run("fifo")
    assert {each.name: each.end for each in result.jobs} == {"s": 5.0, "b": 11.0}
    assert result.lost == {"spec": 1.0, "tier": 2 * 2.0}


def test_a_minimum_run_time_ends_although_no_job_arrives_or_ends() -> None:
    low = TraceJob("low", 0.7, 1, 1, 1, 20.0, min_runtime=3.1)
    high = TraceJob("high", 1.0, 1, 1, 1, 2.0, priority=1)
    done = times(run([low, high], 1, "fifo"))
    assert done["high"] == pytest.approx((3.8, 5.8))
    assert done["low"][1] == pytest.approx(22.7)


def test_a_job_grows_when_the_growth_delay_is_over() -> None:
    jobs = [TraceJob("wide", 0.0, 2, 1, 2, 10.0), job("new", 0.0, 1, 1.0)]
    result = Events(jobs, [Kind("gpu", 2)], FREE, {}, replace(RULES, growth_delay=4.0)).run("fifo")
    assert times({each.name: each for each in result.jobs}) == {"new": (0, 1), "wide": (0, 12)}


def test_srtf_gives_an_elastic_job_all_its_devices_or_none() -> None:
    assert times(run(ELASTIC, 4, "srtf")) == {"new": (2, 5), "wide": (0, 13)}


@pytest.mark.parametrize("scheduler", ["fifo", "backfill"])
@given(case=elastic_cases())
def test_elastic_jobs_do_their_work_and_no_more(scheduler: str, case: Case) -> None:
    """Without costs, the time that a job spends on each number of devices adds up to its work."""
    kinds, jobs, costs = case
    Events(jobs, kinds, costs, {}).run(scheduler)  # with costs, it ends
    scheduler_, spans = whole(kinds, scheduler), dict[str, list[tuple[float, int]]]()
    changes = scheduler_.changes

    def follow(now: float) -> Any:
        found = changes(now)
        for name, decision in found.items():
            spans.setdefault(name, []).append((now, len(decision.devices or ())))
        return found

    scheduler_.changes = follow  # type: ignore[method-assign]
    done = {each.name: each for each in Simulation(jobs, kinds, scheduler_, FREE).run().jobs}
    assert set(done) == {each.name for each in jobs}
    for each in jobs:
        spent = [*spans[each.name], (done[each.name].end, 0)]
        work = sum(
            (until - since) / each.folds(devices)
            for (since, devices), (until, _) in itertools.pairwise(spent)
            if devices
        )
        assert work == pytest.approx(each.work)


# ---- the cost of an event


def calls_of(function: Callable[[], Result]) -> int:
    """How many Python functions are called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("scheduler", BUILT_IN)
def test_an_event_does_not_cost_more_where_more_jobs_wait_and_run(scheduler: str) -> None:
    """Four times as many jobs on four times as many devices, which all wait at the same time."""

    def of(size: int) -> int:
        jobs = [job(f"j{n}", n * 0.001, 1 + n % 8, 100.0 + n % 50) for n in range(size)]
        kinds = [Kind("gpu", size)]
        return calls_of(lambda: Events(jobs, kinds, FREE, {}).run(scheduler))

    few, many = of(200), of(800)
    assert many < 4.8 * few
