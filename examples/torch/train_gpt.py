"""Trains a small character-level GPT, data-parallel: plain PyTorch, one process per GPU.

    torchrun --nproc-per-node 4 train_gpt.py --steps 100

Each rank prints its own loss and the loss's bits, ``step 7 loss 3.14159274 40490fdb``, on stdout.
At the end it prints a hash of the parameters on stderr; with ``--out PREFIX`` it also writes them
to ``PREFIX-rank<r>.bin``, as raw float32. With ``--save FILE`` rank 0 writes what ``--load FILE``
continues from: model, optimizer, gradient scaler and the number of steps.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

TEXT = Path(__file__).resolve().parents[1] / "gpt/text/genesis.txt"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and step")
    parser.add_argument("--length", type=int, default=32, help="characters in a sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--amp", choices=("float16", "bfloat16", "off"), default="float16")
    parser.add_argument("--workers", type=int, default=2, help="processes that load data")
    parser.add_argument("--data", type=Path, default=TEXT)
    parser.add_argument("--out", metavar="PREFIX", help="write the final parameters")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 saves the training's state")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--load", metavar="FILE", help="continue from a saved state")
    return parser.parse_args()


class Characters(Dataset[tuple[Tensor, Tensor]]):
    """All sequences of a text: (characters, the characters after them), each int64[length]."""

    def __init__(self, text: str, length: int):
        alphabet = sorted(set(text))
        numbers = {character: number for number, character in enumerate(alphabet)}
        self.vocabulary, self.length = len(alphabet), length
        self.data = torch.tensor([numbers[character] for character in text])

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.data[index * self.length :][: self.length + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, float[batch, length, channels] → the same."""

    def __init__(self, channels: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before_attention = nn.LayerNorm(channels)
        self.project = nn.Linear(channels, 3 * channels)
        self.merge = nn.Linear(channels, channels)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        projected = self.project(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.merge(attended.transpose(1, 2).flatten(-2))
        result: Tensor = x + self.feed_forward(x)
        return result


class Gpt(nn.Module):
    """int64[batch, length] → scores of the next characters, float[batch, length, vocabulary]."""

    def __init__(self, options: argparse.Namespace, vocabulary: int):
        super().__init__()
        self.characters = nn.Embedding(vocabulary, options.channels)
        self.positions = nn.Parameter(0.02 * torch.randn(options.length, options.channels))
        self.blocks = nn.Sequential(
            *(
                Block(options.channels, options.heads, options.dropout)
                for _ in range(options.layers)
            )
        )
        self.scores = nn.Sequential(
            nn.LayerNorm(options.channels), nn.Linear(options.channels, vocabulary)
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.scores(self.blocks(self.characters(x) + self.positions))
        return result


def batches(
    loader: DataLoader[tuple[Tensor, Tensor]], sampler: DistributedSampler[tuple[Tensor, Tensor]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches, in another order in each epoch."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main() -> None:
    options = parse()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", local_rank)

    characters = Characters(options.data.read_text(), options.length)
    sampler = DistributedSampler(characters, seed=options.seed, drop_last=True)
    loader = DataLoader(
        characters,
        options.batch,
        sampler=sampler,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=True,
        drop_last=True,
    )

    torch.manual_seed(options.seed)  # every rank begins with the same parameters
    model = Gpt(options, characters.vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scaler = torch.amp.GradScaler("cuda", enabled=options.amp == "float16")
    begin = 0
    if options.load:
        saved = torch.load(options.load, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        begin = saved["steps"]
    replica = DistributedDataParallel(model, device_ids=[local_rank])
    torch.manual_seed(options.seed + 1 + rank)  # and has its own dropout

    kind = torch.bfloat16 if options.amp == "bfloat16" else torch.float16
    for step, (x, y) in zip(range(begin, options.steps), batches(loader, sampler), strict=False):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=kind, enabled=options.amp != "off"):
            scores = replica(x)
            loss = functional.cross_entropy(scores.flatten(0, 1), y.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        value = loss.item()
        print(f"step {step} loss {value:.9g} {struct.pack('>f', value).hex()}", flush=True)
        if options.save and rank == 0 and (step + 1) % options.save_every == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "steps": step + 1,
            }
            torch.save(state, options.save)

    parameters = torch.cat([each.detach().flatten() for each in model.parameters()]).cpu()
    raw = parameters.numpy().tobytes()
    print(f"parameters {hashlib.sha256(raw).hexdigest()}", file=sys.stderr, flush=True)
    if options.out:
        Path(f"{options.out}-rank{rank}.bin").write_bytes(raw)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
