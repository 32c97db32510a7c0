"""Copies on the host: one for all ranks with the same content, and never copied there twice."""

from __future__ import annotations

import os

import pytest

from .device import CELLS, CHUNK
from .steps import forget, own, same, together
from .world import ACTIVATE, DEV_BASE, PRIVATE, SAVE, Make, Rank, World


def out(*ranks: Rank) -> None:
    """Another rank takes all free chunks."""
    world = ranks[0].world
    other = world.ranks[-1]
    for page in range(8, 8 + world.memory.total):
        assert page in other.model or other.alloc(page)
    assert other.request(ACTIVATE)
    world.settle()
    assert all(rank.memory.missing == len(rank.model) for rank in ranks)


def shared(make: Make, ranks: int, pages: int = 1) -> World:
    """Ranks that refer to the same chunks, and one more of another group."""
    world = make(ranks + 1, max(ranks, 2) * pages, groups=(1,) * ranks + (2,))
    first, *others = world.ranks[:-1]
    same(first, *others, pages=pages)
    for rank in others:
        assert world.lib.memory_merge(rank.memory) == 0
    assert world.memory.used == pages
    return world


def test_a_chunk_of_several_goes_out_once_and_comes_in_for_all(make: Make) -> None:
    world = shared(make, 3, pages=2)
    *ranks, _ = world.ranks
    out(*ranks)
    assert world.memory.swapped_out == 2 * CHUNK and world.memory.copies_on_host == 2
    assert world.memory.not_swapped == 4 * CHUNK
    assert [world.lib.memory_on_host(r.memory, True).pages for r in ranks] == [2, 0, 0]
    assert [world.lib.memory_on_host(r.memory, False).shared for r in ranks] == [2, 2, 2]
    for rank in reversed(ranks):
        assert rank.request(ACTIVATE)
        world.settle()
    assert world.memory.swapped_in == 2 * CHUNK and ranks[0].refs(0) == 3
    assert world.memory.holes == 0


def test_swapped_content_that_another_rank_has_is_counted_separately(make: Make) -> None:
    """By what is known of its content, whether it is one chunk or two; not what is private, nor
    what a rank of another group holds by the same name."""
    world = make(4, 5, groups=(1, 1, 2, 3))
    first, second, alone, _ = world.ranks

    def alike() -> int:
        return int(world.memory.swapped_alike) // CHUNK

    same(first, second, alone)
    assert first.refs(0) == 1, "the pages have not been compared yet"
    out(first, second, alone)
    assert world.memory.swapped_out == 3 * CHUNK, "each into its own image"
    assert alike() == 2
    for rank in (first, second, alone):
        assert rank.request(ACTIVATE)
        world.settle()
    assert alike() == 3 and first.refs(0) == 2, "one chunk for two came in"
    own(second, 0)
    second.write(0, PRIVATE)
    moved = world.memory.swapped_out
    out(first, second, alone)
    assert world.memory.swapped_out == moved + CHUNK
    assert alike() == 3, "what differs now is private"
    world.check()


def test_each_page_that_is_moved_is_reported(make: Make) -> None:
    """By which way, rank and address; not what comes as zeros."""
    world = make(3, 5, groups=(1, 2, 3))
    first, second, _ = world.ranks
    world.memory.moves_fd = told = os.memfd_create("moves")
    same(first, second)
    out(second, first)
    assert first.request(ACTIVATE)
    world.settle()
    world.memory.moves_fd = 0
    lines = os.pread(told, 4096, 0).decode().splitlines()
    os.close(told)
    mine = [line for line in lines if line.split()[1] != "2"]
    assert sorted(mine) == [f"{way} {DEV_BASE:#x}" for way in ("in 0", "out 0", "out 1")]


def test_unchanged_pages_are_not_copied_out_again(make: Make) -> None:
    world = shared(make, 2, pages=2)
    first, second, _ = world.ranks
    out(first, second)
    assert first.request(ACTIVATE)
    world.settle()
    own(first, 0)
    first.write(0, 7)
    moved, not_swapped = world.memory.swapped_out, world.memory.not_swapped
    out(first, second)
    assert world.memory.swapped_out == moved + CHUNK  # other's pages are zeros that come anew
    assert world.memory.not_swapped - not_swapped == CHUNK
    assert first.read(0) == (7,) * CELLS and second.read(0) == (1,) * CELLS
    assert first.request(ACTIVATE)
    world.settle()
    moved = world.memory.swapped_out
    out(first, second)
    assert world.memory.swapped_out == moved and world.memory.holes == 0
    world.check()


def test_changed_pages_are_copied_out_again(make: Make) -> None:
    """A page is copied out again even if only the fact that it has changed is known."""
    world = make(2, 2, groups=(1, 2))
    first, _ = world.ranks
    for value in (1, PRIVATE + 1, 2, PRIVATE + 2):
        if 0 not in first.model:
            assert first.alloc(0)
        assert first.request(ACTIVATE)
        world.settle()
        first.write(0, value)
        out(first)
        assert first.read(0) == (value,) * CELLS
    assert world.memory.holes == world.memory.refilled == 0


@pytest.mark.parametrize("how", ["faulted", "stopped", "distrusted"])
def test_a_rank_that_has_failed_believes_no_copy(make: Make, how: str) -> None:
    world = shared(make, 2)
    first, second, _ = world.ranks
    out(first, second)
    assert first.request(ACTIVATE)
    world.settle()
    own(first, 0)
    first.run(0, CELLS, 1)  # what it held already: but it is not done
    if how == "faulted":
        first.fault()
    else:
        first.failed = first.memory.distrusted = how == "distrusted"
        if how == "stopped":
            world.lib.memory_stop(first.memory)
        first.works.popleft()
        first.used()
    moved = world.memory.swapped_out
    out(first)
    assert world.memory.swapped_out == moved + CHUNK
    assert second.read(0) == (1,) * CELLS


def test_a_rank_that_has_failed_does_not_believe_its_image(make: Make) -> None:
    """That its page holds the same again was noted, and is not done."""
    world = make(2, 2, groups=(1, 2))
    first, second = world.ranks
    same(first)
    out(first)
    assert first.request(ACTIVATE)
    world.settle()
    page = first.memory.pages[0]
    assert page.in_image and page.keyed
    own(first, 0)
    first.run(0, CELLS, 1)
    world.lib.memory_stop(first.memory)
    first.works.popleft()
    first.used()
    moved = world.memory.swapped_out
    for number in range(8, 8 + world.memory.total):
        second.free(number)
    out(first)
    assert world.memory.swapped_out == moved + CHUNK


@pytest.mark.parametrize("keeper", [0, 1, 2])
def test_a_copy_outlives_the_ranks_that_made_it(make: Make, keeper: int) -> None:
    """Copies outlive the ranks' images, which belong to their launchers."""
    world = shared(make, 3)
    out(*world.ranks[:3])
    gone = world.ranks.pop(keeper)
    gone.close()
    world.check()
    assert world.memory.copies_on_host == 1
    first, second = world.ranks[:2]
    assert first.read(0) == second.read(0) == (1,) * CELLS
    world.ranks.remove(first)
    first.close()
    assert second.request(ACTIVATE)
    world.settle()
    assert second.read(0) == (1,) * CELLS
    world.ranks.remove(second)
    second.close()
    assert world.memory.copies_on_host == 0


@pytest.mark.parametrize("stay", [False, True])
def test_a_saved_rank_has_all_in_its_own_image(make: Make, stay: bool) -> None:
    """Or, where all stay, in that of another one."""
    world = shared(make, 3, pages=2)
    *ranks, _ = world.ranks
    out(*ranks)
    for rank in ranks[:2]:
        assert rank.request(SAVE, stay)
    world.settle()
    for rank in ranks[:2]:
        assert rank.told[-1] == (SAVE, 0) and rank.saved(stay)
        assert rank.in_image(stay) == rank.model
    for _ in range(4):  # it stays so as long as it is saved
        world.turn()
    assert [rank.in_image(stay) == rank.model for rank in ranks] == [True, True, stay]
    assert [ranks[1].image_owner(page) for page in (0, 1)] == ([0, 0] if stay else [None, None])
    assert ranks[2].read(1) == (2,) * CELLS
    world.lib.memory_changes(ranks[0].memory)
    assert ranks[0].request(ACTIVATE)
    world.settle()
    ranks[0].write(0, 5)
    if stay:
        assert not ranks[1].saved(stay) and ranks[1].request(SAVE, stay)
        world.settle()
    assert ranks[1].in_image() == ranks[1].model


@pytest.mark.parametrize("missing", [False, True])
def test_shared_pages_are_saved_once_while_ranks_stay(make: Make, missing: bool) -> None:
    world = shared(make, 4, pages=2)
    *ranks, _ = world.ranks
    if missing:
        out(*ranks)
    else:
        own(ranks[2], 1)
        ranks[2].write(1, 7)
    before = world.memory.swapped_out
    for rank in ranks:
        assert rank.request(SAVE, stay=True)
    world.settle()
    assert [rank.saved(stay=True) for rank in ranks] == [True] * 4
    assert [rank.in_image(stay=True) == rank.model for rank in ranks] == [True] * 4
    lies = [[rank.image_owner(page) for page in (0, 1)] for rank in ranks]
    assert lies == [[None, None], [0, 0], [0, 0 if missing else None], [0, 0]]
    assert world.memory.swapped_out == before, "what is saved is not swapped"
    held = [sum(rank.memory.pages[page].in_image for page in (0, 1)) for rank in ranks]
    assert held == [2, 0, 0 if missing else 1, 0]

    assert not any(rank.saved() for rank in ranks[1:])
    for rank in ranks:  # and then all leave, though nothing has changed
        assert rank.request(SAVE)
    world.settle()
    for rank in ranks:
        assert rank.saved() and rank.in_image() == rank.model


@pytest.mark.parametrize("what", ["changed", "written", "written on the host", "failed", "ended"])
def test_a_copy_is_dropped_when_another_rank_lets_go(make: Make, what: str) -> None:
    """Two ranks are saved; one of them continues alone."""
    world = shared(make, 2)
    first, second, _ = world.ranks
    if what == "written on the host":
        out(first, second)
    for rank in (first, second):
        assert rank.request(SAVE, stay=True)
    world.settle()
    assert second.image_owner(0) == 0 and second.saved(stay=True)
    if what == "failed":
        world.lib.memory_stop(first.memory)
    else:
        world.lib.memory_changes(first.memory)
    if what == "written on the host":
        first.write(0, 5)
    elif what == "written":
        own(first, 0)
        first.write(0, 5)
        assert first.request(SAVE, stay=True)
        world.settle()
    elif what == "ended":
        world.ranks.remove(first)
        first.close()
    assert second.image_owner(0) is None and not second.saved(stay=True)
    assert second.request(SAVE, stay=True)
    world.settle()
    assert second.saved(stay=True) and second.in_image() == second.model


@pytest.mark.parametrize("what", ["alike", "distrusted", "another distrusted", "apart"])
def test_pages_known_to_be_equal_are_saved_once_without_sharing(make: Make, what: str) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    assert first.chunk(0) != second.chunk(0), "the pages have not been compared yet"
    second.memory.distrusted = what == "distrusted"
    first.memory.distrusted = what == "another distrusted"
    world.memory.shares = what != "apart"
    for rank in (first, second):
        assert rank.request(SAVE, stay=True)
    world.settle()
    assert (
        second.image_owner(0) == (0 if what == "alike" else None) and first.image_owner(0) is None
    )
    for rank in (first, second):
        assert rank.saved(stay=True) and rank.in_image(stay=True) == rank.model
    assert (second.in_image() == second.model) == (what != "alike")


@pytest.mark.parametrize("how", ["writes", "faulted", "stopped", "distrusted", "apart", "single"])
def test_content_has_a_key_while_it_is_trusted(make: Make, how: str) -> None:
    """It is that of whoever holds the same, and of no other."""
    world = make(2, 4)
    first, second = world.ranks
    same(first, second, pages=2)
    own(second, 1)
    second.write(1, 7)
    assert first.key(0) == second.key(0) != (0, 0)
    assert len({first.key(0), first.key(1), second.key(1)}) == 3
    if how == "writes":
        first.run(0, CELLS, 9)
    elif how == "faulted":
        first.run(0, CELLS, 1)
        first.fault()
    elif how == "stopped":
        world.lib.memory_stop(first.memory)
    elif how == "apart":
        world.memory.shares = False
    else:
        setattr(first.memory, how, True)
    assert first.key(0) == (0, 0)
    if how == "writes":
        first.end()


def test_ranks_of_another_job_have_their_own(make: Make) -> None:
    world = make(4, 4, groups=(1, 1, 2, 2))
    same(*world.ranks)
    for rank in world.ranks:
        assert rank.request(SAVE, stay=True)
    world.settle()
    assert [rank.image_owner(0) for rank in world.ranks] == [None, 0, None, 2]
    assert all(rank.in_image(stay=True) == rank.model for rank in world.ranks)


@pytest.mark.parametrize("saved_before", [False, True])
def test_a_rank_that_has_forgotten_it_keeps_no_copy(make: Make, saved_before: bool) -> None:
    """Dead content is not copied, although the image may have an older copy."""
    world = shared(make, 2)
    first, second, _ = world.ranks
    if saved_before:
        assert first.request(SAVE, stay=True)
        world.settle()
        world.lib.memory_changes(first.memory)
    forget(first, 0, CELLS)
    assert first.chunk(0) == second.chunk(0)
    for rank in (first, second):
        assert rank.request(SAVE, stay=True)
    world.settle()
    assert second.image_owner(0) is None and second.in_image() == second.model


def test_written_pages_have_no_copy(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    assert first.request(SAVE, stay=True)
    world.settle()
    assert second.image_owner(0) == 0
    for rank in (first, second):
        rank.begin()
        assert second.image_owner(0) is None
        rank.end()


def test_equal_pages_on_the_host_are_stored_once(make: Make) -> None:
    world = make(3, 4)
    for rank in world.ranks:
        for page in range(3):
            assert rank.alloc(page)
            rank.write(page, page + 1)
            world.turn()
    for _ in range(6):
        world.turn()
    # The last page stays: its program may continue to write there.
    assert world.memory.copies_on_host == 2 and world.memory.holes == 6
    world.lib.memory_activated(world.ranks[0].memory)
    for _ in range(3):
        world.turn()
    assert world.memory.copies_on_host == 3
    _, second, third = world.ranks
    second.write(1, 9)
    assert [rank.read(1)[0] for rank in world.ranks] == [2, 9, 2]
    assert world.memory.refilled == 1
    for page in range(3):
        own(third, page)
    assert third.request(ACTIVATE)
    world.settle()
    assert second.request(SAVE)
    world.settle()
    assert second.in_image() == second.model


def test_a_page_in_the_making_is_left_alone(make: Make) -> None:
    """It is not merged after each part that is written, and taken apart for the next."""
    world = make(2, 4)
    for rank in world.ranks:
        assert rank.alloc(0) and rank.alloc(1)
    for cell in range(CELLS):
        for rank in world.ranks:
            rank.run(cell, 1, 1)
            rank.end()
            world.turn()
    assert world.memory.copies_on_host == world.memory.holes == 0
    for rank in world.ranks:
        rank.run(CELLS, 1, 1)
        rank.end()
        world.turn()
    assert world.memory.copies_on_host == 1 and world.memory.refilled == 0


def test_ranks_of_two_groups_have_no_copy_in_common(make: Make) -> None:
    world = make(2, 4, groups=(1, 2))
    for rank in world.ranks:
        for page in range(2):
            assert rank.alloc(page)
            rank.write(page, 1)
        world.turn()
    assert world.memory.copies_on_host == 0
    same_chunk = shared(make, 2)
    out(*same_chunk.ranks[:2])
    assert same_chunk.memory.copies_on_host == 1
    third = same_chunk.ranks[2]
    third.free(8)
    assert third.alloc(0)
    third.write(0, 1)
    assert third.request(SAVE)
    same_chunk.settle()
    assert third.memory.pages[0].copy == same_chunk.ffi.NULL


def test_a_copy_stays_until_it_has_been_read(make: Make) -> None:
    """A copy that a work reads stays, though its rank writes the page meanwhile."""
    world = shared(make, 2)
    first, second, _ = world.ranks
    out(first, second)
    second.begin()
    place = second.place(0)
    second.run(0, CELLS, 4)
    first.free(0)
    world.check()
    assert world.device.read(place) == (1,) * CELLS
    second.end()
    second.end()
    assert second.read(0) == (4,) * CELLS
    assert second.request(ACTIVATE)
    world.settle()
    assert world.lib.memory_merge(second.memory) == 0
    world.check()


def test_a_copy_that_is_being_made_is_not_there_yet(make: Make) -> None:
    """It is as good as there for who goes out behind it, and for no other."""
    world = shared(make, 2)
    first, second, other = world.ranks
    third = Rank(world, 3)
    world.ranks.append(third)
    for page in (0, 1):
        assert third.alloc(page)
    for page in (8, 9):
        assert other.alloc(page)
    assert other.request(ACTIVATE)
    world.turn()
    assert first.moving and second.moving and world.memory.copies_on_host == 1
    third.write(0, 1)
    third.write(1, 5)  # so that the first page is not about to be written on
    for _ in range(3):
        world.turn()
    assert not third.memory.pages[0].common
    world.settle()
    assert third.memory.pages[0].common and third.read(0) == (1,) * CELLS
    world.check()


def test_the_image_s_old_content_is_not_its_new_content(make: Make) -> None:
    """The image's content is outdated even if the page gets the same content again."""
    world = make(2, 2, groups=(1, 2))
    first, second = world.ranks
    same(first)
    out(first)
    assert first.request(ACTIVATE)
    world.settle()
    first.write(0, 2)
    out(first)
    donor = Rank(world, 2)
    world.ranks.insert(0, donor)
    for page in list(second.model):
        second.free(page)
    assert donor.alloc(0) and donor.request(ACTIVATE)
    world.settle()
    donor.write(0, 2)
    assert first.request(ACTIVATE)
    world.settle()
    assert first.refs(0) == 2
    own(first, 0)
    first.write(0, 1)
    assert first.request(SAVE)
    world.settle()
    assert first.in_image() == first.model


def test_ranks_that_leave_together_need_no_copy_in_common(make: Make) -> None:
    world = shared(make, 2)
    ranks = world.ranks[:2]
    for rank in ranks:
        assert rank.request(SAVE)
    while any(rank.open for rank in ranks):
        world.turn()
        assert world.memory.copies_on_host == 0
        for stream in world.streams:
            world.device.end(stream)
    assert all(rank.in_image() == rank.model for rank in ranks)


def test_a_copy_goes_when_all_have_written_something_else(make: Make) -> None:
    world = shared(make, 2)
    first, second, _ = world.ranks
    out(first, second)
    assert world.memory.copies_on_host == 1
    for rank, value in ((first, 7), (second, 8)):
        assert rank.alloc(1)
        rank.write(0, value)
        rank.write(1, value)  # so that the first page is not about to be written on
        world.turn()
    world.turn()
    assert world.memory.copies_on_host == 0
    assert [rank.read(0)[0] for rank in (first, second)] == [7, 8]


def test_a_rank_that_is_swapped_out_finds_no_copy_of_another_group(make: Make) -> None:
    world = shared(make, 2)
    first, second, other = world.ranks
    out(first, second)
    for page in list(other.model):
        other.free(page)
    assert other.alloc(0) and other.alloc(1) and other.request(ACTIVATE)
    world.settle()
    other.write(0, 1)
    assert first.request(ACTIVATE)
    world.settle()
    assert other.chunk(0) is None and other.memory.pages[0].copy == world.ffi.NULL
    assert other.read(0) == (1,) * CELLS


# ---- whose word is taken for it


@pytest.mark.parametrize("how", ["shares", "single"])
def test_a_rank_that_shares_nothing_has_no_copy_in_common(make: Make, how: str) -> None:
    """No memory is kept for versions that it would need."""
    world = make(3, 2, groups=(1, 1, 2))
    first, second, other = world.ranks
    if how == "shares":
        world.memory.shares = False
    for rank in (first, second):
        rank.memory.single = how == "single"
        assert rank.alloc(0)
        rank.write(0, 1)
        rank.write(0, 1)
    world.lib.memory_activated(first.memory)
    for _ in range(4):
        world.turn()
    assert world.memory.copies_on_host == 0
    assert first.request(ACTIVATE)
    world.settle()
    moved = world.memory.swapped_out
    out(first)
    assert world.memory.swapped_out == moved + CHUNK and not other.memory.missing


def test_a_distrusted_rank_has_no_copy_in_common(make: Make) -> None:
    world = make(2, 4)
    world.ranks[1].memory.distrusted = True
    for rank in world.ranks:
        assert rank.alloc(0) and rank.alloc(1)
        rank.write(0, 1)
        rank.write(1, 5 + rank.number)
    for rank in world.ranks:
        world.lib.memory_activated(rank.memory)
        for _ in range(3):
            world.turn()
    assert world.memory.copies_on_host == 0


def test_pages_only_referred_to_are_not_common(make: Make) -> None:
    """Whichever rank comes first: the content that it is known by is not written yet."""
    for writes in (0, 1):
        world = make(2, 4)
        for rank in world.ranks:
            assert rank.alloc(0) and rank.alloc(1)
        busy, quiet = world.ranks[writes], world.ranks[1 - writes]
        for page in (0, 1):
            busy.run(page * CELLS, CELLS, page + 1)
            quiet.write(page, page + 1)
        for _ in range(3):
            world.turn()
            assert world.memory.copies_on_host == 0
        while busy.works:
            busy.end()
        for rank in (quiet, busy):
            rank.write(1, 7)
        for _ in range(3):
            world.turn()
        assert busy.read(0) == quiet.read(0) == (1,) * CELLS


def test_pages_that_became_resident_are_not_common(make: Make) -> None:
    """Its image may hold the same; but it is on the device now, and may be written there."""
    world = make(2, 4)
    first, second = world.ranks
    for rank in world.ranks:
        assert rank.alloc(0)
        rank.write(0, 1)
    assert first.request(ACTIVATE)
    world.settle()
    assert first.memory.pages[0].in_image
    for rank in (second, first):
        world.lib.memory_activated(rank.memory)
        for _ in range(3):
            world.turn()
    assert world.memory.copies_on_host == 0
    assert second.request(ACTIVATE)
    world.settle()
    assert first.refs(0) == 2


def test_zeros_that_were_never_written_are_nowhere(make: Make) -> None:
    world = make(2, 4)
    for rank in world.ranks:
        assert rank.alloc(0)
    world.ranks[0].write(0, 0)
    for rank in world.ranks:
        world.lib.memory_activated(rank.memory)
        for _ in range(3):
            world.turn()
    assert world.memory.copies_on_host == 0


def test_pages_that_become_equal_again_are_stored_once_again(make: Make) -> None:
    """The holes that this leaves are filled once each, and a page that is new has none."""
    world = make(2, 4)
    first, second = world.ranks
    for rank in world.ranks:
        assert rank.alloc(0) and rank.alloc(1)
    for value in (1, 2):
        for rank in world.ranks:
            rank.write(0, value)
            rank.write(1, 7 * value + rank.number)
        for _ in range(3):
            world.turn()
        assert first.memory.pages[0].common and second.memory.pages[0].common
        assert world.memory.copies_on_host == 1
    assert (world.memory.holes, world.memory.refilled) == (4, 2)
    first.write(0, 3)
    first.write(0, 4)
    assert world.memory.refilled == 3
    second.free(0)
    assert second.alloc(0)
    second.write(0, 5)
    assert world.memory.refilled == 3


# ---- what is copied, and what is kept


def test_a_rank_that_comes_back_by_sharing_need_not_be_copied_out(make: Make) -> None:
    """Its image holds the same already."""
    world = make(3, 2, groups=(1, 1, 2))
    first, second, _ = world.ranks
    same(first)
    assert first.request(SAVE)
    world.settle()
    same(second)
    assert first.request(ACTIVATE)
    world.settle()
    assert first.refs(0) == 2 and first.memory.pages[0].keyed
    world.ranks.remove(second)
    second.close()
    moved = world.memory.swapped_out
    out(first)
    assert world.memory.swapped_out == moved and first.read(0) == (1,) * CELLS


def test_a_rank_alone_keeps_nothing_twice(make: Make) -> None:
    """Neither what the image had, nor a copy: so it is copied when it goes out anyway."""
    world = shared(make, 2)
    first, second, other = world.ranks
    out(first, second)
    world.ranks.remove(second)
    second.close()
    for page in list(other.model):
        other.free(page)
    first.memory.alone = True
    for _ in range(2):
        assert first.request(ACTIVATE)
        world.settle()
        assert world.memory.copies_on_host == 0 and not first.memory.pages[0].in_image
        assert world.lib.memory_on_host(first.memory, False).spare == 0
        moved = world.memory.swapped_out
        assert first.request(SAVE)
        world.settle()
        assert world.memory.swapped_out == moved + CHUNK and first.read(0) == (1,) * CELLS


A_TURN = 8  # pages that leave an image
SAVED = 20


def saved_alone(make: Make) -> Rank:
    """It stays, and continues: what its image has is of before, and for no other rank."""
    world = make(1, 32)
    (rank,) = world.ranks
    rank.memory.alone = True
    same(rank, pages=SAVED)
    assert rank.request(SAVE, stay=True)
    world.settle()
    world.lib.memory_changes(rank.memory)
    for page in range(SAVED):
        rank.write(page, 7)
    return rank


def spare(rank: Rank) -> int:
    return int(rank.world.lib.memory_on_host(rank.memory, False).spare)


def test_saved_pages_of_a_single_rank_are_freed_a_few_at_a_time(make: Make) -> None:
    """With much memory the loop would stand still for seconds."""
    rank = saved_alone(make)
    for left in (SAVED - A_TURN, SAVED - 2 * A_TURN, 0):
        assert rank.world.lib.memory_turn(rank.world.memory), "the loop must not sleep"
        assert spare(rank) == left
    assert not rank.world.lib.memory_turn(rank.world.memory)


@pytest.mark.parametrize("stay", [True, False])
def test_a_rank_that_is_saved_again_before_all_of_that_has_gone_is_saved_whole(
    make: Make, stay: bool
) -> None:
    rank = saved_alone(make)
    rank.world.turn()
    assert rank.request(SAVE, stay)
    rank.world.settle()
    for _ in range(4):
        rank.world.turn()
    assert rank.saved(stay) and rank.in_image(stay) == rank.model


def test_freeing_memory_early_removes_only_its_saved_pages(make: Make) -> None:
    rank = saved_alone(make)
    for page in (0, SAVED - 1, *range(2, SAVED - 6)):
        rank.free(page)
    rank.world.lib.memory_sweep(rank.memory)
    assert rank.memory.live_count < rank.memory.unlooked
    for _ in range(3):
        rank.world.turn()
    assert spare(rank) == 0
    assert rank.request(SAVE)
    rank.world.settle()
    assert rank.in_image() == rank.model


def test_a_rank_that_is_not_alone_any_more_keeps_what_was_saved(make: Make) -> None:
    rank = saved_alone(make)
    rank.world.turn()
    rank.memory.alone = False
    for _ in range(4):
        rank.world.turn()
    assert spare(rank) == SAVED - A_TURN


def test_a_copy_of_what_was_there_goes_when_something_else_does(make: Make) -> None:
    """Content is copied to the image; that of a page that stays, when its rank becomes active."""
    for leaves in (False, True):
        world = shared(make, 2)
        first, second, other = world.ranks
        out(first, second)
        for page in list(other.model):
            other.free(page)
        for rank in (first, second):
            assert rank.request(ACTIVATE)
            world.settle()
        second.free(0)
        own(first, 0)
        first.write(0, 7)
        assert world.memory.copies_on_host == 1
        if leaves:
            assert first.request(SAVE)
            world.settle()
        else:
            assert world.lib.memory_merge(first.memory) == 0
        assert world.memory.copies_on_host == 0


@pytest.mark.parametrize("single", [False, True])
def test_saved_pages_are_not_copied_again(make: Make, single: bool) -> None:
    """When the rank leaves; and, once the cut is over, as long as it has not been written."""
    world = make(2, 4)
    first, _ = world.ranks
    first.memory.single = single
    same(first)
    assert not first.saved(stay=True)
    assert first.request(SAVE, stay=True)
    world.settle()
    assert first.saved(stay=True) and first.chunk(0) is not None
    moved, not_swapped = world.memory.swapped_out, world.memory.not_swapped
    if not single:
        world.lib.memory_changes(first.memory)
        world.turn()
        assert first.memory.pages[0].in_image
    assert first.request(SAVE)
    world.settle()
    assert world.memory.swapped_out == moved and world.memory.not_swapped == not_swapped
    assert first.in_image() == first.model


def test_pages_written_after_a_save_are_copied_again(make: Make) -> None:
    world = make(2, 4)
    first, _ = world.ranks
    same(first)
    assert first.request(SAVE, stay=True)
    world.settle()
    world.lib.memory_changes(first.memory)
    assert not first.saved(stay=True)
    first.write(0, 7)
    assert first.request(SAVE)
    world.settle()
    assert first.in_image() == first.model == {0: (7,) * CELLS}


def test_a_rank_that_has_been_saved_is_swapped_out_in_common_again(make: Make) -> None:
    """Common content is not in the rank's image."""
    world = shared(make, 2)
    first, second, _ = world.ranks
    for rank in (first, second):
        assert rank.request(SAVE, stay=True)
    world.settle()
    for rank in (first, second):
        world.lib.memory_changes(rank.memory)
    together(second, [first, second], 0, CELLS, 5)
    second.end()
    out(first, second)
    assert world.memory.copies_on_host == 1
    assert not first.saved(stay=True) and first.read(0) == (5,) * CELLS
