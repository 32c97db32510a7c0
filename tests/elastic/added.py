"""Compares the sums of rankfold.elastic with gloo's. Prints how many it compared.

Usage: added.py WORLD"""

import sys
import threading

import torch
import torch.distributed as dist

from rankfold.elastic.order import ring_sum

SIZES = (1, 2, 3, 7, 8, 9, 31, 1000, 4097, 300_000, 3_000_001)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def groups(world):
    store, made = dist.HashStore(), {}

    def make(rank):
        made[rank] = dist.ProcessGroupGloo(store, rank, world)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[rank] for rank in range(world)]


world = int(sys.argv[1])
connected, compared = groups(world), 0
for size in SIZES:
    for kind in TYPES if size < 1_000_000 else TYPES[:1]:
        generator = torch.Generator().manual_seed(size)
        parts = [torch.randn(size, generator=generator).to(kind) for _ in range(world)]
        summed = [part.clone() for part in parts]
        works = [group.allreduce([t]) for group, t in zip(connected, summed, strict=True)]
        for work in works:
            work.wait()
        assert torch.equal(ring_sum(parts), summed[0]), (size, kind)
        compared += 1
print(compared)
