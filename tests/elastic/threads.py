"""Prints with how many threads PyTorch's operators run, and sums whose bits depend on that. Rank 1
uses as many threads as it has cores, and two more.

Usage: threads.py FILE, to which each process of the run adds how many its ranks begin with."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import rankfold.elastic as elastic

STEPS = 60
dist.init_process_group("gloo")
with open(sys.argv[1], "a") as file:
    file.write(f"{torch.get_num_threads()}\n")
if dist.get_rank() == 1:
    torch.set_num_threads(2 + len(os.sched_getaffinity(0)))
model = DDP(nn.Linear(4, 4))
model, opt, _ = elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
numbers = torch.randn(1 << 17, generator=torch.Generator().manual_seed(3))
for _ in elastic.epochs(1):
    for x in elastic.steps(DataLoader([torch.ones(4)] * STEPS)):
        model(x).sum().backward()
        opt.step()
        print(torch.get_num_threads(), numbers.sum().item().hex(), flush=True)
        time.sleep(0.02)  # until the run is suspended
