"""An image that is copied for a snapshot is copied as it was when that began, whatever comes of the
rank meanwhile; and no rank waits for that."""

from __future__ import annotations

import os

import pytest

from rankfold.interpose.launcher.snapshot.copy_on_write import Hold

from .device import CHUNK
from .steps import fill, forget, own
from .taken import Taken
from .test_copies import out, shared
from .world import ACTIVATE, SAVE, Make, Rank, World


def saved(make: Make, pages: int = 2) -> tuple[World, Rank]:
    """A rank with content, and one that takes all chunks when it comes."""
    world = make(2, 4, groups=(1, 2))
    rank = world.ranks[0]
    fill(rank, pages)
    save(rank)
    return world, rank


def save(rank: Rank) -> None:
    rank.cut = True
    assert rank.request(SAVE, stay=True)
    rank.world.settle()


def continues(rank: Rank) -> None:
    rank.cut = False
    rank.world.lib.memory_changes(rank.memory)


def written(rank: Rank, value: int) -> None:
    for page in rank.model:
        own(rank, page)
        rank.write(page, value)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_pages_overwritten_by_a_swap_out_are_set_aside(make: Make, at: int) -> None:
    """Before, while and after it is copied."""
    _, rank = saved(make)
    taken = Taken(rank)
    for page in range(at):
        taken.take(page)
    continues(rank)
    written(rank, 77)
    out(rank)
    assert set(rank.in_image().values()) == {(77, 77)}
    taken.end()


@pytest.mark.parametrize("at", [0, 2])
def test_freed_pages_are_set_aside(make: Make, at: int) -> None:
    world, rank = saved(make)
    taken = Taken(rank)
    for page in range(at):
        taken.take(page)
    continues(rank)
    rank.free(0)
    world.settle()
    taken.end()


def test_forgotten_pages_are_set_aside(make: Make) -> None:
    world, rank = saved(make)
    out(rank)
    save(rank)
    taken = Taken(rank)
    continues(rank)
    forget(rank, 0, 4)
    world.settle()
    taken.end()


def test_pages_that_the_program_writes_are_set_aside(make: Make) -> None:
    world, rank = saved(make)
    out(rank)
    save(rank)
    taken = Taken(rank)
    continues(rank)
    world.device.write(rank.place(1, write=True), (9, 9))
    rank.model[1] = (9, 9)
    taken.end()


def test_another_save_does_not_disturb_it(make: Make) -> None:
    _, rank = saved(make)
    taken = Taken(rank)
    continues(rank)
    written(rank, 5)
    save(rank)
    assert rank.in_image() == rank.model
    taken.end()


def test_empty_pages_are_not_set_aside(make: Make) -> None:
    """A page that another rank's image has, or that is allocated later."""
    world, rank = saved(make, 1)
    taken = Taken(rank)
    taken.expected[2], taken.left = (0, 0), {0, 2}
    continues(rank)
    assert rank.alloc(2) and rank.request(ACTIVATE)
    world.settle()
    written(rank, 6)
    out(rank)
    assert rank.in_image()[2] == (6, 6) and taken.hold.set_aside() == 1
    taken.end()


def test_a_copy_that_comes_home_does_not_disturb_it(make: Make) -> None:
    """Content that exists once for several ranks, and that one of them writes."""
    world = shared(make, 2)
    first, second, _ = world.ranks
    out(first, second)
    save(first)
    save(second)
    taken = [Taken(first), Taken(second)]
    for rank in (first, second):
        continues(rank)
    for _ in range(8):  # what is in both images becomes one copy
        world.turn()
    world.device.write(second.place(0, write=True), (3, 3))
    second.model[0] = (3, 3)
    for each in taken:
        each.end()


@pytest.mark.parametrize("writer", [0, 1])
def test_a_copy_that_has_come_home_since_is_not_there(make: Make, writer: int) -> None:
    """It was next to the images when they were saved: one of them has it, and the other nothing."""
    world = shared(make, 2)
    ranks = world.ranks[:2]
    out(*ranks)
    for _ in range(8):
        world.turn()
    for rank in ranks:
        save(rank)
    taken = [Taken(rank) for rank in ranks]
    for each in taken:
        each.expected.setdefault(0, (0, 0))
        each.left.add(0)
    for rank in ranks:
        continues(rank)
    rank = ranks[writer]
    world.device.write(rank.place(0, write=True), (3, 3))
    rank.model[0] = (3, 3)
    for each in taken:
        each.end()


def test_nothing_that_was_saved_is_dropped_meanwhile(make: Make) -> None:
    """That takes time, and would be set aside; it is dropped behind it."""
    world, rank = saved(make)
    rank.memory.alone = True
    taken = Taken(rank)
    continues(rank)
    for _ in range(4):
        world.turn()
    assert os.fstat(rank.fd).st_blocks and not taken.hold.set_aside()
    taken.end()
    world.settle()
    assert not any(rank.memory.pages[page].in_image for page in rank.model)


def test_it_ends_with_nothing_set_aside_and_begins_anew(make: Make) -> None:
    _, rank = saved(make)
    for value in (5, 6):
        taken = Taken(rank)
        continues(rank)
        written(rank, value)
        save(rank)
        assert taken.hold.set_aside() == 2
        blocks = os.fstat(rank.fd).st_blocks
        taken.end()
        assert os.fstat(rank.fd).st_blocks <= blocks - 2 * CHUNK // 512


def test_a_launcher_that_stops_copying_harms_no_rank(make: Make) -> None:
    """Each page is set aside once, however often it changes."""
    _, rank = saved(make)
    with_nobody = Taken(rank)
    for value in (5, 6, 7):
        continues(rank)
        written(rank, value)
        save(rank)
        assert with_nobody.hold.set_aside() == 2
    assert rank.in_image() == rank.model
    taken = Taken(rank)
    assert taken.hold.set_aside() == 0
    continues(rank)
    written(rank, 8)
    save(rank)
    taken.end()


def test_an_image_that_is_emptied_cannot_be_copied(make: Make) -> None:
    world, rank = saved(make)
    hold = Hold(rank.fd)
    hold.begin()
    assert world.lib.memory_clear_image(rank.memory)
    try:
        hold.copy(rank.fd, [])
    except OSError as error:
        assert "for copies of pages" in str(error)
    else:
        raise AssertionError("what is not there any more was copied")
