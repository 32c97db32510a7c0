"""A script of DistributedDataParallel that `compare` runs, in stock processes and in logical
workers. It prints the bits of each loss, and digests of the state."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankfold import elastic

SIZE, BATCH, EPOCHS, CLASSES = 96, 4, 2, 10


class Images(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 16, 16, generator=generator), index % CLASSES


class Net(nn.Module):
    """Convolutions, BatchNorm, attention and dropout. Its gradients have several buckets' sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 4, 4)
        )
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.last = nn.Sequential(
            nn.Linear(512, 1024), nn.ReLU(), nn.Dropout(0.2), nn.Linear(1024, CLASSES)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.layer(self.first(x).flatten(2).transpose(1, 2)).flatten(1))


def digest(tensors: Any) -> str:
    found = hashlib.sha256()
    for each in tensors:
        found.update(each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def bits(number: torch.Tensor) -> str:
    return bytes(number.detach().float().cpu().numpy()).hex()


def train(device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net = DistributedDataParallel(Net().to(device), bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    net, optimizer, schedule = elastic.wrap(net, optimizer, schedule)
    sampler = torch.utils.data.DistributedSampler(Images(), world, rank)
    loader = torch.utils.data.DataLoader(Images(), BATCH, sampler=sampler)
    for epoch in elastic.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(elastic.steps(loader)):
            x = x.to(device) + 0.1 * torch.randn(x.shape, device=device)
            loss = nn.functional.cross_entropy(net(x), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            print(f"rank {rank} epoch {epoch} step {step}", *map(bits, (loss, mean, norm)))
        schedule.step()
    parameters = list(net.parameters())
    state = [each for p in parameters for each in optimizer.state[p].values()]
    print(f"rank {rank}", digest(parameters), digest(state), digest(net.buffers()))


def main() -> None:
    on_gpu = torch.cuda.is_available()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # the runtime's default on GPUs
    dist.init_process_group("gloo")
    train(torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu"))


if __name__ == "__main__":
    main()
