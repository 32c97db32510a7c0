"""The order in which gloo's ring all-reduce adds, as sums of one process.

gloo divides a tensor into segments. Each begins at another rank and is passed to the next lower
rank, which adds its own values, until all have. Floating-point sums depend on that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

LARGEST_SEGMENT = 1 << 20  # bytes


class Segment(NamedTuple):
    """The elements from `start` up to, and without, `stop`, and the rank whose values are first."""

    start: int
    stop: int
    first: int


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def segments(elements: int, element_bytes: int, world: int) -> list[Segment]:
    """Those of a tensor of `elements` numbers for `world` ranks, 2 at least."""
    total = elements * element_bytes
    count = _up(max(-(-total // LARGEST_SEGMENT), 2 * world), world)
    size = _up(-(-total // count), element_bytes) // element_bytes
    per_rank = count // world
    return [
        Segment(index * size, min((index + 1) * size, elements), (index // per_rank - 1) % world)
        for index in range(count)
        if index * size < elements
    ]


def ring_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A new tensor with the sum of the flat tensors `parts`, one per rank, bit for bit as gloo adds
    them."""
    world = len(parts)
    out = torch.empty_like(parts[0])
    if world == 1:
        return out.copy_(parts[0])
    for start, stop, first in segments(out.numel(), out.element_size(), world):
        piece = out[start:stop]
        torch.add(parts[first][start:stop], parts[(first - 1) % world][start:stop], out=piece)
        for hop in range(2, world):
            piece.add_(parts[(first - hop) % world][start:stop])
    return out
