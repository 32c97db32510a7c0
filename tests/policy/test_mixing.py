"""Jobs that may use several types of devices at once grow into idle devices of all of them."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.mixing import Mixed, eq_1, share
from rankfold.policy.vocabulary import Job
from support.decided import World, job

pytestmark = pytest.mark.unit


def mixed(
    name: str, ranks: int, capabilities: tuple[float, ...], created: float = 0.0, least: int = 1
) -> Job:
    made = job(name, ranks, ranks, guarantee=least, created=created)
    groups = tuple(range(len(capabilities)))
    return replace(made, groups=groups, capabilities=capabilities)


def of_each(world: World, name: str) -> list[int]:
    """How many devices of each group a job has."""
    return [len(set(world.jobs[name].own).intersection(each)) for each in world.members]


@given(st.integers(1, 20), st.lists(st.integers(0, 6), min_size=1, max_size=3))
def test_equal_types_are_as_fast_as_one_type(ranks: int, counts: list[int]) -> None:
    number = sum(counts)
    expected = 1 / -(-ranks // number) if number else 0.0
    assert eq_1(ranks, (1.0,) * len(counts), tuple(counts)) == expected


def test_a_slow_type_is_used_as_far_as_it_helps() -> None:
    """A device of half the speed has one rank while the others have two each; one of a tenth would
    be what all others wait for."""
    world = World(2, 2)
    world.add(mixed("a", 6, (1.0, 0.5)))
    world.settle()
    assert of_each(world, "a") == [2, 2]
    assert eq_1(6, (1.0, 0.5), (2, 2)) == 0.5
    world = World(2, 2)
    world.add(mixed("a", 6, (1.0, 0.1)))
    world.settle()
    assert of_each(world, "a") == [2, 0]


def test_jobs_take_devices_that_fewer_others_can_use() -> None:
    """`b` cannot use the second type; for `a` both are the same."""
    world = World(3, 2)
    world.add(mixed("a", 2, (1.0, 1.0)), job("b", 2, 2, guarantee=1, created=1.0))
    world.settle()
    assert of_each(world, "a") == [1, 1] and of_each(world, "b") == [2, 0]


def test_a_higher_tier_grows_first() -> None:
    world = World(2, 1)
    world.add(
        mixed("std", 2, (1.0, 1.0)), replace(mixed("prm", 3, (1.0, 1.0), 1.0), tier="premium")
    )
    world.settle()
    assert world.own == {"std": 1, "prm": 2}


def quality(random: Random) -> float:
    """The geometric mean of the speeds of two jobs, over that of the best way to share devices."""
    free = [random.randint(0, 3), random.randint(0, 3)]
    speeds = []
    for _ in range(2):
        ranks, slow = random.choice([2, 4, 8]), random.choice([0.3, 0.5, 0.8])
        speeds.append(partial(eq_1, ranks, (1.0, slow)))
    jobs = [Mixed((0, 1), (1, 0), 8, speed) for speed in speeds]
    first = product(range(free[0] + 1), range(free[1] + 1))
    ways = [((1 + a, b), (1 + free[0] - a, free[1] - b)) for a, b in first]
    best = max(speeds[0](one) * speeds[1](other) for one, other in ways)
    share(jobs, dict(enumerate(free)))
    reached = speeds[0](jobs[0].counts) * speeds[1](jobs[1].counts)
    return math.sqrt(reached / best)


def test_the_devices_are_shared_well() -> None:
    """Equal ones are shared better: one device may gain nothing, and one of each type much."""
    random = Random(1)
    found = [quality(random) for _ in range(400)]
    assert sum(found) / len(found) >= 0.97 and min(found) >= 0.70 and max(found) <= 1 + 1e-9


@given(st.data())
def test_no_device_is_given_twice_and_a_fixed_point_is_reached(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=3).filter(any))
    world, backwards = World(*sizes), World(*sizes)
    for number in range(data.draw(st.integers(1, 4))):
        ranks, least = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 1))
        if data.draw(st.booleans()):
            speeds = st.sampled_from([0.25, 0.5, 1.0])
            capabilities = tuple(data.draw(speeds) for _ in sizes)
            made = mixed(f"j{number}", ranks, capabilities, float(number), least)
        else:
            made = job(f"j{number}", ranks, ranks, least, float(number))
            made = replace(made, groups=(data.draw(st.integers(0, len(sizes) - 1)),))
        world.add(made)
    backwards.jobs = dict(reversed(world.jobs.items()))
    for each in (world, backwards):
        each.settle()
        given_ = [at for one in each.jobs.values() for at in one.own]
        assert len(given_) == len(set(given_))
        for one in each.jobs.values():
            assert len(one.own) <= one.devices
            assert all(any(at in each.members[group] for group in one.groups) for at in one.own)
    assert world.own == backwards.own
