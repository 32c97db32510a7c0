"""Compares the order of addition of this package with gloo's, before a run begins."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
import torch.distributed as dist

from .order import ring_sum

LARGEST_WORLD = 16  # of a comparison: each rank has a connection to each other one
ELEMENTS = (1, 31, 4097)


def connected(world: int) -> list[Any]:
    """Gloo groups of `world` ranks in this process."""
    store = dist.HashStore()
    groups: dict[int, Any] = {}

    def connect(rank: int) -> None:
        groups[rank] = dist.ProcessGroupGloo(store, rank, world)

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [groups[rank] for rank in range(world)]


def gloo_sum(groups: list[Any], parts: list[torch.Tensor]) -> torch.Tensor:
    """Gloo's sum of one tensor per rank."""
    sums = [part.clone() for part in parts]
    works = [group.allreduce([each]) for group, each in zip(groups, sums, strict=True)]
    for work in works:
        work.wait()
    return sums[0]


def _equal(world: int) -> bool:
    groups = connected(world)
    generator = torch.Generator().manual_seed(world)
    for elements in ELEMENTS:
        parts = [torch.randn(elements, generator=generator) for _ in range(world)]
        mine = ring_sum(dict(enumerate(parts)), [list(range(world))])
        if not torch.equal(mine, gloo_sum(groups, parts)):
            return False
    return True


def sums_are_equal(world: int) -> bool:
    """Whether sums of `world` ranks have gloo's bits. Runs in a process of its own, since gloo's
    threads must not be there when processes are forked."""
    if world < 3:
        return True  # the sum of two has one order
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _equal(min(world, LARGEST_WORLD)) else 1)
    return os.waitpid(pid, 0)[1] == 0
