"""Promise: a work that runs once for all waits for those who may come to the same, as long as they
may, and for no other."""

from __future__ import annotations

import struct
import threading
import time

import numpy as np

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo
from support.computing import Computing, sync
from support.ring_client import (
    AT_ADDRESS,
    AT_INLINE,
    CHUNK,
    COPY,
    DEVICE_SYNC,
    NON_BLOCKING,
    RETIRED,
    STREAM_CREATE,
    STREAM_QUERY,
    TAIL,
    settle,
    until,
)
from support.trained import (
    GRADIENT,
    HOMES,
    MOMENTS,
    OTHER,
    OWN,
    PARAMETERS,
    STEPS,
    WORDS,
    at_once,
    let_go,
    shared,
    trained,
    updated,
    words,
)

ILLEGAL_ADDRESS = 700
BESIDE = PARAMETERS + 64  # in the same chunk


def kernels_of(native: Native, rank: Computing) -> int:
    """Those that have been submitted."""
    status = native.rank_status(1, rank.rank)
    assert status
    return status.kernels


def test_a_failed_rank_is_not_waited_for(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        made[1].launch("update", OWN, HOMES[-1] + 2 * CHUNK - 64, WORDS, 7)
        assert made[1].call(DEVICE_SYNC) == ILLEGAL_ADDRESS
        before = let_go(native)
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync(made[:1])
        assert let_go(native) == before
        assert words(made[0], PARAMETERS) == updated(2, 7)


def test_a_rank_about_to_free_is_not_waited_for(kernels: Loader) -> None:
    """It has freed the buffer, except for what it has asked for before."""
    with shared(kernels, 2) as (native, made):
        before = let_go(native)
        with at_once(native, made):
            made[1].block(1)
            seq = made[1].free(HOMES[0])
            made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync(made[:1])
        assert let_go(native) == before
        assert words(made[0], PARAMETERS) == updated(2, 7)
        made[1].unblock()
        until(lambda: made[1].u64(RETIRED) == seq, native)


def hold(native: Native, rank: Computing) -> None:
    """A cut has been asked for, while something is under way: until it lets the rank ask for
    nothing more."""

    def is_held() -> bool:
        native.hurry(1)
        if rank.answered():
            rank.begin(STREAM_QUERY, struct.pack("<Q", 1))
        return f"rank {rank.rank}: ring waiting held" in native.debug_text()

    rank.begin(STREAM_QUERY, struct.pack("<Q", 1))
    until(is_held, native)


def test_a_rank_held_for_a_cut_is_not_waited_for(kernels: Loader) -> None:
    """After the cut it reaches what it would have reached."""
    with shared(kernels, 2) as (native, made):
        first, held = made
        before, launched = let_go(native), kernels_of(native, first)
        first.block(1)
        first.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        until(lambda: first.u64(TAIL) == first.head, native)
        native.barrier(1, True)
        hold(native, held)
        held.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        first.unblock()
        until(lambda: kernels_of(native, first) > launched, native)
        assert let_go(native) == before
        settle(native, 1, "cut")
        native.barrier(1, False)
        settle(native, 1, "running")
        for rank in made:
            rank.ring()
        held.finish()
        sync(made)
        assert [words(rank, PARAMETERS) for rank in made] == [updated(2, 7)] * 2


def test_work_that_waits_for_another_stream_is_not_reached(kernels: Loader) -> None:
    """One rank's update waits in its stream for the legacy stream, which changes what it reads."""
    with shared(kernels, 2) as (_native, made):
        rank = made[1]
        rank.post(STREAM_CREATE, struct.pack("<QIi", 100, 0, 0))
        rank.block(1)
        rank.fill(MOMENTS, 1, 4, WORDS)
        rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7, stream=100)
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync(made[:1])
        rank.unblock()
        sync(made)
        p = np.array(trained(2, STEPS)[0], np.uint32)
        assert words(made[0], PARAMETERS) == updated(2, 7)
        assert words(rank, PARAMETERS) == (p * 5 + 1 + 7).tolist()


def test_earlier_work_is_waited_for(kernels: Loader) -> None:
    """A fill for all begins when what one of them does before it is over."""
    with shared(kernels, 2, speed=0.002) as (native, made):
        with at_once(native, made):
            made[1].launch("scale", GRADIENT, PARAMETERS, WORDS, 0)
            made[1].fill(PARAMETERS, 9, 4, WORDS)
            made[0].fill(PARAMETERS, 9, 4, WORDS)
        sync(made)
        p = np.array(trained(2, STEPS)[0], np.uint32)
        assert words(made[1], GRADIENT) == (p * 3).tolist()


def test_the_rank_that_was_to_run_it_continues_when_another_has(kernels: Loader) -> None:
    """The first to come has a kernel under way, and so cannot open what it shares at once."""
    with shared(kernels, 2, speed=0.002) as (native, made):
        rank, before = made[0], native.status()["squashed"]
        rank.post(STREAM_CREATE, struct.pack("<QIi", 100, 1, 0))
        rank.launch("scale", OWN, OTHER, WORDS, 0)
        sync([rank])  # it is the active one
        with at_once(native, made):
            rank.launch("scale", OWN, OTHER, WORDS, 1)
            rank.fill(PARAMETERS, 9, 4, WORDS, stream=100)
            made[1].fill(PARAMETERS, 9, 4, WORDS)
        sync(made)
        rank.launch("update", OTHER, PARAMETERS, WORDS, 1)
        sync(made)
        assert native.status()["squashed"] == before + 1
        assert words(rank, OTHER) == [10] * WORDS


def other_stream(rank: Computing, number: int = 100) -> None:
    rank.post(STREAM_CREATE, struct.pack("<QIi", number, NON_BLOCKING, 0))


def begin_write(rank: Computing, at: int, content: bytes, stream: int, slot: int) -> None:
    body = rank.copy(
        at, 0, len(content), places=(AT_ADDRESS, AT_INLINE), stream=stream, inline=content
    )
    rank.begin(COPY, body, slot)


def test_a_rank_whose_page_is_being_copied_does_not_take_part(kernels: Loader) -> None:
    """It goes alone in one stream, and gets a copy; to what all fill it comes in another."""
    for _ in range(4):  # a copy may complete before a rank reaches it
        with shared(kernels, 2) as (native, made):
            rank, expected = made[0], words(made[0], PARAMETERS)
            other_stream(rank)
            with at_once(native, made):
                rank.write(PARAMETERS, b"\1\0\0\0" * 4)
                rank.fill(BESIDE, 9, 4, 8, stream=100)
                made[1].fill(BESIDE, 9, 4, 8)
            sync(made)
            expected[16:24] = [9] * 8
            assert words(made[1], PARAMETERS) == expected
            assert words(rank, PARAMETERS) == [1] * 4 + expected[4:]


def test_a_rank_that_waits_for_a_copy_is_not_kept_from_it(kernels: Loader) -> None:
    """Work in which it could take part does not delay it: here, work that runs for long."""
    with shared(kernels, 2, workers=2) as (native, made):
        for rank in made:
            rank.write(OTHER, bytes(4))
            rank.write(OTHER + 64, bytes([rank.rank + 1]))  # so it is each one's own
            other_stream(rank)
        for rank in made:
            rank.launch("scale", GRADIENT, OWN, WORDS, 0)
            sync([rank])  # the last one is the active one
        with at_once(native, made):
            begin_write(made[0], PARAMETERS, b"\1", 100, 2)
            for rank in made:
                rank.launch("until", BESIDE, OTHER, 1, 0)
        assert made[0].finish(2) == 0
        for rank in made:
            rank.write(OTHER, b"\1", stream=100)
        sync(made)


def test_a_kernel_that_may_write_anywhere_takes_no_part(kernels: Loader) -> None:
    """Memory that it wrote unexpectedly is no longer shared."""
    with shared(kernels, 2) as (native, made):
        rank = made[0]
        other_stream(rank)
        rank.write(OTHER, b"\xff\xff\xff\xff")  # leads 4 KiB further
        rank.fill(PARAMETERS, 5, 4, WORDS)
        for each in made:
            each.fill(HOMES[1], 3, 4, CHUNK // 2)
        sync(made)
        for each in [*reversed(made)] * 8:  # the moments are shared in time; `rank` is the last
            each.launch("scale", GRADIENT, OWN, WORDS, 0)
            sync([each])
        before = kernels_of(native, rank)
        with at_once(native, made):
            rank.launch("stray", HOMES[1] - 64, OTHER, 3 << 30, 5, threads=1)  # to the moments
            rank.fill(MOMENTS, 9, 4, WORDS, stream=100)
        until(lambda: kernels_of(native, rank) > before, native)
        time.sleep(0.1)  # it has written, and runs for several times as long
        made[1].fill(MOMENTS, 9, 4, WORDS)
        made[1].ring()
        sync(made)
        assert [words(each, MOMENTS) for each in made] == [[9] * WORDS] * 2
        assert rank.read(HOMES[1] + 4032, 4) == bytes([5, 0, 0, 0])


class Late:
    """Knows one kernel `times` times, and then not before it may."""

    def __init__(self, kernels: Loader, name: str):
        self.kernels, self.name, self.times, self.may = kernels, name, 1 << 30, threading.Event()
        self.module = kernels.module

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        if name == self.name:
            self.times -= 1
            assert self.times >= 0 or self.may.wait(20)
        return self.kernels.function(module, name)


def test_a_rank_whose_kernel_is_being_loaded_is_waited_for(kernels: Loader) -> None:
    """The wait is not endless: when the job stands still one of them runs alone."""
    late = Late(kernels, "update")
    with shared(late, 2) as (native, made):
        native.barrier(1, True)
        settle(native, 1, "cut")
        assert native.job_leave(1)
        settle(native, 1, "saved")
        native.job_close(1)
        late.times = 1
        native.job_open(1, 2, 0, 1, [0, 0], -1)
        for rank in made:
            native.rank_attach(1, rank.rank, rank.fd, rank.image)
        for rank in made:
            rank.launch("scale", OTHER, OWN, WORDS, 0)
            sync([rank])
        before = let_go(native)
        for rank in reversed(made):
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync(made[:1])
        late.may.set()
        assert let_go(native) == before + 1
        sync(made)
        assert [words(each, PARAMETERS) for each in made] == [updated(2, 7)] * 2


def test_unbounded_work_is_followed_by_the_work_that_it_delayed(kernels: Loader) -> None:
    """It is followed by the work that it delayed, and only then by the next such work of its
    stream."""
    with shared(kernels, 2) as (native, made):
        rank = made[0]
        for stream in (100, 101):
            rank.post(STREAM_CREATE, struct.pack("<QIi", stream, NON_BLOCKING, 0))
        sync(made)
        for value in range(1, 13):  # the moment at which one ends may hide who is asked next
            with at_once(native, made):
                rank.launch("stray", OWN, OTHER, 96, value, stream=100)
                rank.launch("scale", OWN + 8 * WORDS, OWN, 1, 0, stream=101)
                rank.launch("stray", OWN, OTHER, 96, value + 1, stream=100)
            sync(made)
            found = [words(rank, at)[0] for at in (OWN, OWN + 8 * WORDS)]
            assert found == [value + 1, 3 * value]
