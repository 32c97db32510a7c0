"""Tiers guarantee fractions: a job is admitted while what all admitted jobs need fits, and then has
its fraction in each period. Jobs of one device take turns."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy import fractions
from rankfold.policy.vocabulary import TIERS, Decision, Guaranteed, Job, Rules
from rankfold.simulator.costs import Costs
from rankfold.simulator.formats import read_philly
from rankfold.simulator.result import Result
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES
from support.decided import World, job

pytestmark = pytest.mark.unit

PHILLY = Path(__file__).parents[1] / "simulate/data/philly/jobs.csv.gz"
FRACTIONS = (0.0, 0.7, 0.95)  # basic, standard, premium
HOUR = 3600.0
GUARANTEED = Guaranteed(0.7, HOUR, 1, 0.0, 0.0, 0.0)


class Guarding(World):
    """A fleet whose tiers guarantee fractions; admissions and progress are recorded."""

    def __init__(self, *sizes: int, scheduler: str = "fifo"):
        super().__init__(*sizes, scheduler=scheduler)
        self.rules = replace(self.rules, fractions=FRACTIONS)

    def decide(self) -> dict[str, Decision]:
        for name, its in self.jobs.items():
            if its.guaranteed is not None:
                rate = fractions.rate_of(its.guaranteed, its.world_size, len(its.own))
                counted = fractions.counted(its.guaranteed, rate, self.now)
                self.jobs[name] = replace(its, guaranteed=counted)
        found = super().decide()
        for name, decision in found.items():
            its = self.jobs[name]
            if not decision.admitted:
                self.jobs[name] = replace(its, guaranteed=None)
            elif its.guaranteed is None:
                admitted = fractions.admit(its, self.rules, self.now)
                self.jobs[name] = replace(its, guaranteed=admitted)
        return found

    @property
    def admitted(self) -> set[str]:
        return {name for name, its in self.jobs.items() if its.guaranteed is not None}


def of(tier: str, name: str, devices: int, guarantee: int | None = None, **fields: object) -> Job:
    made = job(name, devices, devices, guarantee)
    return replace(made, tier=tier, **{"pause": 0.0, **fields})


# ---- what a job has had


def test_progress_is_counted_in_periods() -> None:
    """Half an hour of progress in the first hour is too little, three quarters in the next are
    enough."""
    found = fractions.counted(GUARANTEED, 0.0, 1800.0)
    found = fractions.counted(found, 1.0, HOUR + 2700.0)
    assert (found.periods, found.violated, found.earlier) == (1, 1, 1800.0)
    found = fractions.counted(found, 0.0, 2 * HOUR)
    assert (found.periods, found.violated) == (2, 1)
    assert (found.begun, found.progress, found.earlier) == (2 * HOUR, 0.0, 4500.0)


def test_a_period_is_violated_when_more_is_lost_than_the_fraction_allows() -> None:
    assert not fractions.is_violated(replace(GUARANTEED, until=1080.0))
    assert fractions.is_violated(replace(GUARANTEED, until=1081.0))
    assert not fractions.is_violated(replace(GUARANTEED, until=HOUR, progress=2520.0))


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    found = fractions.counted(GUARANTEED, 1.0, 100.0)
    assert fractions.counted(found, 1.0, 50.0) == found


@given(st.lists(st.tuples(st.integers(0, 20_000), st.booleans()), max_size=8))
def test_it_does_not_matter_how_often_progress_is_counted(
    parts: list[tuple[int, bool]],
) -> None:
    """So a reconciler that was away, or restarts, finds what one that never ended has."""
    often = rarely = GUARANTEED
    now = 0.0
    for seconds, runs in parts:
        for _ in range(7):
            often = fractions.counted(often, float(runs), now + seconds / 7 * (_ + 1))
        now += seconds
        rarely = fractions.counted(rarely, float(runs), now)
        assert (often.periods, often.violated) == (rarely.periods, rarely.violated)
        assert often.progress == pytest.approx(rarely.progress, abs=1e-6)
        assert often.earlier == pytest.approx(rarely.earlier, abs=1e-6)


def test_a_job_is_faster_on_more_devices_than_its_demand() -> None:
    two = replace(GUARANTEED, demand=2)
    assert [fractions.rate_of(two, 4, devices) for devices in (0, 1, 2, 3, 4)] == [0, 0.5, 1, 1, 2]


# ---- what a job needs, and which are admitted


@pytest.mark.parametrize(
    ("wanted", "need"),
    [
        (of("standard", "fixed", 4), 4),
        (of("standard", "range", 4, 1), 4),
        (of("standard", "small demand", 4, 1, demand=2), 2),
        (of("standard", "large range", 8, 0, world_size=9), 5),
        (of("premium", "one", 1), 1),
        (of("standard", "turns", 1), 0.7 + 1.5 / 24),
        (of("standard", "pauses", 1, pause=6.0), 0.7 + 1.5 / 24 + 6 * 12 / HOUR),
    ],
    ids=lambda each: each.name if isinstance(each, Job) else "",
)
def test_a_job_needs_the_fewest_devices_on_which_its_fraction_holds(
    wanted: Job, need: float
) -> None:
    rules = Rules(100, fractions=FRACTIONS)
    assert fractions.need_of(wanted, rules) == pytest.approx(need)


def test_jobs_are_admitted_while_they_fit_and_stay_admitted() -> None:
    world = Guarding(4)
    world.add(of("basic", "b", 4), of("standard", "s", 3), of("standard", "t", 2, created=1.0))
    world.settle()
    assert world.admitted == {"s"} and world.own == {"b": 0, "s": 3, "t": 0}
    world.add(of("premium", "p", 2, created=2.0), of("premium", "q", 1, created=3.0))
    world.settle()
    assert world.admitted == {"s", "q"}, "what is guaranteed is not taken back for a higher tier"
    del world.jobs["s"]
    world.settle()
    assert world.admitted == {"q", "p"} and world.own["p"] == 2, "the highest tier is next"
    assert world.decide()["t"].admitted is False and world.decide()["b"].admitted is None


def test_a_job_that_is_not_admitted_is_treated_as_basic() -> None:
    world = Guarding(4)
    world.add(of("standard", "first", 3), of("standard", "other", 2, 1, created=1.0))
    world.add(of("basic", "b", 1, created=0.5))
    world.settle()
    assert world.own == {"first": 3, "other": 0, "b": 1}


def test_a_decision_says_whether_the_fraction_is_guaranteed() -> None:
    """The two that wait differ in that alone: one is basic, the other is treated as basic."""
    world = Guarding(1)
    world.add(of("standard", "runs", 1), of("basic", "b", 1, created=1.0))
    world.add(of("standard", "other", 1, created=2.0))
    found = world.decide()
    said = {name: decision.admitted for name, decision in found.items()}
    assert said == {"runs": True, "b": None, "other": False}
    assert not found["b"].devices and not found["other"].devices


def test_an_admitted_job_keeps_what_it_needs_of_a_range() -> None:
    world = Guarding(6)
    world.add(of("standard", "range", 6, 1, demand=3))
    world.settle()
    assert world.own == {"range": 6}
    world.add(of("premium", "p", 2, created=1.0), of("basic", "b", 2, created=2.0))
    world.settle()
    assert world.own == {"range": 3, "p": 2, "b": 0}
    world = Guarding(6)
    world.add(of("basic", "b", 5))
    world.settle()
    world.add(of("standard", "range", 3, 1, created=1.0))
    world.settle()
    assert world.own == {"b": 0, "range": 3}


def test_no_priority_takes_devices_from_an_admitted_job() -> None:
    world = Guarding(2)
    world.add(of("standard", "low", 2, priority=-5))
    world.settle()
    world.add(of("standard", "high", 2, created=1.0, priority=5))
    world.settle()
    assert world.own == {"low": 2, "high": 0} and world.admitted == {"low"}


def test_an_admitted_job_of_several_devices_gets_those_of_jobs_that_take_turns() -> None:
    world = Guarding(6)
    world.add(*(of("standard", f"one-{at}", 1) for at in range(5)))
    world.settle()
    world.add(of("standard", "wide", 2, created=1.0, priority=-5))
    world.settle()
    assert world.own["wide"] == 2 and len(world.admitted) == 6
    assert sum(world.own.values()) == 6


def test_the_need_of_a_job_is_measured_when_it_is_admitted() -> None:
    """Otherwise a pause that is measured later would take another job's guarantee away."""
    rules = Rules(100, fractions=FRACTIONS)
    one = of("standard", "one", 1, pause=0.0)
    admitted = replace(one, guaranteed=fractions.admit(one, rules, 0.0))
    assert fractions.need_of(replace(admitted, pause=60.0), rules) == fractions.need_of(one, rules)


def test_a_guarantee_does_not_wait_for_the_preemption_delay() -> None:
    world = Guarding(1)
    world.rules = replace(world.rules, preemption_delay=1e6)
    world.add(of("basic", "b", 1))
    world.settle()
    world.add(of("premium", "p", 1, created=1.0))
    world.settle()
    assert world.own == {"b": 0, "p": 1}


# ---- simulated


def simulate(jobs: list[TraceJob], devices: int, costs: Costs, scheduler: str = "fifo") -> Result:
    rules = replace(RULES, fractions=FRACTIONS)
    return Events(jobs, [Kind("gpu", devices)], costs, {}, rules).run(scheduler)


def test_ten_jobs_with_seven_tenths_run_on_eight_devices() -> None:
    jobs = [TraceJob(f"j{at}", 10.0 * at, 1, 1, 1, 4 * HOUR) for at in range(10)]
    result = simulate(jobs, 8, Costs(suspend=1.0, resume=2.0))
    (tier,) = result.json()["tiers"].values()
    assert (tier["admitted"], tier["violated"]) == (10, 0)
    assert tier["periods"] >= 40 and 0.7 < tier["fraction"] < 0.82


def test_the_eleventh_has_to_wait() -> None:
    jobs = [TraceJob(f"j{at:02}", 10.0 * at, 1, 1, 1, 4 * HOUR) for at in range(11)]
    result = simulate(jobs, 8, Costs())
    starts = {done.name: done.start for done in result.jobs}
    assert max(starts, key=lambda name: starts[name]) == "j10" and starts["j10"] > 4 * HOUR
    assert result.json()["tiers"]["standard"]["violated"] == 0


@pytest.mark.usual("fifo-1.0")
@pytest.mark.parametrize("load", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("scheduler", ["fifo", "backfill"])
def test_no_hour_of_an_admitted_philly_job_is_violated(load: float, scheduler: str) -> None:
    devices, tiers = 8, ("standard", "premium", "standard", "standard", "basic")
    found = read_philly(PHILLY, [Kind("gpu", 1000)])[:150]
    jobs = [replace(each, tier=tiers[at % 5]) for at, each in enumerate(found)]
    jobs = [each for each in jobs if each.max <= devices // 2]
    work = sum(each.work * each.max for each in jobs)
    scale = work / devices / load / (jobs[-1].arrival - jobs[0].arrival)
    jobs = [replace(each, arrival=each.arrival * scale) for each in jobs]
    result = simulate(
        jobs, devices, Costs(start=5.0, suspend=1.0, resume=5.0, resize=5.0), scheduler
    )
    tiers_found = result.json()["tiers"]
    assert "admitted" not in tiers_found["basic"]
    for name, fraction in (("premium", 0.95), ("standard", 0.7)):
        tier = tiers_found[name]
        assert tier["violated"] == 0 and tier["fraction"] >= fraction
        assert tier["admitted"] == tier["jobs"], "at its end, each job is admitted"
    if load > 1:
        assert result.json()["disturbances"] > 10, "jobs take turns"


# ---- properties


@st.composite
def worlds(draw: st.DrawFn) -> Guarding:
    """Jobs of all tiers that have arrived one after the other, and may have left."""
    world = Guarding(draw(st.integers(1, 6)), draw(st.integers(0, 3)))
    for number in range(draw(st.integers(1, 8))):
        devices = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
        each = of(
            draw(st.sampled_from(TIERS)),
            f"j{number}",
            devices,
            draw(st.one_of(st.none(), st.integers(0, devices))),
            created=float(draw(st.integers(0, 2))),
            priority=draw(st.sampled_from([0, 0, 1])),
            groups=draw(st.sampled_from([(0,), (1,), (0, 1)])),
        )
        world.add(each)
        for _ in range(draw(st.integers(0, 3))):
            world.now += draw(st.sampled_from([0.0, 100.0, 1000.0]))
            world.turn()
        if len(world.jobs) > 2 and draw(st.booleans()):
            del world.jobs[draw(st.sampled_from(sorted(world.jobs)))]
    return world


@given(worlds())
def test_needs_of_admitted_jobs_fit_and_are_met(world: Guarding) -> None:
    decisions = world.decide()
    given_away = [at for each in decisions.values() for at in each.devices or ()]
    assert len(given_away) == len(set(given_away)), "a device is given twice"
    needs = {name: fractions.need_of(world.jobs[name], world.rules) for name in world.admitted}
    devices = {at for group in world.members for at in group}
    assert sum(needs.values()) <= len(devices) + 1e-3
    for _ in range(3 * len(world.jobs) + 3):
        if not world.turn():
            break
    for name in world.admitted & needs.keys():
        its = world.jobs[name]
        if needs[name] >= 1 and its.groups == (0,):
            assert len(its.own) >= min(needs[name], its.devices), f"{name} lacks devices"


@given(worlds())
def test_constant_input_reaches_a_fixed_point(world: Guarding) -> None:
    world.settle()


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(world: Guarding, random: Random) -> None:
    world.decide()
    before = world.decide()
    shuffled = list(world.jobs.items())
    random.shuffle(shuffled)
    world.jobs = dict(shuffled)
    assert world.decide() == before
