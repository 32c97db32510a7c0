"""Dead content is neither moved nor kept; a write makes it live again."""

from __future__ import annotations

import os

from .device import CELLS, CHUNK
from .steps import fill, forget, hand, keeper, own, same
from .world import ACTIVATE, SAVE, Make, Rank

NOBODY = 2**32 - 1


def bring(rank: Rank) -> None:
    assert rank.request(ACTIVATE)
    rank.world.settle()


def test_forgotten_pages_are_not_swapped_out(make: Make) -> None:
    world = make(2, 4)
    one, two = world.ranks
    fill(one, 3)
    forget(one, 0, 2 * CELLS)
    assert world.memory.used == 3, "no request needs the space yet"
    fill(two, 3)
    world.check()
    assert world.memory.used == 4 and world.memory.swapped_out == 0
    assert one.memory.missing == 2 and world.lib.memory_on_host(one.memory, False).pages == 0
    bring(one)
    assert world.memory.swapped_in == 0, "nothing was to be brought in"
    world.check()


def test_forgotten_pages_are_not_copied_when_their_rank_leaves(make: Make) -> None:
    world = make(1, 4)
    (rank,) = world.ranks
    fill(rank, 2)
    forget(rank, 0, CELLS)
    copied = sum(world.device.done.values())
    assert rank.request(SAVE)
    world.settle()
    assert sum(world.device.done.values()) == copied + 1
    world.check()


def test_forgotten_pages_stay_while_they_are_used(make: Make) -> None:
    """A work that has been submitted may read it, or write what counts."""
    world = make(2, 4)
    one, two = world.ranks
    fill(one, 3)
    forget(one, 0, 2 * CELLS)
    one.begin()
    for page in range(2):
        assert two.alloc(page)
    assert two.request(ACTIVATE)
    world.settle(waiting=(ACTIVATE,))
    assert one.chunk(0) is not None and two.memory.missing
    one.end()
    world.settle()
    assert not two.memory.missing and world.memory.swapped_out == 0


def test_the_image_s_copy_of_a_forgotten_page_is_removed_once(make: Make) -> None:
    world = make(1, 4)
    (rank,) = world.ranks
    fill(rank, 3)
    assert rank.request(SAVE)
    world.settle()
    before = os.fstat(rank.fd).st_blocks
    swapped = world.lib.memory_on_host(rank.memory, False).pages
    forget(rank, 1, 2 * CELLS + 1)
    assert [rank.memory.pages[page].in_image for page in range(3)] == [True, False, False]
    assert os.fstat(rank.fd).st_blocks < before
    assert (swapped, world.lib.memory_on_host(rank.memory, False).pages) == (3, 1)
    world.check()


def test_a_page_forgotten_during_swap_out_leaves_nothing(make: Make) -> None:
    world = make(1, 4)
    (rank,) = world.ranks
    fill(rank, 2)
    assert rank.request(SAVE)
    world.turn()
    assert rank.moving
    forget(rank, 0, CELLS)
    world.settle()
    assert [rank.memory.pages[page].in_image for page in range(2)] == [False, True]
    assert os.pread(rank.fd, CHUNK, 0) == bytes(CHUNK) != os.pread(rank.fd, CHUNK, CHUNK)
    bring(rank)
    world.check()


def test_a_write_makes_content_valid_again(make: Make) -> None:
    """Writing a part of a page or handing it counts, too; freed pages are zeros."""
    world = make(2, 8)
    one, two = world.ranks
    fill(one, 4)
    fill(two, 4)
    forget(one, 0, 4 * CELLS)
    own(one, 0)
    one.run(0, 1, 77)
    one.end()
    assert hand(two, one, CELLS, CELLS) == [1]
    one.free(2)
    assert one.alloc(2)
    assert one.request(SAVE)
    world.settle()
    world.check()
    assert one.read(0)[0] == 77 and one.read(1) == two.read(1) and not any(one.read(2))
    assert world.memory.swapped_out == 2 * (2 << 20)


def test_unbounded_writes_make_content_valid_again(make: Make) -> None:
    world = make(1, 4)
    (rank,) = world.ranks
    fill(rank, 1)
    forget(rank, 0, CELLS)
    rank.begin()
    world.lib.content_all_unknown(rank.memory)
    rank.world.device.write(rank.place(0, True), (5,) * CELLS, range(CELLS))
    rank.model[0] = (5,) * CELLS
    rank.end()
    assert rank.request(SAVE)
    world.settle()
    assert rank.read(0) == (5,) * CELLS


def test_the_ranks_that_keep_a_sum(make: Make) -> None:
    """The rank that has it there, or else one that is busy. No rank if nothing is gained or a
    rank has failed."""
    world = make(2, 5)
    one, two = world.ranks
    fill(one, 3)
    fill(two, 3)  # and the other has lost one page
    assert one.memory.missing == 1
    assert keeper([one, two], [0, 0], 3 * CELLS) == 1 == 1 - keeper([two, one], [0, 0], 3 * CELLS)
    there = [page for page in range(3) if one.chunk(page) is not None]
    at = there[0] * CELLS
    assert keeper([one, two], [at, at], CELLS) == 0
    two.begin()
    assert keeper([one, two], [at, at], CELLS) == 1
    two.end()
    assert keeper([one, two], [at, at + 1], CELLS) == NOBODY, "no whole page"
    world.lib.memory_stop(two.memory)
    assert keeper([one, two], [at, at], CELLS) == NOBODY
    roomy = make(2, 12)
    for rank in roomy.ranks:
        fill(rank, 3)
    assert keeper(roomy.ranks, [0, 0], 3 * CELLS) == NOBODY, "room for all"
    tight = make(2, 5)
    for rank in tight.ranks:
        fill(rank, 3)
    assert keeper(tight.ranks, [0, 0], 3 * CELLS) == 1
    tight.memory.shares = False
    assert keeper(tight.ranks, [0, 0], 3 * CELLS) == NOBODY


def alike_on_the_host(make: Make) -> tuple[Rank, Rank, Rank]:
    """Two ranks refer to one copy; the third has the device."""
    world = make(3, 2, groups=(1, 1, 2))
    one, two, other = world.ranks
    same(one, two)
    assert world.lib.memory_merge(two.memory) == 0
    assert other.alloc(8) and other.alloc(9)
    bring(other)
    assert one.memory.pages[0].common and two.memory.pages[0].common
    return one, two, other


def test_a_rank_that_forgets_a_host_copy_does_not_receive_it(make: Make) -> None:
    one, two, _ = alike_on_the_host(make)
    forget(one, 0, CELLS)
    bring(one)
    assert one.world.memory.swapped_in == 0
    bring(two)
    assert two.world.memory.swapped_in == CHUNK
    two.world.check()


def test_forgotten_content_differs_from_what_others_hold(make: Make) -> None:
    """Its chunk is let go of, and what comes in its place is given to no rank."""
    world = make(3, 2, groups=(1, 1, 2))
    one, two, other = world.ranks
    same(one)
    same(two)
    assert two.request(SAVE)
    world.settle()
    forget(one, 0, CELLS)
    assert other.alloc(8) and other.alloc(9)
    bring(other)
    assert one.chunk(0) is None
    bring(one)
    bring(two)
    assert two.read(0) == (1,) * CELLS
    world.check()


def test_released_pages_leave_nothing_on_the_host(make: Make) -> None:
    """Neither a copy nor what the image has kept."""
    one, two, other = alike_on_the_host(make)
    world = one.world
    bring(one)
    two.free(0)
    assert world.memory.copies_on_host == 1
    forget(one, 0, CELLS)
    bring(other)
    assert one.chunk(0) is None and world.memory.copies_on_host == 0
    alone = make(2, 2, groups=(1, 2))
    rank, more = alone.ranks
    fill(rank, 1)
    assert more.alloc(8) and more.alloc(9)
    bring(more)
    bring(rank)
    assert rank.memory.pages[0].in_image
    forget(rank, 0, CELLS)
    bring(more)
    assert rank.chunk(0) is None and not rank.memory.pages[0].in_image
