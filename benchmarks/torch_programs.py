"""Small programs in plain PyTorch, data-parallel: what benchmarks/pytorch.py measures.

    torchrun --nproc-per-node 2 torch_programs.py gpt --steps 20

Each rank prints the bits of its own loss: ``step 7 loss 40490fdb``. With ``--times PREFIX`` it
writes the nanoseconds of each step to ``PREFIX.<rank>``, of the clock and of CPU time. With
``--save FILE`` rank 0 writes the training's state at the end.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples/torch"))

Batch = tuple[Tensor, Tensor]
VOCABULARY = 64


def mlp(small: bool) -> tuple[nn.Module, Callable[[], Batch]]:
    width = 64 if small else 768
    layers = [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)] * 1
    model = nn.Sequential(*layers, nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
    return model, lambda: (torch.randn(16, width), torch.randint(10, (16,)))


def gpt(small: bool) -> tuple[nn.Module, Callable[[], Batch]]:
    from train_gpt import Gpt

    channels, length = (32, 16) if small else (320, 32)
    options = argparse.Namespace(
        channels=channels, length=length, layers=1 if small else 3, heads=2, dropout=0.1
    )

    def batch() -> Batch:
        characters = torch.randint(VOCABULARY, (2, length + 1))
        return characters[:, :-1].contiguous(), characters[:, 1:].contiguous()

    return Gpt(options, VOCABULARY), batch


class Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.layers(x))


def resnet(small: bool) -> tuple[nn.Module, Callable[[], Batch]]:
    channels, size = (8, 8) if small else (64, 8)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=1, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        Residual(channels),
        Residual(channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )
    return model, lambda: (torch.randn(4, 3, size, size), torch.randint(10, (4,)))


PROGRAMS = {"mlp": mlp, "gpt": gpt, "resnet": resnet}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--small", action="store_true", help="parameters of a few KiB")
    parser.add_argument("--times", metavar="PREFIX")
    parser.add_argument("--save", metavar="FILE")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(1)  # every rank begins with the same parameters
    model, batch = PROGRAMS[options.program](options.small)
    model.cuda()
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(2 + rank)  # and has its own batches and dropout

    times: list[str] = []
    for step in range(options.steps):
        begun, used = time.monotonic_ns(), time.process_time_ns()
        x, y = (each.cuda() for each in batch())
        loss = functional.cross_entropy(replica(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {struct.pack('>f', loss.item()).hex()}", flush=True)
        times.append(f"{time.monotonic_ns() - begun} {time.process_time_ns() - used}\n")
    if options.times:
        Path(f"{options.times}.{rank}").write_text("".join(times))
    if options.save and rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, options.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
