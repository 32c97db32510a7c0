"""Trains as if tensors were in a GPU's memory. Prints how many bytes of gradients the workers of
the process have there when one of them computes, beyond its own, and how many they have as a copy
after it: `parked.py [accumulate]`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from rankfold import elastic
from rankfold.elastic import gpu

gpu.holds = lambda tensor: True
if not hasattr(gpu, "models"):
    gpu.models = {}  # of all workers of the process

dist.init_process_group("gloo")
rank, accumulates = dist.get_rank(), "accumulate" in sys.argv
torch.manual_seed(0)
model = DDP(nn.Sequential(*(nn.Linear(256, 256) for _ in range(3))))
gpu.models[rank] = model
opt = torch.optim.SGD(model.parameters(), lr=0.01)
model, opt, _ = elastic.wrap(model, opt)


def bytes_of_others():
    return sum(
        each.grad.untyped_storage().nbytes()
        for other, its in gpu.models.items()
        for each in its.parameters()
        if other != rank and each.grad is not None and each.grad.numel() > 2**14
    )


data = [torch.full((256,), rank + number / 7) for number in range(24)]
for number, x in enumerate(elastic.steps(DataLoader(data, batch_size=4))):
    if number % 2 == 0 or not accumulates:
        opt.zero_grad()
    print("others", bytes_of_others())
    model(x).square().mean().backward()
    before = [each.grad.clone() for each in model.parameters()]
    dist.all_reduce(torch.ones(1))
    opt.step()
    print("same", all(map(torch.equal, before, [each.grad for each in model.parameters()])))
