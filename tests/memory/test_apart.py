"""Pages that are alike for a moment only: whoever had to copy one before it was written, it is left
apart for a while, by all of the job."""

from __future__ import annotations

from .device import CELLS
from .steps import own, same, scarce, together
from .world import Make, Rank

ALL = 2**32 - 1  # pages


def turns_apart(first: Rank, second: Rank) -> int:
    """How often one of them comes to run before what they hold alike is one chunk again."""
    world = first.world
    for turn in range(1, 200):
        rank = (first, second)[turn % 2]
        world.lib.memory_activated(rank.memory)
        assert world.lib.memory_merge(rank.memory) == 0
        if first.refs(0) == 2:
            return turn
    return 200


def test_a_page_copied_each_time_stays_unshared_for_longer_each_time(make: Make) -> None:
    """The page stays unshared until one work done for both ranks shows that sharing pays."""
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    found = []
    for value in range(1, 9):
        found.append(turns_apart(first, second))
        if value == 7:
            together(second, [first, second], 0, CELLS, 100)
            second.end()
            world.lib.memory_close_shared(second.memory, ALL)
        for rank in (first, second) if value % 2 else (second, first):
            own(rank, 0)
            rank.write(0, value)
    assert found == [1, 3, 7, 15, 31, 63, 127, 3]


def test_nothing_is_left_apart_where_memory_is_scarce(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    scarce(first)
    for value in range(1, 9):
        assert turns_apart(first, second) == 1
        for rank in (second, first):
            own(rank, 0)
            rank.write(0, value)


def rounds(ranks: list[Rank], count: int) -> list[int]:
    """Each rank has a turn in each round, in which it writes what all write. How often one had to
    copy before, in each round."""
    world, found = ranks[0].world, []
    for value in range(1, count + 1):
        before = world.memory.copies
        for rank in ranks:
            world.lib.memory_activated(rank.memory)
            assert world.lib.memory_merge(rank.memory) == 0
            own(rank, 0)
            rank.write(0, value)
        found.append(world.memory.copies - before)
    return found


def test_a_merge_that_failed_is_not_tried_by_one_rank_alone(make: Make) -> None:
    world = make(4, 8)
    same(*world.ranks)
    copies = rounds(world.ranks, 64)
    assert [n for n, times in enumerate(copies) if times] == [0, 2, 6, 14, 30, 62]
    assert max(copies) == 1


def test_a_rank_that_has_it_from_before_is_notified_once(make: Make) -> None:
    """All share it when the first one finds out: that the others copy it, too, is nothing new."""
    world = make(4, 8)
    same(*world.ranks)
    for rank in world.ranks:
        assert world.lib.memory_merge(rank.memory) == 0
    assert world.ranks[0].refs(0) == 4
    for rank in world.ranks:
        own(rank, 0)
        rank.write(0, 7)
    assert [rank.memory.pages[0].backoff for rank in world.ranks] == [1] * 4


def test_other_jobs_are_not_notified(make: Make) -> None:
    world = make(4, 8, groups=(1, 2, 1, 2))
    ours, theirs = world.ranks[::2], world.ranks[1::2]
    same(*world.ranks)
    rounds(ours, 1)
    assert ours[0].refs(0) == 1
    for rank in theirs:
        assert world.lib.memory_merge(rank.memory) == 0
    assert theirs[0].refs(0) == 2
