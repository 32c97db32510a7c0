"""Copies beneath work that continues, since it may wait for what is to be written there."""

from __future__ import annotations

import pytest

from .device import CELL, CELLS
from .steps import own, same, together
from .world import COPY, DEV_BASE, Make, Rank, World, addr_of


def shared(make: Make, **more: bool) -> tuple[World, Rank, Rank]:
    """Two ranks that have a page in common; of the first a work is under way that writes nothing,
    and it needs the page for itself."""
    world = make(2, 4, **more)
    first, second = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 2
    first.begin()
    return world, first, second


def unforeseen(rank: Rank, cell: int, value: int) -> None:
    """A kernel that runs writes to the first page, where it was not foreseen."""
    assert rank.world.device.unforeseen(rank.space, DEV_BASE, cell, value)
    page = list(rank.model[0])
    page[cell] = value
    rank.model[0] = tuple(page)


def test_a_copy_does_not_wait_for_work_that_only_reads(make: Make) -> None:
    world, first, second = shared(make)
    assert first.request(COPY)
    world.settle()
    assert first.works and first.owns(0, CELLS) and first.refs(0) == second.refs(0) == 1
    assert world.memory.copies == 1
    first.run(0, CELLS, 7)
    first.end()
    first.end()
    world.check()


def test_a_write_protected_page_of_one_rank_is_opened_beneath_work(make: Make) -> None:
    world, first, second = shared(make)
    own(second, 0)
    assert first.refs(0) == 1 and not first.owns(0, CELLS)
    assert first.request(COPY)
    world.settle()
    assert first.works and first.owns(0, CELLS) and world.memory.copies == 1
    first.end()


def test_a_device_that_cannot_do_so_waits_for_the_work(make: Make) -> None:
    world, first, _ = shared(make, beneath=False)
    assert first.request(COPY)
    world.settle(waiting=(COPY,))
    assert not first.owns(0, CELLS)
    first.end()
    world.settle()
    assert first.owns(0, CELLS)


def test_a_page_written_for_all_is_not_copied_meanwhile(make: Make) -> None:
    """The copy would have half of it, or none."""
    world, first, second = shared(make)
    first.end()
    together(second, world.ranks, 0, CELLS, 5)
    for rank in world.ranks:
        assert rank.request(COPY)
    world.settle(waiting=(COPY,))
    assert first.refs(0) == 2
    second.end()
    world.settle()
    assert [rank.read(0) for rank in world.ranks] == [(5,) * CELLS] * 2


def test_unbounded_work_is_counted_while_it_runs(make: Make) -> None:
    world, first, _ = shared(make)
    first.end()
    ranges = world.ffi.new("struct memory_range[]", [(addr_of(CELLS), CELL)])
    assert world.lib.memory_fence(first.memory, ranges, 1, False) == 0
    first.begin()
    assert first.request(COPY)
    world.settle(waiting=(COPY,))
    assert not first.owns(0, CELLS)
    first.end()
    world.settle()
    assert first.owns(0, CELLS)


@pytest.mark.parametrize("when", ["told", "untold", "over"])
def test_writes_before_a_copy_completes_are_kept(make: Make, when: str) -> None:
    world, first, second = shared(make)
    first.begin()
    assert first.request(COPY)
    world.turn()
    assert first.moving
    unforeseen(first, 1, 9)
    for _ in range({"told": 1, "untold": 0, "over": 2}[when]):
        first.end()
    assert first.memory.counted.unforeseen == (when != "untold")
    world.settle()
    while first.works:
        first.end()
    assert first.read(0) == (1, 9) and second.read(0) == (1, 1)
    assert world.memory.used == 2 and world.memory.unforeseen == 1
    world.check()


def test_writes_before_a_page_is_opened_are_kept(make: Make) -> None:
    world, first, second = shared(make)
    own(second, 0)
    unforeseen(first, 0, 9)
    assert first.request(COPY)
    world.settle()
    assert first.owns(0, CELLS) and first.memory.counted.unforeseen == 1
    first.run(CELLS - 1, 1, 7)
    while first.works:
        first.end()
    assert first.read(0) == (9, 7)


def test_a_copy_that_fails_leaves_what_was_there(make: Make) -> None:
    world, first, second = shared(make)
    world.fault("own")
    assert first.request(COPY)
    world.settle()
    assert first.told[-1] == (COPY, 2) and first.refs(0) == 2 and world.memory.used == 1
    assert first.read(0) == second.read(0) == (1,) * CELLS
    first.end()
