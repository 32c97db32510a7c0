"""Promise: time in which a device runs nothing because ranks share it is counted, by what it is
lost to; what a device runs is not, nor that it has nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.computing import Computing, sync
from support.devices import devices
from support.ring_client import CHUNK, DEV_BASE

WORDS = 96
VARIABLES, SHARED, OWN = DEV_BASE, DEV_BASE + CHUNK, DEV_BASE + 3 * CHUNK
LARGE = 8  # chunks


@contextmanager
def folded(
    kernels: Loader, ranks: int, chunks: int, speed: float = 1.0
) -> Iterator[tuple[Native, list[Computing]]]:
    made = [Computing(rank, ranks, VARIABLES) for rank in range(ranks)]
    with devices(kernels, 1, chunks, speed) as here:
        here.place(1, made, [0] * ranks)
        for rank in made:
            rank.load([SHARED], 2 * CHUNK)
        assert [rank.finish() for rank in made] == [0] * ranks
        for rank in made:
            rank.alloc(OWN, LARGE * CHUNK)
            rank.write(SHARED, bytes(range(96)) * 4)
            for page in range(LARGE):
                rank.write(OWN + page * CHUNK, bytes([rank.rank + 1, page]))
        sync(made)
        yield here.natives[0], made
        here.stop(1)
        here.leave(1)
    for rank in made:
        rank.close()


def spent(native: Native) -> dict[str, float]:
    status = native.job_status(1)
    assert status is not None
    found: dict[str, float] = status["spent"]
    assert all(seconds >= 0 for seconds in found.values())
    assert found["switches"] + found["copies"] + found["waiting"] <= found["seconds"]
    return found


def since(native: Native, before: dict[str, float]) -> dict[str, float]:
    return {name: seconds - before[name] for name, seconds in spent(native).items()}


def turns(ranks: list[Computing], steps: int) -> None:
    """Each writes to what is its own; one after the other."""
    for _ in range(steps):
        for rank in ranks:
            rank.launch("update", OWN, SHARED, WORDS, 1)
            sync([rank])


def test_a_rank_alone_loses_nothing(kernels: Loader) -> None:
    with folded(kernels, 1, 64) as (native, made):
        turns(made, 1)
        before = spent(native)
        turns(made, 20)
        time.sleep(0.02)  # nothing to do is no loss
        after = since(native, before)
        assert after["seconds"] >= 0.02
        assert [after[name] for name in ("switches", "copies", "waiting")] == [0.0, 0.0, 0.0]


def test_copies_for_lack_of_memory_count_as_overhead(kernels: Loader) -> None:
    with folded(kernels, 2, 4 + LARGE) as (native, made):
        before, moved = spent(native), native.status()["swapped_in"]
        turns(made, 6)
        after = since(native, before)
        assert native.status()["swapped_in"] - moved >= 6 * LARGE * CHUNK
        assert after["copies"] > 1e-4 and after["copies"] > after["switches"]


def test_turns_of_ranks_that_fit_are_switches(kernels: Loader) -> None:
    with folded(kernels, 2, 64) as (native, made):
        turns(made, 1)
        before, switches = spent(native), native.status()["switches"]
        turns(made, 20)
        after, switches = since(native, before), native.status()["switches"] - switches
        assert switches >= 20 and after["switches"] > 0.0
        assert after["copies"] == after["waiting"] == 0.0


def test_a_rank_that_waits_without_success_loses_that_time(kernels: Loader) -> None:
    with folded(kernels, 2, 64) as (native, made):
        for _ in range(5):  # what both have alike is found when they take turns
            turns(made, 1)
            for rank in made:
                rank.launch("update", SHARED, SHARED, WORDS, 3)
            sync(made)
        assert native.status()["squashed"] > 0
        before = spent(native)
        made[0].launch("update", SHARED, SHARED, WORDS, 7)
        sync(made[:1])  # it goes alone a millisecond after the other was heard of last
        assert since(native, before)["waiting"] > 5e-4


def test_running_kernels_are_no_overhead(kernels: Loader) -> None:
    """While the other rank waits for its turn the device works."""
    with folded(kernels, 2, 64, speed=0.01) as (native, made):
        turns(made, 1)
        before = spent(native)
        for rank in made:
            for _ in range(50):
                rank.launch("update", OWN, SHARED, WORDS, 1)
        sync(made)
        after = since(native, before)
        lost = after["switches"] + after["copies"] + after["waiting"]
        assert lost < after["seconds"] / 2
