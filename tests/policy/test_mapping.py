"""The mapping of logical workers to devices is the best one: Eq. 1 of EasyScale by brute force."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.policy.mapping import DeviceType, best_mapping, throughput, waste

pytestmark = pytest.mark.unit

capabilities = st.fractions(Fraction(1, 10), 10, max_denominator=10)
kinds = st.lists(st.builds(DeviceType, st.integers(0, 4), capabilities), min_size=1, max_size=3)


def by_brute_force(workers: int, types: list[DeviceType]) -> Fraction | None:
    """The shortest step of all numbers of workers on a device of each type."""
    steps = []
    choices = [range(workers + 1) if each.devices else (0,) for each in types]
    for slots in itertools.product(*choices):
        if sum(each.devices * on_one for each, on_one in zip(types, slots, strict=True)) >= workers:
            steps.append(
                max(on_one / each.capability for each, on_one in zip(types, slots, strict=True))
            )
    return min(steps, default=None)


@given(st.integers(1, 6), kinds)
def test_no_mapping_has_a_shorter_step(workers: int, types: list[DeviceType]) -> None:
    found = best_mapping(workers, types)
    assert (found.step if found else None) == by_brute_force(workers, types)


@given(st.integers(1, 1000), kinds)
def test_all_workers_have_slots_and_no_device_takes_longer_than_the_step(
    workers: int, types: list[DeviceType]
) -> None:
    found = best_mapping(workers, types)
    assert (found is None) == all(each.devices == 0 for each in types)
    if found is not None:
        pairs = list(zip(types, found.slots, strict=True))
        assert sum(each.devices * slots for each, slots in pairs) >= workers
        assert max(slots / each.capability for each, slots in pairs) == found.step


@given(st.integers(1, 1000), kinds)
def test_capability_is_either_throughput_or_waste(workers: int, types: list[DeviceType]) -> None:
    found = best_mapping(workers, types)
    if found is not None:
        capability = sum(each.devices * each.capability for each in types)
        assert capability - waste(workers, types, found) == throughput(workers, found)
        assert waste(workers, types, found) >= 0


def test_a_device_that_is_twice_as_fast_gets_twice_the_workers() -> None:
    found = best_mapping(8, [DeviceType(2, Fraction(2)), DeviceType(4, Fraction(1))])
    assert found is not None
    assert found.slots == (2, 1) and found.step == 1


def test_a_boundary_is_exact() -> None:
    """In floats, 3 / 0.1 * 0.1 and its like may be just below a whole number."""
    found = best_mapping(9, [DeviceType(3, Fraction(1, 10))])
    assert found is not None and found.slots == (3,) and found.step == 30


@pytest.mark.parametrize(
    ("workers", "types"),
    [
        (0, [DeviceType(1, Fraction(1))]),
        (1, [DeviceType(-1, Fraction(1))]),
        (1, [DeviceType(1, Fraction(0))]),
        (1, [DeviceType(1, Fraction(-1))]),
    ],
)
def test_impossible_numbers_are_refused(workers: int, types: list[DeviceType]) -> None:
    with pytest.raises(ValueError):
        best_mapping(workers, types)
