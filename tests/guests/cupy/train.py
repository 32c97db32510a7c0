"""A network trained in data parallel with cupyx.distributed, a script: ``train.py STEPS``.

Before it trains, it compares each collective with what NumPy computes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import cupy as cp
import cupyx
import cupyx.distributed
import numpy as np

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
OLD = cp.__version__.startswith("12.")  # it refuses to add complex numbers
SIZE, BATCH = 32, 24
TYPES = ("b", "B", "i", "I", "q", "Q", "e", "f", "d", "F", "D")

add_bias_and_bend = cp.ElementwiseKernel(
    "T x, T bias", "T y", "y = x + bias; y = y > 0 ? y : y / 8", "add_bias_and_bend"
)
descend = cp.RawKernel(
    """extern "C" __global__ void descend(float *w, float *m, const float *g, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) { m[i] = 0.9f * m[i] + g[i]; w[i] -= 0.02f * m[i]; }
    }""",
    "descend",
)


def same(found: Any, wanted: Any) -> None:
    tolerance = 2e-2 if wanted.dtype.char == "e" else 1e-5
    np.testing.assert_allclose(cp.asnumpy(found), wanted, tolerance, tolerance)


def of_rank(rank: int, kind: str, *shape: int) -> Any:
    """Returns the values that a rank sends, which every rank can compute."""
    values = np.random.default_rng(100 + rank).integers(1, 4, shape or (RANKS, 5))
    return values.astype(kind) / (4 if kind in "efdFD" else 1)


def collectives(comm: Any, kind: str) -> None:
    all_of_them = [of_rank(rank, kind).astype(kind) for rank in range(RANKS)]
    mine = cp.asarray(all_of_them[RANK])
    out = cp.zeros_like(mine)
    operations = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    for name, operation in operations.items():
        if kind in "FD" and (name != "sum" or OLD):
            continue
        wanted = operation.reduce(all_of_them, dtype=kind)
        comm.all_reduce(mine, out, name)
        same(out, wanted)
        comm.reduce(mine, out, 1, name)
        if RANK == 1:
            same(out, wanted)
    out[...] = mine
    comm.broadcast(out, RANKS - 1)
    same(out, all_of_them[-1])
    part = cp.zeros(5, kind)
    if kind not in "FD" or not OLD:
        comm.reduce_scatter(mine, part, 5)
        same(part, np.add.reduce(all_of_them, dtype=kind)[RANK])
    comm.all_gather(mine[RANK].copy(), out, 5)
    same(out, np.stack([each[rank] for rank, each in enumerate(all_of_them)]))
    comm.scatter(mine, part, 2)
    same(part, all_of_them[2][RANK])
    comm.gather(part, out, 0)
    if RANK == 0:
        same(out, all_of_them[2])
    comm.all_to_all(mine, out)
    same(out, np.stack([each[RANK] for each in all_of_them]))
    if RANK < 2:
        comm.send_recv(mine, out, 1 - RANK)
        same(out, all_of_them[1 - RANK])
    if RANK == 2:
        comm.send(mine, 3)
    elif RANK == 3:
        comm.recv(out, 2)
        same(out, all_of_them[2])


def train(comm: Any, steps: int) -> None:
    rng = np.random.default_rng(7)
    wanted = rng.standard_normal((SIZE, SIZE), dtype=np.float32)
    parameters = rng.standard_normal(SIZE * (SIZE + 1), dtype=np.float32) / SIZE
    w = cp.asarray(parameters if RANK == 0 else np.zeros_like(parameters))
    comm.broadcast(w, 0)
    moments, gradient = cp.zeros_like(w), cp.empty_like(w)
    matrix, bias = w[SIZE:].reshape(SIZE, SIZE), w[:SIZE]
    cp.cuda.Device().synchronize()
    stream = cp.cuda.Stream(non_blocking=True)
    data = np.random.default_rng(1000 + RANK)
    for step in range(steps):
        x = data.standard_normal((BATCH, SIZE), dtype=np.float32)
        with stream:
            there, target = cp.asarray(x), cp.asarray(np.maximum(x @ wanted, 0))
            y = add_bias_and_bend(there @ matrix, bias)
            error = y - target
            slope = error * cp.where(y > 0, cp.float32(1), cp.float32(1 / 8)) / BATCH
            gradient[:SIZE] = slope.sum(axis=0)
            gradient[SIZE:] = (there.T @ slope).ravel()
            comm.all_reduce(gradient, gradient, stream=stream)
            gradient /= RANKS
            descend((w.size // 128 + 1,), (128,), (w, moments, gradient, np.int32(w.size)))
            worst = cp.sort((error * error).mean(axis=1))[-3:]
            loss = float((error * error).mean())
        print(f"step {step} loss {loss.hex()} worst {float(worst.sum()).hex()}", flush=True)
    stream.synchronize()
    print(hashlib.sha256(cp.asnumpy(w).tobytes()).hexdigest())


def main() -> None:
    cp.cuda.Device(int(os.environ["LOCAL_RANK"])).use()
    comm = cupyx.distributed.init_process_group(
        RANKS, RANK, host=os.environ["MASTER_ADDR"], port=int(os.environ["MASTER_PORT"])
    )
    for kind in TYPES:
        collectives(comm, kind)
    print("as NumPy computes them", flush=True)
    comm.barrier()  # not at the end: rank 0's CuPy ends the store before others have its reply
    train(comm, int(sys.argv[1]))
    cp.cuda.Device().synchronize()
    comm.stop()


if __name__ == "__main__":
    main()
