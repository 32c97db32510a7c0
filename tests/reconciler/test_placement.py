"""Blocks of ranks: contiguous, even, and as few tree nodes as possible."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.reconciler.plan.placement import assign, block_sizes, cover

pytestmark = pytest.mark.unit


@st.composite
def shapes(draw: st.DrawFn, most: int = 64) -> tuple[int, int]:
    world_size = draw(st.integers(1, most))
    return world_size, draw(st.integers(1, world_size))


@given(shapes())
def test_every_rank_is_placed_once_in_order_and_evenly(shape: tuple[int, int]) -> None:
    world_size, devices = shape
    names = tuple(f"d{i}" for i in range(devices))
    placement = assign(world_size, names)
    assert len(placement) == world_size
    assert tuple(dict.fromkeys(placement)) == names, "contiguous blocks in the devices' order"
    sizes = [placement.count(name) for name in names]
    assert max(sizes) - min(sizes) <= 1


def nodes(world_size: int, sizes: tuple[int, ...]) -> int:
    starts = [0, *itertools.accumulate(sizes)]
    return sum(cover(0, world_size, a, b) for a, b in itertools.pairwise(starts))


@given(shapes(most=14))
def test_no_other_even_cut_needs_fewer_tree_nodes(shape: tuple[int, int]) -> None:
    world_size, devices = shape
    small, larger = divmod(world_size, devices)
    choices = itertools.combinations(range(devices), larger)
    best = min(
        nodes(world_size, tuple(small + (i in chosen) for i in range(devices)))
        for chosen in choices
    )
    assert nodes(world_size, block_sizes(world_size, devices)) == best


@given(st.integers(1, 200), st.data())
def test_cover_of_neighbours_adds_up_to_all_ranks(world_size: int, data: st.DataObject) -> None:
    """A block of n ranks needs at most 2·log₂n nodes (and a single rank one)."""
    start = data.draw(st.integers(0, world_size - 1))
    stop = data.draw(st.integers(start + 1, world_size))
    count = cover(0, world_size, start, stop)
    assert 1 <= count <= max(1, 2 * (stop - start).bit_length())
    assert cover(0, world_size, start, start + 1) == 1


@pytest.mark.parametrize(
    ("world_size", "devices", "sizes"),
    [(4, 3, (2, 1, 1)), (4, 2, (2, 2)), (8, 3, (3, 3, 2)), (6, 4, (2, 2, 1, 1)), (5, 2, (2, 3))],
)
def test_known_cuts(world_size: int, devices: int, sizes: tuple[int, ...]) -> None:
    found = block_sizes(world_size, devices)
    assert nodes(world_size, found) == nodes(world_size, sizes)
    assert sorted(found) == sorted(sizes)


@pytest.mark.parametrize("devices", [0, 5])
def test_more_devices_than_ranks_is_an_error(devices: int) -> None:
    with pytest.raises(ValueError, match="4 ranks cannot use"):
        block_sizes(4, devices)
