"""The expected result of each collective, bit for bit: NumPy along the one summation tree."""

from __future__ import annotations

import numpy as np

from collectives.engine import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVG,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCESCATTER,
    SCATTER,
    SUM,
    UFUNCS,
    Array,
    divide,
)
from collectives.links import ring


def tree(values: list[Array], op: int) -> Array:
    """Node [lo, hi) splits at lo + the largest power of two below hi - lo."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    with np.errstate(all="ignore"):
        joined: Array = UFUNCS[op](tree(values[:half], op), tree(values[half:], op))
    return joined


def reduced(values: list[Array], op: int) -> Array:
    total = tree(values, SUM if op == AVG else op)
    return divide(total, len(values)) if op == AVG else total


def wholly_on(device: int, where: list[int], lo: int, hi: int) -> list[tuple[int, int]]:
    """The largest nodes of the tree all of whose ranks are on this device."""
    if set(where[lo:hi]) == {device}:
        return [(lo, hi)]
    if hi - lo == 1:
        return []
    split = lo + (1 << ((hi - lo - 1).bit_length() - 1))
    return wholly_on(device, where, lo, split) + wholly_on(device, where, split, hi)


def over_links(values: list[Array], where: list[int], op: int, piece: int) -> Array:
    """An all-reduce whose devices a library joins: each device adds its own nodes from left to
    right, and the library adds what the devices have, piece by piece."""
    by = SUM if op == AVG else op
    parts = []
    for device in sorted(set(where)):
        part, *others = [
            tree(values[lo:hi], by) for lo, hi in wholly_on(device, where, 0, len(where))
        ]
        for other in others:
            with np.errstate(all="ignore"):
                part = UFUNCS[by](part, other)
        parts.append(part)
    pieces = [
        ring([part[at : at + piece] for part in parts], by)
        for at in range(0, len(values[0]), piece)
    ]
    total = np.concatenate(pieces)
    return divide(total, len(values)) if op == AVG else total


def sizes(kind: int, n: int) -> tuple[int, int]:
    """(blocks of `count` elements sent, received) by each rank."""
    return {
        ALLGATHER: (1, n),
        REDUCESCATTER: (n, 1),
        ALLTOALL: (n, n),
        GATHER: (1, n),
        SCATTER: (n, 1),
    }.get(kind, (1, 1))


def result(
    kind: int, send: list[Array], before: list[Array], count: int, op: int, root: int
) -> list[Array]:
    """The receive buffers afterwards; a rank that receives nothing keeps what it had."""
    n = len(send)
    after = [b.copy() for b in before]
    for r in range(n):
        if kind == ALLREDUCE or (kind == REDUCE and r == root):
            after[r] = reduced(send, op)
        elif kind == BROADCAST:
            after[r] = send[root].copy()
        elif kind == ALLGATHER or (kind == GATHER and r == root):
            after[r] = np.concatenate(send)
        elif kind == REDUCESCATTER:
            after[r] = reduced([s[r * count : (r + 1) * count] for s in send], op)
        elif kind == SCATTER:
            after[r] = send[root][r * count : (r + 1) * count].copy()
        elif kind == ALLTOALL:
            after[r] = np.concatenate([s[r * count : (r + 1) * count] for s in send])
    return after
