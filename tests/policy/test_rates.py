"""Growth that made a job slower, as was measured, is taken back and not tried again for an hour."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.rates import RETRY_S, SLOWER, is_slower
from rankfold.policy.vocabulary import BUDGET_S, Disturbance, Job, Rate
from support.decided import World, job

pytestmark = pytest.mark.unit


def rate(devices: int, per_s: float, at: float = 0.0, before: Rate | None = None) -> Rate:
    return Rate(devices, per_s, per_s / 1000, at, 16.0, before)


def measured(world: World, name: str, per_s: float) -> None:
    """Record a rate of a job on the devices that it has, as the reconciler does."""
    now = world.jobs[name]
    fewer = [each for each in now.rates if each.devices < len(now.own)]
    before = max(fewer, key=lambda each: each.per_s, default=None)
    others = [each for each in now.rates if each.devices != len(now.own)]
    found = rate(len(now.own), per_s, world.now, before and replace(before, before=None))
    world.jobs[name] = replace(now, rates=(*others, found))


def grown(before: float, after: float, *, least: int = 1, ranks: int = 4) -> World:
    """A world in which `a` has grown from two devices to four, and has been measured on both."""
    world = World(4)
    world.add(job("other", 2, 2), job("a", ranks, ranks, guarantee=least, created=1.0))
    world.settle()
    assert world.own["a"] == 2
    measured(world, "a", before)
    del world.jobs["other"]
    world.settle()
    assert world.own["a"] == 4
    measured(world, "a", after)
    return world


def test_growth_that_made_a_job_slower_is_taken_back() -> None:
    world = grown(10.0, 8.0)
    decision = world.decide()["a"]
    assert decision.devices is not None and len(decision.devices) == 2
    assert decision.cause == "growth"
    assert decision.reason == "it was slower on 4 devices (8 steps per s) than on 2 (10)"
    assert decision.disturbs == (Disturbance("a", 2.0),)
    world.settle()
    assert world.own == {"a": 2}


def test_growth_that_made_a_job_faster_or_no_slower_is_kept() -> None:
    for after in (9.6, 10.0, 19.0):
        world = grown(10.0, after)
        assert not world.turn(), after


def test_a_rate_that_was_measured_badly_decides_nothing() -> None:
    before, after = Rate(2, 10.0, 1.0, 0.0), Rate(4, 8.0, 1.0, 9.0)
    assert not is_slower(replace(after, before=before))
    assert is_slower(replace(after, before=replace(before, error=0.1), error=0.1))


def test_the_job_grows_again_after_an_hour_and_is_measured_again() -> None:
    world = grown(10.0, 8.0)
    at = world.now
    world.settle()
    world.now = at + RETRY_S - 2.0
    assert not world.turn() and world.own == {"a": 2}
    world.now = at + RETRY_S
    world.settle()
    assert world.own == {"a": 4}, "the old rate no longer counts"
    measured(world, "a", 7.0)
    world.settle()
    assert world.own == {"a": 2}


def test_devices_that_made_one_job_slower_go_to_others() -> None:
    world = grown(10.0, 8.0)
    world.add(job("b", 2, 2, created=9.0))
    world.settle()
    assert world.own == {"a": 2, "b": 2}


def test_the_middle_of_the_move_changes_nothing() -> None:
    """Between its old devices and the new ones, a job has no rate on the ones that it left."""
    world = grown(10.0, 8.0)
    world.jobs["a"] = replace(world.jobs["a"], on_devices=False, since=0.0)
    decision = world.decide()["a"]
    assert decision.devices is not None and len(decision.devices) == 2
    assert decision.cause == "growth"


def test_no_job_gets_fewer_devices_than_are_guaranteed_to_it() -> None:
    world = grown(10.0, 8.0, least=2)
    world.jobs["a"] = replace(world.jobs["a"], guarantee=4)
    assert not world.turn()
    world.jobs["a"] = replace(world.jobs["a"], guarantee=None)
    assert not world.turn(), "its number is fixed"


def test_a_job_that_is_suspended_gives_up_all_its_devices() -> None:
    world = grown(10.0, 8.0)
    world.jobs["a"] = replace(world.jobs["a"], wants="none")
    decision = world.decide()["a"]
    assert (decision.devices, decision.cause) == ((), "spec")


def test_a_job_that_was_disturbed_often_enough_keeps_its_devices() -> None:
    world = grown(10.0, 8.0)
    world.rules = replace(world.rules, disturbances=(None, 1, None))
    (at,) = world.jobs["a"].disturbed
    assert not world.turn() and world.own == {"a": 4}
    world.now = at + BUDGET_S
    world.jobs["a"] = replace(world.jobs["a"], rates=tuple(_later(world.jobs["a"], world.now)))
    world.settle()
    assert world.own == {"a": 2}


def _later(job: Job, now: float) -> list[Rate]:
    return [replace(each, at=now) for each in job.rates]


NUMBERS = st.one_of(st.sampled_from([0.0, 1e-300, 1e300, math.inf]), st.floats(0, 100))
RATES = st.builds(
    Rate,
    st.integers(0, 9),
    NUMBERS,
    NUMBERS,
    st.floats(-1e9, 1e9),
    st.just(16.0),
    st.one_of(st.none(), st.builds(Rate, st.integers(0, 9), NUMBERS, NUMBERS, st.floats(0, 9))),
)


@given(st.lists(RATES, max_size=4), st.lists(RATES, max_size=4), st.integers(0, 4))
def test_whatever_was_measured_jobs_keep_what_is_guaranteed_and_come_to_rest(
    first: list[Rate], second: list[Rate], least: int
) -> None:
    """Rates of 0, of absurd size and from the future are among them."""
    world = World(6)
    world.add(
        replace(job("a", 6, 6, guarantee=least), rates=tuple(first)),
        replace(job("b", 4, 4, guarantee=1, created=1.0), rates=tuple(second)),
        job("fixed", 1, 1, created=2.0),
    )
    world.settle()
    for name, fewest in (("a", max(1, least)), ("b", 1), ("fixed", 1)):
        assert len(world.jobs[name].own) >= fewest
    assert sum(world.own.values()) <= 6


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_job_keeps_the_devices_on_which_it_is_faster(two: float, four: float) -> None:
    """Measured exactly, whatever the rates: it ends where it is faster, and stays there."""
    world = grown(two, four)
    world.jobs["a"] = replace(
        world.jobs["a"], rates=tuple(_exact(each) for each in world.jobs["a"].rates)
    )
    world.settle()
    assert world.own == {"a": 2 if four < SLOWER * two else 4}


def _exact(each: Rate) -> Rate:
    return replace(each, error=0.0, before=each.before and _exact(each.before))
