"""A service has the fewest replicas that carry its load: more at once, fewer after a delay. Its
replicas take devices from training as jobs of their tier do."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.serving import Replicas, bounded, needed, scaled
from rankfold.policy.vocabulary import Job
from support.decided import World, job

pytestmark = pytest.mark.unit


@given(st.floats(0, 1e15), st.floats(1e-9, 1e15), st.integers(0, 256), st.integers(1, 256))
def test_the_fewest_replicas_that_carry_the_load(
    load: float, per_replica: float, least: int, most: int
) -> None:
    least = min(least, most)
    number = needed(load, per_replica, least, most)
    assert least <= number <= most
    if number < most:
        assert number * per_replica >= load * (1 - 1e-12)
    if number > least:
        assert (number - 1) * per_replica < load


def test_numbers_of_replicas() -> None:
    assert [needed(load, 50, 1, 3) for load in (0, 1, 50, 50.5, 100, 101, 1e15)] == [
        1, 1, 1, 2, 2, 3, 3,
    ]  # fmt: skip
    assert needed(0, 50, 0, 3) == 0 and needed(1e15, 1e-9, 0, 256) == 256


def test_more_at_once_and_fewer_after_the_delay() -> None:
    one = scaled(None, 1, 0, 30)
    three = scaled(one, 3, 5, 30)
    assert (one.number, three) == (1, Replicas(3))
    falls = scaled(scaled(three, 1, 10, 30), 2, 20, 30)
    assert falls == Replicas(3, 10, 2)
    assert scaled(falls, 1, 39, 30).number == 3
    assert scaled(falls, 1, 40, 30) == Replicas(2, 40, 1), "as many as were needed at most"
    assert scaled(falls, 3, 39, 30) == Replicas(3), "the delay starts again"


def test_a_clock_that_is_set_back_starts_the_delay_again() -> None:
    falls = scaled(Replicas(3), 1, 100, 30)
    back = scaled(falls, 1, 50, 30)
    assert back == Replicas(3, 50, 1) and scaled(back, 1, 80, 30) == Replicas(1)


def test_limits_that_change_hold_at_once() -> None:
    assert bounded(None, 2, 5) == 2
    assert [bounded(Replicas(4), *limits) for limits in ((1, 3), (5, 6), (1, 9))] == [3, 5, 4]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=30), st.integers(0, 30))
def test_any_load(rounds: list[tuple[int, int]], delay: int) -> None:
    """There are never fewer than the load needs, nor more than it has needed since a delay ago, and
    a constant load is followed."""
    now, state = 0, scaled(None, 0, 0, delay)
    history = [(0, 0)]
    for wanted, passes in rounds:
        now += passes
        state = scaled(state, wanted, now, delay)
        history.append((now, wanted))
        assert state.number >= wanted
        assert state.number <= max(number for _, number in history)
        if state.since is None:
            continue
        # Since the delay began, the load has needed fewer all the time.
        assert all(number < state.number for at, number in history if at > state.since)
    last = history[-1][1]
    for _ in range(3):
        now += delay
        state = scaled(state, last, now, delay)
    assert state.number == last


# ---- devices


def replica(number: int, tier: str = "premium") -> Job:
    return replace(job(f"web-{number}", 1, 1, created=9.0), tier=tier, serving=True)


def training(tier: str, name: str, devices: int, guarantee: int | None = None) -> Job:
    return replace(job(name, devices, devices, guarantee), tier=tier)


def test_training_is_shrunk_before_it_is_suspended_by_tier() -> None:
    world = World(5)
    world.add(training("standard", "std", 2, 1), training("basic", "bas", 2, 1), replica(0))
    world.settle()
    steps = []
    for number in range(1, 4):
        world.add(replica(number))
        decisions = world.decide()
        steps.append(
            {name: each.cause for name, each in decisions.items() if each.cause and name[0] != "w"}
        )
        world.settle()
    assert steps == [{"bas": "serving"}, {"std": "serving"}, {"bas": "serving"}]
    assert world.own == {"std": 1, "bas": 0, "web-0": 1, "web-1": 1, "web-2": 1, "web-3": 1}
    for number in (2, 3):
        world.jobs[f"web-{number}"] = replace(world.jobs[f"web-{number}"], wants="none")
    assert world.decide()["web-3"].cause == "serving"
    world.settle()
    assert world.own["bas"] + world.own["std"] == 3, "training has the devices back"


def test_a_service_takes_nothing_from_its_own_tier_that_is_guaranteed() -> None:
    world = World(2)
    world.add(training("premium", "prm", 2, 1), replica(0))
    world.settle()
    world.add(replica(1))
    assert not world.turn() and world.own == {"prm": 1, "web-0": 1, "web-1": 0}


@dataclass
class Loaded:
    """Training, and a service whose load changes."""

    world: World
    replicas: list[str] = field(default_factory=list)

    def needs(self, number: int) -> None:
        for at, name in enumerate(self.replicas):
            wants = "devices" if at < number else "none"
            self.world.jobs[name] = replace(self.world.jobs[name], wants=wants)


@given(
    st.integers(1, 6),
    st.lists(
        st.tuples(st.sampled_from(["standard", "basic"]), st.integers(1, 4), st.booleans()),
        max_size=5,
    ),
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
)
def test_a_service_has_its_devices_whatever_trains(
    devices: int, trains: list[tuple[str, int, bool]], loads: list[int]
) -> None:
    world = World(devices)
    for number, (tier, ranks, elastic) in enumerate(trains):
        world.add(training(tier, f"t{number}", ranks, 1 if elastic else None))
    loaded = Loaded(world, [f"web-{number}" for number in range(devices)])
    world.add(*(replica(number) for number in range(devices)))
    for load in loads:
        loaded.needs(load)
        world.settle()
        assert sum(world.own[name] for name in loaded.replicas) == min(load, devices)
    loaded.needs(0)
    world.settle()
    if sum(ranks for _, ranks, _ in trains) <= devices:
        assert [world.own[f"t{at}"] for at in range(len(trains))] == [each[1] for each in trains]
