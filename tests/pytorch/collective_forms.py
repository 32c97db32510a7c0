"""The forms of PyTorch's collectives that parallel.py does not use, on NCCL, each result compared
with what the rank computes on the CPU from the inputs of all ranks; and the same on gloo.

Each form prints its name, its type and a hash of the result, on every rank.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8)
COMPLEX = (torch.complex64, torch.complex128)
NARROW = (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)  # to NCCL they are bytes
REAL = (*FLOATS, *INTEGERS)
MOVED = (*REAL, *COMPLEX, *NARROW)

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
group: dist.ProcessGroup | None = None  # the default one, NCCL's


def values(dtype: torch.dtype, owner: int, count: int = 6) -> Tensor:
    """Returns the input of a rank: small whole numbers, so that sums and products are exact."""
    numbers = (torch.arange(count) + owner) % 4
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers - owner).double()).to(dtype)
    return (numbers % 2 if dtype is torch.bool else numbers).to(dtype)


def all_values(dtype: torch.dtype, count: int = 6) -> list[Tensor]:
    return [values(dtype, owner, count) for owner in range(ranks)]


def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
    """Returns zeros that were copied to the device: no kernel has to be compiled for their type."""
    return torch.zeros(*shape, dtype=dtype).to(device)


def show(
    name: str, dtype: torch.dtype, results: Sequence[Tensor], expected: Sequence[Tensor]
) -> None:
    torch.cuda.synchronize()
    found = [each.cpu().contiguous().view(torch.uint8) for each in results]
    wanted = [each.contiguous().view(torch.uint8) for each in expected]
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other), f"{name} {dtype}: {list(results)}, not {list(expected)}"
    digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in found)).hexdigest()
    print(name, str(dtype).removeprefix("torch."), digest[:16], flush=True)


# ---- collectives that move values --------------------------------------------------------------


def gathered_as_list(dtype: torch.dtype) -> None:
    mine = values(dtype, rank).to(device)
    dist.all_gather(pieces := [zeros(dtype, 6) for _ in range(ranks)], mine, group)
    show("all_gather", dtype, pieces, all_values(dtype))


def gathered_unevenly(dtype: torch.dtype) -> None:
    mine = values(dtype, rank, 3 + rank).to(device)
    pieces = [zeros(dtype, 3 + r) for r in range(ranks)]
    dist.all_gather(pieces, mine, group)
    show("all_gather uneven", dtype, pieces, [values(dtype, r, 3 + r) for r in range(ranks)])


def gathered_into_one(dtype: torch.dtype) -> None:
    mine = values(dtype, rank).to(device).reshape(2, 3)
    stacked = zeros(dtype, ranks, 2, 3)
    dist.all_gather_into_tensor(stacked, mine, group)
    show("all_gather_into_tensor", dtype, [stacked.flatten()], [torch.cat(all_values(dtype))])


def exchanged_unevenly(dtype: torch.dtype) -> None:
    """Rank r gives s % 3 + r % 2 values to rank s: some give none."""
    sizes = [[s % 3 + r % 2 for s in range(ranks)] for r in range(ranks)]  # [from][to]
    mine = values(dtype, rank, sum(sizes[rank])).to(device)
    received = [sizes[r][rank] for r in range(ranks)]
    result = zeros(dtype, sum(received))
    dist.all_to_all_single(result, mine, received, sizes[rank], group)
    every = [values(dtype, r, sum(sizes[r])).split(sizes[r])[rank] for r in range(ranks)]
    show("all_to_all_single uneven", dtype, [result], [torch.cat(every)])


def exchanged_as_lists(dtype: torch.dtype) -> None:
    given = [values(dtype, rank + 2 * s, 2 + s).to(device) for s in range(ranks)]
    pieces = [zeros(dtype, 2 + rank) for _ in range(ranks)]
    dist.all_to_all(pieces, given, group)
    show("all_to_all", dtype, pieces, [values(dtype, r + 2 * rank, 2 + rank) for r in range(ranks)])


def broadcast(dtype: torch.dtype) -> None:
    for root in range(ranks):
        dist.broadcast(result := values(dtype, rank).to(device), root, group)
        show(f"broadcast from {root}", dtype, [result], [values(dtype, root)])


def scattered(dtype: torch.dtype) -> None:
    every = [each.to(device) for each in all_values(dtype)]
    dist.scatter(result := zeros(dtype, 6), every if rank == 1 else None, 1, group)
    show("scatter", dtype, [result], [values(dtype, rank)])
    pieces = [zeros(dtype, 6) for _ in every] if rank == 2 % ranks else None
    dist.gather(every[rank], pieces, 2 % ranks, group)
    show("gather", dtype, pieces or [], all_values(dtype) if pieces else [])


def sent(dtype: torch.dtype) -> None:
    following, result = (rank + 1) % ranks, zeros(dtype, 6)
    mine = values(dtype, rank).to(device)
    if rank % 2:
        dist.recv(result, (rank - 1) % ranks, group)
        dist.send(mine, following, group)
    else:
        dist.send(mine, following, group)
        dist.recv(result, (rank - 1) % ranks, group)
    show("send", dtype, [result], [values(dtype, (rank - 1) % ranks)])


def coalesced_gathers(dtype: torch.dtype) -> None:
    mine = [values(dtype, rank, n).to(device) for n in (4, 6)]
    results = [zeros(dtype, ranks * n) for n in (4, 6)]
    with dist._coalescing_manager(group, device):
        for result, each in zip(results, mine, strict=True):
            dist.all_gather_into_tensor(result, each, group)
    show("coalesced all_gather", dtype, results, [torch.cat(all_values(dtype, n)) for n in (4, 6)])


# ---- collectives that reduce values ------------------------------------------------------------


def reduced(dtype: torch.dtype, operation: str, count: int = 6) -> Tensor:
    stacked = torch.stack(all_values(dtype, count))
    functions: dict[str, Callable[[], Tensor]] = {
        "SUM": lambda: stacked.sum(0).to(dtype),
        "PRODUCT": lambda: stacked.prod(0).to(dtype),
        "MIN": lambda: stacked.amin(0),
        "MAX": lambda: stacked.amax(0),
        "AVG": lambda: (stacked.sum(0) / ranks).to(dtype),
    }
    return functions[operation]()


def operations(dtype: torch.dtype) -> list[str]:
    """Those that PyTorch allows."""
    if dtype.is_complex:
        return ["SUM", "AVG"]
    return ["SUM", "PRODUCT", "MIN", "MAX", *(["AVG"] if dtype.is_floating_point else [])]


def all_reduced(dtype: torch.dtype) -> None:
    for name in operations(dtype):
        operation = getattr(ReduceOp, name)
        dist.all_reduce(result := values(dtype, rank).to(device), operation, group)
        show(f"all_reduce {name}", dtype, [result], [reduced(dtype, name)])
        for root in range(ranks):
            dist.reduce(result := values(dtype, rank).to(device), root, operation, group)
            if rank == root:
                show(f"reduce {name}", dtype, [result], [reduced(dtype, name)])


def scattered_sums(dtype: torch.dtype) -> None:
    for name in operations(dtype):
        operation = getattr(ReduceOp, name)
        mine = values(dtype, rank, 2 * ranks).to(device)
        expected = reduced(dtype, name, 2 * ranks).split(2)[rank]
        dist.reduce_scatter_tensor(result := zeros(dtype, 2), mine, operation, group)
        show(f"reduce_scatter_tensor {name}", dtype, [result], [expected])
        dist.reduce_scatter(result := zeros(dtype, 2), list(mine.split(2)), operation, group)
        show(f"reduce_scatter {name}", dtype, [result], [expected])


def scattered_uneven_sums(dtype: torch.dtype) -> None:
    sizes = [1 + r for r in range(ranks)]
    mine = values(dtype, rank, sum(sizes)).to(device)
    result = zeros(dtype, sizes[rank])
    dist.reduce_scatter(result, list(mine.split(sizes)), group=group)
    expected = reduced(dtype, "SUM", sum(sizes)).split(sizes)[rank]
    show("reduce_scatter uneven", dtype, [result], [expected])


def coalesced_sums(dtype: torch.dtype) -> None:
    sums = [values(dtype, rank, n).to(device) for n in (3, 5)]
    with dist._coalescing_manager(group, device):
        for each in sums:
            dist.all_reduce(each, group=group)
    show("coalesced all_reduce", dtype, sums, [reduced(dtype, "SUM", n) for n in (3, 5)])
    mine = [values(dtype, rank, n * ranks).to(device) for n in (2, 3)]
    parts = [zeros(dtype, n) for n in (2, 3)]
    with dist._coalescing_manager(group, device):
        for part, each in zip(parts, mine, strict=True):
            dist.reduce_scatter_tensor(part, each, group=group)
    expected = [reduced(dtype, "SUM", n * ranks).split(n)[rank] for n in (2, 3)]
    show("coalesced reduce_scatter", dtype, parts, expected)


def premultiplied(dtype: torch.dtype) -> None:
    operation = dist._make_nccl_premul_sum(2.0)
    dist.all_reduce(result := values(dtype, rank).to(device), operation, group)
    show("all_reduce PREMUL_SUM", dtype, [result], [2 * reduced(dtype, "SUM")])


def logical(dtype: torch.dtype) -> None:
    """PyTorch has NCCL reduce bool as bytes: SUM and MAX are or, PRODUCT and MIN are and."""
    stacked = torch.stack(all_values(dtype))
    for name in ("SUM", "MAX", "PRODUCT", "MIN"):
        expected = stacked.any(0) if name in ("SUM", "MAX") else stacked.all(0)
        dist.all_reduce(result := values(dtype, rank).to(device), getattr(ReduceOp, name), group)
        show(f"all_reduce {name}", dtype, [result], [expected])


# ---- others ------------------------------------------------------------------------------------


def objects() -> None:
    found: list[object] = [None] * ranks
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": r, "text": "x" * r} for r in range(ranks)], found
    some: list[object] = [rank, "from", {rank}]
    dist.broadcast_object_list(some, 1, device=device)
    assert some == [1, "from", {1}], some
    collected: list[object] | None = [None] * ranks if rank == 0 else None
    dist.gather_object((rank, "y" * rank), collected, 0)
    assert collected is None or collected == [(r, "y" * r) for r in range(ranks)], collected
    one: list[object] = [None]
    dist.scatter_object_list(one, [[r] * r for r in range(ranks)] if rank == 0 else None, 0)
    assert one == [[rank] * rank], one
    print("objects", flush=True)


def waits() -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.barrier(device_ids=[device.index])
    sums = [torch.full((1000,), rank + n).to(device) for n in range(3)]
    for work in reversed([dist.all_reduce(each, async_op=True) for each in sums]):
        work.wait()
    expected = [torch.full((1000,), sum(range(ranks)) + n * ranks) for n in range(3)]
    show("asynchronous", torch.int64, sums, expected)


def subgroups() -> None:
    """Groups of two ranks, a group of all, and a mesh of two dimensions."""
    whole = dist.new_group(list(range(ranks)))
    pairs, _ = dist.new_subgroups(2)
    dist.all_reduce(result := torch.full((2,), rank).to(device), group=pairs)
    first = rank // 2 * 2
    show("subgroup", result.dtype, [result], [torch.full((2,), 2 * first + 1)])
    dist.all_reduce(result := torch.ones(2).to(device), group=whole)
    show("new group", result.dtype, [result], [torch.full((2,), float(ranks))])
    mesh = dist.device_mesh.init_device_mesh("cuda", (2, ranks // 2), mesh_dim_names=("a", "b"))
    for name in ("a", "b"):
        dist.all_reduce(result := torch.full((2,), rank).to(device), group=mesh[name].get_group())
        members = dist.get_process_group_ranks(mesh[name].get_group())
        show(f"mesh {name}", result.dtype, [result], [torch.full((2,), sum(members))])


def functional() -> None:
    """The collectives that autograd and torch.compile use."""
    import torch.distributed._functional_collectives as functions
    import torch.distributed.nn.functional as differentiable

    mine = values(torch.float32, rank).to(device)
    result = functions.all_reduce(mine, "sum", dist.group.WORLD)
    show(
        "functional all_reduce",
        mine.dtype,
        [functions.wait_tensor(result)],
        [reduced(mine.dtype, "SUM")],
    )
    result = functions.all_gather_tensor(mine, 0, dist.group.WORLD)
    show(
        "functional all_gather",
        mine.dtype,
        [functions.wait_tensor(result)],
        [torch.cat(all_values(mine.dtype))],
    )
    mine.requires_grad_()
    gathered = differentiable.all_gather(mine)
    (sum(gathered) * (rank + 1)).sum().backward()
    total = float(sum(r + 1 for r in range(ranks)))
    show("gradient of all_gather", mine.dtype, [mine.grad], [torch.full((6,), total)])


def on_gloo() -> None:
    """The same forms on gloo, next to NCCL, with tensors on the CPU."""
    global device, group
    before, device, group = device, torch.device("cpu"), dist.new_group(backend="gloo")
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8):
        gathered_as_list(dtype)
        exchanged_unevenly(dtype)
        broadcast(dtype)
        scattered(dtype)
    dist.monitored_barrier(group)
    device, group = before, None


MOVING = (
    gathered_as_list,
    gathered_unevenly,
    gathered_into_one,
    exchanged_unevenly,
    exchanged_as_lists,
    broadcast,
    sent,
    coalesced_gathers,
)
OF_REAL_NUMBERS = (  # to PyTorch: its others refuse complex ones
    scattered,
    all_reduced,
    scattered_sums,
    scattered_uneven_sums,
    coalesced_sums,
)


def main() -> None:
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    for form in MOVING:
        for dtype in MOVED:
            form(dtype)
    for dtype in REAL:
        for form in OF_REAL_NUMBERS:
            form(dtype)
    for dtype in COMPLEX:
        all_reduced(dtype)
    for dtype in (torch.float32, torch.float64, torch.float16):
        premultiplied(dtype)
    logical(torch.bool)
    for each in (objects, waits, subgroups, functional, on_gloo):
        each()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
