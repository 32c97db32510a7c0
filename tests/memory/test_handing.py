"""Other ranks of a device refer to what one of them has received."""

from __future__ import annotations

from .device import CELLS
from .steps import fill, hand, own, receiver, same
from .world import SAVE, Make


def test_other_ranks_refer_to_received_pages(make: Make) -> None:
    """Resident or not; whole pages only, and each writes a copy of its own."""
    world = make(3, 8)
    for rank in world.ranks:
        fill(rank, 2)
    away, giver, here = world.ranks
    assert away.request(SAVE)
    world.settle()
    assert world.memory.used == 4 and away.memory.missing == 2
    assert receiver(world.ranks, 0, 2 * CELLS) in (1, 2)
    assert hand(giver, away, 0, 2 * CELLS) == [0, 1] == hand(giver, here, 0, 2 * CELLS)
    world.check()
    assert world.memory.used == 2 == world.memory.shared and not away.memory.missing
    assert [away.read(page) for page in (0, 1)] == [giver.read(page) for page in (0, 1)]
    own(here, 0)
    here.write(0, 5)
    world.check()
    assert world.memory.used == 3 and giver.read(0) != here.read(0)
    assert away.request(SAVE)
    world.settle()
    assert away.read(0) == giver.read(0)


def test_a_part_of_a_page_is_not_handed(make: Make) -> None:
    world = make(2, 6)
    giver, to = world.ranks
    fill(giver, 3)
    fill(to, 3)
    assert hand(giver, to, 1, 2 * CELLS) == [1]
    assert hand(giver, to, 0, CELLS - 1) == hand(giver, to, CELLS * 2 + 1, CELLS - 1) == []
    world.check()
    assert world.memory.used == 5


def test_handed_pages_have_new_content(make: Make) -> None:
    """No one who knows of the same content as before shares with it."""
    world = make(3, 8)
    same(*world.ranks)
    giver, to, third = world.ranks
    own(giver, 0)
    giver.write(0, 77)
    assert hand(giver, to, 0, CELLS) == [0]
    for rank in (third, to):
        assert world.lib.memory_merge(rank.memory) == 0
        world.check()
    assert third.chunk(0) != to.chunk(0) == giver.chunk(0)


def test_nothing_is_handed_to_or_by_who_is_busy_or_has_failed(make: Make) -> None:
    world = make(3, 8, (1, 1, 2))
    giver, to, other = world.ranks
    for rank in world.ranks:
        fill(rank, 1)
    for rank in (giver, to):
        rank.begin()
        assert hand(giver, to, 0, CELLS) == []
        rank.end()
    assert hand(giver, other, 0, CELLS) == []
    assert receiver([giver, to], 0, CELLS) == 0
    giver.begin()
    assert receiver([giver, to], 0, CELLS) == 1
    giver.end()
    world.lib.memory_stop(giver.memory)
    assert receiver([giver, to], 0, CELLS) == 1
    assert hand(giver, to, 0, CELLS) == [] == hand(to, giver, 0, CELLS)
    world.device.faulty.add(to.space)
    assert receiver([giver, to], 0, CELLS) == 2**32 - 1
    world.memory.shares = False
    assert receiver([other, giver], 0, CELLS) == 2**32 - 1


def test_pages_that_would_be_copied_each_time_are_not_handed(make: Make) -> None:
    """It is copied at once. For a while, and where there are chunks for all."""
    world = make(2, 6)
    first, second = world.ranks
    for rank in world.ranks:
        fill(rank, 1)
    assert hand(first, second, 0, CELLS) == [0]
    own(second, 0)
    second.write(0, 5)
    for rank in (first, second, first):
        assert hand(first, second, 0, CELLS) == [] == hand(second, first, 0, CELLS)
        world.lib.memory_activated(rank.memory)
    assert hand(first, second, 0, CELLS) == [0]
    own(second, 0)
    for page in range(1, 6):
        assert first.alloc(page)
    assert hand(first, second, 0, CELLS) == [0]
    world.check()


def test_pages_of_one_rank_alone_are_not_handed(make: Make) -> None:
    """Neither to a page that the other one does not have, nor from one that is not resident."""
    world = make(2, 8)
    giver, to = world.ranks
    fill(giver, 2)
    fill(to, 1)
    assert hand(giver, to, 0, 2 * CELLS) == [0] and to.chunk(1) is None
    assert world.memory.not_swapped == 0
    world.check()
    assert giver.request(SAVE)
    world.settle()
    own(to, 0)
    to.write(0, 5)
    assert hand(giver, to, 0, CELLS) == [] and to.owns(0, CELLS)
    world.check()


def test_the_owner_of_what_is_received_is_written_to(make: Make) -> None:
    world = make(3, 8)
    same(*world.ranks)
    for rank in world.ranks[:2]:
        assert world.lib.memory_merge(rank.memory) == 0
    third = world.ranks[2]
    own(third, 0)
    assert not world.ranks[0].owns(0, CELLS)
    assert receiver(world.ranks, 0, CELLS) == 2
