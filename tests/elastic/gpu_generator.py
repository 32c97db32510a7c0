"""Prints numbers of a generator that stands for that of CUDA, which all workers of a process have
in common, in each rank: those that a stock process has."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from rankfold import elastic
from rankfold.elastic import gpu

if not hasattr(gpu, "generator"):
    gpu.generator = torch.Generator()
gpu.generators = lambda: (gpu.generator,)

dist.init_process_group("gloo")
gpu.generator.manual_seed(5 + dist.get_rank())
model = DDP(nn.Linear(3, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model, opt, _ = elastic.wrap(model, opt)
data = [torch.full((3,), float(number)) for number in range(12)]
for number, x in enumerate(elastic.steps(DataLoader(data, num_workers=int(os.environ["WORKERS"])))):
    before = torch.rand(2, generator=gpu.generator)
    loss = (model(x) * torch.rand(1, generator=gpu.generator)).sum()
    opt.zero_grad()
    loss.backward()
    print(number, before.tolist(), torch.rand(2, generator=gpu.generator).tolist())
    opt.step()
    print(number, torch.rand(2, generator=gpu.generator).tolist(), loss.item().hex())
