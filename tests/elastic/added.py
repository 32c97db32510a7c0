"""Compares the sums of rankfold.elastic with gloo's, for some ranks in 1, 2 … processes. The
processes are threads that are connected by gloo. Prints how many sums it compared.

Usage: added.py WORLD"""

import sys
import threading

import torch

from rankfold.elastic.host import GlooLink, blocks
from rankfold.elastic.order import ring_sum
from rankfold.elastic.selftest import connected, gloo_sum

SIZES = (1, 2, 3, 7, 8, 9, 31, 1000, 4097, 300_000, 3_000_001)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def ring(parts, groups):
    """The sum in every process."""
    ranks = blocks(len(parts), len(groups))
    sums = {}

    def one(index):
        mine = {rank: parts[rank] for rank in ranks[index]}
        link = GlooLink(groups[index]) if len(groups) > 1 else None
        sums[index] = ring_sum(mine, ranks, index, link)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums.values()


world = int(sys.argv[1])
processes = {count: connected(count) for count in range(1, world + 1)}
compared = 0
for size in SIZES:
    for kind in TYPES if size < 1_000_000 else TYPES[:1]:
        generator = torch.Generator().manual_seed(size)
        parts = [torch.randn(size, generator=generator).to(kind) for _ in range(world)]
        stock = gloo_sum(processes[world], parts)
        for groups in processes.values():
            for result in ring(parts, groups):
                assert torch.equal(result, stock), (size, kind, len(groups))
                compared += 1
print(compared)
