"""Trains a model that a test has generated. Prints each batch's samples, the loss, and a digest of
parameters, buffers and the optimizer's state after each step.

Usage: generated.py DESCRIPTION, a JSON object as `jobs` in test_generated.py makes them. KILLS has
STEP:RANK:WHO:FILE for each process that is killed once, before that step: that of the rank, or its
parent. FILE notes that it has been done."""

import contextlib
import hashlib
import json
import os
import random
import signal
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import rankfold.elastic as elastic

INPUTS, CLASSES, EPOCHS = 6, 3, 2
job = json.loads(sys.argv[1])
DTYPE = getattr(torch, job["dtype"])


class Noisy(Dataset):
    """Samples with their index, and noise of three generators."""

    def __len__(self):
        return job["samples"]

    def __getitem__(self, index):
        noise = random.random() + float(np.random.rand()) + torch.randn(INPUTS, dtype=DTYPE)
        return (index % 5) + 0.1 * noise, index % CLASSES, index


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Branches(nn.Module):
    """Each call uses another one: the others have no gradient."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        return self.branches[self.calls % len(self.branches)](x)


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gru = nn.GRU(1, width)

    def forward(self, x):
        return self.gru(x.t().unsqueeze(2))[0][-1]


class Convolved(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv1d(1, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(x.unsqueeze(1)).mean(1)


def made(layers, width):
    """A Sequential, and how many values it returns."""
    found = []
    for kind, *values in layers:
        if kind == "linear":
            found.append(nn.Linear(width, values[0]))
            width = values[0]
        elif kind == "recurrent":
            found.append(Recurrent(values[0]))
            width = values[0]
        elif kind == "convolved":
            found.append(Convolved(values[0]))
        elif kind == "norm":
            found.append(getattr(nn, values[0])(width))
        elif kind == "dropout":
            found.append(nn.Dropout(values[0]))
        elif kind == "residual":
            inner, wide = made(values[0], width)
            found.append(Residual(nn.Sequential(inner, nn.Linear(wide, width))))
        elif kind == "branches":
            inner = [nn.Linear(width, width) for _ in range(values[0])]
            found.append(Branches(*inner))
        else:
            found.append(getattr(nn, kind)())
    return nn.Sequential(*found), width


def digest(model, opt):
    found = hashlib.sha256()
    state = [each for p in model.parameters() for _, each in sorted(opt.state[p].items())]
    for tensor in (*model.parameters(), *model.buffers(), *state):
        if isinstance(tensor, torch.Tensor):
            found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def kill(step):
    for each in filter(None, os.environ.get("KILLS", "").split(",")):
        when, rank, who, file = each.split(":")
        if (int(when), int(rank)) != (step, dist.get_rank()):
            continue
        with contextlib.suppress(FileExistsError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
            os.kill(os.getppid() if who == "parent" else os.getpid(), signal.SIGKILL)
            signal.pause()


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for seed in (torch.manual_seed, random.seed, np.random.seed):
    seed(job["seed"] + rank)
body, width = made(job["layers"], INPUTS)
net = nn.Sequential(body, nn.Linear(width, CLASSES)).to(DTYPE)
model = DDP(net, bucket_cap_mb=job["bucket_mb"], **job["ddp"])
halves = [list(model.parameters())[::2], list(model.parameters())[1::2]]
groups = [{"params": halves[0]}, {"params": halves[1], "lr": 0.02}]
opt = getattr(torch.optim, job["optimizer"])(groups, lr=0.01)
sched = torch.optim.lr_scheduler.StepLR(opt, 2, 0.9)
model, opt, sched = elastic.wrap(model, opt, sched)
data = Noisy()
sampler = DistributedSampler(data, shuffle=job["shuffle"], seed=job["seed"])
loader = DataLoader(data, batch_size=job["batch"], sampler=sampler, **job["loading"])
kept = elastic.local(total=0.0, step=0)
for epoch in elastic.epochs(EPOCHS):
    sampler.set_epoch(epoch)
    for number, (x, y, index) in enumerate(elastic.steps(loader)):
        last = number == len(loader) - 1 or kept.step % job["accumulate"] == job["accumulate"] - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        if last:
            if job["clip"]:
                nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
            opt.step()
            opt.zero_grad()
            sched.step()
        kept.total += loss.item()
        print(epoch, number, index.tolist(), kept.total.hex(), random.random(), digest(model, opt))
        kept.step += 1
        kill(kept.step)
    if job["collective"]:
        sums = torch.tensor([kept.total])
        dist.all_reduce(sums)
        print("all", sums.item().hex())
dist.destroy_process_group()
