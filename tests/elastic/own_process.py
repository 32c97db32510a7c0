"""Uses what a process has once, as if each rank had its own: the current folder, sys.stdout, which
it replaces, and streams that it closes.

Usage: own_process.py FOLDER"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

import rankfold.elastic as elastic


class Folders(Dataset):
    """Data workers have the folder of their rank."""

    def __len__(self):
        return 4 * dist.get_world_size()

    def __getitem__(self, index):
        return torch.ones(4) * float(open("number").read())


class Numbered:
    """A logger as some scripts have it."""

    def __init__(self, stream, rank):
        self.stream, self.rank = stream, rank

    def write(self, text):
        self.stream.write(text.replace("step", f"step of {self.rank}"))

    def flush(self):
        self.stream.flush()


dist.init_process_group("gloo")
rank = dist.get_rank()
os.makedirs(f"{sys.argv[1]}/{rank}", exist_ok=True)
os.chdir(f"{sys.argv[1]}/{rank}")
with open("number", "w") as number:
    number.write(str(1 + rank))
if rank == 1:
    torch.set_default_dtype(torch.float64)
dist.barrier()
print(torch.ones(1).dtype)
torch.set_default_dtype(torch.float32)
sys.stdout = Numbered(sys.stdout, rank)
print("not UTF-8: \udcff", file=sys.stderr)
model = DDP(torch.nn.Linear(4, 4))
model, opt, _ = elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
loader = DataLoader(Folders(), batch_size=2 * dist.get_world_size(), num_workers=1)
for _ in elastic.epochs(1):
    for x in elastic.steps(loader):
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()
        print("step", os.path.basename(os.getcwd()), x.sum().item())
if rank == 1:
    sys.stdout.stream.close()
    sys.stderr.close()
dist.barrier()
if rank != 1:
    print("step after another has closed its streams")
