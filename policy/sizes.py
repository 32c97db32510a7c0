"""The numbers of devices with which an elastic job is worth running."""

from __future__ import annotations

import functools
from bisect import bisect_right


@functools.lru_cache(maxsize=4096)  # called for the same jobs at every turn
def useful(world_size: int, least: int, most: int) -> tuple[int, ...]:
    """`least`, and each larger number up to `most` with which the device that has the most ranks
    has fewer of them; any other number makes the job no faster. Ascending. least, most: 1 to
    world_size."""
    sizes = [least]
    ranks = folds(world_size, least)
    while ranks > 1 and (devices := folds(world_size, ranks - 1)) <= most:
        sizes.append(devices)
        ranks = folds(world_size, devices)
    return tuple(sizes)


def folds(ranks: int, devices: int) -> int:
    """The ranks of the device that has the most."""
    return -(-ranks // devices)


def largest(sizes: tuple[int, ...], limit: int) -> int:
    """The largest of ascending numbers that is at most `limit`; 0 if there is none."""
    index = bisect_right(sizes, limit)
    return sizes[index - 1] if index else 0
