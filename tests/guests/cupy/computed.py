"""Compares CuPy's results with NumPy's and prints the number of checks.

Each of CuPy 14's extension modules contains a CUDA runtime, and CuPy 12 needs the shared one of
CUDA 12; this program also opens the shared one of CUDA 13.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy as cp
import numpy as np

N = 4099
rng = np.random.default_rng(7)
checks = 0


def same(name: str, found: Any, wanted: Any, tolerance: float = 0.0) -> None:
    global checks
    np.testing.assert_allclose(cp.asnumpy(found), wanted, tolerance, tolerance, err_msg=name)
    checks += 1


def elements() -> None:
    x = rng.standard_normal(N).astype(np.float32)
    a = cp.asarray(x)
    same("arithmetic", (a + 2) * a, (x + 2) * x)
    same("sine", cp.sin(a), np.sin(x), 1e-6)
    same("chosen", cp.where(a > 0, a, -a), np.where(x > 0, x, -x))
    same("transposed", cp.ascontiguousarray(a[:4096].reshape(64, 64).T), x[:4096].reshape(64, 64).T)


def collected() -> None:
    """Computed by kernels of CUB and Thrust that are built into CuPy."""
    x = rng.integers(-1000, 1000, N)
    a = cp.asarray(x)
    same("sum", a.sum(), x.sum())
    same("greatest", a.reshape(1, -1).max(axis=1), [x.max()])
    same("sums", cp.cumsum(a), np.cumsum(x))
    same("sorted", cp.sort(a), np.sort(x))
    same("order", cp.argsort(a, kind="stable"), np.argsort(x, kind="stable"))


def products() -> None:
    x = rng.standard_normal((65, 33)).astype(np.float32)
    same("product", cp.asarray(x) @ cp.asarray(x.T), x @ x.T, 1e-4)


def own_kernel() -> None:
    code = 'extern "C" __global__ void triple(int *x) { x[threadIdx.x] *= 3; }'
    a = cp.arange(100, dtype=cp.int32)
    cp.RawKernel(code, "triple")((1,), (100,), (a,))
    same("own kernel", a, 3 * np.arange(100))


def shared_runtime() -> None:
    """Its streams, memory and errors are those of CuPy's runtimes."""
    runtime = ctypes.CDLL("libcudart.so.13")
    address, four = ctypes.c_void_p(), 4
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(four)) == 0
    memory = cp.cuda.UnownedMemory(address.value, four, None)
    a = cp.ndarray((1,), cp.int32, cp.cuda.MemoryPointer(memory, 0))
    a[...] = 41
    value = ctypes.c_int()
    a += 1
    assert runtime.cudaMemcpy(ctypes.byref(value), address, ctypes.c_size_t(four), 2) == 0
    same("value of the other runtime", np.int32(value.value), 42)
    assert runtime.cudaFree(address) == 0


for part in (elements, collected, products, own_kernel, shared_runtime):
    part()
print(f"{checks} checks")
