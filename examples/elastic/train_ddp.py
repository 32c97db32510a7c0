"""Trains a small classifier: `torchrun --nproc-per-node 4 train_ddp.py`."""

import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset):
    """Numbers with random augmentation from three generators."""

    def __len__(self):
        return 160

    def __getitem__(self, index):
        noise = random.random() + float(np.random.rand()) + torch.randn(16)
        return (index % 7) + 0.1 * noise, index % 7


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
random.seed(rank)
np.random.seed(rank)
net = nn.Sequential(
    nn.Linear(16, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Dropout(0.2), nn.Linear(300, 7)
)
model = DDP(net, bucket_cap_mb=0.01)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.9)
data = Noisy()
sampler = DistributedSampler(data, seed=3)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        print(epoch, loss.item().hex(), norm.item().hex(), (mean / world).item().hex())
if len(sys.argv) > 1:
    state = {"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}
    torch.save(state, f"{sys.argv[1]}/state-{rank}.pt")
dist.destroy_process_group()
