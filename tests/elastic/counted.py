"""Appends a line of JSON to FILE at each step: descriptors, threads and anonymous memory (KiB) of
the process of rank 0, and of its parent.

Usage: counted.py FILE STEPS"""

import json
import os
import re
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import rankfold.elastic as elastic


def counted(pid):
    with open(f"/proc/{pid}/status") as status:
        text = status.read()
    threads, memory = (
        int(re.search(rf"{name}:\s*(\d+)", text)[1]) for name in ("Threads", "RssAnon")
    )
    return {"fds": len(os.listdir(f"/proc/{pid}/fd")), "threads": threads, "memory": memory}


dist.init_process_group("gloo")
model = DDP(nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)))
opt = torch.optim.AdamW(model.parameters())
model, opt, _ = elastic.wrap(model, opt)
data = [torch.ones(8) * each for each in range(2 * int(sys.argv[2]))]
for _ in elastic.epochs(1):
    for x in elastic.steps(DataLoader(data, batch_size=2)):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        if dist.get_rank() == 0:
            with open(sys.argv[1], "a") as file:
                line = {"own": counted(os.getpid()), "parent": counted(os.getppid())}
                file.write(json.dumps(line) + "\n")
