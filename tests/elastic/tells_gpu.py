"""Trains slowly. Each rank prints the GPU that its process sees, and how much of it it may take."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from rankfold import elastic

dist.init_process_group("gloo")
model = DDP(nn.Linear(3, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model, opt, _ = elastic.wrap(model, opt)
for epoch in elastic.epochs(40):
    for number, x in enumerate(elastic.steps(DataLoader([torch.ones(3)] * 8))):
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()
        time.sleep(0.02)
        seen, memory = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["GPU_MEMORY"]
        print(epoch, number, seen, memory, os.environ["LOCAL_RANK"])
