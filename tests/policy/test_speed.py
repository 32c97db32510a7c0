"""How fast a job would be on other numbers of devices follows from what was measured, of it and of
other jobs with the same program; devices go where that says that they help most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.rates import RETRY_S
from rankfold.policy.sizes import folds
from rankfold.policy.speed import Speed, deviates
from rankfold.policy.speed import speed as cached
from rankfold.policy.vocabulary import Rate
from support.decided import World, job

pytestmark = pytest.mark.unit

RANKS = st.integers(2, 64)
NUMBERS = st.one_of(
    st.sampled_from([0.0, -1.0, 1e-300, 1e300, math.inf, math.nan]), st.floats(0.01, 100)
)
SANE = st.builds(Rate, st.integers(1, 16), st.floats(0.01, 100), st.just(0.0), st.floats(0, 9))
ANY = st.builds(Rate, st.integers(-1, 70), NUMBERS, st.just(0.0), st.floats(-1e9, 1e9))


def speed(ranks: int, rates: Sequence[Rate], history: Sequence[Rate] = ()) -> Speed:
    return cached(ranks, tuple(rates), tuple(history))


def rate(devices: int, per_s: float, at: float = 0.0) -> Rate:
    return Rate(devices, per_s, 0.0, at, 16.0)


def step(ranks: int, devices: int, compute: float, all_reduce: float) -> float:
    """Seconds of a step: of the ranks one after another, then of an all-reduce."""
    return folds(ranks, devices) * compute + (1 - 1 / devices) * all_reduce


@given(RANKS, st.floats(0.01, 10), st.floats(0, 1), st.data())
def test_two_numbers_of_devices_give_all_others(
    ranks: int, compute: float, part: float, data: st.DataObject
) -> None:
    all_reduce = part * ranks * compute
    numbers = st.integers(1, ranks)
    measured = data.draw(st.lists(numbers, min_size=2, max_size=4, unique=True))
    found = speed(ranks, [rate(n, 1 / step(ranks, n, compute, all_reduce)) for n in measured])
    for n in range(1, ranks + 1):
        assert found.on(n) == pytest.approx(1 / step(ranks, n, compute, all_reduce), rel=1e-6)


@given(RANKS, st.lists(SANE, max_size=1), st.lists(SANE, max_size=1))
def test_without_two_numbers_more_devices_are_never_slower(
    ranks: int, rates: list[Rate], history: list[Rate]
) -> None:
    """In proportion to the ranks of the device that has the most, as Eq. 1 says."""
    history = [each for each in history if not rates or each.devices == rates[0].devices]
    found = speed(ranks, rates, history)
    on = [found.on(n) for n in range(1, ranks + 1)]
    for n in range(1, ranks):
        assert on[n] / on[0] == pytest.approx(folds(ranks, 1) / folds(ranks, n + 1))


@given(RANKS, st.lists(SANE, min_size=1, unique_by=lambda r: r.devices), st.lists(SANE))
def test_rates_of_the_job_are_exact(ranks: int, rates: list[Rate], history: list[Rate]) -> None:
    found = speed(ranks, rates, history)
    assert all(found.on(each.devices) == each.per_s for each in rates)


@given(RANKS, st.lists(ANY, unique_by=lambda r: r.at), st.lists(ANY, unique_by=lambda r: r.at))
def test_any_rates_in_any_order_give_the_same_speed_above_0(
    ranks: int, rates: list[Rate], history: list[Rate]
) -> None:
    found = speed(ranks, rates, history)
    assert found == speed(ranks, rates[::-1], history[::-1])
    assert 0 <= found.all_reduce <= ranks
    assert all(0 < found.on(n) < math.inf for n in range(1, 70))


def test_an_all_reduce_that_takes_all_the_time_is_not_extrapolated() -> None:
    """Four devices were slower than two; what eight are is not known, and not said to be worse."""
    found = speed(16, [rate(2, 10.0), rate(4, 2.0)])
    assert found.on(1) == pytest.approx(10.0) and found.on(8) == pytest.approx(2.0)


def test_devices_that_help_more_than_in_proportion_have_no_all_reduce() -> None:
    assert speed(8, [rate(1, 1.0), rate(2, 4.0)]).on(8) == 16.0


def test_history_is_corrected_by_what_the_job_does_now() -> None:
    history = [rate(1, 10.0), rate(2, 18.0), rate(4, 24.0)]
    assert speed(4, [], history).on(4) == 24.0
    corrected = speed(4, [rate(2, 9.0, at=5.0)], history)
    assert [corrected.on(n) for n in (1, 2, 4)] == [5.0, 9.0, 12.0]
    later = speed(4, [rate(2, 9.0, at=5.0), rate(1, 20.0, at=6.0)], history)
    assert later.on(4) == 48.0, "its last rate counts"


def test_more_than_10_percent_is_reported() -> None:
    assert not deviates(11.0, 10.0) and not deviates(9.0, 10.0)
    assert deviates(11.1, 10.0) and deviates(8.9, 10.0)


# ---- decisions


def two(first: tuple[Rate, ...], second: tuple[Rate, ...]) -> World:
    """Two jobs that are alike, which run on one device to three; there are four."""
    world = World(4)
    world.add(
        replace(job("a", 6, 3, guarantee=1), history=first),
        replace(job("b", 6, 3, guarantee=1, created=1.0), history=second),
    )
    return world


def test_devices_go_to_the_job_that_they_make_faster_as_was_measured() -> None:
    slow = (rate(1, 10.0), rate(2, 11.0), rate(3, 12.0))
    fast = (rate(1, 10.0), rate(2, 19.0), rate(3, 27.0))
    for histories, own in (((slow, fast), {"a": 1, "b": 3}), ((fast, slow), {"a": 3, "b": 1})):
        world = two(*histories)
        world.settle()
        assert world.own == own


def test_no_job_gets_devices_that_made_it_slower_for_an_hour() -> None:
    world = World(4)
    history = (rate(1, 10.0), rate(2, 12.0), rate(4, 11.0))
    world.add(replace(job("a", 4, 4, guarantee=1), history=history))
    world.settle()
    assert world.own == {"a": 2}
    world.now = RETRY_S - 2.0
    assert not world.turn()
    world.settle()
    assert world.own == {"a": 4}, "it is tried again"


@given(st.data())
def test_whatever_history_says_jobs_come_to_rest(data: st.DataObject) -> None:
    world = World(data.draw(st.integers(2, 8)))
    for at, name in enumerate("abc"):
        history = tuple(data.draw(st.lists(ANY, max_size=4)))
        rates = tuple(data.draw(st.lists(SANE, max_size=3, unique_by=lambda r: r.devices)))
        made = job(name, 8, data.draw(st.integers(2, 8)), guarantee=1, created=float(at))
        world.add(replace(made, history=history, rates=rates))
    world.settle()
    backwards = World(len(world.members[0]))
    backwards.jobs = {n: replace(each, own=()) for n, each in reversed(world.jobs.items())}
    again = World(len(world.members[0]))
    again.jobs = {n: replace(each, own=()) for n, each in world.jobs.items()}
    assert backwards.decide() == again.decide()


def test_a_job_of_which_nothing_is_known_is_as_fast_as_its_ranks_allow() -> None:
    assert [Speed(4).on(n) for n in (1, 2, 3, 4)] == [0.25, 0.5, 0.5, 1.0]
