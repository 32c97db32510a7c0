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
    (R_32F, R_32F, R_32F, 68),
    (R_64F, R_64F, R_64F, 70),
    (R_16F, R_16F, R_32F, 68),
    (R_16F, R_16F, R_16F, 64),
    (R_16F, R_32F, R_32F, 68),
    (R_16BF, R_16BF, R_32F, 68),
    (R_16BF, R_32F, R_32F, 77),
    (R_8I, R_32F, R_32F, 68),
    (R_8I, R_32I, R_32I, 72),
]
TYPED = {"S": COMBINATIONS[0], "D": COMBINATIONS[1], "H": COMBINATIONS[3]}
EPILOGUES = {
    1: "",
    2: "relu",
    4: "bias",
    6: "bias relu",
    32: "gelu",
    36: "bias gelu",
    130: "relu aux",
    134: "bias relu aux",
    136: "drelu",
    152: "drelu bgrad",
    160: "gelu aux",
    164: "bias gelu aux",
    192: "dgelu",
    208: "dgelu bgrad",
    256: "bgrada",
    512: "bgradb",
}
BIAS, WITH_AUX, BITS, GELUS, SUM_D, SUM_A, SUM_B = 4, 128, 2 | 8, 32 | 64, 16, 256, 512


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
    """`count` matrices of one layout in device memory; the bytes between them are kept as well."""

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
        good(
            RUNTIME.cudaMemcpy(
                c_void_p(memory.ctypes.data), c_void_p(self.address), c_size_t(memory.nbytes), 2
            )
        )
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
        raise SystemExit(f"{name}: it wrote outside its matrix")
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
    family = r.choice(
        [
            "{}gemm",
            "{}gemmStridedBatched",
            "{}gemmBatched",
            "GemmEx",
            "SgemmEx",
            "GemmStridedBatchedEx",
            "GemmBatchedEx",
        ]
    )
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
    arguments = [
        handle,
        ta,
        tb,
        number(m),
        number(n),
        number(k),
        scalars.at[0],
        *operand(0, a),
        *operand(1, b),
        scalars.at[1],
        *operand(2, c),
    ]
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
        good(
            LT.cublasLtMatrixLayoutCreate(
                byref(self.at), x.kind, c_uint64(rows), c_uint64(columns), c_int64(x.ld)
            )
        )
        self.set(1, c_int(int(by_rows)))
        self.set(5, c_int(count))
        self.set(6, c_int64(x.stride))

    def set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        good(LT.cublasLtMatrixLayoutSetAttribute(self.at, attribute, byref(value), size))


class Auxiliary:
    """An epilogue's auxiliary matrix, written or read next to D: numbers of D's type, or bits."""

    def __init__(self, r: Random, epilogue: int, kind: int, m: int, n: int, count: int):
        self.bits, self.kind = bool(epilogue & BITS), kind
        unit = 128 if self.bits else 8
        self.ld = -(-m // unit) * unit + unit * r.randrange(2)
        self.stride = self.ld * n + unit * r.randrange(2)
        b, i, j = np.ogrid[:count, :m, :n]
        self.where = b * self.stride + i + j * self.ld
        rng = np.random.default_rng(r.getrandbits(32))
        numbers = rng.integers(0, 256, count * self.stride // 8).astype(np.uint8)
        self.memory = numbers
        if not self.bits:
            self.memory = encode(rng.integers(-20, 21, count * self.stride) / 8, kind)
        self.address = upload(self.memory)
        self.before = self.values()

    def values(self) -> Array:
        memory = np.empty_like(self.memory)
        good(
            RUNTIME.cudaMemcpy(
                c_void_p(memory.ctypes.data), c_void_p(self.address), c_size_t(memory.nbytes), 2
            )
        )
        if self.bits:
            return np.asarray(np.unpackbits(memory, bitorder="little")[self.where])
        return decode(memory[self.where], self.kind)

    @property
    def attributes(self) -> dict[int, Any]:
        return {
            11: c_void_p(self.address),
            12: c_int64(self.ld),
            13: c_int64(self.stride),
            22: c_int(-1 if self.bits else self.kind),
        }


def gelu_slope(x: Array) -> Array:
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return np.asarray((1 + t) / 2 + x / 2 * (1 - t * t) * inner)


def stepped(name: str, epilogue: int, x: Array, aux: Auxiliary | None, bound: float) -> Array:
    """The result of the epilogue for x; also checks what it left."""
    if aux and epilogue & (8 | 64):
        return np.asarray(x * (aux.before if aux.bits else gelu_slope(aux.before)))
    if aux:
        left = x > 0 if aux.bits else decode(encode(x, aux.kind), aux.kind)
        if not (abs(aux.values() - left) <= bound).all():
            raise SystemExit(f"{name}: what it left is wrong")
    if epilogue & 2:
        return np.maximum(x, 0)
    return gelu(x) if epilogue & 32 else x


def check_sums(name: str, values: Array, at: int, kind: int, wanted: Array, bound: float) -> None:
    found = np.empty(wanted.shape, encode(wanted, kind).dtype)
    good(RUNTIME.cudaMemcpy(c_void_p(found.ctypes.data), c_void_p(at), c_size_t(found.nbytes), 2))
    least = {R_16F: 2e-3, R_16BF: 2e-2}.get(kind, 1e-5) * (1 + np.abs(values).max())
    if not (np.abs(decode(found, kind) - wanted) <= max(bound, least)).all():
        raise SystemExit(f"{name}: its sums are wrong")
    print(name, "sums", hashlib.sha256(found.tobytes()).hexdigest()[:16], flush=True)


def lt_describe(compute: int, scale: int, attributes: dict[int, Any]) -> c_void_p:
    desc = c_void_p()
    good(LT.cublasLtMatmulDescCreate(byref(desc), compute, scale))
    for attribute, value in attributes.items():
        size, written = ctypes.sizeof(value), c_size_t()
        good(LT.cublasLtMatmulDescSetAttribute(desc, attribute, byref(value), c_size_t(size)))
        kept = type(value)()
        good(
            LT.cublasLtMatmulDescGetAttribute(
                desc, attribute, byref(kept), c_size_t(size), byref(written)
            )
        )
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
    if ab == R_8I and epilogue & (SUM_A | SUM_B):
        epilogue = 1
    bias_kind = cd if r.random() < 0.5 or cd == R_64F else R_32F
    length = n if epilogue & SUM_B else m
    bias = encode(np.array([r.randrange(-3, 4) for _ in range(length * count)]), bias_kind)
    attributes: dict[int, Any] = {3: c_int(ta), 4: c_int(tb), 7: c_int(epilogue)}
    if epilogue & (BIAS | SUM_A | SUM_B | SUM_D):
        attributes |= {8: c_void_p(upload(bias)), 10: c_int64(length), 26: c_int(bias_kind)}
    aux = Auxiliary(r, epilogue, cd, m, n, count) if epilogue & WITH_AUX else None
    attributes |= aux.attributes if aux else {}
    factors, on_device = (r.choice((0, 1, 2)), r.choice((0, 1, -1))), r.random() < 0.3
    attributes[2] = c_int(int(on_device))
    scalars = Scalars(scale, factors, on_device)
    desc = lt_describe(compute, scale, attributes)
    preference, found, heuristics = c_void_p(), c_int(), (ctypes.c_uint64 * 64)()
    good(LT.cublasLtMatmulPreferenceCreate(byref(preference)))
    good(
        LT.cublasLtMatmulAlgoGetHeuristic(
            handle, desc, *(x.at for x in layouts), preference, 1, heuristics, byref(found)
        )
    )
    assert found.value == 1
    of: list[c_void_p] = []
    for x, layout in zip(all_of, layouts, strict=True):
        of += [c_void_p(x.address), layout.at]
    alpha, beta = scalars.at
    rest = (heuristics, c_void_p(), c_size_t(0), stream)
    good(LT.cublasLtMatmul(handle, desc, alpha, *of[:4], beta, *of[4:], *rest))
    good(RUNTIME.cudaStreamSynchronize(stream))
    expected = factors[0] * (with_operation(a, ta > 0) @ with_operation(b, tb > 0))
    expected = expected + factors[1] * c.values
    name = f"cublasLtMatmul {EPILOGUES[epilogue]}".rstrip()
    if epilogue & BIAS:
        expected = expected + decode(bias, bias_kind).reshape(count, m, 1)
    bound = {R_32F: 1e-6, R_16F: 2e-3, R_16BF: 2e-2}.get(cd, 1e-12) if epilogue & GELUS else 0.0
    expected = stepped(name, epilogue, expected, aux, bound)
    check(name, d, expected, bound)
    if epilogue & (SUM_A | SUM_B | SUM_D):
        wanted = {SUM_A: with_operation(a, ta > 0).sum(2), SUM_B: with_operation(b, tb > 0).sum(1)}
        sums = wanted.get(epilogue, expected.sum(2))
        check_sums(name, expected, attributes[8].value, bias_kind, sums, bound * n)
    for number in (8, 11):
        good(RUNTIME.cudaFree(attributes[number]) if number in attributes else 0)
    scalars.free()
    for x in all_of:
        x.free()
    good(LT.cublasLtMatmulDescDestroy(desc))
    good(LT.cublasLtMatmulPreferenceDestroy(preference))
    for layout in layouts:
        good(LT.cublasLtMatrixLayoutDestroy(layout.at))


def refusals(r: Random, handle: c_void_p) -> None:
    """A call that is not supported, or wrong, fails at once; the device continues."""
    x = Matrices(r, R_32F, 4, 4, 1, False)
    at, one = c_void_p(x.address), Scalars(R_32F, (1, 1), False).at[0]
    good(BLAS.cublasSetPointerMode_v2(handle, 0))
    square = (4, 4, 4, one, at, 4, at, 4, one, at)
    layouts = [Layout(x, 4, 4, 1, False).at for _ in range(4)]
    epilogues = {}
    for name, attributes in (
        ("no such epilogue", {7: c_int(3)}),
        ("relu aux without", {7: c_int(130), 12: c_int64(128)}),
        ("bits apart", {7: c_int(136), 11: at, 12: c_int64(8)}),
        ("ld of aux", {7: c_int(192), 11: at, 12: c_int64(12)}),
        ("type of aux", {7: c_int(160), 11: at, 12: c_int64(8), 22: c_int(R_16F)}),
        ("bgradb without", {7: c_int(512)}),
    ):
        desc = lt_describe(68, R_32F, attributes)
        epilogues[name] = LT.cublasLtMatmul(
            handle,
            desc,
            one,
            at,
            layouts[0],
            at,
            layouts[1],
            one,
            at,
            layouts[2],
            at,
            layouts[3],
            c_void_p(),
            c_void_p(),
            c_size_t(0),
            c_void_p(),
        )
    batch_mode, desc = c_int(1), lt_describe(68, R_32F, {})
    told = {
        **epilogues,
        "factorisation": BLAS.cublasSgeqrfBatched(handle, 4, 4, at, 4, at, at, 1),
        "types": BLAS.cublasGemmEx(
            handle, 0, 0, 4, 4, 4, one, at, R_32F, 4, at, R_16F, 4, one, at, R_32F, 4, 68, -1
        ),
        "leading dimension": BLAS.cublasSgemm_v2(handle, 0, 0, *square, 3),
        "size": BLAS.cublasSgemm_v2(handle, 0, 0, -1, *square[1:], 4),
        "no scalar": BLAS.cublasSgemm_v2(handle, 0, 0, 4, 4, 4, None, *square[4:], 4),
        "handle": BLAS.cublasSgemm_v2(c_void_p(1), 0, 0, *square, 4),
        "stream": BLAS.cublasSetStream_v2(handle, c_void_p(4711)),
        "attribute": LT.cublasLtMatrixLayoutSetAttribute(
            layouts[0], 8, byref(batch_mode), c_size_t(4)
        ),
        "attribute's size": LT.cublasLtMatmulDescSetAttribute(
            desc, 3, byref(c_int64()), c_size_t(8)
        ),
        "nothing to do": BLAS.cublasSgemm_v2(handle, 0, 0, 0, *square[1:], 4),
    }
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
