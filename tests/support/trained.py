"""Ranks of one job on one device that share what they train: parameters and moments. Each buffer
is in chunks of its own."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rankfold.proxy.native import Native
from support.answers import Kernels
from support.computing import Computing, sync
from support.devices import Devices, devices
from support.ring_client import CHUNK, CONTRACT, DEV_BASE, settle

WORDS = 96
VARIABLES = DEV_BASE
# Two chunks each; the words in use cross the border of both.
HOMES = [DEV_BASE + (1 + 2 * n) * CHUNK for n in range(5)]
PARAMETERS, MOMENTS, GRADIENT, OWN, OTHER = (home + CHUNK - 2 * WORDS for home in HOMES)
SCRATCH = HOMES[-1] + 4 * WORDS
ALLREDUCE = CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"]
STEPS = 3


@contextmanager
def folded(
    kernels: Kernels,
    count: int,
    chunks: int = 128,
    speed: float = 1.0,
    workers: int = 1,
    prepare: bool = True,
    quantum_ns: int = 0,
) -> Iterator[tuple[Devices, list[Computing]]]:
    """A job of `count` ranks on one device."""
    made = [Computing(rank, count, VARIABLES) for rank in range(count)]
    with devices(
        kernels, 1, chunks, speed, workers, prepare=prepare, quantum_ns=quantum_ns
    ) as here:
        here.place(1, made, [0] * count)
        try:
            for rank in made:
                rank.load(HOMES, 2 * CHUNK)
            assert [rank.finish() for rank in made] == [0] * count
            yield here, made
        finally:  # a kernel may wait for what does not come any more
            here.leave(1)
    for rank in made:
        rank.close()


def counts(native: Native, ranks: int) -> tuple[int, int]:
    """Kernels launched, and of these squashed."""
    statuses = [native.rank_status(1, rank) for rank in range(ranks)]
    assert all(statuses)
    kernels = sum(each.kernels for each in statuses if each)
    squashed = sum(each.squashed for each in statuses if each)
    status = native.status()
    assert (status["kernels"], status["squashed"]) == (kernels, squashed)
    return kernels, squashed


def words(rank: Computing, address: int) -> list[int]:
    return list(struct.unpack(f"<{WORDS}I", rank.read(address, 4 * WORDS)))


def begin_alike(ranks: list[Computing]) -> None:
    for rank in ranks:
        for address in (PARAMETERS, MOMENTS):
            rank.write(address, bytes(range(96)) * 4)
        rank.write(OWN, bytes([rank.rank + 1] * 4 * WORDS))
    sync(ranks)


def train(
    rank: Computing, step: int, add: int = 1, summed: int = GRADIENT, count: int = WORDS
) -> None:
    """Forward and backward pass, all-reduce, and an update of parameters and moments."""
    rank.launch("update", OWN, PARAMETERS, WORDS, step)
    rank.launch("scale", GRADIENT, OWN, WORDS, rank.rank)
    rank.collective(ALLREDUCE, summed, summed, count)
    rank.launch("update", MOMENTS, GRADIENT, WORDS, add)
    rank.launch("update", PARAMETERS, MOMENTS, WORDS, 2)


def train_beneath_a_sum(rank: Computing, step: int, add: int = 1) -> None:
    """As `train`; the sum takes in so much more that something can be done meanwhile."""
    train(rank, step, add, HOMES[2], 2 * CHUNK // 4)


def train_alike(ranks: list[Computing]) -> None:
    """Some steps, and then they share their parameters and moments."""
    begin_alike(ranks)
    for step in range(STEPS):
        for rank in ranks:
            train(rank, step)
        sync(ranks)
    for rank in reversed(ranks):  # what they have alike is found when they take turns
        rank.launch("scale", SCRATCH, SCRATCH, 1, 0)
        sync([rank])


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


@contextmanager
def at_once(native: Native, made: list[Computing]) -> Iterator[None]:
    """All begin what is posted within at the same time."""
    native.barrier(1, True)
    settle(native, 1, "cut")
    yield
    native.barrier(1, False)
    settle(native, 1, "running")
    for rank in made:
        rank.ring()


def let_go(native: Native) -> int:
    """How often a rank waited until nothing else could happen."""
    return _dumped(native, "let go")


def opened_early(native: Native) -> int:
    """How many pages of an update were while the sum before it was computed."""
    return _dumped(native, "pages opened early")


def _dumped(native: Native, name: str) -> int:
    match = re.search(rf"(\d+) {name}", native.debug_text())
    assert match
    return int(match[1])


@contextmanager
def shared(
    kernels: Kernels, count: int, speed: float = 1.0, workers: int = 1
) -> Iterator[tuple[Native, list[Computing]]]:
    """Ranks whose parameters and moments are shared: they have trained for some steps."""
    with folded(kernels, count, speed=speed, workers=workers) as (here, made):
        train_alike(made)
        assert counts(here.natives[0], count)[1] > 0
        yield here.natives[0], made


def updated(ranks: int, add: int) -> list[int]:
    p, m = (np.array(each, np.uint32) for each in trained(ranks, STEPS))
    return list((p * 5 + m + add).tolist())
