"""Promise: what ranks share is written once for all who come to the same, and no rank waits for one
that cannot come; a fault is everybody's. test_shared_programs.py does whatever else ranks may do.

Ranks of one job on one device post kernels and collectives; each buffer is in chunks of its own.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import time
from collections.abc import Callable

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo
from support.answers import answering
from support.computing import Computing, sync
from support.ring_client import (
    CHUNK,
    COPY,
    DEVICE_SYNC,
    NON_BLOCKING,
    RETIRED,
    STREAM_CREATE,
    STREAM_SYNC,
    device,
    leave,
    settle,
    until,
)
from support.trained import (
    ALLREDUCE,
    GRADIENT,
    HOMES,
    MOMENTS,
    OTHER,
    OWN,
    PARAMETERS,
    STEPS,
    VARIABLES,
    WORDS,
    at_once,
    begin_alike,
    counts,
    folded,
    let_go,
    opened_early,
    shared,
    train,
    train_alike,
    train_beneath_a_sum,
    trained,
    updated,
    words,
)

CLEAN, CRASHED = 0, 1
ILLEGAL_ADDRESS, ASSERT = 700, 710


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
        # In the first step, some memory has not been found equal yet.
        assert squashed >= (ranks - 1) * 2 * (steps - 2)
        for rank in made:
            assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == trained(ranks, steps)
        here.stop(1)


def test_memory_for_an_update_is_opened_while_the_sum_before_it_is_computed(
    kernels: Loader,
) -> None:
    with folded(kernels, 2) as (here, made):
        (native,) = here.natives
        begin_alike(made)
        steps = 0
        while not opened_early(native):
            assert steps < 100
            for rank in made:
                train_beneath_a_sum(rank, steps)
            sync(made)
            steps += 1
        assert counts(native, 2)[1] > 0 == native.status()["unforeseen"]
        for rank in made:
            assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == trained(2, steps)


def test_pages_opened_for_updates_that_differ_are_copied(kernels: Loader) -> None:
    """So that each has its own moments from then on."""
    steps = 8
    for _ in range(20):  # the sum may complete before the test looks
        with folded(kernels, 2) as (here, made):
            (native,) = here.natives
            begin_alike(made)
            for step in range(steps):
                for rank in made:
                    train_beneath_a_sum(rank, step)
                sync(made)
            before, copies = opened_early(native), native.status()["copies"]
            with at_once(native, made):
                for rank in made:
                    train_beneath_a_sum(rank, steps, add=1 + rank.rank)
            sync(made)
            opened = opened_early(native) > before
            assert native.status()["copies"] > copies and not native.status()["unforeseen"]
            moments = np.array(trained(2, steps + 1)[1], np.uint32)
            for rank in made:
                assert words(rank, MOMENTS) == (moments + rank.rank).tolist()
        if opened:
            return
    raise AssertionError("nothing was opened early")


def test_kernels_of_another_stream_come_while_memory_is_open_beneath_a_sum(kernels: Loader) -> None:
    """At any moment of it: they find nothing open, and the update runs once anyway."""
    steps, extra, chance = 40, 0, random.Random(3)
    with folded(kernels, 2) as (here, made):
        (native,) = here.natives
        begin_alike(made)
        for rank in made:
            rank.post(STREAM_CREATE, struct.pack("<QIi", 100, NON_BLOCKING, 0))
            rank.write(OTHER, bytes([rank.rank + 1] * 4 * WORDS))
        for step in range(steps):
            for rank in made:
                train_beneath_a_sum(rank, step)
            for _ in range(chance.randrange(4)):
                time.sleep(chance.random() * 0.001)
                extra += 1
                for rank in made:
                    rank.launch("double", OTHER, OTHER, 1, rank.rank, stream=100)
            sync(made)
        assert opened_early(native) and not native.status()["unforeseen"]
        for rank in made:
            word = 0x01010101 * (rank.rank + 1)
            for _ in range(extra):
                word = (2 * word + rank.rank) % 2**32
            assert words(rank, OTHER)[0] == word
            assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == trained(2, steps)


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


def test_a_fill_is_not_waited_for(kernels: Loader) -> None:
    """A rank that fills shared memory gets memory of its own, and keeps the device."""
    with shared(kernels, 2) as (native, made):
        before, waited = native.status(), let_go(native)
        made[0].fill(PARAMETERS, 7, 4, WORDS)
        sync(made[:1])
        assert let_go(native) == waited and native.status()["squashed"] == before["squashed"]
        assert words(made[0], PARAMETERS) == [7] * WORDS != words(made[1], PARAMETERS)
        made[1].fill(PARAMETERS, 7, 4, WORDS)
        sync(made)
        assert words(made[1], PARAMETERS) == [7] * WORDS and let_go(native) == waited


def test_a_fill_is_waited_for_where_there_is_no_capacity(kernels: Loader) -> None:
    """All would have to give up memory, so that one can have its own for what all overwrite."""
    with folded(kernels, 2) as (here, made):
        train_alike(made)
        needed = here.natives[0].status()["used"] // CHUNK
    with folded(kernels, 2, chunks=needed) as (here, made):
        train_alike(made)
        (native,) = here.natives
        if needed - native.status()["used"] // CHUNK > 1:  # not everything was found alike before
            made[0].write(OTHER, b"\1" * 4 * WORDS)
            sync(made[:1])
        before = let_go(native)
        made[0].fill(PARAMETERS, 7, 4, WORDS)
        sync(made[:1])
        assert let_go(native) > before
        assert words(made[0], PARAMETERS) == [7] * WORDS != words(made[1], PARAMETERS)


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
    """Those that write something else, and those whose writes are unknown."""
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


def test_an_order_dependent_result_is_the_same_for_all_squashed_ranks(kernels: Loader) -> None:
    """So what follows from it runs for all, too."""
    with shared(kernels, 3) as (native, made):
        before = native.status()["squashed"]
        with at_once(native, made):
            for rank in made:
                rank.launch("atomic", PARAMETERS, MOMENTS, WORDS, 0)
                rank.launch("update", MOMENTS, PARAMETERS, WORDS, 1)
        sync(made)
        assert native.status()["squashed"] == before + 2 * 2
        assert len({tuple(words(rank, MOMENTS)) for rank in made}) == 1


# ---- what is there already ---------------------------------------------------------------------


def test_another_rank_s_result_is_not_computed_again(kernels: Loader) -> None:
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


def test_bytes_next_to_the_result_must_be_equal_too(kernels: Loader) -> None:
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


def test_content_that_is_there_is_not_written_again(kernels: Loader) -> None:
    """Whether it came from a fill, from a copy, or has never been anything but zeros."""
    with shared(kernels, 2) as (native, made):
        rank, before = made[0], native.status()
        free = HOMES[-1] + CHUNK
        rank.fill(free, 0, 4, WORDS)  # there
        rank.fill(OWN, 7, 4, WORDS)
        rank.fill(OWN, 7, 1, 4)
        rank.fill(OWN + 4, 7, 4, WORDS - 1)  # the same, except for its first word
        rank.move(GRADIENT, OWN, WORDS)
        rank.move(GRADIENT, OWN, WORDS)  # there
        rank.write(GRADIENT, b"\1" * 8)
        rank.move(GRADIENT, OWN, WORDS)
        sync(made)
        status = native.status()
        assert status["squashed"] - before["squashed"] == 3
        assert status["kernels"] == before["kernels"]
        found = [0x07070707, *[7] * (WORDS - 1)]
        assert [words(rank, at) for at in (OWN, GRADIENT)] == [found] * 2


def test_content_still_being_written_is_not_reused(kernels: Loader) -> None:
    """Another stream writes it, without order between the two: programs may write the same
    twice."""
    with shared(kernels, 2, workers=2) as (native, made):
        rank = made[0]
        rank.post(STREAM_CREATE, struct.pack("<QIi", 100, NON_BLOCKING, 0))
        rank.post(STREAM_CREATE, struct.pack("<QIi", 101, NON_BLOCKING, 0))
        rank.write(OTHER, bytes(4))
        sync([rank])
        kernels_before = native.status()["kernels"]
        rank.launch("until", OTHER + 4, OTHER, 1, 0, stream=100)
        rank.fill(OWN, 7, 4, WORDS, stream=100)
        until(lambda: native.status()["kernels"] > kernels_before, native)
        rank.fill(OWN, 7, 4, WORDS, stream=101)
        assert rank.read(OWN, 4 * WORDS, stream=101) == struct.pack(f"<{WORDS}I", *[7] * WORDS)
        rank.write(OTHER, b"\1", stream=101)
        sync(made)


@pytest.mark.parametrize("how", ["alone", "unshared", "unsquashed"])
def test_untrusted_content_is_computed_again(kernels: Loader, how: str) -> None:
    ranks = 1 if how == "alone" else 2
    made = [Computing(rank, ranks, VARIABLES) for rank in range(ranks)]
    with (
        device(share=how != "unshared", squash=how != "unsquashed") as native,
        answering(native, kernels),
    ):
        native.job_open(1, 1, 0, 1, [0] * ranks, -1)
        for rank in made:
            native.rank_attach(1, rank.rank, rank.fd, rank.image)
            rank.load(HOMES, 2 * CHUNK)
        assert [rank.finish() for rank in made] == [0] * ranks
        begin_alike(made)
        for step in range(STEPS):
            for rank in made:
                train(rank, step)
            sync(made)
        for rank in made:
            for _ in range(2):
                rank.fill(OWN, 7, 4, WORDS)
        sync(made)
        status = native.status()
        assert status["squashed"] == 0 and bool(status["shared"]) == (how == "unsquashed")
        assert [words(rank, OWN) for rank in made] == [[7] * WORDS] * ranks
        leave(native)
    for rank in made:
        rank.close()


def test_content_is_reused_while_a_host_function_runs(kernels: Loader) -> None:
    """Nothing is being written, whatever another stream waits for."""
    with shared(kernels, 2) as (native, made):
        rank = made[0]
        for stream in (100, 101):
            rank.post(STREAM_CREATE, struct.pack("<QIi", stream, NON_BLOCKING, 0))
        rank.fill(OWN, 7, 4, WORDS, stream=101)
        rank.block(100)
        assert rank.call(STREAM_SYNC, struct.pack("<Q", 101)) == 0
        before = native.status()["squashed"]
        rank.fill(OWN, 7, 4, WORDS, stream=101)
        assert rank.call(STREAM_SYNC, struct.pack("<Q", 101)) == 0
        assert native.status()["squashed"] == before + 1
        rank.unblock()
        sync(made)


def test_a_result_of_another_rank_is_not_waited_for_forever(kernels: Loader) -> None:
    """It could be taken when nothing of the rank runs; but what runs waits for it."""
    with shared(kernels, 2, workers=2) as (native, made):
        with at_once(native, made):
            for rank in made:
                rank.fill(PARAMETERS, 0, 4, WORDS)
        sync(made)
        first, second = made
        first.launch("scale", PARAMETERS, GRADIENT, 1, 1)
        sync([first])
        for stream in (100, 101):
            second.post(STREAM_CREATE, struct.pack("<QIi", stream, NON_BLOCKING, 0))
        before = native.status()["kernels"]
        second.launch("until", OWN, PARAMETERS, 1, 0, stream=100)
        until(lambda: native.status()["kernels"] > before, native)
        second.launch("scale", PARAMETERS, GRADIENT, 1, 1, stream=101)
        sync(made)
        assert words(first, PARAMETERS) == words(second, PARAMETERS)
        assert words(second, OWN)[0] == words(second, PARAMETERS)[0] != 0


# ---- who goes alone, and who fails -------------------------------------------------------------


def test_a_rank_that_comes_to_something_else_runs_alone(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        _, before = counts(native, 2)
        for rank in made:
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, rank.rank)
        sync(made)
        for rank in made:
            assert words(rank, PARAMETERS) == updated(2, rank.rank)
        assert counts(native, 2)[1] == before


def test_a_rank_that_shares_only_a_part_of_it_computes_alone(kernels: Loader) -> None:
    """One rank has a chunk of its own where the parameters end."""
    with shared(kernels, 3) as (native, made):
        made[2].fill(HOMES[0] + 2 * CHUNK - 64, 3, 4, 4)
        sync(made)
        with at_once(native, made):
            for rank in made:
                rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync(made)
        assert [words(rank, PARAMETERS) for rank in made] == [updated(3, 7)] * 3
        assert made[2].read(HOMES[0] + 2 * CHUNK - 64, 4) == bytes([3, 0, 0, 0])
        assert made[0].read(HOMES[0] + 2 * CHUNK - 64, 4) == bytes(4)


def test_a_rank_that_may_write_anywhere_has_its_own_copy_of_all_before(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        rank = made[0]
        rank.write(OTHER, struct.pack("<Q", PARAMETERS))
        before = native.status()
        assert before["shared"] > 0
        rank.launch("linked", OWN, OTHER, 1, 5)
        sync(made)
        status = native.status()
        assert status["unforeseen"] == before["unforeseen"] and status["copies"] > before["copies"]
        assert words(rank, PARAMETERS) == [5, *trained(2, STEPS)[0][1:]]
        assert words(made[1], PARAMETERS) == trained(2, STEPS)[0]


def test_a_page_opened_for_all_and_left_to_one_rank_is_no_unforeseen_write(kernels: Loader) -> None:
    """Behind the update the pages stay open while the rank has the device; then it is alone, and a
    kernel that may write anywhere is known to write there."""
    with shared(kernels, 2) as (native, made):
        first, second = made
        first.post(STREAM_CREATE, struct.pack("<QIi", 100, NON_BLOCKING, 0))
        first.launch("scale", OWN, OWN, WORDS, 0)
        assert first.call(STREAM_SYNC, struct.pack("<Q", 1)) == 0
        before = native.status()
        with at_once(native, made):
            first.block(100)
            for rank in made:
                rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        sync([second])
        assert native.status()["squashed"] == before["squashed"] + 1
        second.free(HOMES[0])
        sync([second])
        first.launch("stray", PARAMETERS, OWN, 1, 5)
        assert first.call(STREAM_SYNC, struct.pack("<Q", 1)) == 0
        assert native.status()["unforeseen"] == before["unforeseen"]
        first.unblock()
        sync([first])
        (word,) = struct.unpack("<I", first.read(OWN, 4))
        written = updated(2, 7)
        if (at := word.bit_count() ** 2) < WORDS:
            written[at] = 5
        assert words(first, PARAMETERS) == written


def test_ranks_do_not_repeat_a_fruitless_wait(kernels: Loader) -> None:
    """Waiting for a rank that has yet to compute costs a turn. Memory is scarce: what is equal is
    shared each time."""
    ranks, batches = 4, 32
    with folded(kernels, ranks, chunks=40) as (here, made):
        (native,) = here.natives
        begin_alike(made)
        before = native.status()["switches"]
        with at_once(native, made):
            for rank in made:
                for _ in range(batches):
                    rank.launch("scale", OWN, OWN, WORDS, 1)
                    rank.launch("update", PARAMETERS, MOMENTS, WORDS, rank.rank)
                    rank.collective(ALLREDUCE, PARAMETERS, PARAMETERS, WORDS)
        sync(made)
        beyond = native.status()["switches"] - before - (ranks - 1) * batches
        assert beyond < 9  # 4, of 32; separate ranks would wait 17 times without success
        assert len({tuple(words(rank, PARAMETERS)) for rank in made}) == 1


def test_a_rank_that_never_comes_is_not_waited_for(kernels: Loader) -> None:
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


def test_a_rank_that_frees_is_not_waited_for(kernels: Loader) -> None:
    with shared(kernels, 2) as (native, made):
        made[0].launch("update", PARAMETERS, MOMENTS, WORDS, 7)
        seq = made[1].free(HOMES[0])
        sync(made)
        until(lambda: made[1].u64(RETIRED) == seq, native)
        assert words(made[0], PARAMETERS) == updated(2, 7)


@pytest.mark.parametrize("how", [CLEAN, CRASHED])
def test_a_rank_that_ends_is_not_waited_for(kernels: Loader, how: int) -> None:
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
    with shared(kernels, 2, speed=0.002) as (native, made):
        before = counts(native, 2)[1]
        for rank in made:
            rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
            rank.begin(DEVICE_SYNC)
        until(lambda: native.status()["squashed"] > before, native)
        native.rank_exited(1, ends, how)
        assert made[1 - ends].finish() == 0
        assert words(made[1 - ends], PARAMETERS) == updated(2, 7)


class Lying:
    """Says of one kernel that it reads and writes what another one does."""

    def __init__(self, kernels: Loader, liar: str, claims: str):
        self.kernels, self.liar, self.claims = kernels, liar, claims
        self.module = kernels.module

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        found = self.kernels.function(module, name)
        if name != self.liar:
            return found
        other = self.kernels.function(module, self.claims)
        return dataclasses.replace(found, sets=other.sets, variables=other.variables)


def test_writing_what_nothing_foresaw_is_a_fault_of_all_who_took_part(kernels: Loader) -> None:
    """It writes the moments, too, which a rank has that takes no part."""
    with shared(Lying(kernels, "twice", "update"), 3) as (native, made):
        *took_part, other = made
        other.fill(PARAMETERS, 1, 4, WORDS)
        sync(made)
        before = native.status()
        with at_once(native, made):
            for rank in took_part:
                rank.launch("twice", PARAMETERS, MOMENTS, WORDS, 7)
                rank.begin(DEVICE_SYNC)
        assert [rank.finish() for rank in took_part] == [ILLEGAL_ADDRESS] * 2
        for rank in took_part:
            status = native.rank_status(1, rank.rank)
            assert status and status.error == ILLEGAL_ADDRESS
            assert "wrote outside its footprint" in status.error_text
        after = native.status()
        assert after["squashed"] == before["squashed"] + 1
        assert after["unforeseen"] > before["unforeseen"]
        assert (words(other, PARAMETERS), words(other, MOMENTS)) == (
            [1] * WORDS,
            trained(3, STEPS)[1],
        )


def test_an_unforeseen_write_alone_is_not_an_error(kernels: Loader) -> None:
    """It gets a copy; and later the rank takes part in what is foreseen."""
    with shared(Lying(kernels, "twice", "update"), 2) as (native, made):
        rank = made[0]
        p, m = (np.array(each, np.uint32) for each in trained(2, STEPS))
        rank.launch("twice", PARAMETERS, MOMENTS, WORDS, 0)
        sync([rank])
        assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == (
            (p + 1).tolist(),
            (m + 1).tolist(),
        )
        assert native.status()["unforeseen"] > 0
        before = native.status()["squashed"]
        for value in (1, 2):
            for each in made:
                each.fill(HOMES[0], value, 4, CHUNK // 2)
                each.fill(HOMES[1], value, 4, CHUNK // 2)
                each.launch("update", PARAMETERS, MOMENTS, WORDS, 3)
                sync([each])
        with at_once(native, made):
            for each in made:
                each.launch("update", PARAMETERS, MOMENTS, WORDS, 4)
        sync(made)
        assert native.status()["squashed"] > before
        assert [words(each, PARAMETERS) for each in made] == [[5 * 15 + 2 + 4] * WORDS] * 2


def test_later_work_cannot_write_a_squashed_result(kernels: Loader) -> None:
    """It says that it reads the parameters, and writes them."""
    with shared(Lying(kernels, "twice", "scale"), 2) as (native, made):
        before = native.status()
        with at_once(native, made):
            for rank in made:
                rank.launch("update", PARAMETERS, MOMENTS, WORDS, 7)
                rank.launch("twice", OWN, PARAMETERS, WORDS, 0)
        sync(made)
        after = native.status()
        assert after["squashed"] == before["squashed"] + 1
        assert after["unforeseen"] > before["unforeseen"]
        expected = [(word + 1) % 2**32 for word in updated(2, 7)]
        assert [words(rank, PARAMETERS) for rank in made] == [expected] * 2


def test_a_fault_is_everybodys(kernels: Loader) -> None:
    """All ranks that take part fail: they read beyond the buffer."""
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


def test_a_failed_assertion_is_everybodys(kernels: Loader) -> None:
    """Kernels that may fail an assertion are squashed, too; most of PyTorch's reductions may."""
    with shared(kernels, 3) as (native, made):
        before = counts(native, 3)[1]
        for rank in made:
            rank.launch("claim", PARAMETERS, MOMENTS, WORDS, 1)
        sync(made)
        assert counts(native, 3)[1] == before + 2
        for rank in made:
            rank.launch("claim", PARAMETERS, MOMENTS, WORDS, 99)
            rank.begin(DEVICE_SYNC)
        assert [rank.finish() for rank in made] == [ASSERT] * 3
        for rank in made:
            status = native.rank_status(1, rank.rank)
            assert status and "Assertion `wrong` failed." in status.error_text
