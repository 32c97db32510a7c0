"""Pages that ranks have in common: how they come to be one chunk, and who may write there."""

from __future__ import annotations

import pytest

from .device import CELL, CELLS, CHUNK, NOT_READY, ZEROS
from .steps import own, same, scarce, sharers, together
from .world import ACTIVATE, COPY, DEV_BASE, PREFETCH, PRIVATE, SAVE, Make, World, addr_of

ALL = 2**32 - 1  # stretches of pages


def test_a_chunk_of_several_ranks_counts_once_and_goes_with_the_last(make: Make) -> None:
    world = make(3, 3)
    first, second, third = world.ranks
    same(first, second, third)
    assert world.memory.used == 3
    for rank in (second, third):
        assert world.lib.memory_merge(rank.memory) == 0
    assert world.memory.used == world.memory.shared == 1 and first.refs(0) == 3
    assert second.request(COPY)
    world.settle()
    assert second.refs(0) == 1 and first.refs(0) == 2 and world.memory.used == 2
    second.write(0, 7)  # no other rank shares it
    world.check()
    assert first.request(SAVE)
    world.settle()
    assert world.memory.used == 2 and third.refs(0) == 1
    third.free(0)
    assert world.memory.used == 1
    world.check()


def test_pages_that_others_have_are_not_swapped_in(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second, pages=2)
    assert second.request(SAVE)
    world.settle()
    moved = world.memory.swapped_in
    assert second.request(ACTIVATE)
    world.settle()
    assert world.memory.used == 2 and world.memory.swapped_in == moved
    assert world.memory.not_swapped == 2 * CHUNK


def test_ranks_that_share_all_fit_where_one_does(make: Make) -> None:
    """Pages that the activated rank shares are not swapped out to make space for it."""
    world = make(3, 3)
    for rank in world.ranks:
        same(rank, pages=2)
        assert rank.alloc(2) and rank.request(ACTIVATE)
        world.settle()
        rank.run(2 * CELLS, CELLS, PRIVATE + rank.number)
        rank.end()
    moved = world.memory.swapped_in + world.memory.swapped_out
    for turn in range(6):
        rank = world.ranks[turn % 3]
        assert rank.request(ACTIVATE)
        world.settle()
        assert world.lib.memory_merge(rank.memory) == 0
        world.lib.memory_activated(rank.memory)
        assert not rank.memory.missing and world.memory.used == 3
    moved = world.memory.swapped_in + world.memory.swapped_out - moved
    assert moved <= 2 * 6 * CHUNK + 4 * CHUNK  # private pages, and once what was not shared yet


def test_zeros_are_not_copied(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    for rank in (first, second):
        assert rank.alloc(0) and rank.request(ACTIVATE)
        world.settle()
    assert first.refs(0) == 2
    assert second.request(COPY)
    world.turn()
    assert second.refs(0) == 1 and not any(world.device.queues.values())
    assert world.memory.copies == 1


def test_unforeseen_writes_are_found_on_every_page(make: Make) -> None:
    """Unforeseen writes are also found in unshared pages."""
    world = make(2, 8)
    first, second = world.ranks
    same(first, second, pages=3)
    assert world.lib.memory_merge(second.memory) == 0
    own(first, 0, 2)
    ranges = world.ffi.new("struct memory_range[]", [(DEV_BASE, 1)])
    assert world.lib.memory_fence(first.memory, ranges, 1, False) == 0
    assert [first.owns(page * CELLS, CELLS) for page in range(3)] == [True, True, False]
    first.write(1, 7)  # kept for this
    assert world.lib.memory_fence(first.memory, ranges, 1, False) == 0
    assert [first.owns(page * CELLS, CELLS) for page in range(3)] == [True, False, False]
    first.begin()
    assert world.lib.memory_fence(first.memory, ranges, 1, False) == NOT_READY
    assert world.device.unforeseen(first.space, addr_of(CELLS), 1, 9)
    first.model[1] = (first.model[1][0], 9)
    first.end()
    assert world.memory.unforeseen == 1 and not first.memory.surprised
    for rank in (first, second):
        assert world.lib.memory_merge(rank.memory) == 0
        world.check()


def test_a_page_that_only_begins_with_zeros_is_copied(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    for rank in (first, second):
        rank.run(0, 1, 0)
        rank.end()
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 2
    own(second, 0)
    assert second.read(0) == (0, 1)


def test_where_there_is_no_chunk_for_a_copy_the_others_let_go(make: Make) -> None:
    world = make(3, 2)
    first = world.ranks[0]
    for rank in world.ranks:
        for page in range(2):
            assert rank.alloc(page)
        assert rank.request(ACTIVATE)
        world.settle()
    assert first.refs(0) == first.refs(1) == 3
    own(first, 0, 2)
    assert [rank.memory.missing for rank in world.ranks] == [0, 2, 2]


def test_a_copied_page_is_not_shared_again_before_it_is_written(make: Make) -> None:
    """Otherwise a rank could never own two ranges at the same time."""
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 2
    own(second, 0)
    scarce(first)
    for rank in (first, second):
        assert world.lib.memory_merge(rank.memory) == 0
        assert rank.refs(0) == 1
    second.write(0, 1)
    assert world.lib.memory_merge(first.memory) == 0 and first.refs(0) == 2


def test_a_work_for_all_who_share_is_seen_by_all(make: Make) -> None:
    world = make(3, 6)
    first, second, third = world.ranks
    same(first, second, third, pages=2)
    for rank in (second, third):
        assert world.lib.memory_merge(rank.memory) == 0
    assert sharers(second, 0, 2 * CELLS) == (world.ranks, True)
    own(third, 1)
    assert sharers(second, 0, CELLS) == (world.ranks, True)
    assert sharers(second, CELLS, CELLS) == ([first, second], True)
    assert sharers(second, 0, 2 * CELLS) == (world.ranks, False)
    assert sharers(third, CELLS, CELLS) == ([third], False)
    together(second, world.ranks, 1, 1, 5)
    assert not second.owns(0, CELLS)
    second.end()
    world.lib.memory_close_shared(second.memory, ALL)
    world.check()
    assert [rank.read(0) for rank in world.ranks] == [(1, 5)] * 3


def test_pages_that_are_not_there_belong_to_no_rank(make: Make) -> None:
    """A kernel that may write beyond its buffer runs once anyway, if there is nothing."""
    world = make(2, 6)
    first, second = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 2
    assert sharers(first, 0, 3 * CELLS) == (world.ranks, True)
    assert second.alloc(2) and second.request(ACTIVATE)
    world.settle()
    for rank in world.ranks:
        assert sharers(rank, 0, 3 * CELLS) == (world.ranks, False)


def test_an_open_page_is_not_protected_while_it_moves(make: Make) -> None:
    """Neither by the rank whose it is, nor by one that would open it in its place."""
    world = make(2, 6)
    first, second = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 2
    together(second, world.ranks, 0, 1, 5)
    second.end()
    assert second.request(SAVE)
    world.turn()
    assert second.moving
    world.lib.memory_close_shared(second.memory, ALL)
    world.check()
    assert not world.lib.memory_may_open(first.memory, addr_of(0), CELL)
    assert world.lib.memory_open_shared(first.memory, addr_of(0), CELL) == NOT_READY
    world.check()
    world.settle()
    assert world.lib.memory_open_shared(first.memory, addr_of(0), CELL) == 0
    world.check()


@pytest.mark.parametrize("told", [False, True])
def test_pages_of_a_failed_rank_are_not_shared(make: Make, told: bool) -> None:
    """Work that was recorded for it may not have been done."""
    world = make(3, 6)
    failed, other, late = world.ranks
    same(failed, other)
    failed.run(0, CELLS, 2)
    if told:
        world.lib.memory_stop(failed.memory)
        failed.end()
    else:
        failed.fault()
    own(other, 0)
    other.write(0, 2)
    assert world.lib.memory_merge(other.memory) == 0 and other.refs(0) == 1
    same(late)
    late.write(0, 2)
    assert world.lib.memory_merge(late.memory) == 0
    assert late.chunk(0) == other.chunk(0) != failed.chunk(0)


def test_reallocated_memory_is_zero(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 2
    second.free(0)
    assert second.alloc(0) and second.request(ACTIVATE)
    world.settle()
    world.check()
    assert first.refs(0) == 1


def test_an_unforeseen_write_makes_a_page_private(make: Make) -> None:
    """Chunks that the device has given are counted even if memory runs out."""
    world = make(2, 1)
    first, second = world.ranks
    for rank in (first, second):
        assert rank.alloc(0) and rank.request(ACTIVATE)
        world.settle()
    second.begin()
    assert world.device.unforeseen(second.space, DEV_BASE, 0, 5)
    second.model[0] = (5, *ZEROS[1:])
    second.end()
    assert world.memory.used == 2 and world.memory.unforeseen == 1
    for rank in (first, second):
        assert world.lib.memory_merge(rank.memory) == 0
        world.check()
        assert rank.request(ACTIVATE)
        world.settle()
    assert second.request(SAVE)
    world.settle()
    assert world.memory.used == 1


def test_ranks_of_two_groups_share_nothing(make: Make) -> None:
    world = make(4, 8, groups=(1, 2, 1, 2))
    same(*world.ranks)
    for rank in world.ranks:
        assert world.lib.memory_merge(rank.memory) == 0
    assert world.memory.used == 2 and [r.chunk(0) for r in world.ranks[:2]] == [
        r.chunk(0) for r in world.ranks[2:]
    ]
    late = world.ranks[3]
    assert late.request(SAVE)
    world.settle()
    assert late.request(ACTIVATE)
    world.settle()
    assert late.chunk(0) == world.ranks[1].chunk(0)


def test_a_page_with_pending_writes_is_not_shared(make: Make) -> None:
    """Its content has its name already."""
    world = make(2, 4)
    first, second = world.ranks
    same(first)
    assert second.alloc(0) and second.request(ACTIVATE)
    world.settle()
    second.run(0, CELLS, 1)
    for rank in world.ranks:
        assert world.lib.memory_merge(rank.memory) == 0
        world.check()
    second.end()
    assert world.lib.memory_merge(first.memory) == 0 and first.refs(0) == 2


def test_a_page_being_swapped_out_is_not_shared(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    assert first.request(SAVE)
    world.turn()
    assert first.memory.pages[0].leaving
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 1
    world.check()
    world.settle()


def test_content_that_is_lost_when_pages_become_one_is_reported(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    world.faults, world.device.failing["map"] = True, 2  # nor can it have its own again
    assert world.lib.memory_merge(second.memory) != 0
    assert second.chunk(0) is None and first.refs(0) == 1
    second.failed = True
    world.lib.memory_stop(second.memory)
    world.check()


def test_known_writes_of_fenced_work_stay_writable(make: Make) -> None:
    """Each page that it wrote elsewhere is reported once."""
    world = make(2, 8)
    (first, _) = world.ranks
    same(first, pages=2)
    ranges = world.ffi.new("struct memory_range[]", [(DEV_BASE, 1)])
    assert world.lib.memory_fence(first.memory, ranges, 1, False) == 0
    assert [first.owns(page * CELLS, CELLS) for page in range(2)] == [True, False]
    first.begin()
    assert world.device.unforeseen(first.space, addr_of(CELLS), 1, 9)
    first.model[1] = (first.model[1][0], 9)
    first.end()
    pages = world.ffi.new("uint32_t[16]")
    assert world.lib.memory_strays(first.memory, pages) == 1 and pages[0] == 1
    assert world.lib.memory_strays(first.memory, pages) == 0


def shared(make: Make, ranks: int = 2, pages: int = 1) -> World:
    """Ranks that refer to the same chunks."""
    world = make(ranks, 8)
    same(*world.ranks, pages=pages)
    for rank in world.ranks[1:]:
        assert world.lib.memory_merge(rank.memory) == 0
    assert world.memory.used == pages
    return world


def test_unforeseen_writes_are_reported_until_nothing_runs(make: Make) -> None:
    """A write by fenced work is no unforeseen write."""
    world = shared(make)
    first, second = world.ranks
    for _ in range(2):
        first.begin()
    assert world.device.unforeseen(first.space, addr_of(0), 0, 5)
    first.model[0] = (5, *first.model[0][1:])
    first.end()
    assert first.memory.surprised and not second.memory.surprised
    first.end()
    assert not first.memory.surprised
    none = world.ffi.new("struct memory_range[1]")
    assert world.lib.memory_fence(second.memory, none, 0, False) == 0
    for _ in range(2):
        second.begin()
    second.end()
    assert second.memory.fenced and not second.memory.surprised
    second.end()
    assert not second.memory.fenced


def test_a_rank_that_opens_a_page_does_not_affect_sharers_of_another_chunk_there(
    make: Make,
) -> None:
    world = make(4, 8)
    first, second, third, fourth = world.ranks
    same(*world.ranks)
    for rank in (third, fourth):
        own(rank, 0)
        rank.write(0, 7)
    for rank in world.ranks:
        assert world.lib.memory_merge(rank.memory) == 0
    assert first.refs(0) == third.refs(0) == 2 == world.memory.used
    together(first, [first, second], 0, 1, 5)
    assert world.lib.memory_open_shared(third.memory, addr_of(0), CELL) == 0
    world.check()
    first.end()


def test_own_pages_need_not_be_opened(make: Make) -> None:
    """So it may be under work; what is shared may not."""
    world = shared(make, pages=2)
    first, _ = world.ranks
    own(first, 1)
    first.begin()
    assert world.lib.memory_open_shared(first.memory, addr_of(CELLS), CELL) == 0
    assert not world.lib.memory_may_open(first.memory, addr_of(0), 2 * CHUNK)
    assert world.lib.memory_open_shared(first.memory, addr_of(0), 2 * CHUNK) == NOT_READY
    assert not first.memory.pages[1].open
    first.end()


def test_shared_pages_are_opened_beneath_bounded_work(make: Make) -> None:
    """A sum, and not a kernel next to it; nor while pages move, nor where the device cannot."""
    world = shared(make, pages=2)
    first, _ = world.ranks
    first.memory.inflight = first.memory.exact = 1
    can, world.device.table.space_own = world.device.table.space_own, world.ffi.NULL
    assert not world.lib.memory_may_open(first.memory, addr_of(0), CELL)
    assert world.lib.memory_open_shared(first.memory, addr_of(0), CELL) == NOT_READY
    world.device.table.space_own = can
    assert world.lib.memory_open_shared(first.memory, addr_of(0), CELL) == 0
    assert first.memory.pages[0].open and world.memory.opened_early == 1
    assert world.lib.memory_close_shared(first.memory, ALL)
    assert first.memory.pages[0].write_protected
    first.begin()
    assert not world.lib.memory_may_open(first.memory, addr_of(CELLS), CELL)
    assert world.lib.memory_open_shared(first.memory, addr_of(CELLS), CELL) == NOT_READY
    first.end()
    first.memory.inflight = first.memory.exact = 0
    assert first.request(SAVE)
    world.turn()
    first.memory.inflight = first.memory.exact = 1
    assert first.moving
    assert not world.lib.memory_may_open(first.memory, addr_of(CELLS), CELL)
    assert world.lib.memory_open_shared(first.memory, addr_of(CELLS), CELL) == NOT_READY
    first.memory.inflight = first.memory.exact = 0
    world.settle()


def test_an_opened_page_left_to_one_rank_is_its_own(make: Make) -> None:
    """Whether the others went before it was opened, or after; and when it is closed: else it would
    be protected beneath what was to write there as its own, and then all versions are lost."""
    world = shared(make, pages=2)
    first, second = world.ranks
    together(first, world.ranks, 0, 1, 5)
    first.end()
    own(second, 1)
    assert not first.owns(0, CELLS) and not first.owns(CELLS, CELLS)
    assert world.lib.memory_open_shared(first.memory, addr_of(CELLS), CELL) == 0
    assert second.request(SAVE)
    world.settle()
    assert first.owns(0, 2 * CELLS)
    world.lib.memory_close_shared(first.memory, ALL)
    assert first.owns(0, 2 * CELLS) and first.memory.write_protected == 0
    world.check()


def test_only_opened_pages_are_protected_again(make: Make) -> None:
    world = shared(make, pages=2)
    first, _ = world.ranks
    own(first, 1)
    together(first, world.ranks, 0, 1, 5)
    first.end()
    world.lib.memory_close_shared(first.memory, ALL)
    assert first.owns(CELLS, CELLS) and not first.owns(0, CELLS)
    world.check()


def test_neighbours_are_opened_and_closed_together(make: Make) -> None:
    """Except for one that is not shared any more."""
    world = shared(make, pages=3)
    first, second = world.ranks
    together(first, world.ranks, 0, 3 * CELLS, 5)
    at, device = world.device.number(first.space), world.device
    assert [(at, addr_of(page * CELLS)) in device.write_protected for page in range(3)] == [
        False
    ] * 3
    first.end()
    own(second, 2)
    world.lib.memory_close_shared(first.memory, 1)
    assert [(at, addr_of(n * CELLS)) in device.write_protected for n in range(3)] == [
        True,
        True,
        False,
    ]
    assert not first.owns(0, CELLS) and not first.owns(CELLS, CELLS)
    world.lib.memory_close_shared(first.memory, 1)
    assert first.owns(2 * CELLS, CELLS)
    world.check()


def test_a_partly_protected_range_is_completed(make: Make) -> None:
    world = shared(make, pages=3)
    first, _ = world.ranks
    for page in (0, 2):
        together(first, world.ranks, page * CELLS, 1, 5)
        first.end()
    opened = [first.memory.pages[first.memory.live[n]].open for n in range(3)]
    assert opened == [True, False, True]
    assert not world.lib.memory_close_shared(first.memory, 1)
    assert world.lib.memory_close_shared(first.memory, 1)
    assert world.lib.memory_close_shared(first.memory, 1)
    world.check()


@pytest.mark.parametrize("trusted", [False, True])
def test_a_page_that_cannot_be_fenced_is_unknown_unless_trusted(make: Make, trusted: bool) -> None:
    """A page that another work is about to write may have changed already, so it is swapped out
    with unknown content. Pages that are not resident are not fenced."""
    world = make(3, 8, groups=(1, 1, 2))
    first, second, _ = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0
    assert first.request(SAVE)
    world.settle()
    assert first.request(ACTIVATE)
    world.settle()
    assert first.memory.pages[0].keyed and first.refs(0) == 2
    own(first, 0)
    assert first.alloc(1)
    none = world.ffi.new("struct memory_range[1]")
    assert world.lib.memory_fence(first.memory, none, 0, trusted) == 0
    known = world.lib.content_holds(first.memory, addr_of(0), CHUNK, world.named(1))
    assert known == trusted and first.owns(0, CELLS)
    if trusted:
        return
    first.begin()
    world.device.write(first.place(0, True), (5,) * CELLS, range(CELLS))
    first.model[0] = (5,) * CELLS
    first.end()
    assert first.request(SAVE)
    world.settle()
    assert first.read(0) == (5,) * CELLS


def test_owned_pages_are_checked_where_they_are_written(make: Make) -> None:
    """In a range of more pages than there are, too: all in it, and nothing else."""
    world = make(2, 8)
    first, second = world.ranks
    there = (0, 3, 9)
    for rank in world.ranks:
        for page in there:
            assert rank.alloc(page)
        assert rank.request(ACTIVATE)
        world.settle()
    assert [first.refs(page) for page in there] == [2, 2, 2]
    assert not second.owns(3 * CELLS, 6 * CELLS) and not second.owns(1 * CELLS, 6 * CELLS)
    assert second.owns(4 * CELLS, 5 * CELLS)
    own(first, 3)
    assert first.owns(1 * CELLS, 8 * CELLS) and first.owns(3 * CELLS, 6 * CELLS)
    assert not first.owns(1 * CELLS, 8 * CELLS + 1) and not first.owns(0, 9 * CELLS)


def test_sharers_of_all_of_it_are_counted_as_far_as_there_is_capacity(make: Make) -> None:
    """Content that two ranks have and that is resident in neither is no shared chunk."""
    world = shared(make, 3)
    first, second, _ = world.ranks
    assert sharers(first, 0, CELLS, room=2) == (world.ranks[:2], False)
    for rank in (first, second):
        assert rank.alloc(1)
    assert sharers(first, 0, 2 * CELLS) == (world.ranks, False)
    assert sharers(first, CELLS, CELLS) == ([first], False)


def test_a_page_being_swapped_in_is_not_given(make: Make) -> None:
    world = make(2, 8)
    first, second = world.ranks
    same(first, second)
    for rank in world.ranks:
        assert rank.request(SAVE)
        world.settle()
    assert first.request(ACTIVATE)
    world.turn()
    assert first.moving and first.chunk(0) is not None
    assert second.request(ACTIVATE)
    world.turn()
    assert not second.told or second.told[-1] != (ACTIVATE, 0)
    world.settle()


def test_a_page_only_referred_to_is_not_given(make: Make) -> None:
    """The one that has it is still to write it."""
    world = make(2, 8)
    first, second = world.ranks
    same(first, second)
    assert second.request(SAVE)
    world.settle()
    first.write(0, 7)
    first.run(0, CELLS, 1)
    assert second.request(ACTIVATE)
    world.settle()
    assert second.chunk(0) != first.chunk(0)
    first.end()


@pytest.mark.parametrize("which", [0, 1])
def test_a_distrusted_rank_neither_gives_nor_takes(make: Make, which: int) -> None:
    world = make(2, 8)
    first, second = world.ranks
    same(first, second)
    world.lib.memory_merge(world.ranks[1 - which].memory)
    assert first.refs(0) == 2
    own(second, 0)
    second.write(0, 1)
    assert second.request(SAVE)
    world.settle()
    world.ranks[which].memory.distrusted = True
    assert second.request(ACTIVATE)
    world.settle()
    assert second.chunk(0) != first.chunk(0)
    scarce(first)
    for rank in world.ranks:
        assert world.lib.memory_merge(rank.memory) == 0
    assert second.chunk(0) != first.chunk(0)


def test_a_chunk_that_is_stuck_somewhere_is_shared_no_more(make: Make) -> None:
    world = make(3, 8)
    first, second, third = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0 and first.refs(0) == 2
    world.fault("unmap")
    second.free(0)
    same(third)
    assert world.lib.memory_merge(third.memory) == 0 and third.chunk(0) != first.chunk(0)
    first.free(0)
    assert world.memory.unusable == 1


def test_a_prefetched_rank_waits_for_what_a_busy_rank_has(make: Make) -> None:
    """It will be shared; what a quiet one has is, at once."""
    world = make(2, 8)
    first, second = world.ranks
    same(first, second)
    assert second.request(SAVE)
    world.settle()
    first.begin()
    assert second.request(PREFETCH)
    world.settle()
    assert second.chunk(0) is None and world.memory.prepared == 0
    first.end()
    assert second.request(PREFETCH)
    world.settle()
    assert second.chunk(0) == first.chunk(0) and world.memory.prepared == 1
    assert world.memory.swapped_in == 0


def test_zeros_that_are_shared_spare_nothing(make: Make) -> None:
    world = make(2, 8)
    for rank in world.ranks:
        assert rank.alloc(0) and rank.request(ACTIVATE)
        world.settle()
    assert world.ranks[0].refs(0) == 2 and world.memory.not_swapped == 0


def test_all_come_to_the_chunk_that_most_refer_to(make: Make) -> None:
    world = make(3, 8)
    first, second, third = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0
    same(third)
    chunk = first.chunk(0)
    for rank in (first, second, third):
        assert world.lib.memory_merge(rank.memory) == 0
        assert first.chunk(0) == second.chunk(0) == chunk
    assert third.chunk(0) == chunk


def test_a_page_opened_for_a_write_is_not_shared_before_it(make: Make) -> None:
    """The page is protected even if nothing was copied, because the other ranks had left."""
    world = shared(make, 3)
    first, second, third = world.ranks
    own(second, 0)
    own(third, 0)
    assert first.refs(0) == 1 and not first.owns(0, CELLS)
    scarce(first, 7)
    own(first, 0)
    assert world.lib.memory_merge(first.memory) == 0 and first.owns(0, CELLS)
    second.write(0, 1)
    assert world.lib.memory_merge(second.memory) == 0 and first.owns(0, CELLS)
    first.write(0, 1)
    assert world.lib.memory_merge(second.memory) == 0 and first.chunk(0) == second.chunk(0)


def test_an_unshared_page_is_opened_for_its_rank_alone(make: Make) -> None:
    world = shared(make)
    first, second = world.ranks
    own(second, 0)
    assert first.refs(0) == 1 and first.memory.write_protected == 1
    assert world.lib.memory_open_shared(first.memory, addr_of(0), CELL) == 0
    assert (
        not first.memory.pages[0].open
        and first.memory.write_protected == 0
        and first.owns(0, CELLS)
    )
    world.check()


def test_copied_and_swapped_out_pages_are_not_kept(make: Make) -> None:
    world = shared(make)
    _, second = world.ranks
    own(second, 0)
    assert second.memory.pages[0].write_pending and second.request(SAVE)
    world.settle()
    world.check()
    assert second.request(ACTIVATE)
    world.settle()
    assert second.refs(0) == 2
