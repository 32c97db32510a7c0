"""Requests for the memory of ranks: side by side, without deadlock, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .mutants import MUTANTS, Fault
from .world import (
    ACTIVATE,
    CANCELLED,
    CELL,
    CELLS,
    CHUNK,
    COPY,
    DEV_BASE,
    PREFETCH,
    PRIVATE,
    ROOM,
    SAVE,
    ZEROS,
    Rank,
    Work,
    World,
    addr_of,
    load,
)

RANKS, PAGES = 3, 4
Make = Callable[..., World]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load(tmp_path_factory.mktemp("memory"))


@pytest.fixture
def make(library: tuple[Any, Any]) -> Iterator[Make]:
    worlds: list[World] = []

    def one(ranks: int, chunks: int, groups: tuple[int, ...] = ()) -> World:
        worlds.append(World(library, ranks, chunks, groups))
        return worlds[-1]

    yield one
    for world in worlds:
        world.close()


def fill(rank: Rank, pages: int) -> None:
    """Pages with content, resident."""
    for page in range(pages):
        assert rank.alloc(page)
    assert rank.ask(ACTIVATE)
    rank.world.settle()
    for page in range(pages):
        rank.write(page, 100 * rank.number + page + 1)


def sharers(rank: Rank, first: int, count: int) -> tuple[list[Rank], bool]:
    world = rank.world
    ranges = world.ffi.new("struct memory_range *", (addr_of(first), count * CELL))
    found = world.ffi.new("struct rank_memory *[8]")
    exactly = world.ffi.new("bool *")
    n = world.lib.memory_sharers(rank.memory, ranges, 1, found, 8, exactly)
    by_memory = {other.memory: other for other in world.ranks}
    return [by_memory[found[i]] for i in range(n)], exactly[0]


def together(rank: Rank, ranks: list[Rank], first: int, count: int, value: int) -> None:
    """Runs once in `rank`, for all who share what it writes."""
    opened = rank.world.lib.memory_open_shared(rank.memory, addr_of(first), count * CELL)
    if opened and rank.world.faults:
        return
    assert opened == 0
    pages = {cell // CELLS for cell in range(first, first + count)}
    rank.submit(Work(first, count, value, ranks, {p: rank.place(p, True) for p in pages}))


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


def same(*ranks: Rank, pages: int = 1) -> None:
    """All of them have the same content, resident and one after the other."""
    for rank in ranks:
        for page in range(pages):
            assert rank.alloc(page)
        assert rank.ask(ACTIVATE)
        rank.world.settle()
        for page in range(pages):
            own(rank, page)
            rank.write(page, page + 1)


def own(rank: Rank, page: int, pages: int = 1) -> None:
    if not rank.owns(page * CELLS, pages * CELLS):
        assert rank.ask(COPY, page=page, pages=pages)
        rank.world.settle()
    assert rank.owns(page * CELLS, pages * CELLS)


def test_a_chunk_of_several_ranks_counts_once_and_goes_with_the_last(make: Make) -> None:
    world = make(3, 3)
    first, second, third = world.ranks
    same(first, second, third)
    assert world.memory.used == 3
    for rank in (second, third):
        assert world.lib.memory_merge(rank.memory) == 0
    assert world.memory.used == world.memory.shared == 1 and first.refs(0) == 3
    assert second.ask(COPY)
    world.settle()
    assert second.refs(0) == 1 and first.refs(0) == 2 and world.memory.used == 2
    second.write(0, 7)  # nobody else's
    world.check()
    assert first.ask(SAVE)
    world.settle()
    assert world.memory.used == 2 and third.refs(0) == 1
    third.free(0)
    assert world.memory.used == 1
    world.check()


def test_what_others_have_is_not_moved_in(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second, pages=2)
    assert second.ask(SAVE)
    world.settle()
    moved = world.memory.swapped_in
    assert second.ask(ACTIVATE)
    world.settle()
    assert world.memory.used == 2 and world.memory.swapped_in == moved
    assert world.memory.spared == 2 * CHUNK


def test_ranks_that_share_all_fit_where_one_does(make: Make) -> None:
    """And what the one that comes shares is not moved out to make room for it."""
    world = make(3, 3)
    for rank in world.ranks:
        same(rank, pages=2)
        assert rank.alloc(2) and rank.ask(ACTIVATE)
        world.settle()
        rank.run(2 * CELLS, CELLS, PRIVATE + rank.number)
        rank.end()
    moved = world.memory.swapped_in + world.memory.swapped_out
    for turn in range(6):
        rank = world.ranks[turn % 3]
        assert rank.ask(ACTIVATE)
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
        assert rank.alloc(0) and rank.ask(ACTIVATE)
        world.settle()
    assert first.refs(0) == 2
    assert second.ask(COPY)
    world.turn()
    assert second.refs(0) == 1 and not any(world.device.queues.values())
    assert world.memory.copies == 1


def test_what_only_begins_with_zeros_is_copied(make: Make) -> None:
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
        assert rank.ask(ACTIVATE)
        world.settle()
    assert first.refs(0) == first.refs(1) == 3
    own(first, 0, 2)
    assert [rank.memory.missing for rank in world.ranks] == [0, 2, 2]


def test_what_was_copied_is_not_shared_again_before_it_is_written(make: Make) -> None:
    """Else two ranges would never be a rank's at one time."""
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 2
    own(second, 0)
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
    world.lib.memory_close_shared(second.memory)
    world.check()
    assert [rank.read(0) for rank in world.ranks] == [(1, 5)] * 3


@pytest.mark.parametrize("told", [False, True])
def test_what_a_rank_that_has_failed_holds_is_not_shared(make: Make, told: bool) -> None:
    """What was noted for it may not have been done."""
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


def test_what_was_freed_is_zeros_when_it_is_allocated_again(make: Make) -> None:
    world = make(2, 4)
    first, second = world.ranks
    same(first, second)
    assert world.lib.memory_merge(second.memory) == 0 and second.refs(0) == 2
    second.free(0)
    assert second.alloc(0) and second.ask(ACTIVATE)
    world.settle()
    world.check()
    assert first.refs(0) == 1


def test_what_nobody_foresaw_is_of_one_rank_alone(make: Make) -> None:
    """And what the device has given for it is counted, though there is no room."""
    world = make(2, 1)
    first, second = world.ranks
    for rank in (first, second):
        assert rank.alloc(0) and rank.ask(ACTIVATE)
        world.settle()
    second.begin()
    assert world.device.unforeseen(second.space, DEV_BASE, 0, 5)
    second.model[0] = (5, *ZEROS[1:])
    second.end()
    assert world.memory.used == 2 and world.memory.unforeseen == 1
    for rank in (first, second):
        assert world.lib.memory_merge(rank.memory) == 0
        world.check()
        assert rank.ask(ACTIVATE)
        world.settle()
    assert second.ask(SAVE)
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


# ---- any order of anything ----------------------------------------------------------------------

RANK = st.integers(0, RANKS - 1)
PAGE = st.integers(0, PAGES - 1)
CELLS_OF_ALL = PAGES * CELLS
CELL_NUMBER = st.integers(0, CELLS_OF_ALL - 1)
CELL_COUNT = st.integers(1, 2 * CELLS)
NOBODYS = -1
VALUE = st.sampled_from([0, 1, 1, 2, NOBODYS])


class Machine(RuleBasedStateMachine):
    library: tuple[Any, Any]

    @initialize(
        chunks=st.integers(1, 6),
        alone=st.lists(st.booleans(), min_size=RANKS, max_size=RANKS),
        groups=st.sampled_from([(1, 1, 1), (1, 1, 2), (1, 2, 1)]),
        values=st.lists(VALUE, min_size=PAGES, max_size=PAGES),
        faults=st.sampled_from([False, False, True]),
    )
    def open(
        self,
        chunks: int,
        alone: list[bool],
        groups: tuple[int, ...],
        values: list[int],
        faults: bool,
    ) -> None:
        self.world = World(self.library, RANKS, chunks, groups)
        self.may_fail = faults
        self.value = PRIVATE
        for rank, lonely in zip(self.world.ranks, alone, strict=True):
            rank.memory.alone = lonely
            for page in range(min(chunks, PAGES - 1)):
                assert rank.alloc(page)
        for rank in self.world.ranks:
            rank.ask(ACTIVATE)
            self.world.settle()
            for page in rank.model:
                own(rank, page)
                rank.write(page, self.fresh(values[page]))

    def fresh(self, value: int) -> int:
        """The value, or one that nobody has."""
        self.value += 1
        return self.value if value == NOBODYS else value

    def rank(self, number: int) -> Rank:
        return self.world.ranks[number]

    @rule(number=RANK, page=PAGE)
    def alloc(self, number: int, page: int) -> None:
        rank = self.rank(number)
        m, lib = rank.memory, self.world.lib
        if page in rank.model or m.pages[page].chunk != self.world.ffi.NULL:
            return
        fits = m.live_count - m.dying < self.world.memory.total
        assert rank.alloc(page) == fits
        assert lib.memory_valid(m, DEV_BASE + page * CHUNK, 1) == fits

    @rule(number=RANK, page=PAGE)
    def free(self, number: int, page: int) -> None:
        rank = self.rank(number)
        writes = any(
            page in {cell // CELLS for cell in range(w.first, w.first + w.count)}
            for w in rank.works
        )
        if page in rank.model and not rank.moving and not writes:
            rank.free(page)

    def may_run(self, rank: Rank, first: int, count: int) -> bool:
        """May the rank be given a write of these cells?"""
        pages = {cell // CELLS for cell in range(first, first + count)}
        quiet = len(rank.works) < 3 and not rank.moving
        return pages <= set(rank.model) and quiet and not rank.failed and not rank.cut

    @rule(number=RANK, first=CELL_NUMBER, count=CELL_COUNT, value=VALUE, at_once=st.booleans())
    def write(self, number: int, first: int, count: int, value: int, at_once: bool) -> None:
        rank = self.rank(number)
        if not self.may_run(rank, first, count):
            return
        if not rank.owns(first, count):
            rank.wants(COPY, False, first, count)
            return
        rank.run(first, count, self.fresh(value))
        if at_once:
            while rank.works:
                rank.end()

    def run_together(self, rank: Rank, first: int, count: int, value: int) -> None:
        ranks, exactly = sharers(rank, first, count)
        chunks = [
            {other.chunk(cell // CELLS) for cell in range(first, first + count)} for other in ranks
        ]
        assert not exactly or (len(ranks) > 1 and None not in chunks[0])
        assert not exactly or all(found == chunks[0] for found in chunks)
        for other in ranks if exactly else ():
            while other.works:
                other.end()
        if exactly and all(self.may_run(r, first, count) for r in sharers(rank, first, count)[0]):
            ranks, exactly = sharers(rank, first, count)
            if exactly:
                together(rank, ranks, first, count, self.fresh(value))

    @rule(number=RANK, first=CELL_NUMBER, count=CELL_COUNT, value=VALUE)
    def write_anywhere_together(self, number: int, first: int, count: int, value: int) -> None:
        self.run_together(self.rank(number), first, count, value)

    @rule(number=RANK, which=PAGE, value=VALUE)
    def write_together(self, number: int, which: int, value: int) -> None:
        rank = self.rank(number)
        pages = [p for p in sorted(rank.model) if rank.chunk(p) is not None and rank.refs(p) > 1]
        if pages:
            self.run_together(rank, pages[which % len(pages)] * CELLS, 1 + which % CELLS, value)

    @rule(number=RANK, cell=CELL_NUMBER)
    def write_unforeseen(self, number: int, cell: int) -> None:
        """A kernel that runs writes where nobody knew."""
        rank, page = self.rank(number), cell // CELLS
        alone = all(work.ranks == [rank] and not work.count for work in rank.works)
        if not rank.works or not alone or rank.failed or rank.chunk(page) is None:
            return
        m, addr = rank.memory, DEV_BASE + page * CHUNK
        self.value += 1
        if page in rank.model and m.pages[page].guarded:
            if self.world.device.unforeseen(rank.space, addr, cell % CELLS, self.value):
                old = rank.model[page]
                cut = cell % CELLS
                rank.model[page] = (*old[:cut], self.value, *old[cut + 1 :])

    @rule(number=RANK)
    def close_shared(self, number: int) -> None:
        self.world.lib.memory_close_shared(self.rank(number).memory)

    @rule(number=RANK)
    def switch(self, number: int) -> None:
        """As a rank comes to run, if it can at once."""
        rank = self.rank(number)
        rank.ask(ACTIVATE)
        self.go_on()
        if not rank.memory.missing and not rank.moving:
            self.merge(number)
            self.world.lib.memory_activated(rank.memory)

    @rule(number=RANK)
    def merge(self, number: int) -> None:
        rank = self.rank(number)
        if self.world.lib.memory_merge(rank.memory):
            assert self.world.faults
            rank.failed = True
            self.world.lib.memory_stop(rank.memory)

    @rule(number=RANK)
    def begin_work(self, number: int) -> None:
        rank = self.rank(number)
        if not rank.moving and len(rank.works) < 2:
            rank.begin()

    @rule(number=RANK)
    def end_work(self, number: int) -> None:
        if self.rank(number).works:
            self.rank(number).end()

    @rule(number=RANK, purpose=st.sampled_from([SAVE, ACTIVATE, ACTIVATE, COPY, PREFETCH]),
          stay=st.booleans(), page=PAGE, pages=st.integers(1, PAGES))  # fmt: skip
    def ask(self, number: int, purpose: int, stay: bool, page: int, pages: int) -> None:
        rank = self.rank(number)
        if purpose == SAVE and stay:
            rank.cut = True
        rank.ask(purpose, stay and purpose == SAVE, page, pages)

    @rule(number=RANK)
    def release(self, number: int) -> None:
        """The cut is over, even while it is being saved."""
        self.world.lib.memory_changes(self.rank(number).memory)
        self.rank(number).cut = False

    @rule(number=RANK)
    def cancel(self, number: int) -> None:
        self.world.lib.memory_cancel(self.rank(number).memory)

    @rule(number=RANK)
    def become_active(self, number: int) -> None:
        self.world.lib.memory_activated(self.rank(number).memory)

    @precondition(lambda self: self.may_fail and not self.world.faults)
    @rule(what=st.sampled_from(["create", "map", "unmap", "protect"]))
    def fault(self, what: str) -> None:
        self.world.fault(what)

    @precondition(lambda self: self.may_fail)
    @rule(number=RANK)
    def fail_rank(self, number: int) -> None:
        self.world.lib.memory_stop(self.rank(number).memory)

    @precondition(lambda self: self.may_fail)
    @rule(number=RANK, told=st.booleans())
    def fault_work(self, number: int, told: bool) -> None:
        """A kernel faults: what was noted for the rank is not done, for all who share it."""
        rank = self.rank(number)
        while rank.works:
            rank.fault()
            if told:
                self.world.lib.memory_stop(rank.memory)

    @rule(stream=st.integers(0, 1))
    def end_copy(self, stream: int) -> None:
        self.world.device.end(self.world.streams[stream])

    @rule()
    def turn(self) -> None:
        self.world.turn()

    @rule()
    def go_on(self) -> None:
        """Some time passes in which no program does anything."""
        for _ in range(8):
            self.world.turn()
            for stream in self.world.streams:
                self.world.device.end(stream)

    @invariant()
    def right(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.come_to_an_end()
        finally:
            self.world.close()

    def come_to_an_end(self) -> None:
        """Nobody waits for ever, and whoever wants to write comes to own what that takes."""
        ranks = self.world.ranks
        for rank in ranks:
            while rank.works:
                rank.end()
        self.world.settle(waiting=(PREFETCH,))
        for rank in ranks:
            self.world.lib.memory_cancel(rank.memory)
        self.world.settle()
        assert not any(rank.open for rank in ranks)
        for rank in ranks:
            if not self.world.faults and not rank.failed and not rank.memory.stopped:
                own(rank, 0, PAGES)


def run(library: tuple[Any, Any], examples: int, **more: Any) -> None:
    machine = type("Machine", (Machine,), {"library": library})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=60, deadline=None,
                          suppress_health_check=list(HealthCheck), **more),
    )  # fmt: skip


def test_any_requests_in_any_order(library: tuple[Any, Any]) -> None:
    run(library, 80)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_any_requests_in_any_order_at_length(library: tuple[Any, Any]) -> None:
    run(library, 5000)


# What chance shows too seldom.
RULES: tuple[Callable[[Make], None], ...] = (
    partial(test_what_a_rank_that_has_failed_holds_is_not_shared, told=False),
    partial(test_what_a_rank_that_has_failed_holds_is_not_shared, told=True),
    test_what_was_copied_is_not_shared_again_before_it_is_written,
    test_where_there_is_no_chunk_for_a_copy_the_others_let_go,
    test_what_only_begins_with_zeros_is_copied,
    test_what_was_freed_is_zeros_when_it_is_allocated_again,
    test_what_nobody_foresaw_is_of_one_rank_alone,
)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_seeded_faults_are_noticed(tmp_path: Path, mutant: Fault) -> None:
    text = (ROOM / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    changed = tmp_path / Path(mutant.file).name
    changed.write_text(text.replace(mutant.old, mutant.new))
    library = load(tmp_path, changed)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        for rule in RULES:
            rule(partial(World, library))
        run(library, 1500, phases=[Phase.generate], database=None, report_multiple_bugs=False)
