"""Writes to descriptor 1 itself, and has a program and a data worker write there, in a run whose
number of processes changes."""

import os
import subprocess

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

import rankfold.elastic as elastic


class Written(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(4)


dist.init_process_group("gloo")
rank = dist.get_rank()
os.write(1, b"begins\n")
model = DDP(nn.Linear(4, 4))
opt = torch.optim.SGD(model.parameters(), 0.1)
model, opt, _ = elastic.wrap(model, opt)
for number, x in enumerate(elastic.steps(DataLoader(Written(), num_workers=1))):
    print("prints", rank, number)
    os.write(1, f"writes {rank} {number}\n".encode())
    model(x).sum().backward()
    subprocess.run(["echo", "echoes", str(rank), str(number)], check=True)
    opt.step()
    os.write(2, f"ends {rank} {number}\n".encode())
dist.destroy_process_group()
