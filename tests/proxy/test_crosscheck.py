"""Promise: equal versions are equal bytes, or an alarm reports it.

At each collective ranks' buffers are compared where their versions are equal. A bit that changes in
a device's memory, while no version does, becomes an alarm that names ranks, devices and buffer; the
job continues and shares nothing any more, also where it moves.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.computing import Computing
from support.devices import Devices, devices
from support.ring_client import (
    CHUNK,
    CONTRACT,
    DEV_BASE,
    DEVICE_SYNC,
    STREAM_CREATE,
    STREAM_SYNC,
    settle,
    until,
)

WORDS = 96
HOMES = [DEV_BASE + (1 + 2 * n) * CHUNK for n in range(5)]
PARAMETERS, MOMENTS, GRADIENT, OWN, FIXED = (home + CHUNK - 2 * WORDS for home in HOMES)
ALLREDUCE = CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"]
MARK = bytes(range(96, 0, -1)) * 4
ENDS = 32  # pieces of 4 chunks that are looked at, at both ends of a mapping
PARTS = 8  # checks until all pages have had their turn


@contextmanager
def job(
    kernels: Loader, where: list[int], chunks: int = 128, workers: int = 1
) -> Iterator[tuple[Devices, list[Computing]]]:
    """Rank r on device where[r]; all have written the same parameters, and nothing else."""
    made = [Computing(rank, len(where), DEV_BASE) for rank in range(len(where))]
    with devices(kernels, max(where) + 1, chunks, workers=workers) as here:
        here.place(1, made, where)
        try:
            for rank in made:
                rank.load(HOMES, 2 * CHUNK)
            assert [rank.finish() for rank in made] == [0] * len(where)
            yield here, made
        except BaseException:
            here.spoilt = True  # what else is wrong does not matter
            raise
        finally:  # a kernel may wait for what does not come any more
            here.leave(1)
    for rank in made:
        rank.close()


def sync(ranks: list[Computing]) -> None:
    for rank in ranks:
        rank.begin(DEVICE_SYNC)
    assert [rank.finish() for rank in ranks] == [0] * len(ranks)


def memories() -> list[int]:
    """The memory of each device in this process: descriptors, in the order they were opened."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:rankfold-device" in str(link.readlink()):
                found.append(int(link.name))
        except FileNotFoundError:  # the listing's own
            continue
    return sorted(found)


def places(memory: int) -> list[int]:
    """The chunk whose end has the beginning of the mark."""
    end = 2 * WORDS
    chunks = range(CHUNK, os.fstat(memory).st_size, CHUNK)
    return [at - end for at in chunks if os.pread(memory, end, at - end) == MARK[:end]]


def flip(memory: int, at: int) -> None:
    byte = os.pread(memory, 1, at + 5)[0]
    assert os.pwrite(memory, bytes([byte ^ 4]), at + 5) == 1


def all_reduce(ranks: list[Computing], times: int) -> None:
    for rank in ranks:
        for _ in range(times):
            rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS)
    sync(ranks)


PLACEMENTS = [[0, 1], [0, 0], [0, 1, 2], [0, 0, 1, 1], [0, 0, 0]]


# Ranks of one device have one host copy of equal pages, which cannot differ.
PLACES = [(where, True) for where in PLACEMENTS] + [([0, 1], False), ([0, 0, 1], False)]


@pytest.mark.parametrize(("where", "resident"), PLACES, ids=str)
@pytest.mark.parametrize("later", [True, False], ids=["was right before", "never was right"])
def test_a_bit_that_flips_is_an_alarm(
    kernels: Loader, where: list[int], resident: bool, later: bool
) -> None:
    """It differs from what others have, or from what the same rank had before."""
    with job(kernels, where) as (here, ranks):
        for rank in ranks:
            if resident:
                rank.launch("scale", OWN, OWN, WORDS, 0)
        sync(ranks)
        for rank in ranks:
            memory = memories()[where[rank.rank]] if resident else rank.image
            before = places(memory) if resident else []
            rank.write(PARAMETERS, MARK)
            rank.write(MOMENTS, MARK[::-1])
            sync([rank])
        victim = ranks[-1].rank
        at = PARAMETERS - DEV_BASE
        if resident:
            (at,) = set(places(memory)) - set(before)
        if later:
            all_reduce(ranks, PARTS)
            assert here.alarms() == [[] for _ in here.natives]
            assert all(native.status()["checked"] for native in here.natives)
        here.spoilt = True
        flip(memory, at)
        all_reduce(ranks, PARTS)
        until(lambda: all(here.alarms()), here.natives[0])
        told = here.alarms()
        assert len({tuple(sorted(each)) for each in told}) == 1
        for text in told[0]:
            found = re.match(
                r"rank (\d+) on device (\d+) has bytes that differ from those of rank (\d+) on "
                r"device (\d+), .*its buffer of (\d+) bytes at (0x[0-9a-f]+) .*?"
                r"before collective (\d+) of",
                text,
            )
            assert found, text
            assert str(victim) in (found[1], found[3])
            assert where[int(found[1])] == int(found[2]) and where[int(found[3])] == int(found[4])
            assert int(found[6], 16) == HOMES[0] and int(found[5]) == 2 * CHUNK
            assert int(found[7]) >= PARTS * later


def train(ranks: list[Computing], step: int) -> None:
    for rank in ranks:
        rank.launch("update", OWN, PARAMETERS, WORDS, step)
        rank.launch("scale", GRADIENT, OWN, WORDS, rank.rank)
        rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS)
        rank.launch("update", MOMENTS, GRADIENT, WORDS, 1)
        rank.launch("update", PARAMETERS, MOMENTS, WORDS, 2)
    sync(ranks)


def begin(ranks: list[Computing]) -> None:
    for rank in ranks:
        rank.write(PARAMETERS, MARK)
        rank.write(MOMENTS, MARK[::-1])
        rank.write(OWN, bytes([rank.rank + 1] * 4 * WORDS))
    sync(ranks)


@pytest.mark.parametrize("where", PLACEMENTS, ids=str)
def test_a_good_job_gives_none(kernels: Loader, where: list[int]) -> None:
    with job(kernels, where) as (here, ranks):
        begin(ranks)
        for step in range(2 * PARTS):
            train(ranks, step)
        assert here.alarms() == [[] for _ in here.natives]
        assert all(native.status()["checked"] > 2 * PARTS for native in here.natives)
        if len(set(where)) < len(where):
            assert sum(native.status()["squashed"] for native in here.natives) > 0


def test_a_rank_that_was_found_wrong_shares_no_more(kernels: Loader) -> None:
    """Neither here nor where the job goes next, where the alarm is heard again."""
    where = [0, 0, 0]
    with job(kernels, where) as (here, ranks):
        (native,) = here.natives

        def squashed(steps: int) -> int:
            before = int(native.status()["squashed"])
            for step in range(steps):
                train(ranks, step)
                for rank in ranks:
                    rank.fill(OWN, 7, 4, WORDS)
                    rank.fill(OWN, 7, 4, WORDS)
            sync(ranks)
            return int(native.status()["squashed"]) - before

        begin(ranks)
        for rank in ranks:
            rank.write(PARAMETERS, MARK[::-1])
            rank.write(FIXED, MARK)
        assert squashed(PARTS) > 0
        here.spoilt = True
        flip(memories()[0], places(memories()[0])[0])
        all_reduce(ranks, PARTS)
        until(lambda: bool(here.alarms()[0]), native)
        first = here.alarms()[0]
        assert native.status()["shared"] > 0 and squashed(4) == 0
        native.barrier(1, True)
        settle(native, 1, "cut")
        assert native.job_leave(1)
        settle(native, 1, "saved")
        native.job_close(1)
        here.told[0].clear()
        here.place(1, ranks, where)
        until(lambda: bool(here.alarms()[0]), native)
        assert here.alarms()[0] == first
        assert squashed(4) == 0 and native.status()["shared"] == 0


def test_a_rank_that_is_not_quiet_continues_without(kernels: Loader) -> None:
    """A kernel waits for what comes behind the collective that the comparison holds up."""
    with job(kernels, [0, 1], workers=2) as (here, ranks):
        for rank in ranks:
            rank.post(STREAM_CREATE, struct.pack("<QIi", 100, 1, 0))  # it waits for no other
            rank.launch("until", OWN, FIXED, 1, 0, threads=1, stream=100)
        until(lambda: all(each.status()["kernels"] == 1 for each in here.natives), here.natives[0])
        for rank in ranks:
            rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS)
            rank.write(FIXED, b"\1" * 4)
        sync(ranks)
        assert [native.status()["checked"] for native in here.natives] == [0, 0]
        for rank in ranks:
            assert rank.read(OWN, 4) == b"\1" * 4
        all_reduce(ranks, PARTS)
        assert all(native.status()["checked"] for native in here.natives)
        assert [unwatched(native) for native in here.natives] == [0, 0]


def unwatched(native: Native) -> int:
    status = native.job_status(1)
    assert status and status["guard"]
    return int(status["guard"]["unwatched"])


def test_a_rank_that_is_never_quiet_is_reported(kernels: Loader) -> None:
    """It is stopped no more, until it goes elsewhere."""
    with job(kernels, [0, 0], workers=3) as (here, ranks):
        (native,) = here.natives
        for rank in ranks:
            rank.write(FIXED, bytes(4))
            rank.write(OWN + 4, bytes([rank.rank + 1]))
            rank.post(STREAM_CREATE, struct.pack("<QIi", 100, 1, 0))
        busy, other = ranks
        busy.launch("until", OWN, FIXED, 1, 0, threads=1, stream=100)
        until(lambda: native.status()["kernels"] == 1, native)
        for turn in range(1, 4):
            for rank in ranks:
                rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS)
                rank.begin(STREAM_SYNC, struct.pack("<Q", 1))
            assert [rank.finish() for rank in ranks] == [0, 0]
            assert unwatched(native) == (turn > 1)
        busy.write(FIXED, b"\1")
        sync(ranks)
        here.stop(1)
        assert native.job_leave(1)
        settle(native, 1, "saved")
        native.job_close(1)
        here.place(1, ranks, [0, 0])
        all_reduce(ranks, 1)
        assert unwatched(native) == 0 and other.read(FIXED, 1) == bytes(1)


def on_the_host(mark: bytes) -> list[int]:
    """The addresses in this process's own memory at which the mark ends a page, as in copies that
    several ranks have in common. The kernel shows neighbouring mappings as one; of the mappings
    that a sanitizer reserves, only the ends are searched, where neighbours may be."""
    found, half = set(), mark[: 2 * WORDS]
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            where, rights, *rest = line.split()
            begin, end = (int(at, 16) for at in where.split("-"))
            if rights != "rw-p" or rest[2] != "0" or end - begin < CHUNK:
                continue
            pieces = range(begin, end, 4 * CHUNK)  # the mark is within a page
            ends = [*pieces[:ENDS], *pieces[-ENDS:]] if len(pieces) > 16 * ENDS else pieces
            for place in ends:
                memory.seek(place)
                try:
                    content = memory.read(min(4 * CHUNK, end - place))
                except (OSError, OverflowError):  # it is mapped no more
                    continue
                at = content.find(half)
                while at >= 0:
                    # Behind zeros, and not a header: that would be an object of Python's.
                    if (place + at + len(half)) % 4096 == 0 and not any(content[at - 64 : at]):
                        found.add(place + at)
                    at = content.find(half, at + 1)
    return sorted(found)


def test_a_bit_that_flips_in_a_copy_of_several_ranks_is_an_alarm(kernels: Loader) -> None:
    """None of the ranks has the page on the device: the one copy on the host differs from the
    content that was copied to it."""
    mark = os.urandom(len(MARK))  # no other test of this process has left it anywhere
    with job(kernels, [0, 0, 0]) as (here, ranks):
        (native,) = here.natives
        for rank in ranks:
            rank.write(PARAMETERS, mark)
            rank.write(MOMENTS, MARK[::-1])
            rank.write(FIXED, MARK[::-1])  # so that the others are not about to be written on
        sync(ranks)
        until(lambda: len(on_the_host(mark)) == 1, native)
        all_reduce(ranks, PARTS)
        assert here.alarms() == [[]]
        here.spoilt = True

        def struck() -> bool:
            """The next rank's page may be on the device again: then the host copy belongs to no
            rank, and a later copy must be changed instead."""
            with Path("/proc/self/mem").open("r+b") as memory:
                for at in on_the_host(mark):
                    memory.seek(at + 5)
                    memory.write(bytes([mark[5] ^ 4]))
            all_reduce(ranks, PARTS)
            return bool(here.alarms()[0])

        until(struck, native)
        assert unwatched(native) == 0
