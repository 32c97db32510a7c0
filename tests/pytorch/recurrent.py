"""Recurrent networks, which PyTorch computes by cuDNN unless that is switched off.

Usage: recurrent.py cudnn: with cuDNN. recurrent.py STEPS: compares gradients with the CPU's, trains
in data parallel, and prints each loss and a digest of the parameters.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(8, 16, num_layers=2, bidirectional=True, dropout=0.25)
        self.second = nn.GRU(32, 16)
        self.last = nn.RNN(16, 4, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [5, 4, 2])
        unpacked, _ = nn.utils.rnn.pad_packed_sequence(self.first(packed)[0])
        return self.last(self.second(unpacked)[0])[0]


def gradients(network: nn.Module, x: Tensor) -> Iterator[Tensor]:
    network.train()
    for each in network.modules():
        if isinstance(each, nn.LSTM):
            each.dropout = 0.0
    loss = network(x).square().sum()
    yield loss
    yield from torch.autograd.grad(loss, list(network.parameters()))


def compare() -> None:
    """With the CPU."""
    torch.manual_seed(0)
    network, x = Network(), torch.randn(5, 3, 8)
    exact = list(gradients(network, x))
    for mine, right in zip(gradients(network.to(device), x.to(device)), exact, strict=True):
        assert_close(mine.cpu(), right, rtol=1e-4, atol=1e-5)
    print("as on the CPU", flush=True)


def train(steps: int) -> None:
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    network = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.AdamW(network.parameters(), 0.01)
    for step in range(steps):
        torch.manual_seed(1000 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = (network(torch.randn(5, 3, 8, device=device)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        print(step, loss.item().hex(), flush=True)
    values = b"".join(each.detach().cpu().numpy().tobytes() for each in network.parameters())
    print(hashlib.sha256(values).hexdigest())
    dist.destroy_process_group()


def main() -> None:
    torch.cuda.set_device(device)
    if sys.argv[1] == "cudnn":
        nn.LSTM(8, 16).to(device)
        return
    torch.backends.cudnn.enabled = False
    compare()
    train(int(sys.argv[1]))


if __name__ == "__main__":
    main()
