"""Requests for the memory of ranks: side by side, without deadlock, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .world import (
    ACTIVATE,
    CANCELLED,
    CHUNK,
    COPY,
    DEV_BASE,
    PREFETCH,
    SAVE,
    Rank,
    World,
    load,
)

RANKS, PAGES = 3, 4
Make = Callable[[int, int], World]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load(tmp_path_factory.mktemp("memory"))


@pytest.fixture
def make(library: tuple[Any, Any]) -> Iterator[Make]:
    worlds: list[World] = []

    def one(ranks: int, chunks: int) -> World:
        worlds.append(World(library, ranks, chunks))
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
    assert rank.read(0) == 7


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


def test_a_chunk_of_several_ranks_counts_once_and_goes_with_the_last(make: Make) -> None:
    world = make(3, 3)
    first, second, third = world.ranks
    fill(first, 1)
    for other in (second, third):
        assert other.alloc(0)
        assert world.lib.memory_share(first.memory, other.memory, 0) == 0
        other.model[0] = first.model[0]
    assert world.memory.used == 1 and first.refs(0) == 3
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


class Machine(RuleBasedStateMachine):
    library: tuple[Any, Any]

    @initialize(chunks=st.integers(1, 6), alone=st.lists(st.booleans(), min_size=RANKS,
                                                         max_size=RANKS))  # fmt: skip
    def open(self, chunks: int, alone: list[bool]) -> None:
        self.world = World(self.library, RANKS, chunks)
        self.value = 0
        for rank, lonely in zip(self.world.ranks, alone, strict=True):
            rank.memory.alone = lonely
            for page in range(min(chunks, PAGES - 1)):
                assert rank.alloc(page)
        for rank in self.world.ranks:
            rank.ask(ACTIVATE)
            self.world.settle()
            for page in rank.model:
                self.write(rank.number, page)

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
        if page in rank.model and not rank.moving:
            rank.free(page)

    @rule(number=RANK, page=PAGE)
    def write(self, number: int, page: int) -> None:
        rank = self.rank(number)
        if page not in rank.model or rank.moving or rank.failed:
            return
        if not rank.cut and (rank.chunk(page) is None or rank.refs(page) == 1):
            self.value += 1
            rank.write(page, self.value)

    @rule(number=RANK, page=PAGE, other=RANK)
    def share(self, number: int, page: int, other: int) -> None:
        giver, taker = self.rank(number), self.rank(other)
        if giver is taker or page not in giver.model or giver.moving or giver.failed:
            return
        shared = self.world.lib.memory_share(giver.memory, taker.memory, page) == 0
        if shared:
            taker.model[page] = giver.model[page]

    @rule(number=RANK)
    def begin_work(self, number: int) -> None:
        rank = self.rank(number)
        if not rank.moving and rank.memory.inflight < 2:
            rank.begin()

    @rule(number=RANK)
    def end_work(self, number: int) -> None:
        if self.rank(number).memory.inflight:
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

    @precondition(lambda self: not self.world.faults)
    @rule(what=st.sampled_from(["create", "map", "unmap"]))
    def fault(self, what: str) -> None:
        self.world.fault(what)

    @rule(number=RANK)
    def fail_rank(self, number: int) -> None:
        self.world.lib.memory_stop(self.rank(number).memory)

    @rule(stream=st.integers(0, 1))
    def end_copy(self, stream: int) -> None:
        self.world.device.end(self.world.streams[stream])

    @rule()
    def turn(self) -> None:
        self.world.turn()

    @invariant()
    def right(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for rank in self.world.ranks:
            while rank.memory.inflight:
                rank.end()
        self.world.settle(waiting=(PREFETCH,))
        for rank in self.world.ranks:
            self.world.lib.memory_cancel(rank.memory)
        self.world.settle()
        assert not any(rank.open for rank in self.world.ranks)
        self.world.close()


def run(library: tuple[Any, Any], examples: int) -> None:
    machine = type("Machine", (Machine,), {"library": library})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=60, deadline=None,
                          suppress_health_check=list(HealthCheck)),
    )  # fmt: skip


def test_any_requests_in_any_order(library: tuple[Any, Any]) -> None:
    run(library, 80)


@pytest.mark.slow
def test_any_requests_in_any_order_at_length(library: tuple[Any, Any]) -> None:
    run(library, 1000)
