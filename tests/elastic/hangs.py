"""Rank RANK hangs in its third step, outside of collectives, until the file GO is there.

Usage: hangs.py RANK GO"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import rankfold.elastic as elastic

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 4))
model, opt, _ = elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
for number, x in enumerate(elastic.steps(DataLoader([torch.ones(4)] * 5))):
    while number == 2 and dist.get_rank() == int(sys.argv[1]) and not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()
print("end")
dist.destroy_process_group()
