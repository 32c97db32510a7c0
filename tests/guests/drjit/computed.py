"""Compares Dr.Jit's results on its CUDA backend with NumPy's and prints the number of checks."""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np
from drjit.cuda import Float, Float64, Int, Int64, UInt, UInt64
from drjit.cuda import ad as differentiable

N = 4099
SIZES = (2, 33, 1024, 4099, 100_003)
rng = np.random.default_rng(7)
checks = 0


def same(name: str, found: Any, wanted: Any, tolerance: float = 0.0) -> None:
    global checks
    found = np.asarray(found)
    wanted = np.asarray(wanted, found.dtype)
    if tolerance:
        np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=name)
    else:
        np.testing.assert_array_equal(found.ravel(), wanted.ravel(), err_msg=name)
    checks += 1


def elements() -> None:
    a, b = (rng.standard_normal(N) * 10 for _ in range(2))
    for kind, dtype, tolerance in ((Float, np.float32, 1e-5), (Float64, np.float64, 1e-12)):
        x, y = a.astype(dtype), b.astype(dtype)
        p, q = kind(x), kind(y)
        same("arithmetic", (p + q) * (p - q) / q, (x + y) * (x - y) / y)
        same("root", dr.sqrt(dr.abs(p)), np.sqrt(abs(x)))
        same("rounded", dr.floor(p) + dr.round(q), np.floor(x) + np.round(y))
        same("chosen", dr.select(p < q, p, dr.maximum(q, 1)), np.where(x < y, x, np.maximum(y, 1)))
        for name in ("sin", "exp", "atan", "tanh"):
            same(
                name,
                getattr(dr, name)(p),
                getattr(np, name.replace("atan", "arctan"))(x),
                tolerance,
            )
    x = rng.integers(-(2**63), 2**63 - 1, N)
    for kind, dtype in ((Int, np.int32), (UInt, np.uint32), (Int64, np.int64), (UInt64, np.uint64)):
        y, z = x.astype(dtype), x[::-1].astype(dtype)
        p, q = kind(y), kind(np.ascontiguousarray(z))
        same("integers", (p * q + (p ^ q)) >> 3, (y * z + (y ^ z)) >> 3)
        same(
            "bits", dr.popcnt(p), [bin(int(v) & (2 ** (8 * y.itemsize) - 1)).count("1") for v in y]
        )


def collected() -> None:
    for n in SIZES:
        x = rng.integers(-1000, 1000, n)
        for kind, dtype in ((Int, np.int32), (Int64, np.int64), (Float64, np.float64)):
            y = x.astype(dtype)
            same("sum", dr.sum(kind(y)), y.sum())
            same("greatest", dr.max(kind(y)), y.max())
            same("sums", dr.cumsum(kind(y)), np.cumsum(y))
        same("those", dr.compress(Int(x.astype(np.int32)) > 0), np.nonzero(x > 0)[0])
    for size in (3, 32, 100, 2000):
        x = rng.integers(-99, 99, 37 * size).astype(np.int32)
        same("blocks", dr.block_reduce(dr.ReduceOp.Add, Int(x), size), x.reshape(37, size).sum(1))
        same("less", dr.block_reduce(dr.ReduceOp.Min, Int(x), size), x.reshape(37, size).min(1))


def scattered() -> None:
    at, x = rng.integers(0, 97, 5003).astype(np.uint32), rng.integers(-50, 50, 5003)
    for kind, dtype in ((Int, np.int32), (Int64, np.int64), (Float, np.float32)):
        for mode in (dr.ReduceMode.Direct, dr.ReduceMode.Local, dr.ReduceMode.Expand):
            sums, wanted = dr.zeros(kind, 97), np.zeros(97, dtype)
            dr.scatter_reduce(dr.ReduceOp.Add, sums, kind(x.astype(dtype)), UInt(at), mode=mode)
            np.add.at(wanted, at, x.astype(dtype))
            same("added", sums, wanted)
    order = rng.permutation(5003).astype(np.uint32)
    moved = dr.zeros(Int, 5003)
    dr.scatter(moved, Int(x.astype(np.int32)), UInt(order))
    same("back", dr.gather(Int, moved, UInt(order)), x)


@dr.syntax
def collatz(x):  # type: ignore[no-untyped-def]
    steps = UInt(0)
    while x != 1:
        if (x & 1) == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    return steps


def flow() -> None:
    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    same("steps", collatz(dr.arange(UInt, 1000) + 1), [steps(n + 1) for n in range(1000)])
    sums, added = dr.zeros(Int, 3), [dr.opaque(Int, i + 5) for i in range(3)]

    def numbered(i: int) -> Any:
        def function(x: Int) -> Int:
            dr.scatter_add(sums, x, UInt(i))
            return x * i + added[i]

        return function

    n = np.arange(1000)
    which = dr.arange(UInt, 1000) % 3
    found = dr.switch(which, [numbered(i) for i in range(3)], dr.arange(Int, 1000))
    same("called", found, n * (n % 3) + n % 3 + 5)
    same("by the called", sums, [n[i::3].sum() for i in range(3)])


def gradient() -> None:
    x = rng.standard_normal(500).astype(np.float32)
    at = differentiable.Float(x)
    dr.enable_grad(at)
    dr.backward(dr.sum(dr.sin(at) * at * at))
    same("gradient", at.grad, np.cos(x) * x * x + 2 * x * np.sin(x), 1e-5)


for part in (elements, collected, scattered, flow, gradient):
    part()
print(f"{checks} checks")
