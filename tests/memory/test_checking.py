"""Which memory of a rank is compared, and when; and what is reported (crosscheck/check.c)."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from .device import CELLS, CHUNK, QUEUE, ZEROS, Broken, Page
from .steps import fill, forget, own, same
from .test_copies import out, shared
from .world import ACTIVATE, DEV_BASE, SAVE, Make, Rank

NONE, WAITS, RUNS = range(3)
PARTS = 8  # checks after which every page has had its turn
EVERY_PART = (1 << PARTS) - 1
QUEUE_OF_CHECKS = 77
SECOND = 10**9  # for a rank to become quiet
Part = tuple[int, int, int]  # rank, first byte, how many


def summed(content: Page, first: int, size: int) -> int:
    """A checksum of these bytes of a page."""
    return hash((content, first, size)) % 2**64


class Checked:
    """A rank that is looked at, by a device whose checksums end when the test says so; `whole`: at
    every page of it each time, whichever's turn it is."""

    def __init__(
        self, rank: Rank, every: int = 1, arrives: bool = False, whole: bool = False
    ) -> None:
        world = self.world = rank.world
        ffi, self.lib, self.rank, self.whole = world.ffi, world.lib, rank, whole
        self.check, self.pairs = ffi.new("struct check *"), ffi.new("struct pairs *")
        self.checks = ffi.new("struct checks *", {"hal": world.device.table})
        self.lib.check_open(self.check, every, 3, arrives)
        self.told: list[Any] = []
        self.queue: deque[tuple[Any, int]] = deque()
        self.submitted = self.done = self.streams = 0
        self.refuses = False
        self.heard = ffi.callback("void(void *, const struct pair *)", self.report)
        for name in ("submit", "completed", "available", "stream_create", "stream_destroy"):
            self.device_is(name, getattr(self, name), getattr(world.device, name))

    def device_is(self, name: str, ours: Any, others: Any) -> None:
        """Replace a device function: `ours` for the queue of checksums, `others` for the memory's
        queues."""

        def call(queue: Any, *more: Any) -> Any:
            return (
                ours if not queue or self.world.device.number(queue) == QUEUE_OF_CHECKS else others
            )(queue, *more)

        table = self.world.device.table
        kind = dict(self.world.ffi.typeof("struct hal").fields)[name].type
        callback = self.world.ffi.callback(kind, call, onerror=self.world.device.failed)
        self.world.device.keep.append(callback)  # the world is closed with it, behind the test
        setattr(table, name, callback)

    # ---- the device ----

    def stream_create(self, _: Any, out: Any) -> int:
        self.streams += 1
        out[0] = self.world.ffi.cast("struct hal_stream *", QUEUE_OF_CHECKS)
        return 0

    def stream_destroy(self, _: Any) -> None:
        self.streams -= 1

    def available(self, _: Any) -> int:
        return QUEUE - len(self.queue)

    def completed(self, _: Any) -> int:
        return self.done

    def submit(self, _: Any, work: Any) -> int:
        it = work.checksum
        if len(self.queue) == QUEUE or work.kind != self.lib.HAL_CHECKSUM:
            raise Broken("a full queue, or no checksum")
        if self.refuses:
            return 0
        page = it.src.addr & -CHUNK
        content = self.world.device.read((it.src.space, page))
        self.queue.append((it.sum, summed(content, it.src.addr - page, it.bytes)))
        self.submitted += 1
        return self.submitted

    def end(self) -> None:
        """The oldest checksum is there."""
        where, value = self.queue.popleft()
        where[0], where[1] = value, value ^ 1
        self.done += 1

    # ---- the rank ----

    def report(self, _: Any, pair: Any) -> None:
        self.told.append(
            {
                "part": (pair.who.rank, pair.who.addr - DEV_BASE, pair.who.bytes),
                "buffer": (pair.who.buffer, pair.who.buffer_bytes, pair.who.call_site),
                "chunk": pair.who.chunk,
                "device": pair.who.device,
                "at": (pair.who.key, pair.who.number),
                "sum": tuple(pair.sum),
            }
        )
        self.lib.pairs_add(self.pairs, pair, self.world.ffi.new("struct witness *"))

    def first(self, number: int, key: int = 1, count: int = 1, now: int = 0) -> bool:
        stops = bool(self.lib.check_first(self.check, key, number, count, now))
        if stops and self.whole:
            self.check.looks = EVERY_PART
        return stops

    def turn(self, now: int = 0, gives_up: bool = False) -> bool:
        changed = self.lib.check_turn(
            self.check,
            self.rank.memory,
            self.checks,
            self.pairs,
            gives_up,
            now,
            self.heard,
            self.world.ffi.NULL,
        )
        assert not self.world.device.broken, self.world.device.broken
        return bool(changed)

    def all(self) -> None:
        self.lib.check_all(self.check, self.rank.memory, self.checks, self.pairs)

    def over(self) -> list[Part]:
        """It comes to an end; which parts were reported since the last time."""
        told, before = [], len(self.told)
        for _ in range(1000):
            self.turn()
            if self.check.state == NONE:
                told = [each["part"] for each in self.told[before:]]
                assert self.checks.parts == len(self.told)
                assert self.rank.memory.inflight == 0
                return told
            if self.queue:
                self.end()
        raise AssertionError("it never ends")

    def at(self, number: int, **more: int) -> list[Part]:
        assert self.first(number, **more)
        return self.over()

    def close(self) -> None:
        self.lib.check_close(self.check)
        self.lib.pairs_close(self.pairs)
        self.lib.checks_close(self.checks)
        assert self.streams == 0


def allocate(rank: Rank, addr: int, size: int, site: int = 0) -> None:
    what = rank.world.ffi.new("struct rf_alloc *")
    what.addr, what.bytes, what.call_site = DEV_BASE + addr, size, site
    assert rank.world.lib.memory_alloc(rank.memory, what) == 0


def filled(make: Make, pages: int, **more: Any) -> Checked:
    world = make(1, pages + 1)
    fill(world.ranks[0], pages)
    return Checked(world.ranks[0], **more)


def pages(parts: list[Part]) -> list[int]:
    return [addr // CHUNK for _, addr, _ in parts]


# ---- when --------------------------------------------------------------------------------------


def test_each_kth_collective_of_a_communicator_is_one(make: Make) -> None:
    c = filled(make, 1, every=4)
    stops = []
    for number in range(12):
        if c.first(number):
            stops.append(number)
            c.over()
            assert not c.first(number), "it continues behind it"
    assert stops == [3, 7, 11]
    assert not c.first(12, count=3) and c.first(12, count=4), "a group counts as all of it"
    c.over()
    assert c.first(12, count=4, key=2), "another communicator"
    c.close()


def test_nothing_is_looked_at_where_that_is_off(make: Make) -> None:
    c = filled(make, 1, every=0, arrives=True)
    assert not any(c.first(number) for number in range(9))
    assert not c.lib.check_gave_up(c.check)
    c.close()


@pytest.mark.parametrize("how", [(100, 0, 1), (100, 3, 1), (999, 5, PARTS)])
def test_a_new_rank_is_checked_whole_within_its_next_collectives(
    make: Make, how: tuple[int, int, int]
) -> None:
    """Once: then it is as for others. Whole groups of collectives count as one."""
    every, number, group = how
    c = filled(make, 2 * PARTS, every=every, arrives=True)
    stops = range(number, number + PARTS * group, group)
    seen = [pages(c.at(stop, count=group)) for stop in stops]
    assert sorted(page for each in seen for page in each) == list(range(2 * PARTS))
    assert all(len(each) == 2 for each in seen)
    assert not any(c.first(stop) for stop in range(stops.stop, every - 1))
    assert len(c.at(every - 1)) == 2
    c.close()


def test_a_new_rank_is_checked_whole_by_whatever_communicators_come(make: Make) -> None:
    c = filled(make, PARTS, every=100, arrives=True)
    seen = [pages(c.at(number, key=key)) for number in range(PARTS // 2) for key in (1, 2)]
    assert sorted(page for each in seen for page in each) == list(range(PARTS))
    assert not c.first(9, key=3)
    c.close()


def test_a_new_rank_that_is_not_quiet_is_one_of_all(make: Make) -> None:
    """Looked at as seldom: it would not be quiet at the next collectives either."""
    c = filled(make, PARTS, every=4, arrives=True)
    c.rank.begin()
    assert c.first(0, now=7) and c.turn(now=7 + SECOND) and c.check.state == NONE
    assert not c.first(1) and not c.first(2) and not c.lib.check_gave_up(c.check)
    c.rank.end()
    assert len(c.at(3)) == 1
    c.close()


def test_a_new_rank_is_checked_where_all_are_as_well(make: Make) -> None:
    """A page that had its turn this way is no longer due."""
    c = filled(make, PARTS, every=2, arrives=True)
    seen = [pages(c.at(number)) for number in range(5, 10)]
    assert [len(each) for each in seen] == [2, 1, 2, 1, 2]
    assert sorted(page for each in seen for page in each) == list(range(PARTS))
    assert not c.first(10) and c.first(11)
    c.over()
    c.close()


@pytest.mark.parametrize("every", [1, 4])
def test_each_page_has_its_turn(make: Make, every: int) -> None:
    """The part depends on its number and the collective's alone: ranks take the same."""
    c = filled(make, 2 * PARTS + 1, every=every)
    seen = [pages(c.at(number)) for number in range(every - 1, every * PARTS, every)]
    assert sorted(page for each in seen for page in each) == list(range(2 * PARTS + 1))
    assert all(len({page % PARTS for page in each}) == 1 for each in seen)
    c.close()


def test_a_stopped_rank_stays_so_until_it_has_been_checked(make: Make) -> None:
    c = filled(make, 1)
    assert c.first(0) and c.first(1, key=2) and (c.check.key, c.check.number) == (1, 0)
    c.over()
    c.close()


# ---- waiting -----------------------------------------------------------------------------------


def test_nothing_is_looked_at_while_something_runs_or_moves(make: Make) -> None:
    c = filled(make, PARTS, whole=True)
    c.rank.begin()
    assert c.first(0, now=5) and not c.turn(now=5) and c.check.state == WAITS
    assert c.lib.check_deadline_ns(c.check) == 5 + SECOND
    c.rank.end()
    assert c.rank.request(SAVE, stay=True)
    c.world.turn()
    assert c.rank.moving and not c.turn(now=5)
    c.world.settle()
    assert c.turn(now=5) and c.check.state == RUNS and c.rank.memory.inflight == 1
    assert c.lib.check_deadline_ns(c.check) == 0
    assert len(c.over()) == PARTS
    c.close()


def test_a_rank_that_is_not_quiet_in_time_continues_and_after_two_times_for_good(
    make: Make,
) -> None:
    """One after the other, that is."""
    c = filled(make, PARTS)
    c.rank.begin()

    def times_out(number: int) -> None:
        assert c.first(number, now=7) and not c.turn(now=6 + SECOND)
        assert c.turn(now=7 + SECOND) and c.check.state == NONE and not c.told

    times_out(0)
    assert not c.lib.check_gave_up(c.check)
    c.rank.end()
    assert c.first(1)
    c.over()
    c.told.clear()
    c.rank.begin()
    times_out(2)
    assert not c.lib.check_gave_up(c.check)
    times_out(3)
    assert c.lib.check_gave_up(c.check) and not c.first(4)
    c.rank.end()
    c.close()


def test_a_rank_that_fails_waits_no_longer(make: Make) -> None:
    c = filled(make, 1)
    c.rank.begin()
    assert c.first(0)
    c.turn(gives_up=True)
    assert c.check.state == NONE and not c.check.fruitless
    c.rank.end()
    c.close()


# ---- what --------------------------------------------------------------------------------------


def test_a_part_is_what_a_buffer_has_on_a_page(make: Make) -> None:
    (rank,) = make(1, 8).ranks
    allocate(rank, 4096, 2 * CHUNK, site=9)
    allocate(rank, 2 * CHUNK + 8192, 4096, site=8)
    rank.request(ACTIVATE)
    rank.world.settle()
    c = Checked(rank, whole=True)
    assert c.at(5, key=6) == [
        (0, 4096, CHUNK - 4096),
        (0, CHUNK, CHUNK),
        (0, 2 * CHUNK, 4096),
        (0, 2 * CHUNK + 8192, 4096),
    ]
    first, last = c.told[0], c.told[-1]
    assert first["buffer"] == (DEV_BASE + 4096, 2 * CHUNK, 9)
    assert last["buffer"] == (DEV_BASE + 2 * CHUNK + 8192, 4096, 8)
    assert (first["device"], first["at"]) == (3, (6, 5))
    assert [each["chunk"] for each in c.told] == [rank.chunk(page) for page in (0, 1, 2, 2)]
    sums = [summed(ZEROS, first % CHUNK, size) for _, first, size in (e["part"] for e in c.told)]
    assert [each["sum"] for each in c.told] == [(one, one ^ 1) for one in sums]
    c.close()


def test_all_of_it_includes_what_is_between_buffers(make: Make) -> None:
    """All pages are checked, whichever rank is active. Freed pages are checked only between
    others."""
    (rank,) = make(1, 16).ranks
    allocate(rank, 4096, 4096)
    allocate(rank, CHUNK + 8192, 2 * CHUNK)  # from the middle of a page into one
    allocate(rank, 5 * CHUNK + 512, 512)
    allocate(rank, 6 * CHUNK, 512)
    rank.request(ACTIVATE)
    rank.world.settle()
    rank.world.lib.memory_find(rank.memory, DEV_BASE + 5 * CHUNK + 512).freed = True
    c = Checked(rank)
    c.all()
    assert [(addr, size) for _, addr, size in c.over()] == [
        (0, 4096),
        (4096, 4096),
        (8192, CHUNK - 8192),
        (CHUNK, 8192),
        (CHUNK + 8192, CHUNK - 8192),
        (2 * CHUNK, CHUNK),
        (3 * CHUNK, 8192),
        (3 * CHUNK + 8192, CHUNK - 8192),
        (6 * CHUNK, 512),
        (6 * CHUNK + 512, CHUNK - 512),
    ]
    assert [bool(each["buffer"][0]) for each in c.told] == [
        False,
        True,
        False,
        False,
        True,
        True,
        True,
        False,
        True,
        False,
    ]
    assert not c.check.missed
    c.close()


def test_a_rank_without_memory_is_looked_at_in_no_time(make: Make) -> None:
    c = Checked(make(1, 1).ranks[0])
    c.all()
    assert c.check.state == NONE and not c.check.missed
    assert c.first(0) and c.turn() and c.check.state == NONE
    c.close()


def test_forgotten_content_is_not_checked(make: Make) -> None:
    c = filled(make, 3, whole=True)
    assert c.rank.alloc(3)  # never on the device
    forget(c.rank, CELLS, CELLS)
    assert pages(c.at(0)) == [0, 2]
    c.close()


def test_pages_on_the_host_are_checked_there(make: Make) -> None:
    """In the rank's image, or in a copy of several."""
    world = shared(make, 2, pages=2)
    first, second, _ = world.ranks
    own(first, 1)
    first.write(1, 5)
    out(first, second)
    assert [bool(first.memory.pages[page].common) for page in (0, 1)] == [True, False]
    c = Checked(first, whole=True)
    no_chunk = 2**32 - 1
    assert pages(c.at(0)) == [0, 1]
    assert [each["chunk"] for each in c.told] == [no_chunk, no_chunk]
    c.close()


def test_a_chunk_of_several_is_looked_at_once_for_each_collective(make: Make) -> None:
    world = make(2, 8)
    first, second = world.ranks
    same(first, second)
    world.lib.memory_merge(second.memory)
    assert first.chunk(0) == second.chunk(0)
    c = Checked(first, whole=True)
    assert len(c.at(0)) == 1
    other = Checked(second, whole=True)
    other.pairs = c.pairs
    assert other.at(0) == [] and other.check.state == NONE
    other.lib.check_open(other.check, 1, 3, False)
    assert len(other.at(1)) == 1
    other.pairs = world.ffi.new("struct pairs *")
    other.close()
    c.lib.check_close(c.check)
    c.lib.pairs_close(c.pairs)


# ---- what is said of it ------------------------------------------------------------------------


def test_the_memory_stays_where_it_is_until_the_last_checksum_is_there(make: Make) -> None:
    c = filled(make, QUEUE + 2, whole=True)
    assert c.first(0) and c.turn() and c.rank.memory.inflight == 1
    assert c.turn() and len(c.queue) == QUEUE and not c.told
    assert not c.turn(), "nothing has happened"
    for number in range(1, QUEUE + 3):
        c.end()
        assert c.turn() and len(c.told) == number
    assert c.check.state == NONE and c.rank.memory.inflight == 0 and not c.check.missed
    assert (c.check.count, c.check.submitted, c.check.done) == (0, 0, 0)
    c.close()


def test_content_written_during_a_check_is_not_compared(make: Make) -> None:
    """Either half of what its versions come to."""
    c = filled(make, 3, whole=True)
    assert c.first(0) and c.turn() and c.turn()
    c.lib.content_unknown(c.rank.memory, DEV_BASE + CHUNK, CHUNK)
    assert pages(c.over()) == [0, 2] and c.check.missed
    c.close()


def test_a_refused_checksum_raises_no_alarm(make: Make) -> None:
    c = filled(make, 2, whole=True)
    c.refuses = True
    assert c.at(0) == [] and c.check.missed
    c.close()


def test_a_rank_that_fails_at_once_is_not_checked(make: Make) -> None:
    c = filled(make, 2, whole=True)
    assert c.first(0) and c.turn() and c.check.state == RUNS
    c.world.device.faulty.add(c.rank.space)
    assert c.turn() and c.check.state == NONE and c.check.missed and not c.submitted
    c.close()


@pytest.mark.parametrize("how", ["it goes", "its space has failed"])
def test_a_failed_rank_raises_no_alarm_and_its_rest_is_not_checked(make: Make, how: str) -> None:
    c = filled(make, QUEUE + 2, whole=True)
    assert c.first(0) and c.turn() and c.turn()
    if how == "its space has failed":
        c.world.device.faulty.add(c.rank.space)
        c.rank.failed = True
    for _ in range(QUEUE):
        assert c.check.state == RUNS and c.rank.memory.inflight == 1
        c.end()
        c.turn(gives_up=how == "it goes")
    assert c.check.state == NONE and not c.told and c.submitted == QUEUE
    assert c.rank.memory.inflight == 0 and c.check.missed
    c.close()


def test_a_queue_is_made_for_the_first_one_and_no_other(make: Make) -> None:
    c = filled(make, 1)
    assert c.streams == 0
    for number in range(2 * PARTS):
        c.at(number)
    assert c.streams == 1
    c.close()
    c.close()
