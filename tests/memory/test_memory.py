"""Requests for the memory of ranks: side by side, without deadlock, whatever fails meanwhile."""

from __future__ import annotations

import pytest

from .device import CELLS, CHUNK
from .steps import fill
from .world import ACTIVATE, CANCELLED, PREFETCH, SAVE, Make, Rank


def test_a_save_does_not_wait_for_an_activation_of_another_rank(make: Make) -> None:
    world = make(3, 4)
    busy, wanting, saved = world.ranks
    fill(busy, 3)
    fill(saved, 1)
    busy.begin()
    for page in range(4):
        assert wanting.alloc(page)
    assert wanting.request(ACTIVATE) and saved.request(SAVE)
    world.settle(waiting=(ACTIVATE,))
    assert saved.told[-1] == (SAVE, 0) and not wanting.told
    busy.end()
    world.settle()
    assert wanting.told == [(ACTIVATE, 0)]


def test_an_activation_does_not_wait_for_a_save_of_another_rank(make: Make) -> None:
    world = make(2, 4)
    saved, wanting = world.ranks
    fill(saved, 2)
    assert wanting.alloc(0)
    assert saved.request(SAVE)
    world.turn()
    assert saved.moving and wanting.request(ACTIVATE)
    world.turn()
    assert wanting.told == [(ACTIVATE, 0)] and saved.open
    world.settle()


def test_two_that_need_more_than_there_is_both_get_it(make: Make) -> None:
    world = make(3, 4)
    fill(world.ranks[0], 3)
    for rank, pages in zip(world.ranks[1:], (3, 2), strict=True):
        for page in range(pages):
            assert rank.alloc(page)
        assert rank.request(ACTIVATE)
    world.settle()
    assert [r.told[-1] for r in world.ranks[1:]] == [(ACTIVATE, 0)] * 2


def test_a_swap_out_is_not_called_back(make: Make) -> None:
    """A rank that enters may rely on its reserved memory."""
    world = make(2, 5)
    saved, wanting = world.ranks
    fill(saved, 5)
    for page in range(5):
        assert wanting.alloc(page)
    assert saved.request(SAVE) and wanting.request(ACTIVATE)
    world.turn()
    assert wanting.moving
    world.lib.memory_cancel(saved.memory)
    world.check()
    world.settle()
    assert saved.told[-1] == (SAVE, CANCELLED) and wanting.told == [(ACTIVATE, 0)]


def test_a_copy_made_while_the_cut_was_released_is_not_taken_for_the_content(make: Make) -> None:
    world = make(1, 2)
    (rank,) = world.ranks
    fill(rank, 1)
    assert rank.request(SAVE, stay=True)
    world.turn()
    world.lib.memory_changes(rank.memory)
    world.settle()
    assert rank.told[-1] == (SAVE, CANCELLED)
    rank.write(0, 7)
    assert rank.request(SAVE)
    world.settle()
    assert rank.read(0) == (7,) * CELLS


def test_a_prefetch_takes_nothing_of_the_active_rank(make: Make) -> None:
    world = make(2, 2)
    active, next_one = world.ranks
    fill(active, 2)
    world.lib.memory_activated(active.memory)
    assert next_one.alloc(0) and next_one.request(PREFETCH)
    world.settle()
    assert not active.memory.missing and next_one.memory.missing == 1
    assert next_one.request(ACTIVATE)
    world.settle()
    assert next_one.told == [(PREFETCH, 0), (ACTIVATE, 0)]


def resting(rank: Rank, pages: int) -> None:
    """With content, all of it in the image."""
    fill(rank, pages)
    assert rank.request(SAVE)
    rank.world.settle()
    rank.world.lib.memory_changes(rank.memory)


def test_a_prefetch_takes_what_capacity_there_is(make: Make) -> None:
    world = make(2, 6)
    active, next_one = world.ranks
    resting(next_one, 5)
    fill(active, 4)
    world.lib.memory_activated(active.memory)
    assert next_one.request(PREFETCH)
    world.settle()
    assert not active.memory.missing and next_one.memory.missing == 3
    assert world.memory.prepared == next_one.memory.counted.prepared == 2
    moved = world.memory.swapped_in
    assert next_one.request(ACTIVATE)
    world.settle()
    assert world.memory.swapped_in - moved == 3 * CHUNK and world.memory.prepared == 2


def test_the_active_rank_gets_capacity_from_a_prefetched_one(make: Make) -> None:
    """At once what has not begun to come; the rest behind it, and without being copied back."""
    world = make(2, 10)
    active, next_one = world.ranks
    resting(next_one, 6)
    fill(active, 4)
    world.lib.memory_activated(active.memory)
    assert next_one.request(PREFETCH)
    world.turn()
    out = world.memory.swapped_out
    for page in range(4, 8):
        assert active.alloc(page)
    assert active.request(ACTIVATE)
    world.settle()
    assert active.told[-1] == (ACTIVATE, 0) and next_one.told[-1] == (PREFETCH, CANCELLED)
    assert world.memory.swapped_out == out and world.memory.prepared < 6


@pytest.mark.parametrize("prepared", [False, True])
def test_a_prefetched_rank_is_saved_as_it_was(make: Make, prepared: bool) -> None:
    world = make(1, 6)
    (rank,) = world.ranks
    resting(rank, 4)
    assert rank.request(PREFETCH)
    if prepared:
        world.settle()
    else:
        world.turn()
    if not rank.request(SAVE):  # what is under way ends first
        world.settle()
        assert rank.told[-1] == (PREFETCH, CANCELLED) and rank.request(SAVE)
    world.settle()
    assert rank.told[-1] == (SAVE, 0) and world.memory.used == 0
    assert rank.memory.live_count == rank.memory.missing == 4


def test_a_promise_that_is_lost_is_made_good_by_another_victim(make: Make) -> None:
    world = make(3, 2)
    for rank in world.ranks[:2]:
        fill(rank, 1)
    wanting = world.ranks[2]
    assert wanting.alloc(0) and wanting.request(ACTIVATE)
    world.fault("unmap")
    world.settle()
    assert wanting.told == [(ACTIVATE, 0)] and world.memory.unusable == 1
    assert wanting.alloc(1) and wanting.request(ACTIVATE)
    world.settle()
    assert wanting.told[-1] == (ACTIVATE, 2)  # there will never be two


def test_a_rank_new_to_a_device_has_not_waited_there_before(make: Make) -> None:
    """The rank that has waited longest is next, and is the first to make room."""
    world = make(2, 4)
    for rank in world.ranks * 3:
        world.lib.memory_activated(rank.memory)
    third = Rank(world, 2)
    world.ranks.append(third)
    first, second = (rank.memory.last_active for rank in world.ranks[:2])
    assert first < second == third.memory.last_active == world.memory.turns
