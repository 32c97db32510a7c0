"""Promise: a rank whose time slice is over gives up the device when its kernels end, and can still
do what these wait for."""

from __future__ import annotations

import struct
import time

import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.computing import Computing, sync
from support.ring_client import CHUNK, NON_BLOCKING, STREAM_CREATE, STREAM_SYNC, until
from support.trained import (
    GRADIENT,
    HOMES,
    MOMENTS,
    OTHER,
    OWN,
    PARAMETERS,
    WORDS,
    folded,
    words,
)

QUANTUM_NS = 50_000_000
FIRST, SECOND, THIRD = 100, 101, 102  # streams that wait for no other
FILLS = 1500
ENOUGH = 90  # kernels, that another rank may get the device, on a busy machine too


def begin(ranks: list[Computing]) -> tuple[Computing, Computing]:
    """With memory that each of them has to itself."""
    for rank in ranks:
        rank.write(OWN, bytes([1] * 4 * WORDS))
        for at in (GRADIENT, MOMENTS, OTHER):
            rank.write(at - 1, bytes([rank.rank + 1]))
            rank.write(at + 4 * WORDS, bytes([rank.rank + 1]))
        for stream in (FIRST, SECOND, THIRD):
            rank.post(STREAM_CREATE, struct.pack("<QIi", stream, NON_BLOCKING, 0))
    sync(ranks)
    first, second = ranks
    return first, second


def kernels_of(native: Native, rank: Computing) -> int:
    status = native.rank_status(1, rank.rank)
    assert status
    return status.kernels


def wants_the_device(rank: Computing) -> None:
    rank.launch("scale", GRADIENT, OWN, WORDS, 1)


def records_of(native: Native, rank: Computing) -> int:
    status = native.rank_status(1, rank.rank)
    assert status
    return status.records


def gets_no_more(native: Native, second: Computing) -> None:
    """The other rank's time slice is over, and the device knows that this one waits for it: of
    the other's kernels none is submitted any more."""
    before = records_of(native, second)
    wants_the_device(second)
    until(lambda: records_of(native, second) > before, native)
    time.sleep(4e-9 * QUANTUM_NS)


def waits_for_a_word(native: Native, rank: Computing, at: int) -> None:
    """A kernel that ends when that is not 0 any more; it runs."""
    before = kernels_of(native, rank)
    rank.launch("until", MOMENTS, at, 1, 0, stream=FIRST)
    until(lambda: kernels_of(native, rank) > before, native)


@pytest.mark.parametrize("between", [0, 3])
def test_a_kernel_that_waits_for_another_one_is_not_left_alone_with_the_device(
    kernels: Loader, between: int
) -> None:
    """However many come before it in that stream."""
    with folded(kernels, 2, workers=3, quantum_ns=QUANTUM_NS) as (here, made):
        (native,) = here.natives
        first, second = begin(made)
        waits_for_a_word(native, first, OTHER)
        gets_no_more(native, second)
        for _ in range(between):
            first.launch("scale", GRADIENT, OWN, WORDS, 0, stream=SECOND)
        first.launch("scale", OTHER, OWN, 1, 0, stream=SECOND)
        sync(made)
        assert words(first, MOMENTS)[0] == 0x03030303


def test_a_wait_may_depend_on_another_wait(kernels: Loader) -> None:
    with folded(kernels, 2, workers=3, quantum_ns=QUANTUM_NS) as (here, made):
        (native,) = here.natives
        first, second = begin(made)
        waits_for_a_word(native, first, OTHER)
        gets_no_more(native, second)
        first.launch("until", OTHER, GRADIENT, 1, 0, stream=SECOND)
        first.launch("scale", GRADIENT, OWN, 1, 0, stream=THIRD)
        sync(made)
        assert words(first, MOMENTS)[0] == 0x03030303


def test_kernels_that_end_do_not_keep_the_device(
    kernels: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take longer than any rank waits at first, one is always under way, and more come, all at
    once: the device has seen by itself that the time slice is over."""
    with folded(kernels, 2, workers=3, quantum_ns=QUANTUM_NS) as (here, made):
        (native,) = here.natives
        first, second = begin(made)
        for number in range(ENOUGH):
            stream = (FIRST, SECOND)[number % 2]
            first.launch("until", MOMENTS, OTHER + 4 * number, 1, 0, stream=stream)
            if number == 1:
                until(lambda: kernels_of(native, first) == 2, native)
                gets_no_more(native, second)
                monkeypatch.setattr(first, "ring", lambda: None)
        monkeypatch.undo()
        first.ring()
        for number in range(ENOUGH):
            time.sleep(0.3)
            if kernels_of(native, second):
                break
            first.write(OTHER + 4 * number, b"\1", stream=THIRD)
        assert number < ENOUGH - 1, native.debug_text()
        first.write(OTHER, b"\1" * 4 * WORDS, stream=THIRD)
        sync(made)


def test_a_rank_that_waits_for_capacity_does_not_keep_another_from_a_copy(kernels: Loader) -> None:
    """The next rank waits for its own fills, and then for the active one's kernel, which waits for
    what is to be written to memory that both share."""
    with folded(kernels, 2, chunks=11, workers=3) as (here, made):
        (native,) = here.natives
        first, second = begin(made)
        for rank in made:
            rank.write(PARAMETERS, b"\0\0\0\0\1")
            rank.write(OWN, bytes([rank.rank + 1]))
        for rank in (second, first):
            wants_the_device(rank)
            sync([rank])
        assert native.status()["shared"] > 0
        for value in range(FILLS):
            second.fill(HOMES[3], value, 4, CHUNK // 4, stream=FIRST)
        second.begin(STREAM_SYNC, struct.pack("<Q", FIRST), 2)
        wants_the_device(second)
        until(lambda: "next 1" in native.debug_text(), native)
        waits_for_a_word(native, first, PARAMETERS)
        assert not second.answered(2)
        assert second.finish(2) == 0
        first.write(PARAMETERS, b"\1", stream=SECOND)
        sync(made)
        assert words(first, PARAMETERS)[:2] == [1, 1]
        assert words(second, PARAMETERS)[:2] == [0, 1]


def test_each_turn_has_a_kernel_however_short_it_is(kernels: Loader) -> None:
    """There is memory for one rank, which takes longer to come than a turn."""
    with folded(kernels, 2, chunks=12, quantum_ns=1) as (here, made):
        (native,) = here.natives
        begin(made)
        for _ in range(ENOUGH):
            for rank in made:
                rank.launch("scale", GRADIENT, OWN, WORDS, 1)
        sync(made)
        assert [kernels_of(native, rank) for rank in made] == [ENOUGH] * 2
