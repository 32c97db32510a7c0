"""Prints batches of loaders with pin_memory=True: on this machine, which has no accelerator, and as
if it had one, with batches that say whether they are pinned."""

import warnings

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import rankfold.elastic as elastic


class Batch:
    def __init__(self, items):
        self.items = items
        self.is_pinned = False

    def pin_memory(self):
        self.is_pinned = True
        return self


warnings.simplefilter("ignore")  # that no accelerator is found
dist.init_process_group("gloo")
for workers in (0, 1):
    loader = DataLoader(list(range(6)), batch_size=2, pin_memory=True, num_workers=workers)
    for batch in elastic.steps(loader):
        print(workers, batch.tolist(), batch.is_pinned())
dist.barrier()
torch.accelerator.is_available = lambda: True
loader = DataLoader(list(range(6)), batch_size=2, pin_memory=True, collate_fn=Batch)
for batch in elastic.steps(loader):
    print(batch.items, batch.is_pinned)
dist.destroy_process_group()
