"""A rank that requests of cuBLASLt what only NVIDIA's library has: products of complex numbers, and
of 8-bit floats with scales, and transformations of matrices. Compares the results with NumPy's, and
prints a line with a hash of the bits of each."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_byte, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np
from cublas.routines_program import RUNTIME, Memory, good

from support.formats import R_16BF, decode, encode

LT = ctypes.CDLL("libcublasLt.so.13")
R_32F, R_64F, C_64F, E4M3 = 0, 1, 5, 28
COMPUTE_32F, COMPUTE_64F = 68, 70
N, T, C = 0, 1, 2
POINTER_MODE, TRANSA, TRANSB, A_SCALE, B_SCALE = 2, 3, 4, 17, 18
ORDER, COUNT, STRIDE = 1, 5, 6
ALIGNMENTS = 5, 6, 7, 8
Array = np.ndarray[Any, Any]


@contextmanager
def described(kind: str, *arguments: Any) -> Iterator[c_void_p]:
    made = c_void_p()
    good(getattr(LT, f"cublasLt{kind}Create")(byref(made), *arguments))
    yield made
    good(getattr(LT, f"cublasLt{kind}Destroy")(made))


def put(kind: str, descriptor: c_void_p, number: int, value: Any) -> None:
    set_attribute = getattr(LT, f"cublasLt{kind}SetAttribute")
    good(set_attribute(descriptor, number, byref(value), c_size_t(ctypes.sizeof(value))))


@contextmanager
def layout(
    kind: int, rows: int, columns: int, ld: int, count: int = 1, stride: int = 0, order: int = 0
) -> Iterator[c_void_p]:
    with described("MatrixLayout", kind, c_uint64(rows), c_uint64(columns), c_int64(ld)) as made:
        put("MatrixLayout", made, ORDER, c_int(order))
        put("MatrixLayout", made, COUNT, c_int(count))
        put("MatrixLayout", made, STRIDE, c_int64(stride))
        yield made


def show(name: str, found: Array, wanted: Array) -> None:
    if not np.allclose(found, wanted, 1e-9, 1e-9):
        raise SystemExit(f"{name}: {found} where {wanted} should be")
    print(name, hashlib.sha256(found.tobytes()).hexdigest()[:16], flush=True)


def multiply(
    handle: c_void_p, desc: c_void_p, factors: list[c_void_p], at: list[c_void_p],
    layouts: list[c_void_p], chosen: bool,
) -> int:  # fmt: skip
    """The status of a product with the algorithm of the heuristic, or with none."""
    results, count = (c_byte * 96)(), c_int()
    with described("MatmulPreference") as preference:
        for number in ALIGNMENTS:
            put("MatmulPreference", preference, number, c_uint32(16))
        told = LT.cublasLtMatmulAlgoGetHeuristic(
            handle, desc, *layouts, preference, 1, results, byref(count)
        )
    if told or count.value != 1:
        return int(told)
    return int(
        LT.cublasLtMatmul(
            handle, desc, factors[0], at[0], layouts[0], at[1], layouts[1], factors[1], at[2],
            layouts[2], at[2], layouts[2], results if chosen else None, None, c_size_t(0), None,
        )
    )  # fmt: skip


def complex_products(handle: c_void_p, rng: np.random.Generator, on_device: bool) -> None:
    m, n, k, count = 3, 4, 5, 2
    a, b, c = (
        rng.integers(-4, 5, shape) + 1j * rng.integers(-4, 5, shape)
        for shape in ((count, m, k), (count, n, k), (count, n, m))
    )
    memories = [Memory(each) for each in (a, b, c)]
    alpha, beta = np.array([2 - 1j]), np.array([1j])
    kept = [Memory(each) for each in (alpha, beta)]
    factors = [
        memory.at if on_device else c_void_p(each.ctypes.data)
        for memory, each in zip(kept, (alpha, beta), strict=True)
    ]
    # By columns, A is k by m and transposed, B is k by n, and C is m by n.
    with (
        described("MatmulDesc", COMPUTE_64F, C_64F) as desc,
        layout(C_64F, k, m, k, count, m * k) as la,
        layout(C_64F, k, n, k, count, n * k) as lb,
        layout(C_64F, m, n, m, count, n * m) as lc,
    ):
        put("MatmulDesc", desc, TRANSA, c_int(C))
        put("MatmulDesc", desc, POINTER_MODE, c_int(on_device))
        at = [memory.at for memory in memories]
        good(multiply(handle, desc, factors, at, [la, lb, lc, lc], chosen=on_device))
    wanted = alpha * (a.conj() @ b.swapaxes(1, 2)).swapaxes(1, 2) + beta * c
    show("complex", memories[2].now(), wanted)


def scaled_products(handle: c_void_p, rng: np.random.Generator, kind: int) -> None:
    """The factors are 8-bit floats (a sign, four bits of an exponent, three of a fraction), or the
    same numbers in a type that the client's own products have, but without scales."""
    m, n, k = 4, 3, 16
    bits = [rng.integers(0, 64, shape).astype(np.uint8) + 40 for shape in ((m, k), (n, k))]
    values = [(8 + (x & 7)) * 2.0 ** ((x >> 3) - 10.0) for x in bits]
    stored = bits if kind == E4M3 else [encode(x, kind) for x in values]
    a, b, d = Memory(stored[0]), Memory(stored[1]), Memory(np.zeros((n, m), np.uint16))
    scales = [Memory(np.array([x], np.float32)) for x in (0.5, 4)]
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    with (
        described("MatmulDesc", COMPUTE_32F, R_32F) as desc,
        layout(kind, k, m, k) as la,
        layout(kind, k, n, k) as lb,
        layout(R_16BF, m, n, m) as lc,
    ):
        put("MatmulDesc", desc, TRANSA, c_int(T))
        put("MatmulDesc", desc, A_SCALE, scales[0].at)
        put("MatmulDesc", desc, B_SCALE, scales[1].at)
        factors = [c_void_p(each.ctypes.data) for each in (one, zero)]
        good(multiply(handle, desc, factors, [a.at, b.at, d.at], [la, lb, lc, lc], chosen=True))
    found = decode(d.now(), R_16BF)
    wanted = 2 * values[1] @ values[0].T
    if not (abs(found - wanted) <= abs(wanted) / 128).all():
        raise SystemExit(f"scaled: {found} where {wanted} should be")
    print("scaled", hashlib.sha256(found.tobytes()).hexdigest()[:16], flush=True)


def transformed(handle: c_void_p, rng: np.random.Generator, both: bool) -> int:
    m, n = 3, 5
    a, b = rng.integers(-9, 9, (n, m)).astype(float), rng.integers(-9, 9, (m, n)).astype(float)
    memories = [Memory(each) for each in (a, b, np.zeros((m, n)))]
    alpha, beta = np.array([2.0]), np.array([-3.0])
    with (
        described("MatrixTransformDesc", R_64F) as desc,
        layout(R_64F, m, n, m) as la,
        layout(R_64F, n, m, n) as lb,
        layout(R_64F, m, n, n, order=1) as lc,
    ):
        put("MatrixTransformDesc", desc, 3, c_int(T))
        status = LT.cublasLtMatrixTransform(
            handle, desc, c_void_p(alpha.ctypes.data), memories[0].at, la,
            c_void_p(beta.ctypes.data), memories[1].at if both else None, lb if both else None,
            memories[2].at, lc, None,
        )  # fmt: skip
    if not status:
        show("transformed", memories[2].now(), 2 * a.T - 3 * b * both)
    return int(status)


def main() -> None:
    handle, rng = c_void_p(), np.random.default_rng(int(os.environ["RANK"]))
    good(LT.cublasLtCreate(byref(handle)))
    told = transformed(handle, rng, True)
    if told:
        print("told", told, flush=True)
        return
    for flag in (False, True):
        transformed(handle, rng, flag)
        complex_products(handle, rng, flag)
        scaled_products(handle, rng, R_16BF if flag else E4M3)
    good(RUNTIME.cudaDeviceSynchronize())
    good(LT.cublasLtDestroy(handle))


main()
