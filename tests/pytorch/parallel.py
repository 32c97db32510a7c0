"""Ranks that use PyTorch's ways to train in parallel, and its collectives.

Each way prints one line per rank and round: its name, the last loss and a hash of the parameters.
The result of a collective is compared with what the rank computes on the CPU from all inputs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
ROUNDS = 5  # so that there is time to move the job
TYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
)
Way = Callable[[], tuple[float, Iterable[Tensor]]]

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


# ---- collectives -------------------------------------------------------------------------------


def collectives(dtype: torch.dtype) -> None:
    inputs = [(torch.arange(6) + r).to(dtype) for r in range(ranks)]
    stacked, mine = torch.stack(inputs), inputs[rank].to(device)
    operations = {
        dist.ReduceOp.SUM: stacked.sum(0).to(dtype),
        dist.ReduceOp.PRODUCT: stacked.prod(0).to(dtype),
        dist.ReduceOp.MIN: stacked.amin(0),
        dist.ReduceOp.MAX: stacked.amax(0),
    }
    if dtype.is_floating_point:
        operations[dist.ReduceOp.AVG] = stacked.mean(0)
    for operation, expected in operations.items():
        dist.all_reduce(result := mine.clone(), operation)
        check(result, expected)
    dist.reduce(result := mine.clone(), ranks - 1)
    if rank == ranks - 1:
        check(result, operations[dist.ReduceOp.SUM])
    dist.broadcast(result := mine.clone(), ranks - 1)
    check(result, inputs[-1])

    dist.all_gather_into_tensor(result := mine.repeat(ranks), mine)
    check(result, stacked.flatten())
    dist.gather(mine, pieces := [mine.clone() for _ in inputs] if rank == 0 else None)
    check(torch.stack(pieces or []) if pieces else mine, stacked if pieces else inputs[rank])
    dist.scatter(
        result := mine.clone(), [each.to(device) for each in inputs] if rank == 0 else None
    )
    check(result, inputs[rank])
    dist.reduce_scatter_tensor(result := mine.clone(), mine.repeat(ranks))
    check(result, operations[dist.ReduceOp.SUM])
    dist.all_to_all_single(result := mine.repeat(ranks), mine.repeat(ranks))
    check(result, stacked.flatten())

    received = torch.empty_like(mine)
    ring = [
        dist.P2POp(dist.isend, mine, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    check(received, inputs[rank - 1])


def check(result: Tensor, expected: Tensor) -> None:
    """All inputs are small whole numbers: sums and products are exact in every type."""
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)


def objects_and_gloo() -> None:
    dist.barrier()
    found: list[dict[str, int]] = [{}] * ranks
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": each} for each in range(ranks)]
    on_cpu = dist.new_group(backend="gloo")
    dist.all_reduce(result := torch.ones(3), group=on_cpu)
    check(result, torch.full((3,), float(ranks)))


# ---- ways to train -----------------------------------------------------------------------------


def network(norm: type[nn.Module] = nn.LayerNorm) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), norm(32), nn.Linear(32, 4)).to(device)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(device)
    return x, (x.sum(1) > 0).long()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, same: bool = False, parts: int = 1
) -> tuple[float, Iterable[Tensor]]:
    """`same`: all ranks have the same batches. `parts`: gradients of as many are accumulated."""
    loss = torch.zeros(())
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(parts):
            x, y = batch(1000 * step + 10 * part + (0 if same else rank))
            loss = cross_entropy(model(x), y) / parts
            loss.backward()
        optimizer.step()
    return float(loss.detach()), model.parameters()


def data_parallel() -> tuple[float, Iterable[Tensor]]:
    model = DistributedDataParallel(network())
    return train(model, torch.optim.AdamW(model.parameters(), 1e-2))


def accumulated() -> tuple[float, Iterable[Tensor]]:
    model = DistributedDataParallel(network())
    return train(model, torch.optim.AdamW(model.parameters(), 1e-2), parts=3)


def zero_redundancy() -> tuple[float, Iterable[Tensor]]:
    model = DistributedDataParallel(network())
    parameters = model.parameters()
    optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam, lr=1e-2)
    return train(model, optimizer)


def synchronised_norm() -> tuple[float, Iterable[Tensor]]:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(network(nn.BatchNorm1d))
    model = DistributedDataParallel(model)
    return train(model, torch.optim.SGD(model.parameters(), 1e-2))


def fully_sharded_1() -> tuple[float, Iterable[Tensor]]:
    model = FullyShardedDataParallel(network(), use_orig_params=True)
    return train(model, torch.optim.AdamW(model.parameters(), 1e-2))


def fully_sharded_2() -> tuple[float, Iterable[Tensor]]:
    model = network()
    fully_shard(model[0])
    fully_shard(model)
    return train(model, torch.optim.AdamW(model.parameters(), 1e-2))


def tensor_parallel() -> tuple[float, Iterable[Tensor]]:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    model = parallelize_module(model, init_device_mesh("cuda", (ranks,)), plan)
    return train(model, torch.optim.SGD(model.parameters(), 1e-2, foreach=False), same=True)


def pipeline() -> tuple[float, Iterable[Tensor]]:
    torch.manual_seed(rank)
    stage = nn.Linear(16, 16).to(device)
    optimizer = torch.optim.SGD(stage.parameters(), 1e-2)
    schedule = ScheduleGPipe(PipelineStage(stage, rank, ranks, device), 4, loss_fn=mse_loss)
    losses: list[Tensor] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, _ = batch(step)
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=x, losses=losses)
        else:
            schedule.step()
        optimizer.step()
    return float(sum(losses)), stage.parameters()


WAYS: tuple[Way, ...] = (
    data_parallel,
    accumulated,
    zero_redundancy,
    synchronised_norm,
    fully_sharded_1,
    fully_sharded_2,
    tensor_parallel,
    pipeline,
)


def digest(parameters: Iterable[Tensor]) -> str:
    values = (each.full_tensor() if isinstance(each, DTensor) else each for each in parameters)
    return hashlib.sha256(b"".join(v.detach().cpu().numpy().tobytes() for v in values)).hexdigest()


def main() -> None:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    for _ in range(ROUNDS):
        for dtype in TYPES:
            collectives(dtype)
        objects_and_gloo()
        for way in WAYS:
            loss, parameters = way()
            print(way.__name__, loss.hex(), digest(parameters), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
