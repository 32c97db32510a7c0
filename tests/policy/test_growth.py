"""Idle devices go to the jobs whose throughput grows most with them: close to the best that is
possible, as all ways to share them show."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.growth import EXCHANGED_MAX, Growing, growing, share
from rankfold.policy.mapping import DeviceType, best_mapping, throughput
from rankfold.policy.sizes import useful
from rankfold.policy.speed import Speed
from support.decided import World, job

pytestmark = pytest.mark.unit

Shape = tuple[int, int, int]  # ranks, fewest and most devices


def of(shape: Shape) -> Growing:
    ranks, least, most = shape
    return growing(Speed(ranks), least, useful(ranks, least, most), ranks)


def shared(shapes: list[Shape], devices: int) -> list[Growing]:
    jobs = [of(shape) for shape in shapes]
    share(jobs, devices)
    return jobs


def mean(speeds: list[float]) -> float:
    """Geometric mean of the throughputs, up to a factor."""
    return math.exp(sum(math.log(each) for each in speeds) / len(speeds))


def quality(shapes: list[Shape], devices: int) -> float:
    """The geometric mean of throughputs over that of the best way to share the devices."""
    jobs = shared(shapes, devices)
    used = sum(each.size - each.sizes[0] for each in jobs)
    assert used <= devices
    best = max(
        mean([each.speeds[at] for each, at in zip(jobs, chosen, strict=True)])
        for chosen in product(*(range(len(each.sizes)) for each in jobs))
        if sum(each.sizes[at] - each.sizes[0] for each, at in zip(jobs, chosen, strict=True))
        <= devices
    )
    return mean([each.speeds[each.at] for each in jobs]) / best


def drawn(random: Random) -> list[Shape]:
    found = []
    for _ in range(random.randint(2, 4)):
        ranks = random.choice([2, 3, 4, 6, 8, 12, 16])
        least = random.randint(1, max(1, ranks // 4))
        found.append((ranks, least, random.randint(least, ranks)))
    return found


def test_the_devices_are_shared_almost_as_well_as_possible() -> None:
    random = Random(1)
    found = [quality(drawn(random), random.randint(1, 16)) for _ in range(400)]
    assert sum(found) / len(found) >= 0.98
    assert min(found) >= 0.90


def test_jobs_exchange_devices_if_that_is_better() -> None:
    """Found by a search: without the exchange, the worst of such fleets have 0.87."""
    random = Random(2)
    fleets = [(drawn(random), random.randint(1, 16)) for _ in range(400)]
    assert min(quality(*each) for each in fleets) >= 0.95


@given(st.data(), st.integers(0, 40))
def test_shares_are_useful_and_leave_no_device_idle(data: st.DataObject, devices: int) -> None:
    """Useful numbers only, never fewer than before, and no device is left that a job could use."""
    number = data.draw(st.integers(1, EXCHANGED_MAX + 4))
    shapes = []
    for _ in range(number):
        ranks = data.draw(st.integers(1, 12))
        least = data.draw(st.integers(1, ranks))
        shapes.append((ranks, least, data.draw(st.integers(least, ranks))))
    jobs = shared(shapes, devices)
    left = devices - sum(each.size - each.sizes[0] for each in jobs)
    assert left >= 0
    for each, (ranks, least, most) in zip(jobs, shapes, strict=True):
        assert each.size in useful(ranks, least, most)
        assert each.within(each.size + left) == each.at
        assert each.speeds[each.at] == 1 / -(-ranks // each.size)


@given(st.integers(1, 40), st.integers(1, 40))
def test_throughput_is_that_of_eq_1(ranks: int, devices: int) -> None:
    """On equal devices that each run one rank per second."""
    size = min(ranks, devices)
    best = best_mapping(ranks, [DeviceType(size, Fraction(1))])
    assert best is not None and float(throughput(1, best)) == Speed(ranks).on(size)


# ---- decisions


def test_the_job_that_gains_most_grows_first() -> None:
    """It need not be the oldest: `wide` is twice as fast with one device more, `old` by a third."""
    world = World(4)
    world.add(job("old", 8, 8, guarantee=2), job("wide", 2, 2, guarantee=1, created=1.0))
    world.settle()
    assert world.own == {"old": 2, "wide": 2}


def test_a_higher_tier_grows_first() -> None:
    world = World(4)
    world.add(
        job("std", 2, 2, guarantee=1),
        replace(job("prm", 6, 6, guarantee=2, created=1.0), tier="premium"),
    )
    world.settle()
    assert world.own == {"std": 1, "prm": 3}


def test_jobs_that_are_equal_grow_in_their_order() -> None:
    world = World(3)
    world.add(job("b", 2, 2, guarantee=1, created=1.0), job("a", 2, 2, guarantee=1, created=2.0))
    world.settle()
    assert world.own == {"b": 2, "a": 1}
