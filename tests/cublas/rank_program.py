"""A rank that calls cuBLAS's products in all their forms and compares them with NumPy's.

Operands are small integers, so results are exact; only GELU is compared within a bound. Prints a
line with a hash of the result's bits for each call, then what was refused and how. Arguments: the
number of calls, and a seed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_int, c_int64, c_longlong, c_size_t, c_uint64, c_void_p
from random import Random
from typing import Any

import numpy as np

from support.formats import R_8I, R_16BF, R_16F, R_32F, R_32I, R_64F, Array, decode, encode

RUNTIME = ctypes.CDLL("libcudart.so.13")
BLAS = ctypes.CDLL("libcublas.so.13")
LT = ctypes.CDLL("libcublasLt.so.13")
# (A and B, C, alpha and beta, cublasComputeType_t)
COMBINATIONS = [
    (R_32F, R_32F, R_32F, 68), (R_64F, R_64F, R_64F, 70), (R_16F, R_16F, R_32F, 68),
    (R_16F, R_16F, R_16F, 64), (R_16F, R_32F, R_32F, 68), (R_16BF, R_16BF, R_32F, 68),
    (R_16BF, R_32F, R_32F, 77), (R_8I, R_32F, R_32F, 68), (R_8I, R_32I, R_32I, 72),
]  # fmt: skip
TYPED = {"S": COMBINATIONS[0], "D": COMBINATIONS[1], "H": COMBINATIONS[3]}
EPILOGUES = {1: "", 2: "relu", 4: "bias", 6: "bias relu", 32: "gelu", 36: "bias gelu"}


def good(status: int) -> None:
    if status:
        raise SystemExit(f"status {status}")


def upload(array: Array) -> int:
    data, address = np.ascontiguousarray(array), c_void_p()
    good(RUNTIME.cudaMalloc(byref(address), c_size_t(data.nbytes)))
    good(RUNTIME.cudaMemcpy(address, c_void_p(data.ctypes.data), c_size_t(data.nbytes), 1))
    assert address.value is not None
    return address.value


class Matrices:
    """`count` matrices of one layout in device memory; what lies between them is kept as well."""

    def __init__(self, r: Random, kind: int, rows: int, columns: int, count: int, by_rows: bool):
        self.kind = kind
        line, lines = (columns, rows) if by_rows else (rows, columns)
        self.ld = line + r.randrange(4)
        self.stride = self.ld * lines + r.randrange(5) if count > 1 else 0
        b, i, j = np.ogrid[:count, :rows, :columns]
        self.where = b * self.stride + (i * self.ld + j if by_rows else i + j * self.ld)
        most = {R_16F: 3, R_16BF: 1}.get(kind, 9)
        rng = np.random.default_rng(r.getrandbits(32))
        size = int(self.where.max()) + 1 + r.randrange(3)
        self.memory = encode(rng.integers(-most, most + 1, size), kind)
        self.address = upload(self.memory)

    @property
    def values(self) -> Array:
        return decode(self.memory[self.where], self.kind)

    def download(self) -> Array:
        memory = np.empty_like(self.memory)
        good(RUNTIME.cudaMemcpy(c_void_p(memory.ctypes.data), c_void_p(self.address),
                                c_size_t(memory.nbytes), 2))  # fmt: skip
        return memory

    def list_of(self) -> int:
        """In device memory, the address of each."""
        size = self.memory.itemsize
        starts = [self.address + int(at) * size for at in self.where[:, 0, 0]]
        return upload(np.array(starts, np.uint64))

    def free(self) -> None:
        good(RUNTIME.cudaFree(c_void_p(self.address)))


def check(name: str, d: Matrices, expected: Array, bound: float = 0.0) -> None:
    """D's elements are as expected, and nothing else has changed."""
    found = d.download()
    wanted = decode(encode(expected, d.kind), d.kind)
    error = np.abs(decode(found[d.where], d.kind) - wanted)
    if not (error <= bound * (1 + np.abs(wanted))).all():
        raise SystemExit(f"{name}: off by {error.max()}")
    untouched = np.ones(len(found), bool)
    untouched[d.where] = False
    if found[untouched].tobytes() != d.memory[untouched].tobytes():
        raise SystemExit(f"{name}: it wrote beside its matrix")
    print(name, hashlib.sha256(found.tobytes()).hexdigest()[:16], flush=True)


class Scalars:
    """Alpha and beta in host memory, or in the device's."""

    def __init__(self, kind: int, values: tuple[int, int], on_device: bool):
        self.kept = [encode(np.array([v]), kind) for v in values]
        self.device = [upload(k) for k in self.kept] if on_device else []
        self.at = [c_void_p(a) for a in self.device or [k.ctypes.data for k in self.kept]]

    def free(self) -> None:
        for address in self.device:
            good(RUNTIME.cudaFree(c_void_p(address)))


def with_operation(x: Matrices, turned: bool) -> Array:
    return x.values.transpose(0, 2, 1) if turned else x.values


def blas_case(r: Random, handle: c_void_p) -> None:
    family = r.choice(["{}gemm", "{}gemmStridedBatched", "{}gemmBatched", "GemmEx", "SgemmEx",
                       "GemmStridedBatchedEx", "GemmBatchedEx"])  # fmt: skip
    typed = r.choice("SDH")
    name, wide = "cublas" + family.format(typed), r.random() < 0.3
    ab, cd, scale, compute = TYPED[typed] if "{" in family else r.choice(COMBINATIONS)
    if family == "SgemmEx":
        ab, cd, scale, compute = r.choice([c for c in COMBINATIONS if c[2:] == (R_32F, 68)])
    count = r.randrange(1, 4) if "Batched" in family else 1
    m, n, k = (r.randrange(1, 30) for _ in range(3))
    ta, tb = r.randrange(3), r.randrange(3)
    a = Matrices(r, ab, *((k, m) if ta else (m, k)), count, False)
    b = Matrices(r, ab, *((n, k) if tb else (k, n)), count, False)
    c = Matrices(r, cd, m, n, count, False)
    factors, on_device = (r.choice((0, 1, 2)), r.choice((0, 1, -1))), r.random() < 0.3
    scalars = Scalars(scale, factors, on_device)
    number: Callable[[int], Any] = c_int64 if wide else c_int
    lists = [x.list_of() for x in (a, b, c)] if "emmBatched" in family else []

    def operand(index: int, x: Matrices) -> list[Any]:
        kind = [c_int(x.kind)] if family.endswith("Ex") else []
        stride = [c_longlong(x.stride)] if "Strided" in family else []
        return [c_void_p(lists[index] if lists else x.address), *kind, number(x.ld), *stride]

    good(BLAS.cublasSetPointerMode_v2(handle, int(on_device)))
    arguments = [handle, ta, tb, number(m), number(n), number(k), scalars.at[0], *operand(0, a),
                 *operand(1, b), scalars.at[1], *operand(2, c)]  # fmt: skip
    arguments += [number(count)] if "Batched" in family else []
    arguments += [compute, -1] if family.endswith("Ex") and family != "SgemmEx" else []
    second = "_v2" if name in ("cublasSgemm", "cublasDgemm") else ""
    real = name + second + ("_64" if wide else "")
    good(getattr(BLAS, real)(*arguments))
    expected = factors[0] * (with_operation(a, ta > 0) @ with_operation(b, tb > 0))
    check(real, c, expected + factors[1] * c.values)
    scalars.free()
    for x in (a, b, c):
        x.free()
    for address in lists:
        good(RUNTIME.cudaFree(c_void_p(address)))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


class Layout:
    """A cublasLtMatrixLayout_t."""

    def __init__(self, x: Matrices, rows: int, columns: int, count: int, by_rows: bool):
        self.at = c_void_p()
        good(LT.cublasLtMatrixLayoutCreate(byref(self.at), x.kind, c_uint64(rows),
                                           c_uint64(columns), c_int64(x.ld)))  # fmt: skip
        self.set(1, c_int(int(by_rows)))
        self.set(5, c_int(count))
        self.set(6, c_int64(x.stride))

    def set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        good(LT.cublasLtMatrixLayoutSetAttribute(self.at, attribute, byref(value), size))


def lt_describe(compute: int, scale: int, attributes: dict[int, Any]) -> c_void_p:
    desc = c_void_p()
    good(LT.cublasLtMatmulDescCreate(byref(desc), compute, scale))
    for attribute, value in attributes.items():
        size, written = ctypes.sizeof(value), c_size_t()
        good(LT.cublasLtMatmulDescSetAttribute(desc, attribute, byref(value), c_size_t(size)))
        kept = type(value)()
        good(LT.cublasLtMatmulDescGetAttribute(desc, attribute, byref(kept), c_size_t(size),
                                               byref(written)))  # fmt: skip
        assert (kept.value, written.value) == (value.value, size)
    return desc


def lt_case(r: Random, handle: c_void_p, stream: c_void_p) -> None:
    ab, cd, scale, compute = r.choice(COMBINATIONS)
    count, (m, n, k) = r.randrange(1, 4), (r.randrange(1, 30) for _ in range(3))
    ta, tb = r.randrange(2), r.randrange(2)
    shapes = [(k, m) if ta else (m, k), (n, k) if tb else (k, n), (m, n), (m, n)]
    orders = [r.random() < 0.5 for _ in shapes]
    kinds = (ab, ab, cd, cd)
    all_of = [Matrices(r, t, *s, count, o) for t, s, o in zip(kinds, shapes, orders, strict=True)]
    layouts = [Layout(x, *s, count, o) for x, s, o in zip(all_of, shapes, orders, strict=True)]
    a, b, c, d = all_of
    epilogue = 1 if cd == R_32I else r.choice(list(EPILOGUES))
    bias_kind = cd if r.random() < 0.5 or cd == R_64F else R_32F
    bias = encode(np.array([r.randrange(-3, 4) for _ in range(m * count)]), bias_kind)
    attributes: dict[int, Any] = {3: c_int(ta), 4: c_int(tb), 7: c_int(epilogue)}
    if epilogue & 4:
        attributes |= {8: c_void_p(upload(bias)), 10: c_int64(m), 26: c_int(bias_kind)}
    factors, on_device = (r.choice((0, 1, 2)), r.choice((0, 1, -1))), r.random() < 0.3
    attributes[2] = c_int(int(on_device))
    scalars = Scalars(scale, factors, on_device)
    desc = lt_describe(compute, scale, attributes)
    preference, found, heuristics = c_void_p(), c_int(), (ctypes.c_uint64 * 64)()
    good(LT.cublasLtMatmulPreferenceCreate(byref(preference)))
    good(LT.cublasLtMatmulAlgoGetHeuristic(handle, desc, *(x.at for x in layouts), preference, 1,
                                           heuristics, byref(found)))  # fmt: skip
    assert found.value == 1
    good(LT.cublasLtMatmul(
        handle, desc, scalars.at[0], c_void_p(a.address), layouts[0].at, c_void_p(b.address),
        layouts[1].at, scalars.at[1], c_void_p(c.address), layouts[2].at, c_void_p(d.address),
        layouts[3].at, heuristics, c_void_p(), c_size_t(0), stream,
    ))  # fmt: skip
    good(RUNTIME.cudaStreamSynchronize(stream))
    expected = factors[0] * (with_operation(a, ta > 0) @ with_operation(b, tb > 0))
    expected = expected + factors[1] * c.values
    if epilogue & 4:
        expected = expected + decode(bias, bias_kind).reshape(count, m, 1)
        good(RUNTIME.cudaFree(attributes[8]))
    if epilogue & 2:
        expected = np.maximum(expected, 0)
    if epilogue & 32:
        expected = gelu(expected)
    bound = {R_32F: 1e-6, R_16F: 2e-3, R_16BF: 2e-2}.get(cd, 1e-12) if epilogue & 32 else 0.0
    check(f"cublasLtMatmul {EPILOGUES[epilogue]}".rstrip(), d, expected, bound)
    scalars.free()
    for x in all_of:
        x.free()
    good(LT.cublasLtMatmulDescDestroy(desc))
    good(LT.cublasLtMatmulPreferenceDestroy(preference))
    for layout in layouts:
        good(LT.cublasLtMatrixLayoutDestroy(layout.at))


def refusals(r: Random, handle: c_void_p) -> None:
    """What is not supported, or wrong, says so at once; the device goes on."""
    x = Matrices(r, R_32F, 4, 4, 1, False)
    at, one = c_void_p(x.address), Scalars(R_32F, (1, 1), False).at[0]
    good(BLAS.cublasSetPointerMode_v2(handle, 0))
    square = (4, 4, 4, one, at, 4, at, 4, one, at)
    layouts = [Layout(x, 4, 4, 1, False).at for _ in range(4)]
    epilogues = {}
    for name, epilogue in (("relu aux", 130), ("dgelu", 192), ("bgradb", 512)):
        desc = lt_describe(68, R_32F, {7: c_int(epilogue)})
        epilogues[name] = LT.cublasLtMatmul(
            handle, desc, one, at, layouts[0], at, layouts[1], one, at, layouts[2], at, layouts[3],
            c_void_p(), c_void_p(), c_size_t(0), c_void_p(),
        )  # fmt: skip
    batch_mode, desc = c_int(1), lt_describe(68, R_32F, {})
    told = {
        **epilogues,
        "complex": BLAS.cublasCgemm_v2(handle, 0, 0, *square, 4),
        "level 2": BLAS.cublasSgemv_v2(handle, 0, 4, 4, one, at, 4, at, 1, one, at, 1),
        "types": BLAS.cublasGemmEx(handle, 0, 0, 4, 4, 4, one, at, R_32F, 4, at, R_16F, 4, one, at,
                                   R_32F, 4, 68, -1),
        "leading dimension": BLAS.cublasSgemm_v2(handle, 0, 0, *square, 3),
        "size": BLAS.cublasSgemm_v2(handle, 0, 0, -1, *square[1:], 4),
        "no scalar": BLAS.cublasSgemm_v2(handle, 0, 0, 4, 4, 4, None, *square[4:], 4),
        "handle": BLAS.cublasSgemm_v2(c_void_p(1), 0, 0, *square, 4),
        "stream": BLAS.cublasSetStream_v2(handle, c_void_p(4711)),
        "attribute": LT.cublasLtMatrixLayoutSetAttribute(layouts[0], 8, byref(batch_mode),
                                                         c_size_t(4)),
        "attribute's size": LT.cublasLtMatmulDescSetAttribute(desc, 3, byref(c_int64()),
                                                              c_size_t(8)),
        "nothing to do": BLAS.cublasSgemm_v2(handle, 0, 0, 0, *square[1:], 4),
    }  # fmt: skip
    print("refused", told, flush=True)
    good(RUNTIME.cudaDeviceSynchronize())


def main() -> None:
    calls, r = int(sys.argv[1]), Random(int(sys.argv[2]) + int(os.environ["RANK"]))
    blas, lt, stream = c_void_p(), c_void_p(), c_void_p()
    good(BLAS.cublasCreate_v2(byref(blas)))
    good(LT.cublasLtCreate(byref(lt)))
    good(RUNTIME.cudaStreamCreate(byref(stream)))
    good(BLAS.cublasSetStream_v2(blas, stream))
    kept = c_void_p()
    good(BLAS.cublasGetStream_v2(blas, byref(kept)))
    assert kept.value == stream.value
    for call in range(calls):
        if call % 2:
            lt_case(r, r.choice((lt, blas)), stream)  # a cuBLAS handle is good for both
        else:
            blas_case(r, blas)
    refusals(r, blas)
    good(BLAS.cublasDestroy_v2(blas))
    good(LT.cublasLtDestroy(lt))
    assert BLAS.cublasSgemm_v2(blas, 0, 0, 0, 0, 0, None, None, 0, None, 0, None, None, 0) == 1


main()
