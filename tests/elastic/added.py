"""Compares the sums of rankfold.elastic with gloo's, for some ranks in 1, 2 … processes. The
processes are threads that are connected by gloo. Prints how many sums it compared.

Usage: added.py WORLD"""

import sys
import threading

import torch
import torch.distributed as dist

from rankfold.elastic.host import GlooLink, blocks
from rankfold.elastic.order import ring_sum

SIZES = (1, 2, 3, 7, 8, 9, 31, 1000, 4097, 300_000, 3_000_001)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def in_threads(count, function):
    """The results of `function` for 0, 1 …"""
    results = {}

    def run(index):
        results[index] = function(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[index] for index in range(count)]


def groups(count):
    store = dist.HashStore()
    return in_threads(count, lambda rank: dist.ProcessGroupGloo(store, rank, count))


def ring(parts, connected):
    """The sum in every process."""
    ranks = blocks(len(parts), len(connected))

    def one(index):
        mine = {rank: parts[rank] for rank in ranks[index]}
        return ring_sum(mine, ranks, index, GlooLink(connected[index]))

    if len(connected) == 1:
        return [ring_sum(dict(enumerate(parts)), ranks)]
    return in_threads(len(connected), one)


world = int(sys.argv[1])
processes = {count: groups(count) for count in range(1, world + 1)}
compared = 0
for size in SIZES:
    for kind in TYPES if size < 1_000_000 else TYPES[:1]:
        generator = torch.Generator().manual_seed(size)
        parts = [torch.randn(size, generator=generator).to(kind) for _ in range(world)]
        summed = [part.clone() for part in parts]
        works = [group.allreduce([t]) for group, t in zip(processes[world], summed, strict=True)]
        for work in works:
            work.wait()
        for connected in processes.values():
            for result in ring(parts, connected):
                assert torch.equal(result, summed[0]), (size, kind, len(connected))
                compared += 1
print(compared)
