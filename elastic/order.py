"""The order in which gloo's ring all-reduce adds.

gloo divides a tensor into chunks, one per rank. Each begins at another rank and is passed to the
next lower rank, which adds its own values, until all have. Floating-point sums depend on that
order. Here a process adds the values of all its ranks before it passes a chunk on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import torch

LARGEST_SEGMENT = 1 << 20  # bytes; gloo divides chunks further, which does not change the order


class Chunk(NamedTuple):
    """The elements from `start` up to, and without, `stop`, and the rank whose values are first."""

    start: int
    stop: int
    first: int


class Run(NamedTuple):
    """Ranks of one process that add one after the other."""

    process: int
    ranks: list[int]


class Link(Protocol):
    """Connects a process to the others. Messages between two of them arrive in order."""

    def send(self, values: torch.Tensor, process: int) -> None: ...

    def receive(self, values: torch.Tensor, process: int) -> None: ...

    def flush(self) -> None:
        """Waits until everything is sent."""


def chunks(elements: int, element_bytes: int, world: int) -> list[Chunk]:
    """Those of a tensor of `elements` numbers for `world` ranks, 2 at least."""
    segments = max(-(-elements * element_bytes // LARGEST_SEGMENT), 2 * world)
    per_rank = -(-segments // world)
    segment_bytes = -(-elements * element_bytes // (per_rank * world))
    size = per_rank * -(-segment_bytes // element_bytes)
    return [
        Chunk(each * size, min((each + 1) * size, elements), (each - 1) % world)
        for each in range(world)
        if each * size < elements
    ]


def path(first: int, blocks: Sequence[Sequence[int]]) -> list[Run]:
    """How a chunk that begins at rank `first` passes the processes, which have the ranks `blocks`.
    If `first` is inside a block, the chunk comes back to that process once."""
    owner = {rank: process for process, block in enumerate(blocks) for rank in block}
    order = [(first - hop) % len(owner) for hop in range(len(owner))]
    return [Run(process, list(ranks)) for process, ranks in groupby(order, owner.__getitem__)]


def _add(piece: torch.Tensor, values: Sequence[torch.Tensor], first: bool) -> None:
    """Adds `values` to `piece`, one after the other; the first ones replace what it contains."""
    if first and len(values) == 1:
        piece.copy_(values[0])
    elif first:
        torch.add(values[0], values[1], out=piece)
    for value in values[2 if first else 0 :]:
        piece.add_(value)


def ring_sum(
    parts: Mapping[int, torch.Tensor],
    blocks: Sequence[Sequence[int]],
    index: int = 0,
    link: Link | None = None,
) -> torch.Tensor:
    """A new tensor with the sum over all ranks, bit for bit as gloo adds them.

    `parts` are the flat tensors of the ranks of process `index`. All processes call this at the
    same time; a single one needs no link."""
    some = next(iter(parts.values()))
    out = torch.empty_like(some)
    world = sum(map(len, blocks))
    if world == 1:
        return out.copy_(some)
    paths = [
        (chunk.start, chunk.stop, path(chunk.first, blocks))
        for chunk in chunks(out.numel(), out.element_size(), world)
    ]
    for hop in range(len(blocks) + 1):
        for start, stop, runs in paths:
            if hop >= len(runs) or runs[hop].process != index:
                continue
            piece = out[start:stop]
            if hop > 0 and link:
                link.receive(piece, runs[hop - 1].process)
            _add(piece, [parts[rank][start:stop] for rank in runs[hop].ranks], first=hop == 0)
            if hop + 1 < len(runs) and link:
                link.send(piece, runs[hop + 1].process)
    if link:
        others = [each for each in range(len(blocks)) if each != index]
        for start, stop, runs in paths:
            for other in others if runs[-1].process == index else ():
                link.send(out[start:stop], other)
        for start, stop, runs in paths:
            if runs[-1].process != index:
                link.receive(out[start:stop], runs[-1].process)
        link.flush()
    return out
