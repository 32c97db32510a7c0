"""Rank 1 fails, ends, or forks amid its steps; the others continue. Prints each step.

Usage: ends.py NAME"""

import ctypes
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import rankfold.elastic as elastic


def raises():
    raise ValueError("a label is missing\nin the second file")


def exits():
    sys.exit(3)


def exits_with_text():
    sys.exit("no data left")


def exits_with_success():
    sys.exit()


def leaves():
    os._exit(4)


def crashes():
    ctypes.string_at(0)


def forks():
    """The forked process prints, exits with a status, and is waited for."""
    pid = os.fork()
    if pid == 0:
        print("forked by", dist.get_rank(), os.environ["RANK"])
        sys.exit(5)
    print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def forked_process_trains():
    """It returns to the loop, and the process that has forked it waits for it."""
    pid = os.fork()
    if pid:
        print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 4))
model, opt, _ = elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
for number, x in enumerate(elastic.steps(DataLoader([torch.ones(4)] * 4))):
    model(x).sum().backward()
    if (number, dist.get_rank()) == (1, 1):
        globals()[sys.argv[1]]()
    opt.step()
    print("step", number)
