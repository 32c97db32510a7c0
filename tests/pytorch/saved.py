"""Trains with all that PyTorch keeps next to the device, and can be held up while it is saved.

Usage: saved.py PACE: in each step every rank pauses for as many milliseconds as the file PACE has
bytes. Ranks have processes and a thread that load data, a tensor in shared memory that a process
changes, a TCPStore of their own, and a group of gloo. Rank 0 writes once.pt in one step only.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, WRITTEN = 40, 5
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Batches(Dataset[Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(ranks * index + rank)
        return torch.randn(64, 256, generator=generator)  # in shared memory: 64 KiB


def add(
    shared: Tensor, steps: multiprocessing.Queue[int], done: multiprocessing.Queue[int]
) -> None:
    torch.set_num_threads(1)  # OpenMP's threads are not in a fork
    while (step := steps.get()) >= 0:
        shared += step
        done.put(step)


def pause() -> None:
    begun = time.monotonic()
    while os.path.exists(sys.argv[1]):
        if time.monotonic() - begun >= os.path.getsize(sys.argv[1]) / 1000:
            break
        time.sleep(0.005)


def main() -> None:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    gloo = dist.new_group(backend="gloo")
    store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(minutes=5), use_libuv=False)
    shared = torch.zeros(100_000).share_memory_()
    context = multiprocessing.get_context("fork")
    steps, done = context.Queue(), context.Queue()
    adder = context.Process(target=add, args=(shared, steps, done))
    adder.start()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(256, 8).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loader = DataLoader(Batches(), None, num_workers=2, pin_memory=True, prefetch_factor=2)
    for step, x in enumerate(loader):
        loss = model(x.to(device, non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.put(step)
        done.get()
        dist.all_reduce(total := shared[:1].clone(), group=gloo)
        counted = store.add("steps", 1)
        if step == WRITTEN and rank == 0:
            torch.save(model.state_dict(), "once.pt")
        print(step, loss.item().hex(), total.item(), counted, flush=True)
        pause()
    steps.put(-1)
    adder.join()
    values = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
    print(hashlib.sha256(values).hexdigest(), shared.unique().tolist(), adder.exitcode)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
