"""Promise: while a rank's turn ends, the memory of the one that comes next begins to come, if there
is room; what they compute is the same, and who is prepared when a cut comes leaves as any other."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from support.computing import Computing, sync
from support.ring_client import (
    CHUNK,
    EVENT_CREATE,
    EVENT_RECORD,
    NON_BLOCKING,
    STREAM_CREATE,
    STREAM_WAIT,
    settle,
)
from support.trained import ALLREDUCE, GRADIENT, OWN, WORDS, at_once, folded, words

RANKS, CHUNKS = 3, 16  # a rank has eleven
COMPUTES, BATCHES = 1000, 4
SIDE, HALF, AVERAGED = 100, 101, 102  # a stream, and events


def begin(made: list[Computing]) -> None:
    for rank in made:
        rank.post(STREAM_CREATE, struct.pack("<QIi", SIDE, NON_BLOCKING, 0))
        for event in (HALF, AVERAGED):
            rank.post(EVENT_CREATE, struct.pack("<QII", event, 0, 0))
        for at in (OWN, GRADIENT):
            rank.write(at, bytes([rank.rank + 1] * 4 * WORDS))
    sync(made)


def batch(rank: Computing, overlap: bool = True) -> None:
    """The all-reduce is called when half of what the rank computes is done; or else behind it all,
    as programs of one stream do."""
    for n in range(COMPUTES):
        if overlap and n == COMPUTES // 2:
            rank.post(EVENT_RECORD, struct.pack("<QQ", HALF, 1))
            rank.post(STREAM_WAIT, struct.pack("<QQ", HALF, SIDE))
            rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS, stream=SIDE)
            rank.post(EVENT_RECORD, struct.pack("<QQ", AVERAGED, SIDE))
        rank.launch("scale", OWN, OWN, WORDS, rank.rank)
    if overlap:
        rank.post(STREAM_WAIT, struct.pack("<QQ", AVERAGED, 1))
    else:
        rank.collective(ALLREDUCE, GRADIENT, GRADIENT, WORDS)


def computed(rank: int, batches: int) -> list[list[int]]:
    own = np.full(WORDS, 0x01010101 * (rank + 1), np.uint32)
    for _ in range(COMPUTES * batches):
        own = own * np.uint32(3) + np.uint32(rank)
    total = sum(0x01010101 * (each + 1) for each in range(RANKS)) * RANKS ** (batches - 1)
    return [own.tolist(), [total % (1 << 32)] * WORDS]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prepare", [True, False])
def test_the_next_one_comes_while_the_last_one_computes(
    kernels: Loader, prepare: bool, overlap: bool
) -> None:
    with folded(kernels, RANKS, CHUNKS, speed=0.01, prepare=prepare) as (here, made):
        (native,) = here.natives
        begin(made)
        for _ in range(BATCHES):
            with at_once(native, made):
                for rank in made:
                    batch(rank, overlap)
            sync(made)
        status = native.status()
        found = [native.rank_status(1, rank) for rank in range(RANKS)]
        assert sum(each.prepared for each in found if each) == status["prepared"]
        assert bool(status["prepared"]) == prepare
        # Nearly all that comes does so before its rank's turn, new pages as well.
        assert not prepare or status["prepared"] * CHUNK >= status["swapped_in"] > 0
        for rank in made:
            assert [words(rank, OWN), words(rank, GRADIENT)] == computed(rank.rank, BATCHES)


def test_a_cut_comes_while_the_next_one_is_prepared(kernels: Loader) -> None:
    with folded(kernels, RANKS, CHUNKS, speed=0.01) as (here, made):
        (native,) = here.natives
        begin(made)
        for number in range(BATCHES):
            for rank in made:
                batch(rank)
            native.barrier(1, True)
            settle(native, 1, "cut")
            native.job_save(1)
            here.saved(number)
            here.continue_running(1, made)
        sync(made)
        for rank in made:
            assert [words(rank, OWN), words(rank, GRADIENT)] == computed(rank.rank, BATCHES)
