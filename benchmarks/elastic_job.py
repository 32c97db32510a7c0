"""A script of DistributedDataParallel for benchmarks.elastic. Each rank writes OUT/RANK.json: CPU
seconds of its process for the steps, wall time at the beginning and end of each step, and the most
memory that its process had.

Usage: elastic_job.py OUT MODEL STEPS. PASSES: forward and backward passes per step. SAVE: rank 0
saves parameters and the optimizer's state in each step. DROPS: gradients are dropped after each
step, not before the next one. WORKERS: num_workers of the DataLoader."""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import rankfold.elastic as elastic

torch.set_num_threads(1)
out, model_name, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
VARIABLES = ("PASSES", "SAVE", "WORKERS", "DROPS")
passes, saves, workers, drops = (int(os.environ.get(name, 0)) for name in VARIABLES)
SKIPPED = 3  # steps before PyTorch has arranged its buckets
EXAMPLES = {"mlp": 32, "conv": 16, "small": 8, "large": 2, "state": 1, "losses": 16}


def made():
    if model_name == "conv":
        layers = [nn.Unflatten(1, (3, 16, 16)), nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24)]
        layers += [nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(24 * 256, 10))
    if model_name == "losses":  # whose sums depend on the instruction set
        layers = [nn.Linear(768, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 128)]
        return nn.Sequential(*layers, nn.LayerNorm(128), nn.Linear(128, 10))
    width = {"mlp": 512, "small": 64, "large": 2048, "state": 1680}[model_name]
    return nn.Sequential(
        nn.Linear(768, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DDP(made())
opt = torch.optim.Adam(model.parameters(), lr=1e-2 if model_name == "losses" else 1e-4)
model, opt, _ = elastic.wrap(model, opt)
torch.manual_seed(2 + rank)  # data of its own: sums of equal values would hide their order
batch = EXAMPLES[model_name]
rows = 8 * batch
data = TensorDataset(torch.randn(rows, 768), torch.randint(10, (rows,)))
loader = DataLoader(data, batch_size=batch, num_workers=workers)
kept = elastic.local(times=[], cpu=0.0, own=0.0, save=0.0, begun=time.time())
loss_of = nn.CrossEntropyLoss()
for _ in elastic.epochs(-(-steps // 8)):
    for x, y in elastic.steps(loader):
        began = time.time()
        if len(kept.times) == SKIPPED:
            dist.barrier()
            kept.cpu, kept.own = time.process_time(), time.thread_time()
        opt.zero_grad()
        for _ in range(passes - 1):
            with model.no_sync():
                loss_of(model(x), y).backward()
        found = model(x)
        loss = loss_of(found.double() if model_name == "losses" else found, y)
        loss.backward()
        opt.step()
        if drops:
            opt.zero_grad()
        kept.times.append((began, time.time()))
        if model_name == "state":
            print(*kept.times[-1], flush=True)
        if saves and rank == 0:
            before = time.thread_time()
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, f"{out}/saved")
            kept.save += time.thread_time() - before
        if model_name == "losses":
            print(loss.item().hex())
own = time.thread_time() - kept.own
dist.barrier()
pss = []
for pid in (os.getpid(), os.getppid()):
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        pss += [int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:")]
found = {
    "own": own,  # CPU seconds of the rank's thread
    "save": kept.save,  # CPU seconds
    "pss": pss,  # bytes of its process and the parent; of a page that n share, the nth part
    "begun": kept.begun,
    "cpu": time.process_time() - kept.cpu,
    "steps": len(kept.times) - SKIPPED,
    "times": kept.times,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "parameters": sum(each.numel() * 4 for each in model.parameters()),
    "pid": os.getpid(),
}
with open(f"{out}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
