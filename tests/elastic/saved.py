"""Trains a small model, whose saved state another script, given another NAME, continues from.

Usage: saved.py NAME. `saves`: kills the run when it has saved state in STATES; others: a
script that differs in what NAME says."""

import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import rankfold.elastic as elastic

name = sys.argv[1]
dist.init_process_group("gloo")
net = nn.Linear(4, 5 if name == "shape" else 4)
if name == "parameters":
    net = nn.Sequential(net)
if name == "buffers":
    net.register_buffer("mean", torch.zeros(1))
model = DDP(net)
parts = [{"params": [each]} for each in model.parameters()]
kind = torch.optim.NAdam if name == "optimizer" else torch.optim.Adam
opt = kind(parts if name == "groups" else model.parameters(), 0.1)
sched = None if name == "scheduler" else torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
model, opt, sched = elastic.wrap(model, opt, sched)
if name == "local":
    elastic.local(best=0.0)
for number, x in enumerate(elastic.steps(DataLoader([torch.ones(4)] * 6))):
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()
    if (name, number, dist.get_rank()) == ("saves", 2, 0):
        while not list(pathlib.Path(os.environ["STATES"]).glob("step-*")):
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    print("step", number)
