"""Promise: what several ranks would write to memory that they share waits for all of them, and runs
once; and no rank waits longer than slice.c and squash.c say."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from support.computing import Computing, sync
from support.ring_client import (
    CHUNK,
    DEVICE_SYNC,
    EVENT_CREATE,
    NON_BLOCKING,
    STREAM_CREATE,
    STREAM_QUERY,
    STREAM_SYNC,
)
from support.trained import (
    HOMES,
    MOMENTS,
    OTHER,
    OWN,
    PARAMETERS,
    SCRATCH,
    STEPS,
    VARIABLES,
    WORDS,
    train_alike,
    trained,
    words,
)

from .world import JOB, Library, World, world

RANKS = 3
BESIDE, ORDERED = 100, 101  # streams of each rank
SILENT_NS, ALONE_NS, HELD_NS, CONCURRENT_NS = 200_000, 1_000_000, 250_000_000, 250_000_000
QUANTUM_NS = 30 * 10**9  # slice.c, squash.c


@contextmanager
def sharing(library: Library) -> Iterator[World]:
    """Three ranks that share their parameters and moments."""
    with world(library, RANKS, VARIABLES, 96) as made:
        for client in made.clients:
            client.load(HOMES, 2 * CHUNK)
            client.post(STREAM_CREATE, struct.pack("<QIi", BESIDE, NON_BLOCKING, 0))
            client.post(STREAM_CREATE, struct.pack("<QIi", ORDERED, 0, 0))
        assert [client.finish() for client in made.clients] == [0] * RANKS
        train_alike(list(made.clients))
        assert made.native.status()["squashed"] > 0
        yield made


@pytest.fixture
def here(library: Library) -> Iterator[World]:
    with sharing(library) as made:
        yield made


def update(rank: Computing, add: int = 7, to: int = PARAMETERS, given: int = MOMENTS) -> None:
    rank.launch("update", to, given, WORDS, add)


def updated(add: int = 7) -> list[int]:
    p, m = (np.array(each, np.uint32) for each in trained(RANKS, STEPS))
    return list((p * 5 + m + add).tolist())


class Counted:
    """Counts since its creation: kernels that the device got, works that were squashed, ranks that
    no longer waited, and time."""

    def __init__(self, here: World) -> None:
        self.here, self.first = here, self._now(here)

    @staticmethod
    def _now(here: World) -> tuple[int, int, int, int]:
        lib = here.lib
        return (
            here.device.kernels,
            here.native.status()["squashed"],
            lib.turns_let_go(here.native._proxy),
            lib.turns_now_ns,
        )

    def __call__(self) -> tuple[int, int, int, int]:
        ran, squashed, let_go, ns = (
            now - then for now, then in zip(self._now(self.here), self.first, strict=True)
        )
        return ran, squashed, let_go, ns


def runs(here: World) -> None:
    """Posted work of some rank runs: the rank that had the device before has been silent for
    long."""
    while not here.device.busy:
        here.wait(SILENT_NS)
        turns(here)


def take_turns(here: World) -> None:
    """They share what they hold alike."""
    sync(list(here.clients))
    for rank in reversed(here.clients):
        rank.launch("scale", SCRATCH, SCRATCH, 1, 0)
        sync([rank])


def turns(here: World, count: int = 30) -> None:
    """Neither device nor time advances."""
    for _ in range(count):
        here.turn()


def test_equal_writes_run_once(here: World) -> None:
    *first, last = here.clients
    counted = Counted(here)
    for rank in first:
        update(rank)
        turns(here)
    assert counted() == (0, 0, 0, 0)
    update(last)
    turns(here)
    assert counted() == (1, RANKS - 1, 0, 0)
    for rank in here.clients:
        assert words(rank, PARAMETERS) == updated()
    assert counted()[:3] == (1, RANKS - 1, 0)


def test_no_part_of_it_is_over_before_the_work_is(here: World) -> None:
    for rank in here.clients:
        update(rank)
        rank.begin(DEVICE_SYNC)
    turns(here)
    here.step(0)  # it has begun
    turns(here)
    assert not any(rank.answered() for rank in here.clients)
    here.step(0)
    turns(here)
    assert all(rank.answered() for rank in here.clients)


def test_a_rank_that_waits_without_success_runs_alone_in_time(here: World) -> None:
    *first, other = here.clients
    counted = Counted(here)
    for rank in first:
        update(rank)
        rank.begin(DEVICE_SYNC)
    turns(here)
    here.wait(ALONE_NS - 1)
    turns(here)
    assert counted()[:3] == (0, 0, 0)
    here.wait(1)
    turns(here)
    assert counted()[2] == 1
    here.settle()
    assert all(rank.answered() for rank in first) and counted()[3] < 2 * ALONE_NS
    assert [words(rank, PARAMETERS) for rank in first] == [updated()] * len(first)
    assert words(other, PARAMETERS) == trained(RANKS, STEPS)[0]


def test_a_rank_that_calls_for_something_is_waited_for_anew(here: World) -> None:
    """A rank that only queries, as programs do endlessly, is not waited for."""
    first, *_, other = here.clients
    counted = Counted(here)
    update(first)
    for event in range(5):
        turns(here)
        here.wait(ALONE_NS - 1)
        other.post(EVENT_CREATE, struct.pack("<QII", 200 + event, 0, 0))
    turns(here)
    assert counted()[2] == 0
    here.wait(ALONE_NS - 1)
    assert other.call(STREAM_QUERY, struct.pack("<Q", 1)) == 0
    here.wait(1)
    turns(here)
    assert counted()[2] == 1


def test_no_rank_runs_alone_while_a_kernel_runs(here: World) -> None:
    """It is unknown what the others will do after it."""
    *first, other = here.clients
    other.launch("scale", OWN, OWN, WORDS, 1)
    runs(here)
    counted = Counted(here)
    for rank in first:
        update(rank)
    for _ in range(5):
        here.wait(31 * 10**9)
        turns(here)
    assert counted()[:3] == (0, 0, 0)
    update(other)
    here.settle()
    assert counted()[:3] == (1, RANKS - 1, 0)


def test_no_rank_runs_alone_while_there_is_something_to_run(here: World) -> None:
    """A rank that has a kernel of its own gets its turn, and comes to the same then."""
    first, second, other = here.clients
    counted = Counted(here)
    other.launch("scale", OWN, OWN, WORDS, 1)
    for rank in (first, second, other):
        update(rank)
        rank.begin(DEVICE_SYNC)
    here.settle()
    assert counted()[1:3] == (RANKS - 1, 0)


def test_all_who_are_blocked_wait_for_no_time(here: World) -> None:
    *first, other = here.clients
    other.block(1)
    other.begin(DEVICE_SYNC)
    counted = Counted(here)
    for rank in first:
        update(rank)
        rank.begin(DEVICE_SYNC)
    turns(here)
    assert counted()[2:] == (1, 0)
    here.settle()
    assert all(rank.answered() for rank in first) and counted()[3] < ALONE_NS
    other.unblock()
    assert other.finish() == 0


def test_a_cut_waits_for_no_rank(here: World) -> None:
    """The rank that is held for it no longer comes."""
    *first, other = here.clients
    counted = Counted(here)
    for rank in first:
        update(rank)
        rank.begin(DEVICE_SYNC)
    turns(here)
    here.native.barrier(JOB, True)
    turns(here)
    update(other)
    here.settle()
    assert counted()[2] == 0 and counted()[3] < ALONE_NS
    here.until_state("cut")
    here.native.barrier(JOB, False)
    assert [rank.finish() for rank in first] == [0] * len(first)


def test_a_rank_that_has_freed_it_is_not_waited_for(here: World) -> None:
    *first, other = here.clients
    other.block(1)  # so the buffer is not gone at once
    other.free(HOMES[0])
    turns(here)
    counted = Counted(here)
    for rank in first:
        update(rank)
        rank.begin(DEVICE_SYNC)
    here.settle()
    assert all(rank.answered() for rank in first)
    assert counted()[2] == 0 and counted()[3] < ALONE_NS
    assert [words(rank, PARAMETERS) for rank in first] == [updated()] * len(first)
    other.unblock()


def test_a_failed_rank_is_not_waited_for(here: World) -> None:
    *first, other = here.clients
    other.launch("scale", OWN, HOMES[-1] + 2 * CHUNK - 64, WORDS, 1)  # beyond what there is
    other.begin(DEVICE_SYNC)
    assert other.finish() != 0
    counted = Counted(here)
    for rank in first:
        update(rank)
        rank.begin(DEVICE_SYNC)
    here.settle()
    assert all(rank.answered() for rank in first)
    assert counted()[2] == 0 and counted()[3] < ALONE_NS
    assert [words(rank, PARAMETERS) for rank in first] == [updated()] * len(first)


def test_a_fill_waits_for_no_rank(here: World) -> None:
    first, *_ = here.clients
    counted = Counted(here)
    first.fill(PARAMETERS, 3, 4, WORDS)
    first.begin(DEVICE_SYNC)
    here.settle()
    assert first.answered() and counted()[2:] == (0, 0)
    assert words(first, PARAMETERS) == [3] * WORDS


def test_a_rank_that_writes_it_otherwise_is_not_waited_for(here: World) -> None:
    counted = Counted(here)
    for rank in here.clients:
        update(rank, rank.rank)
        rank.begin(DEVICE_SYNC)
    here.settle()
    assert counted()[:3] == (RANKS, 0, 0)
    for rank in here.clients:
        assert words(rank, PARAMETERS) == updated(rank.rank)


def test_the_same_to_another_address_is_another(here: World) -> None:
    """One key: it depends on the bytes that are read, and on those that are there."""
    for rank in here.clients:
        for at in (OWN, OTHER):
            rank.write(at, b"\1" * 4 * WORDS)
    take_turns(here)
    counted = Counted(here)
    for rank in here.clients:
        update(rank, 1, OTHER if rank.rank else OWN, PARAMETERS)
    one, given = 0x01010101, np.array(trained(RANKS, STEPS)[0], np.uint32)
    changed = (np.uint32(one) * np.uint32(5) + given + np.uint32(1)).tolist()
    for rank in here.clients:
        assert words(rank, OWN) == ([one] * WORDS if rank.rank else changed)
        assert words(rank, OTHER) == (changed if rank.rank else [one] * WORDS)
    assert counted()[0] == 1 + 1  # of one, and of two that did the same


def test_earlier_work_of_another_rank_s_stream_runs_first(here: World) -> None:
    reads_before_all_write(here, 1)


def test_earlier_work_of_another_rank_s_streams_runs_first(here: World) -> None:
    """The legacy stream waits for the others, as far as they wait for it."""
    reads_before_all_write(here, ORDERED)


def writes(here: World, addr: int) -> bool:
    """Has the device a work that does, from there on?"""
    works = [work for queue in here.device.queues.values() for work in queue]
    return any(at == addr for work in works for (_, at), _ in work.writes)


def reads_before_all_write(here: World, stream: int) -> None:
    take_turns(here)
    *first, other = here.clients
    other.move(OWN, PARAMETERS, WORDS, stream)
    turns(here)
    while not writes(here, OWN) and here.step(0):  # its memory is its own first
        turns(here)
    assert writes(here, OWN)
    counted = Counted(here)
    for rank in (*first, other):
        update(rank)
    here.settle()
    assert counted()[1:3] == (RANKS - 1, 0)
    for rank in here.clients:
        assert words(rank, PARAMETERS) == updated()
    assert words(other, OWN) == trained(RANKS, STEPS)[0]


def test_a_sleeping_rank_is_woken_by_another_rank_s_queue(here: World) -> None:
    """Only one of them asks whether it is over, and it runs in whichever has the device."""
    for asks in here.clients:
        for rank in here.clients:
            update(rank)
        asks.begin(DEVICE_SYNC)
        here.settle()
        assert asks.answered(), f"rank {asks.rank}\n{here.native.debug_text()}"
        sync(list(here.clients))


def test_a_sleeping_rank_is_woken_before_what_comes_behind_it(here: World) -> None:
    """It runs in the queue of whoever has the device, where more does for all."""
    take_turns(here)
    _, asks, _ = here.clients
    for rank in here.clients:
        update(rank)
        if rank is asks:
            asks.begin(STREAM_SYNC, struct.pack("<Q", 1))
        for add in range(8):
            update(rank, add)
    turns(here)
    assert not here.goes_to_sleep() and here.end_works()
    turns(here)
    assert asks.answered()
    assert [len(queue) for queue in here.device.queues.values() if queue] == [8]


def test_a_kernel_may_wait_for_what_would_wait_for_others(here: World) -> None:
    """That runs alone, next to it: what is shared is copied beneath what runs."""
    first, *_ = here.clients
    for rank in here.clients:
        rank.fill(OWN, 0, 4, WORDS)
    take_turns(here)
    first.launch("until", OTHER, OWN, 1, 0)
    runs(here)
    while here.step(0):
        turns(here)
    assert here.device.busy
    counted = Counted(here)
    first.launch("block", OWN, PARAMETERS, WORDS, 0, stream=BESIDE)
    here.settle()
    assert counted()[2] == 0 and CONCURRENT_NS <= counted()[3] < 2 * CONCURRENT_NS
    sync([first])
    assert words(first, OTHER)[0] == WORDS * 7 + 1


def test_a_rank_whose_time_is_over_relaxes_for_what_runs(here: World) -> None:
    """Running work waits for work that would never be submitted."""
    first, other, _ = here.clients
    for rank in here.clients:
        rank.fill(OWN, 0, 4, WORDS)
    take_turns(here)
    first.launch("until", OTHER, OWN, 1, 0)
    runs(here)
    while here.step(0):
        turns(here)
    other.launch("scale", OTHER, OTHER, WORDS, 1)
    other.begin(DEVICE_SYNC)
    here.wait(QUANTUM_NS + 1)
    turns(here)
    counted = Counted(here)
    first.launch("block", SCRATCH, PARAMETERS, WORDS, 0, stream=BESIDE)
    first.launch("block", OWN, PARAMETERS, WORDS, 0, stream=BESIDE)
    here.settle()
    assert other.answered() and counted()[3] >= HELD_NS
    assert words(first, OTHER)[0] == WORDS * 7 + 1
