"""Assigns ranks to devices: contiguous blocks in rank order, aligned to the reduction tree.

Pure. With D1 the ranks' values are combined along one binary tree over the ranks (node [lo, hi)
splits at lo + the largest power of two below hi − lo). A device computes one partial sum per tree
node that is needed to cover its block of ranks. So of all ways to cut the ranks into blocks whose
sizes differ by at most one, the one with the fewest such nodes is used.
"""

from __future__ import annotations

import functools

from rankfold import plural


@functools.lru_cache(maxsize=4096)  # called for the same jobs at every turn
def block_sizes(world_size: int, devices: int) -> tuple[int, ...]:
    """How many ranks each device gets, in rank order; sizes differ by at most one. Raises
    ValueError if there are more devices than ranks, or none."""
    if not 1 <= devices <= world_size:
        raise ValueError(
            f"{plural.count(world_size, 'rank')} cannot use {plural.count(devices, 'device')}"
        )
    small, larger = divmod(world_size, devices)

    # best[k]: (nodes, sizes) over the devices so far, if k of them have one rank more
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for placed in range(devices):
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for extra, (nodes, sizes) in best.items():
            start = placed * small + extra
            for more in (1, 0):
                count = extra + more
                if count > larger or larger - count > devices - placed - 1:
                    continue
                cost = nodes + cover(0, world_size, start, start + small + more)
                if count not in found or cost < found[count][0]:
                    found[count] = (cost, (*sizes, small + more))
        best = found
    return best[larger][1]


@functools.lru_cache(maxsize=65536)
def cover(lo: int, hi: int, start: int, stop: int) -> int:
    """How many nodes of the tree over [lo, hi) cover the ranks [start, stop)."""
    if start >= stop or stop <= lo or hi <= start:
        return 0
    if start <= lo and hi <= stop:
        return 1
    half = lo + (1 << ((hi - lo - 1).bit_length() - 1))
    return cover(lo, half, start, min(stop, half)) + cover(half, hi, max(start, half), stop)


def assign(world_size: int, devices: tuple[str, ...]) -> tuple[str, ...]:
    """The device of each rank."""
    sizes = block_sizes(world_size, len(devices))
    return tuple(name for name, size in zip(devices, sizes, strict=True) for _ in range(size))
