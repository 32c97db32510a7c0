"""Promise: what ranks share is written once for all who come to the same, and nobody waits for who
cannot come; a fault is everybody's. test_shared_programs.py does whatever else ranks may do.

Ranks of one job on one device post kernels and collectives; each buffer lies in chunks of its own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.computing import Computing
from support.devices import Devices, devices
from support.ring_client import (
    CHUNK,
    CONTRACT,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    RETIRED,
    STREAM_CREATE,
    settle,
    until,
)

WORDS = 96
VARIABLES = DEV_BASE
# Two chunks each; what is used lies across the border of both.
HOMES = [DEV_BASE + (1 + 2 * n) * CHUNK for n in range(5)]
PARAMETERS, MOMENTS, GRADIENT, OWN, OTHER = (home + CHUNK - 2 * WORDS for home in HOMES)
BUFFERS = (PARAMETERS, MOMENTS, GRADIENT, OWN, OTHER)
ALLREDUCE = CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"]
CLEAN, CRASHED = 0, 1
ILLEGAL_ADDRESS = 700
STEPS = 3


@contextmanager
def folded(
    kernels: Loader, count: int, chunks: int = 128, speed: float = 1.0
) -> Iterator[tuple[Devices, list[Computing]]]:
    """A job of `count` ranks on one device."""
    made = [Computing(rank, count, VARIABLES) for rank in range(count)]
    with devices(kernels, 1, chunks, speed) as here:
        here.place(1, made, [0] * count)
        for rank in made:
            rank.load(HOMES, 2 * CHUNK)
        assert [rank.finish() for rank in made] == [0] * count
        yield here, made
        here.leave(1)
    for rank in made:
        rank.close()


def sync(ranks: list[Computing]) -> None:
    for rank in ranks:
        rank.begin(DEVICE_SYNC)
    assert [rank.finish() for rank in ranks] == [0] * len(ranks)


def counts(native: Native, ranks: int) -> tuple[int, int]:
    """Kernels launched, and of these squashed."""
    found = [native.rank_status(1, rank) for rank in range(ranks)]
    assert all(found)
    kernels = sum(each.kernels for each in found if each)
    squashed = sum(each.squashed for each in found if each)
    status = native.status()
    assert (status["kernels"], status["squashed"]) == (kernels, squashed)
    return kernels, squashed


def words(rank: Computing, at: int) -> list[int]:
    return list(struct.unpack(f"<{WORDS}I", rank.read(at, 4 * WORDS)))


def begin_alike(ranks: list[Computing]) -> None:
    for rank in ranks:
        for at in (PARAMETERS, MOMENTS):
            rank.write(at, bytes(range(96)) * 4)
        rank.write(OWN, bytes([rank.rank + 1] * 4 * WORDS))
    sync(ranks)


def train(rank: Computing, step: int) -> None:
    """Forward and backward pass, all-reduce, and an update of parameters and moments."""
    rank.launch("update", OWN, PARAMETERS, WORDS, step)
    rank.launch("scale", GRADIENT, OWN, WORDS, rank.rank)
    rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS)
    rank.launch("update", MOMENTS, GRADIENT, WORDS, 1)
    rank.launch("update", PARAMETERS, MOMENTS, WORDS, 2)


def trained(ranks: int, steps: int) -> tuple[list[int], list[int]]:
    """Parameters and moments, as `train` makes them."""
    p = m = np.frombuffer(bytes(range(96)) * 4, np.uint32)
    own = [np.full(WORDS, 0x01010101 * (rank + 1), np.uint32) for rank in range(ranks)]
    with np.errstate(over="ignore"):
        for step in range(steps):
            own = [each * 5 + p + step for each in own]
            mean = sum((each * 3 + rank for rank, each in enumerate(own)), np.zeros_like(p))
            m = (m * 5 + mean + 1).astype(np.uint32)
            p = (p * 5 + m + 2).astype(np.uint32)
    return p.tolist(), m.tolist()


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_update_runs_once_for_all(kernels: Loader, ranks: int) -> None:
    steps = 8
    with folded(kernels, ranks) as (here, made):
        (native,) = here.natives
        begin_alike(made)
        for step in range(steps):
            for rank in made:
                train(rank, step)
        sync(made)
        launched, squashed = counts(native, ranks)
        assert launched == 4 * steps * ranks
        # Of the first step some memory has yet to be found equal.
        assert squashed >= (ranks - 1) * 2 * (steps - 2)
        for rank in made:
            assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == trained(ranks, steps)
        here.stop(1)


@contextmanager
def at_once(native: Native, made: list[Computing]) -> Iterator[None]:
    """What is posted in here, they all begin at the same time."""
    native.barrier(1, True)
    settle(native, 1, "cut")
    yield
    native.barrier(1, False)
    settle(native, 1, "running")
    for rank in made:
        rank.ring()


def test_fills_and_copies_run_once_for_all(kernels: Loader) -> None:
    with shared(kernels, 3) as (native, made):
        before = native.status()
        with at_once(native, made):
            for rank in made:
                rank.fill(PARAMETERS, 7, 4, WORDS)
                rank.move(MOMENTS, PARAMETERS, WORDS)
                rank.launch("update", PARAMETERS, MOMENTS, WORDS, 1)
        sync(made)
        status = native.status()
        assert status["squashed"] - before["squashed"] == 3 * 2
        assert status["kernels"] - before["kernels"] == 3
        assert status["copies"] == before["copies"]
        for rank in made:
            assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == ([43] * WORDS, [7] * WORDS)


def move_rows(rank: Computing, at: int) -> None:
    """Every second word of the first 16 comes from there."""
    rank.post(COPY, rank.copy(PARAMETERS, at, 4, height=8, pitches=(8, 4)))


def host_copy(rank: Computing) -> None:
    rank.write(PARAMETERS, b"\3" * 4 * WORDS)


DIFFER: dict[str, Callable[[Computing], None]] = {
    "value": lambda rank: rank.fill(PARAMETERS, rank.rank, 4, WORDS),
    "element": lambda rank: rank.fill(PARAMETERS, 1, 1 + 3 * rank.rank, 64 // (1 + 3 * rank.rank)),
    "length": lambda rank: rank.fill(PARAMETERS, 5, 4, WORDS - rank.rank),
    "source": lambda rank: rank.move(PARAMETERS, OWN, WORDS),
    "rows": lambda rank: move_rows(rank, OWN),
    "overlap": lambda rank: rank.move(PARAMETERS, PARAMETERS + 4, 8),
    "host": host_copy,
}


@pytest.mark.parametrize("how", DIFFER)
def test_other_fills_and_copies_go_alone(kernels: Loader, how: str) -> None:
    """Those that write something else, and those of which nobody knows what they write."""
    with shared(kernels, 2) as (native, made):
        before = native.status()["squashed"]
        found = []
        with at_once(native, made):
            for rank in made:
                DIFFER[how](rank)
        sync(made)
        found = [words(rank, PARAMETERS) for rank in made]
        assert native.status()["squashed"] == before
        assert (found[0] == found[1]) == (how in ("host", "overlap"))


def test_rows_with_gaps_are_squashed(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        before = native.status()["squashed"]
        given, expected = words(made[0], MOMENTS), words(made[0], PARAMETERS)
        with at_once(native, made):
            for rank in made:
                move_rows(rank, MOMENTS)
        sync(made)
        expected[:16:2] = given[:8]
        assert [words(rank, PARAMETERS) for rank in made] == [expected] * 2
        assert native.status()["squashed"] == before + 1


# ---- who comes to it, and who cannot -----------------------------------------------------------


def let_go(native: Native) -> int:
    """How often somebody waited until nothing else could happen."""
    found = re.search(r"(\d+) let go", native.dump())
    assert found
    return int(found[1])


def test_who_has_failed_is_not_waited_for(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        made[1].launch("update", OWN, HOMES[-1] + 2 * CHUNK - 64, WORDS, 7)
        assert made[1].call(DEVICE_SYNC) == ILLEGAL_ADDRESS
        before = let_go(native)
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync(made[:1])
        assert let_go(native) == before
        assert words(made[0], PARAMETERS) == updated(2, 7)


def test_who_is_about_to_free_is_not_waited_for(kernels: Loader) -> None:
    """It has freed the buffer, but for what it has asked for before."""
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


def test_what_waits_for_another_stream_has_not_been_come_to(kernels: Loader) -> None:
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


def test_what_runs_before_it_is_waited_for(kernels: Loader) -> None:
    """A fill for all begins when what one of them does before it is over."""
    with shared(kernels, 2, speed=0.0002) as (native, made):
        with at_once(native, made):
            made[1].launch("scale", GRADIENT, PARAMETERS, WORDS, 0)
            made[1].fill(PARAMETERS, 9, 4, WORDS)
            made[0].fill(PARAMETERS, 9, 4, WORDS)
        sync(made)
        p = np.array(trained(2, STEPS)[0], np.uint32)
        assert words(made[1], GRADIENT) == (p * 3).tolist()


def test_who_was_to_run_it_goes_on_when_another_has(kernels: Loader) -> None:
    """The first to come has a kernel under way, and so cannot open what it shares at once."""
    with shared(kernels, 2, speed=0.0002) as (native, made):
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


# ---- what is there already ---------------------------------------------------------------------


def test_what_another_has_computed_is_not_computed_again(kernels: Loader) -> None:
    """The first one goes alone, since the others do not come; then they do."""
    with shared(kernels, 3) as (native, made):
        before = native.status()
        for rank in made:
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
            sync([rank])
        status = native.status()
        assert status["squashed"] - before["squashed"] == 2
        assert status["kernels"] - before["kernels"] == 3
        assert status["used"] <= before["used"]
        for rank in made:
            assert words(rank, PARAMETERS) == updated(3, 7)
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 1)
        sync(made[:1])  # what they share again is the others' still
        assert [words(rank, PARAMETERS) for rank in made[1:]] == [updated(3, 7)] * 2


def test_what_lies_beside_it_has_to_be_the_same_too(kernels: Loader) -> None:
    """In the last chunk of the parameters one rank holds something else, which it keeps."""
    with shared(kernels, 2) as (native, made):
        before = native.status()["squashed"]
        made[1].fill(HOMES[0] + 2 * CHUNK - 64, 3, 4, 4)
        sync(made)
        for rank in made:
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
            sync([rank])
        assert native.status()["squashed"] == before
        assert [words(rank, PARAMETERS) for rank in made] == [updated(2, 7)] * 2
        assert made[1].read(HOMES[0] + 2 * CHUNK - 64, 4) == bytes([3, 0, 0, 0])


def test_what_is_there_is_not_written_again(kernels: Loader) -> None:
    """Whether it came from a fill, from a copy, or has never been anything but zeros."""
    with shared(kernels, 2) as (native, made):
        rank, before = made[0], native.status()
        free = HOMES[-1] + CHUNK
        rank.fill(free, 0, 4, WORDS)  # there
        rank.fill(OWN, 7, 4, WORDS)
        rank.fill(OWN, 7, 1, 4)
        rank.fill(OWN + 4, 7, 4, WORDS - 1)  # there, but for its first word
        rank.move(GRADIENT, OWN, WORDS)
        rank.move(GRADIENT, OWN, WORDS)  # there
        rank.write(GRADIENT, b"\1" * 8)
        rank.move(GRADIENT, OWN, WORDS)
        sync(made)
        assert native.status()["squashed"] - before["squashed"] == 3
        found = [0x07070707, *[7] * (WORDS - 1)]
        assert [words(rank, at) for at in (OWN, GRADIENT)] == [found] * 2


def test_what_is_still_being_written_is_not_there(kernels: Loader) -> None:
    """By another stream, of which this one does not wait: programs may write the same twice."""
    with shared(kernels, 2, speed=0.0002) as (_native, made):
        rank = made[0]
        rank.post(STREAM_CREATE, struct.pack("<QIi", 100, 1, 0))
        rank.launch("block", OTHER, OWN, WORDS, 0, stream=100)  # long
        rank.fill(OWN, 7, 4, WORDS, stream=100)
        rank.fill(OWN, 7, 4, WORDS)
        assert rank.read(OWN, 4 * WORDS) == struct.pack(f"<{WORDS}I", *[7] * WORDS)
        sync(made)


# ---- who goes alone, and who fails -------------------------------------------------------------


@contextmanager
def shared(
    kernels: Loader, count: int, speed: float = 1.0
) -> Iterator[tuple[Native, list[Computing]]]:
    """Ranks whose parameters and moments are shared: they have trained for some steps."""
    with folded(kernels, count, speed=speed) as (here, made):
        begin_alike(made)
        for step in range(STEPS):
            for rank in made:
                train(rank, step)
            sync(made)
        assert counts(here.natives[0], count)[1] > 0
        yield here.natives[0], made


def updated(ranks: int, add: int) -> list[int]:
    p, m = (np.array(each, np.uint32) for each in trained(ranks, STEPS))
    return list((p * 5 + m + add).tolist())


def test_who_comes_to_something_else_goes_alone(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        _, before = counts(native, 2)
        for rank in made:
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, rank.rank)
        sync(made)
        for rank in made:
            assert words(rank, PARAMETERS) == updated(2, rank.rank)
        assert counts(native, 2)[1] == before


def test_who_never_comes_is_not_waited_for(kernels: Loader) -> None:
    with shared(kernels, 3) as (_native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync(made[:1])
        assert words(made[0], PARAMETERS) == updated(3, 7)
        for rank in made[1:]:
            assert words(rank, PARAMETERS) == trained(3, STEPS)[0]
        for rank in made[1:]:  # the others still share
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, 8)
        sync(made[1:])
        for rank in made[1:]:
            assert words(rank, PARAMETERS) == updated(3, 8)


def test_who_frees_is_not_waited_for(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        seq = made[1].free(HOMES[0])
        sync(made)
        until(lambda: made[1].u64(RETIRED) == seq, native)
        assert words(made[0], PARAMETERS) == updated(2, 7)


@pytest.mark.parametrize("how", [CLEAN, CRASHED])
def test_who_ends_is_not_waited_for(kernels: Loader, how: int) -> None:
    with shared(kernels, 2) as (native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        native.rank_exited(1, 1, how)
        sync(made[:1])
        assert words(made[0], PARAMETERS) == updated(2, 7)


def test_a_cut_does_not_wait(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        native.barrier(1, True)
        settle(native, 1, "cut")
        made[1].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        native.barrier(1, False)
        sync(made)
        for rank in made:
            assert words(rank, PARAMETERS) == updated(2, 7)


@pytest.mark.parametrize("ends", [0, 1])
@pytest.mark.parametrize("how", [CLEAN, CRASHED])
def test_a_rank_may_end_while_it_runs_for_another(kernels: Loader, ends: int, how: int) -> None:
    """Whichever of the two it is whose work it was."""
    with shared(kernels, 2, speed=0.0002) as (native, made):
        before = counts(native, 2)[1]
        for rank in made:
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
            rank.begin(DEVICE_SYNC)
        until(lambda: native.status()["squashed"] > before, native)
        native.rank_exited(1, ends, how)
        assert made[1 - ends].finish() == 0
        assert words(made[1 - ends], PARAMETERS) == updated(2, 7)


def test_a_fault_is_everybodys(kernels: Loader) -> None:
    """Of all who take part: they read beyond what there is."""
    with shared(kernels, 3) as (native, made):
        before = counts(native, 3)[1]
        for rank in made:
            rank.launch("update", PARAMETERS, HOMES[-1] + 2 * CHUNK - 64, WORDS, 7)
            rank.begin(DEVICE_SYNC)
        assert [rank.finish() for rank in made] == [ILLEGAL_ADDRESS] * 3
        for rank in made:
            status = native.rank_status(1, rank.rank)
            assert status and status.error == ILLEGAL_ADDRESS and "address" in status.error_text
        assert counts(native, 3)[1] == before + 2
