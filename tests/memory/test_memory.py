"""Requests for the memory of ranks: side by side, without deadlock, whatever fails meanwhile."""

from __future__ import annotations

from .device import CELLS
from .steps import fill
from .world import ACTIVATE, CANCELLED, PREFETCH, SAVE, Make


def test_a_save_does_not_wait_for_an_activation_of_another_rank(make: Make) -> None:
    world = make(3, 4)
    busy, wanting, saved = world.ranks
    fill(busy, 3)
    fill(saved, 1)
    busy.begin()
    for page in range(4):
        assert wanting.alloc(page)
    assert wanting.ask(ACTIVATE) and saved.ask(SAVE)
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
    assert saved.ask(SAVE)
    world.turn()
    assert saved.moving and wanting.ask(ACTIVATE)
    world.turn()
    assert wanting.told == [(ACTIVATE, 0)] and saved.open
    world.settle()


def test_two_that_need_more_than_there_is_both_get_it(make: Make) -> None:
    world = make(3, 4)
    fill(world.ranks[0], 3)
    for rank, pages in zip(world.ranks[1:], (3, 2), strict=True):
        for page in range(pages):
            assert rank.alloc(page)
        assert rank.ask(ACTIVATE)
    world.settle()
    assert [r.told[-1] for r in world.ranks[1:]] == [(ACTIVATE, 0)] * 2


def test_what_is_on_its_way_out_is_not_called_back(make: Make) -> None:
    """Whoever comes in may count on its room."""
    world = make(2, 5)
    saved, wanting = world.ranks
    fill(saved, 5)
    for page in range(5):
        assert wanting.alloc(page)
    assert saved.ask(SAVE) and wanting.ask(ACTIVATE)
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
    assert rank.ask(SAVE, stay=True)
    world.turn()
    world.lib.memory_changes(rank.memory)
    world.settle()
    assert rank.told[-1] == (SAVE, CANCELLED)
    rank.write(0, 7)
    assert rank.ask(SAVE)
    world.settle()
    assert rank.read(0) == (7,) * CELLS


def test_a_prefetch_takes_nothing_of_the_active_rank(make: Make) -> None:
    world = make(2, 2)
    active, next_one = world.ranks
    fill(active, 2)
    world.lib.memory_activated(active.memory)
    assert next_one.alloc(0) and next_one.ask(PREFETCH)
    world.settle(waiting=(PREFETCH,))
    assert not active.memory.missing and next_one.open
    assert next_one.ask(ACTIVATE)
    world.settle()
    assert next_one.told == [(PREFETCH, CANCELLED), (ACTIVATE, 0)]


def test_a_promise_that_is_lost_is_made_good_by_another_victim(make: Make) -> None:
    world = make(3, 2)
    for rank in world.ranks[:2]:
        fill(rank, 1)
    wanting = world.ranks[2]
    assert wanting.alloc(0) and wanting.ask(ACTIVATE)
    world.fault("unmap")
    world.settle()
    assert wanting.told == [(ACTIVATE, 0)] and world.memory.lost == 1
    assert wanting.alloc(1) and wanting.ask(ACTIVATE)
    world.settle()
    assert wanting.told[-1] == (ACTIVATE, 2)  # there will never be two
