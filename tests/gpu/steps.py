"""Training steps of PyTorch as the machine has it, timed: `steps.py [--only gpt2] …`.

The models are those of frameworks.py. Each rank prints a line of JSON for each: milliseconds of a
step (the median of the second half of the steps), bytes that PyTorch has allocated and reserved at
the peak, and bytes of parameters and moments. With several ranks the model is data-parallel.
Nothing here knows of rankfold.

`--lengths`: steps alternate between parts of the batch, from all of it to an eighth, so that the
allocator gets requests of other sizes. `--lines`: a line for each step, with the bits of its loss.
`--save FILE`: rank 0 writes what a program would save itself. `--calls FOLDER`: also calls of the
driver in a step (the median, of all processes that driver_calls.c counts there).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from frameworks import NAMES, Training, line, trainings


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=NAMES)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--scale", type=float, default=1, help="times the usual batch")
    parser.add_argument("--lengths", action="store_true")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after a step")
    parser.add_argument("--allocator", default="", help="PyTorch's settings of its allocator")
    parser.add_argument("--save")
    parser.add_argument("--calls", type=Path)
    return parser.parse_args()


def part_of(training: Training, step: int) -> Training:
    """An eighth to all of the batch."""
    whole = len(training.target)
    count = max(1, whole * (8 - step * 3 % 8) // 8)
    first, *others = training.inputs
    return replace(training, inputs=(first[:count], *others), target=training.target[:count])


def bytes_of(tensors: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tensors if hasattr(each, "numel"))


def driver_calls(folder: Path) -> int:
    """Calls of the driver until now."""
    return sum(int.from_bytes(path.read_bytes(), sys.byteorder) for path in folder.iterdir())


def measure(training: Training, options: argparse.Namespace, rank: int, ranks: int) -> None:
    import torch

    torch.manual_seed(2 + rank)
    run = training.model
    if ranks > 1:
        run = torch.nn.parallel.DistributedDataParallel(run)
    optimizer = torch.optim.AdamW(run.parameters(), lr=1e-3)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    calls: list[int] = []
    for step in range(options.steps):
        begun = time.perf_counter()
        now = part_of(training, step) if options.lengths else training
        loss = now.loss(run)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun))
        if options.calls:
            calls.append(driver_calls(options.calls))
        if options.lines:
            line(f"{training.name} rank {rank}", step, value)
        time.sleep(options.pause)
    moments = [each for state in optimizer.state.values() for each in state.values()]
    found = {
        "model": training.name,
        "rank": rank,
        "ms": statistics.median(times[len(times) // 2 :]),
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "state": bytes_of([*run.parameters(), *run.buffers(), *moments]),
    }
    if options.calls:
        each = [after - before for before, after in pairwise(calls)]
        found["calls"] = statistics.median(each[len(each) // 2 :])
    print(json.dumps(found), flush=True)
    if options.save and rank == 0:
        state = {"model": training.model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, options.save)


def main() -> None:
    options = arguments()
    if options.allocator:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = options.allocator  # before PyTorch is there
    import torch

    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if ranks > 1:
        torch.distributed.init_process_group("nccl")
    for training in trainings(options.scale, options.only):
        measure(training, options, rank, ranks)
        training.model.cpu()  # its memory is for the next one
        torch.cuda.empty_cache()
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    main()
