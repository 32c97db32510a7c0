"""A result that another rank has computed from the same inputs is mapped: exactly, and while no
rank uses it."""

from __future__ import annotations

from typing import Any

import pytest

from .device import CELL, CELLS
from .steps import own, same, scarce
from .world import SAVE, Make, Rank, World, addr_of

NONE, LATER, DONE, FAILED = range(4)
READ, WRITTEN = 1, 2  # enum reach_use


def work(world: World, *ranges: tuple[int, int], key: int = 77) -> Any:
    """One that writes these cells, and nothing else: first and count."""
    f = world.ffi.new("struct footprint *")
    f.known = f.keyed = True
    f.key.a = f.key.b = key
    for first, count in ranges:
        world.lib.footprint_add(f, addr_of(first), count * CELL, WRITTEN)
    return f


def compute(rank: Rank, f: Any, value: int) -> None:
    """The rank does it, alone."""
    for n in range(f.count):
        if f.ranges[n].use != WRITTEN or not f.ranges[n].bytes:
            continue
        first = (f.ranges[n].addr - addr_of(0)) // CELL
        count = f.ranges[n].bytes // CELL
        for page in {cell // CELLS for cell in range(first, first + count)}:
            own(rank, page)
        rank.run(first, count, value)
        rank.end()
    rank.world.lib.content_commit(rank.memory, f, f.key)


def map_result(rank: Rank, f: Any) -> int:
    found = int(rank.world.lib.memory_map_result(rank.memory, f))
    if found == DONE:
        for page in list(rank.model):
            for other in rank.world.ranks:
                if other is not rank and other.chunk(page) == rank.chunk(page):
                    rank.model[page] = other.model[page]
    rank.world.check()
    return found


def computed(make: Make, **more: Any) -> tuple[World, Any, Rank, Rank]:
    """Two ranks of equal content; the first has computed what the second is about to compute."""
    world = make(2, 8, **more)
    first, second = world.ranks
    same(first, second)
    f = work(world, (0, CELLS))
    compute(first, f, 9)
    return world, f, first, second


def test_another_rank_s_result_is_reused(make: Make) -> None:
    world, f, first, second = computed(make)
    used = world.memory.used
    assert map_result(second, f) == DONE
    assert second.chunk(0) == first.chunk(0) and world.memory.used == used - 1
    assert second.read(0) == (9,) * CELLS and not second.owns(0, CELLS)
    assert map_result(second, work(world, (0, CELLS), key=78)) == NONE


def test_nothing_is_mapped_under_the_last_reader(make: Make) -> None:
    """Work that still runs reads the previous content."""
    world, f, first, second = computed(make)
    second.begin()
    assert map_result(second, f) == LATER and second.chunk(0) != first.chunk(0)
    assert second.read(0) == (1,) * CELLS
    second.end()
    assert second.request(SAVE, stay=True)
    world.turn()
    assert second.moving and map_result(second, f) == LATER
    world.settle()
    world.lib.memory_changes(second.memory)
    assert map_result(second, f) == DONE


def test_nothing_is_taken_from_who_is_busy(make: Make) -> None:
    """It may be writing that just now; and no rank waits for it."""
    _, f, first, second = computed(make)
    for rank in (first, second):
        first.begin()
        if rank is second:
            second.begin()
        assert map_result(second, f) == NONE
        while first.works:
            first.end()
    second.end()
    assert map_result(second, f) == DONE


@pytest.mark.parametrize("why", ["group", "stopped", "doubted", "apart"])
def test_no_rank_waits_to_take_what_never_can_be_taken(make: Make, why: str) -> None:
    world, f, _, second = computed(make, groups=(1, 2 if why == "group" else 1))
    if why == "stopped":
        world.lib.memory_stop(second.memory)
    second.memory.distrusted = why == "doubted"
    world.memory.shares = why != "apart"
    second.begin()
    assert map_result(second, f) == NONE
    second.end()
    assert map_result(second, f) == NONE


def test_a_page_copied_to_be_written_is_not_reused(make: Make) -> None:
    world, f, first, second = computed(make)
    third = Rank(world, 2)
    world.ranks.append(third)
    same(third)
    assert world.lib.memory_merge(third.memory) == 0 and third.refs(0) == 2
    scarce(first, 7)
    own(third, 0)
    assert map_result(third, f) == NONE
    third.write(0, 1)
    assert map_result(third, f) == DONE and second.refs(0) == 1


def test_a_page_copied_each_time_is_not_reused(make: Make) -> None:
    world, f, first, second = computed(make)
    assert map_result(second, f) == DONE
    own(second, 0)
    second.write(0, 1)
    assert map_result(second, f) == NONE
    for rank in (first, second, first):
        world.lib.memory_activated(rank.memory)
    assert map_result(second, f) == DONE


def test_a_page_that_another_rank_copied_is_reused_and_then_tried_again(make: Make) -> None:
    world, f, first, second = computed(make)
    assert map_result(second, f) == DONE
    own(first, 0)  # and the second is notified
    for key, then in ((78, DONE), (79, NONE)):
        f = work(world, (0, CELLS), key=key)
        compute(first, f, key)
        assert map_result(second, f) == then
        own(second, 0)
        second.write(0, 1)


def test_a_page_that_is_not_reused_is_unchanged(make: Make) -> None:
    """One of two pages differs, so the rank gets no result, not even on the other page."""
    world = make(2, 8)
    first, second = world.ranks
    same(first, second, pages=2)
    second.write(1, 5)
    f = work(world, (0, CELLS + 1))
    compute(first, f, 9)
    assert map_result(second, f) == NONE
    for rank in (second, first):
        assert world.lib.memory_merge(rank.memory) == 0
        assert second.chunk(0) != first.chunk(0)
        world.check()


@pytest.mark.parametrize("how", ["map", "protect"])
def test_a_page_that_cannot_be_mapped_is_reported(make: Make, how: str) -> None:
    """A page is not reused while its giver may still write it."""
    world, f, _, second = computed(make)
    world.fault(how)
    assert map_result(second, f) == FAILED
    assert second.read(0) == (1,) * CELLS


def test_pages_that_are_not_written_need_not_be_resident(make: Make) -> None:
    """It was read by its versions, so it may be elsewhere."""
    world = make(2, 8)
    first, second = world.ranks
    same(first, second, pages=3)
    for page in (1, 2):
        second.write(page, 5)
    f = work(world, (0, CELLS), (CELLS + 1, 0))
    world.lib.footprint_add(f, addr_of(2 * CELLS), CELL, READ)
    compute(first, f, 9)
    assert map_result(second, f) == DONE
    assert [second.chunk(page) == first.chunk(page) for page in range(3)] == [True, False, False]


def test_a_page_of_two_ranges_is_taken_once(make: Make) -> None:
    world = make(2, 8)
    first, second = world.ranks
    same(first, second)
    f = work(world, (0, 1), (1, CELLS - 1))
    compute(first, f, 9)
    assert map_result(second, f) == DONE
    assert second.chunk(0) == first.chunk(0) and first.refs(0) == 2


def test_where_nothing_is_on_the_device_nothing_is_taken(make: Make) -> None:
    world, f, _, second = computed(make)
    assert second.request(SAVE)
    world.settle()
    assert second.chunk(0) is None and map_result(second, f) == NONE
