"""Promise: where several ranks of a device receive the same at the same address, whole pages of it
exist once; and what each rank's memory holds is what it would be alone, whatever the ranges are,
where the ranks are, who is resident, and whatever else they write meanwhile.

Ranks post fills, kernels and collectives on ranges of large buffers; a model of their bytes is
compared with their images at cuts.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.computing import INT32, SUM, Computing
from support.contents import check_equal_versions, images_of
from support.devices import Devices, devices
from support.ring_client import (
    CHUNK,
    COLLECTIVE,
    CONTRACT,
    DEV_BASE,
    DEVICE_SYNC,
    RETIRED,
    STREAM_CREATE,
    until,
)

ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCESCATTER = (
    CONTRACT.enums["rf_coll"][f"RF_COLL_{name}"]
    for name in ("ALLREDUCE", "REDUCE", "BROADCAST", "ALLGATHER", "REDUCESCATTER")
)
WORD, PAGE = 4, CHUNK // 4  # bytes of a word, words of a page
PAGES = 4  # of each buffer
VARIABLES = DEV_BASE
SEND, RECV, OWN = (DEV_BASE + (1 + n * PAGES) * CHUNK for n in range(3))
WORDS = PAGES * PAGE
SIDE, COMM = 90, 17  # a second stream; the communicator of support/computing.py
NOWHERE = DEV_BASE + (1 << 38)  # no buffer; behind the heap there would be pinned memory of rank 0


class Training(Computing):
    """A rank, and what its buffers should hold."""

    def __init__(self, rank: int, ranks: int):
        super().__init__(rank, ranks, VARIABLES)
        self.memory = np.zeros(2 * WORDS, np.int32)  # from SEND on: SEND and RECV

    def begin_with(self) -> None:
        self.load([SEND, RECV], PAGES * CHUNK)
        self.alloc(OWN, CHUNK)

    def fill_words(self, at: int, count: int, value: int) -> None:
        """Words of SEND and RECV, which are adjacent."""
        self.memory[at : at + count] = value
        self.fill(SEND + WORD * at, value & 0xFFFFFFFF, 4, count)

    def run(self, stream: int = 1) -> None:
        """A kernel: the rank becomes active and resident."""
        self.launch("block", OWN, OWN, 1, 0, stream=stream)

    def gather(self, kind: int, send: int, recv: int, count: int, root: int) -> None:
        self.post(
            COLLECTIVE,
            struct.pack(
                "<6QIIiI",
                1,
                COMM,
                SEND + WORD * send,
                SEND + WORD * recv,
                count,
                SUM,
                kind,
                INT32,
                root,
                0,
            ),
        )


@dataclass(frozen=True)
class Collective:
    """The offset in each rank's SEND and RECV, in words."""

    kind: int
    send: list[int]
    recv: list[int]
    count: int
    root: int = 0

    def post(self, rank: Training) -> None:
        at = rank.rank
        rank.gather(self.kind, self.send[at], self.recv[at], self.count, self.root)

    def model(self, ranks: Sequence[Training]) -> None:
        n, size = len(ranks), self.count
        wide = n if self.kind == REDUCESCATTER else 1
        given = [
            rank.memory[at : at + wide * size].copy()
            for rank, at in zip(ranks, self.send, strict=True)
        ]
        total = np.stack(given).sum(axis=0, dtype=np.int32)
        for rank, at in zip(ranks, self.recv, strict=True):
            me = rank.rank
            if self.kind == ALLREDUCE or (self.kind == REDUCE and me == self.root):
                rank.memory[at : at + size] = total
            elif self.kind == BROADCAST:
                rank.memory[at : at + size] = given[self.root]
            elif self.kind == ALLGATHER:
                rank.memory[at : at + n * size] = np.concatenate(given)
            elif self.kind == REDUCESCATTER:
                rank.memory[at : at + size] = total[me * size : (me + 1) * size]


@contextmanager
def placed(
    kernels: Loader, where: list[int], chunks: int = 128
) -> Iterator[tuple[Devices, list[Training]]]:
    """A job whose rank r is on device where[r]."""
    made = [Training(rank, len(where)) for rank in range(len(where))]
    with devices(kernels, max(where) + 1, chunks) as here:
        here.place(1, made, where)
        for rank in made:
            rank.begin_with()
        assert [rank.finish() for rank in made] == [0] * len(made)
        for rank in made:
            rank.post(STREAM_CREATE, struct.pack("<QIi", SIDE, 1, 0))
        yield here, made
        here.leave(1)
    for rank in made:
        rank.close()


def sync(ranks: Sequence[Training]) -> None:
    for rank in ranks:
        rank.begin(DEVICE_SYNC)
    assert [rank.finish() for rank in ranks] == [0] * len(ranks)


def check_all(here: Devices, ranks: Sequence[Training], cut: int, done: bool = True) -> None:
    """At a cut, and on behind it: what is called equal; and, if all is done, every byte."""
    here.stop(1)
    assert all(native.job_save(1) for native in here.natives)
    assert {event.text for event in here.saved(cut)} == {""}
    with ExitStack() as stack:
        found = images_of(ranks, stack)
        check_equal_versions(found)
        for rank, each in zip(ranks if done else (), found if done else (), strict=True):
            held = np.frombuffer(each.read(SEND, WORD * 2 * WORDS), np.int32)
            wrong = np.flatnonzero(held != rank.memory)
            assert not wrong.size, (rank.rank, wrong[0], wrong[-1], wrong.size)
    here.continue_running(1, ranks)


def run(ranks: Sequence[Training], what: Collective) -> None:
    what.model(ranks)
    for rank in ranks:
        what.post(rank)
    sync(ranks)


def private(ranks: Sequence[Training]) -> None:
    """All resident, with gradients of their own."""
    for rank in ranks:
        rank.run()
        rank.fill_words(0, 2 * WORDS, 10 + rank.rank)
    sync(ranks)


# The whole pages of a range that begins in one page and ends in another.
SOME, MANY = WORDS + 100, 2 * PAGE + 200  # from within RECV's first page to within its fourth


@pytest.mark.parametrize(
    ("kind", "send", "count", "pages"),
    [
        (ALLREDUCE, SOME, MANY + PAGE - 300, 2),  # in place
        (ALLREDUCE, 7, MANY + PAGE - 300, 2),
        (BROADCAST, SOME, MANY + PAGE - 300, 2),
        (BROADCAST, 7, MANY + PAGE - 300, 2),
        (ALLGATHER, 7, PAGE, 2),
        (REDUCE, 7, MANY + PAGE - 300, 0),
        (REDUCESCATTER, 7, PAGE - 100, 0),
    ],
)
def test_a_result_exists_once(
    kernels: Loader, kind: int, send: int, count: int, pages: int
) -> None:
    n = 3
    with placed(kernels, [0] * n) as (here, made):
        (native,) = here.natives
        private(made)
        before = native.status()
        run(made, Collective(kind, [send] * n, [SOME] * n, count))
        after = native.status()
        assert after["shared"] - before["shared"] == pages * CHUNK
        assert before["used"] - after["used"] == (n - 1) * pages * CHUNK
        assert after["copies"] == before["copies"]
        check_all(here, made, 0)
        made[1].fill_words(WORDS + PAGE, PAGE, 77)  # it gets a copy of its own
        sync(made)
        assert native.status()["shared"] == after["shared"]
        check_all(here, made, 1)


def test_a_result_at_another_address_is_each_ones_own(kernels: Loader) -> None:
    with placed(kernels, [0, 0, 0]) as (here, made):
        private(made)
        before = here.natives[0].status()["shared"]
        run(made, Collective(ALLREDUCE, [0] * 3, [WORDS, WORDS + 64, WORDS], 3 * PAGE))
        after = here.natives[0].status()["shared"]
        assert after - before == 3 * CHUNK  # of the first and the third
        check_all(here, made, 0)


def test_a_rank_that_is_not_resident_refers_to_it_as_well(kernels: Loader) -> None:
    """On a device that has room for one and some more."""
    n = 3
    with placed(kernels, [0] * n, 2 * PAGES + 4) as (here, made):
        (native,) = here.natives
        private(made)
        before = native.status()
        assert before["swap"] >= (2 * (2 * PAGES) - 2) * CHUNK  # two chunks are to spare
        run(made, Collective(ALLREDUCE, [WORDS] * n, [WORDS] * n, PAGES * PAGE))
        after = native.status()
        assert after["shared"] - before["shared"] == PAGES * CHUNK
        assert before["used"] + before["swap"] - after["used"] - after["swap"] == (
            (n - 1) * PAGES * CHUNK
        )
        assert after["swapped_in"] == before["swapped_in"]
        check_all(here, made, 0)
        for rank in made:
            rank.run()
        sync(made)
        check_all(here, made, 1)


def chunks_held(here: Devices) -> int:
    """Chunks on the device and in images."""
    status = here.natives[0].status()
    return int(status["used"] + status["swap"]) // CHUNK


def test_a_rank_that_waits_for_others_need_not_keep_its_input(kernels: Loader) -> None:
    """On a device that has room for one and some more; sums of the tree's nodes stay."""
    n = 4
    with placed(kernels, [0] * n, 2 * PAGES + 4) as (here, made):
        (native,) = here.natives
        for cut in range(2):
            private(made)
            made[3].run()
            sync(made)
            before = chunks_held(here)
            what = Collective(ALLREDUCE, [WORDS] * n, [WORDS] * n, PAGES * PAGE)
            what.model(made)
            for kept, rank in zip((4, 3, 3), made, strict=False):
                what.post(rank)
                until(lambda: chunks_held(here) == before - (4 - kept) * PAGES, native)  # noqa: B023
                made[3].run()  # it comes and goes
                sync(made[3:])
            what.post(made[3])
            sync(made)
            assert chunks_held(here) == before - 3 * PAGES
            check_all(here, made, cut)


def test_buckets_that_share_a_page(kernels: Loader) -> None:
    with placed(kernels, [0, 0, 1, 1]) as (here, made):
        private(made)
        at = [0, PAGE + 5, PAGE + 50, 3 * PAGE - 1, WORDS]
        for low, high in pairwise(at):
            what = Collective(ALLREDUCE, [WORDS + low] * 4, [WORDS + low] * 4, high - low)
            what.model(made)
            for rank in made:
                what.post(rank)
        sync(made)
        for native in here.natives:
            assert native.status()["shared"] >= 2 * CHUNK  # the first page and the third
        check_all(here, made, 0)


def test_one_of_them_is_gone_behind_it(kernels: Loader) -> None:
    """The rank that received it for the others, too."""
    with placed(kernels, [0, 0, 0]) as (here, made):
        (native,) = here.natives
        private(made)
        before = native.status()["shared"]
        run(made, Collective(ALLREDUCE, [WORDS] * 3, [WORDS] * 3, WORDS))
        assert native.status()["shared"] == before + PAGES * CHUNK
        for rank in made[:2]:
            seq = rank.free(RECV)
            until(lambda: rank.u64(RETIRED) >= seq, native)  # noqa: B023
        assert native.status()["shared"] == before
        got = made[2].read(RECV + CHUNK, CHUNK // 16)
        assert got == made[2].memory[WORDS + PAGE :][: PAGE // 16].tobytes()


def have_it_or_fail(native: Native, ranks: list[Training]) -> None:
    """These have the result at RECV, or the job has failed."""
    for rank in ranks:
        rank.begin(DEVICE_SYNC)
    until(lambda: all(r.answered() for r in ranks) or state(native) == "failed", native)
    if state(native) == "failed":
        return
    for rank in ranks:
        assert rank.finish() == 0
        for page in range(PAGES):
            got = rank.read(RECV + page * CHUNK, CHUNK // 16)
            assert got == rank.memory[WORDS + page * PAGE :][: PAGE // 16].tobytes()


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_rank_fails_meanwhile(kernels: Loader, who: int) -> None:
    """The others have the result, or the job fails; no rank has anything else."""
    with placed(kernels, [0, 0, 0]) as (here, made):
        (native,) = here.natives
        private(made)
        what = Collective(BROADCAST, [0] * 3, [WORDS] * 3, WORDS, (who + 1) % 3)
        what.model(made)
        for rank in made:
            if rank.rank == who:
                rank.launch("update", OWN, NOWHERE, 96, 0, stream=SIDE)
            what.post(rank)
        rest = [rank for rank in made if rank.rank != who]
        have_it_or_fail(native, rest)


@pytest.mark.parametrize("who", [0, 1, 2, None])
def test_a_rank_fails_when_its_input_is_in_a_sum(kernels: Loader, who: int | None) -> None:
    """As above: who waits has the sum, or the job fails. And a job may go with half of it done."""
    n = 4
    with placed(kernels, [0] * n, 2 * PAGES + 4) as (here, made):
        (native,) = here.natives
        private(made)
        made[3].run()
        sync(made)
        before = chunks_held(here)
        what = Collective(ALLREDUCE, [WORDS] * n, [WORDS] * n, WORDS)
        what.model(made)
        for rank in made[:3]:
            what.post(rank)
        until(lambda: chunks_held(here) == before - PAGES, native)
        if who is None:
            return
        made[who].launch("update", OWN, NOWHERE, 96, 0, stream=SIDE)
        rest = [rank for rank in made if rank.rank != who]
        what.post(made[3])
        have_it_or_fail(native, rest)


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_fails_before_its_input_is_in_a_sum(kernels: Loader, who: int) -> None:
    """The device does not add what is in its memory: then no rank may take that for a sum."""
    with placed(kernels, [0, 0]) as (here, made):
        (native,) = here.natives
        private(made)
        what = Collective(ALLREDUCE, [0] * 2, [WORDS] * 2, WORDS)
        what.model(made)
        what.post(made[who])
        made[who].launch("update", OWN, NOWHERE, 96, 0, stream=SIDE)
        made[who].begin(DEVICE_SYNC)
        until(lambda: made[who].answered() or state(native) == "failed", native)
        what.post(made[1 - who])
        have_it_or_fail(native, [made[1 - who]])


def state(native: Native) -> str:
    status = native.job_status(1)
    return str(status["state"]) if status else "gone"


# ---- whatever they do --------------------------------------------------------------------------


def some_collective(chance: random.Random, n: int) -> Collective:
    kind = chance.choice([ALLREDUCE, ALLREDUCE, BROADCAST, ALLGATHER, REDUCE, REDUCESCATTER])
    wide_in = n if kind == REDUCESCATTER else 1
    wide_out = n if kind == ALLGATHER else 1
    count = chance.randrange(1, WORDS // max(wide_in, wide_out) - 64)
    if chance.random() < 0.4:  # whole pages
        count = max(1, count // PAGE) * PAGE
        recv = WORDS + chance.randrange(WORDS - count * wide_out + 1) // PAGE * PAGE
        if count * wide_in > WORDS or count * wide_out > WORDS:
            count, recv = 1000, WORDS
    else:
        recv = WORDS + chance.randrange(WORDS - count * wide_out - 32)
    send = chance.randrange(WORDS - count * wide_in + 1)
    sends, recvs = [send] * n, [recv] * n
    place = chance.randrange(4)
    if place == 0 and kind in (ALLREDUCE, BROADCAST, REDUCE):
        sends = list(recvs)
    elif place == 0 and kind == ALLGATHER:
        sends = [recv + rank * count for rank in range(n)]
    elif place == 1 and recv + count * wide_out + 32 <= 2 * WORDS:
        recvs = [recv + chance.choice([0, 0, 32]) for _ in range(n)]
    return Collective(kind, sends, recvs, count, chance.randrange(n))


@pytest.mark.parametrize("seed", range(8))
def test_no_rank_can_tell_that_results_are_shared(kernels: Loader, seed: int) -> None:
    chance = random.Random(seed)
    n = chance.choice([2, 3, 4])
    where = [0] * n if n == 2 or chance.randrange(2) else [rank * 2 // n for rank in range(n)]
    shared, cuts = 0, 0
    with placed(kernels, where, chance.choice([2 * PAGES + 4, 3 * PAGES + 4, 128])) as (here, made):
        private(made)
        for _ in range(12):
            for rank in made:
                if chance.random() < 0.4:
                    at = chance.randrange(2 * WORDS - 1)
                    rank.fill_words(at, chance.randrange(1, 2 * WORDS - at), chance.randrange(99))
                if chance.random() < 0.3:
                    rank.run()
                for _ in range(chance.choice([0, 0, 5])):
                    rank.run(SIDE)  # concurrently with the collective
            what = [some_collective(chance, n) for _ in range(chance.choice([1, 1, 2]))]
            for each in what:
                each.model(made)
            for rank in chance.sample(made, n):
                for each in what:
                    each.post(rank)
                time.sleep(chance.choice([0, 0, 0.003]))
            if chance.random() < 0.3:  # in the midst of it
                check_all(here, made, cuts, done=False)
                cuts += 1
            if chance.random() < 0.7:
                sync(made)
            shared = max(shared, *(native.status()["shared"] for native in here.natives))
        sync(made)
        check_all(here, made, cuts)
    assert shared >= CHUNK
