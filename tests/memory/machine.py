"""Any requests in any order, works, faults and failures: what must always hold, and in the end."""

from __future__ import annotations

from typing import Any

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

from .device import CELLS, CHUNK
from .steps import forget, hand, own, sharers, together
from .taken import Taken
from .world import ACTIVATE, COPY, DEV_BASE, PREFETCH, PRIVATE, SAVE, Rank, World

RANKS, PAGES = 3, 4
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
        beneath=st.booleans(),
    )
    def open(
        self,
        chunks: int,
        alone: list[bool],
        groups: tuple[int, ...],
        values: list[int],
        faults: bool,
        beneath: bool,
    ) -> None:
        self.world = World(self.library, RANKS, chunks, groups, beneath)
        self.may_fail = faults
        self.taken: dict[int, Taken] = {}  # of a rank's image
        self.value = PRIVATE
        for rank, lonely in zip(self.world.ranks, alone, strict=True):
            rank.memory.alone = lonely
            for page in range(min(chunks, PAGES - 1)):
                assert rank.alloc(page)
        for rank in self.world.ranks:
            rank.request(ACTIVATE)
            self.world.settle()
            for page in rank.model:
                own(rank, page)
                rank.write(page, self.fresh(values[page]))

    def fresh(self, value: int) -> int:
        """The value, or one that no rank has."""
        self.value += 1
        return self.value if value == NOBODYS else value

    def rank(self, number: int) -> Rank:
        return self.world.ranks[number]

    @rule(number=RANK, page=PAGE, joined=st.booleans())
    def alloc(self, number: int, page: int, joined: bool) -> None:
        rank = self.rank(number)
        m, lib = rank.memory, self.world.lib
        if page in rank.model or m.pages[page].chunk != self.world.ffi.NULL:
            return
        fits = m.live_count - m.dying < self.world.memory.total
        assert rank.alloc(page, joined) == fits
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
        assert not exactly or (len(ranks) > 1 and chunks[0] != {None})
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
        """A kernel that runs writes where it was not foreseen."""
        rank, page = self.rank(number), cell // CELLS
        alone = all(work.ranks == [rank] and not work.count for work in rank.works)
        if not rank.works or not alone or rank.failed or rank.chunk(page) is None:
            return
        m, addr = rank.memory, DEV_BASE + page * CHUNK
        self.value += 1
        if page in rank.model and m.pages[page].write_protected:
            if self.world.device.unforeseen(rank.space, addr, cell % CELLS, self.value):
                old = rank.model[page]
                cut = cell % CELLS
                rank.model[page] = (*old[:cut], self.value, *old[cut + 1 :])

    @rule(number=RANK, most=st.integers(1, 3))
    def close_shared(self, number: int, most: int) -> None:
        m = self.rank(number).memory
        opened = sum(m.pages[m.live[n]].open for n in range(m.live_count))
        quiet = not m.inflight and not self.rank(number).moving
        closed = self.world.lib.memory_close_shared(m, most)
        left = sum(m.pages[m.live[n]].open for n in range(m.live_count))
        assert left == (max(opened - most, 0) if quiet else opened) and closed == (not left)

    @rule(number=RANK)
    def switch(self, number: int) -> None:
        """As a rank comes to run, if it can at once."""
        rank = self.rank(number)
        rank.request(ACTIVATE)
        self.continue_running()
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

    @rule(number=RANK, other=RANK, first=CELL_NUMBER, count=st.integers(1, 3 * CELLS))
    def hand(self, number: int, other: int, first: int, count: int) -> None:
        giver, to = self.rank(number), self.rank(other)
        pages = {cell // CELLS for cell in range(first, first + count)}
        known = pages <= set(giver.model) and pages <= set(to.model)
        if giver is not to and known and not to.cut and not giver.moving and not to.moving:
            hand(giver, to, first, count)

    @rule(number=RANK, first=CELL_NUMBER, count=st.integers(1, 3 * CELLS))
    def forget(self, number: int, first: int, count: int) -> None:
        """Includes pages being swapped; not pages being written."""
        rank = self.rank(number)
        pages = {cell // CELLS for cell in range(first, first + count)}
        written = {(w.first + n) // CELLS for w in rank.works for n in range(w.count)}
        if pages <= set(rank.model) and not pages & written and not rank.cut:
            forget(rank, first, count)

    @rule(number=RANK)
    def begin_work(self, number: int) -> None:
        rank = self.rank(number)
        if not rank.moving and len(rank.works) < 2:
            rank.begin()

    @rule(number=RANK)
    def end_work(self, number: int) -> None:
        if self.rank(number).works:
            self.rank(number).end()

    @rule(
        number=RANK,
        purpose=st.sampled_from([SAVE, ACTIVATE, ACTIVATE, COPY, PREFETCH]),
        stay=st.booleans(),
        page=PAGE,
        pages=st.integers(1, PAGES),
    )
    def request(self, number: int, purpose: int, stay: bool, page: int, pages: int) -> None:
        rank = self.rank(number)
        if purpose == SAVE and stay:
            rank.cut = True
        rank.request(purpose, stay and purpose == SAVE, page, pages)

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

    @rule(number=RANK)
    def end_rank(self, number: int) -> None:
        """It ends, and another one comes with nothing."""
        rank = self.rank(number)
        if not rank.works and not rank.moving:
            self.image_is_copied(number)  # which it waits for
            alone = rank.memory.alone
            rank.close()
            self.world.ranks[number] = Rank(self.world, number, rank.group)
            self.rank(number).memory.alone = alone

    @rule(first=PAGE, value=VALUE)
    def write_on_the_host(self, first: int, value: int) -> None:
        """All ranks that are not resident write the same pages, one after the other."""
        for rank in self.world.ranks:
            for page in range(first, PAGES):
                if rank.chunk(page) is None and self.may_run(rank, page * CELLS, CELLS):
                    rank.run(page * CELLS, CELLS, self.fresh(value))
                    while rank.works:
                        rank.end()
                    self.world.turn()

    @rule()
    def all_leave(self) -> None:
        """All ranks are saved to go elsewhere; none of them has left before all can."""
        for rank in self.world.ranks:
            rank.request(SAVE)
        self.continue_running()

    @precondition(lambda self: self.may_fail and not self.world.faults)
    @rule(what=st.sampled_from(["create", "map", "unmap", "protect", "own"]))
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

    @rule(number=RANK)
    def begin_to_copy_image(self, number: int) -> None:
        """As a launcher does for a snapshot, at its cut, where nothing runs."""
        rank = self.rank(number)
        busy = rank.works or rank.moving
        if rank.cut and rank.saved(stay=True) and not busy and number not in self.taken:
            self.taken[number] = Taken(rank)

    @rule(number=RANK, page=PAGE)
    def copy_some_of_image(self, number: int, page: int) -> None:
        if taken := self.taken.get(number):
            taken.take(page)

    @rule(number=RANK)
    def image_is_copied(self, number: int) -> None:
        if taken := self.taken.pop(number, None):
            taken.end()

    @rule(stream=st.integers(0, 1))
    def end_copy(self, stream: int) -> None:
        self.world.device.end(self.world.streams[stream])

    @rule()
    def turn(self) -> None:
        self.world.turn()

    @rule()
    def continue_running(self) -> None:
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
            for number in list(self.taken):
                self.image_is_copied(number)
        finally:
            self.world.close()

    def come_to_an_end(self) -> None:
        """No rank waits forever, and whoever wants to write comes to own what that takes."""
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
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )
