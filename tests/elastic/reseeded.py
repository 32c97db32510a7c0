"""Seeds its generators anew in the loop, and prints bytes that are no text."""

import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

import rankfold.elastic as elastic

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
random.seed(5)
np.random.seed(5)
model = DDP(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
model, opt, _ = elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
data = torch.arange(32.0 * world).view(-1, 4)
for epoch in elastic.epochs(2):
    sampler = DistributedSampler(data, seed=epoch)
    for number, x in enumerate(elastic.steps(DataLoader(data, sampler=sampler, batch_size=2))):
        if number == rank:  # each at another step
            torch.manual_seed(1000 + rank)
        if number == 2:
            random.seed(rank)
            np.random.seed(rank)
        opt.zero_grad()
        loss = (model(x) * torch.randn(4)).sum()
        loss.backward()
        opt.step()
        numbers = np.array([loss.item(), random.random(), np.random.rand()])
        sys.stdout.flush()
        sys.stdout.buffer.write(bytes(range(256)) + numbers.tobytes())
        sys.stdout.buffer.flush()
        os.write(2, numbers.tobytes()[::-1])
