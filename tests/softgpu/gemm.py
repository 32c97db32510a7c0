"""Matrix products for tests: the record, NumPy arrays in device memory, and the exact result."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from softgpu.harness import Device, Space, ffi
from support.formats import R_8I, R_16F, R_32F, R_32I, R_64F, TYPES, decode, encode

Array = np.ndarray[Any, Any]
POINTERS, SCALARS, RELU, GELU, KEEP, DRELU, DGELU = 1, 2, 4, 8, 16, 32, 64
SUM_D, SUM_A, SUM_B = 128, 256, 512
COMPUTE = {R_16F: 64, R_32F: 68, R_64F: 70, R_32I: 72}  # cublasComputeType_t by the scalars' type
_libm = ctypes.CDLL("libm.so.6")
_libm.fmaf.restype, _libm.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
_libm.fma.restype, _libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3


@dataclass(frozen=True)
class Matrix:
    """The offsets of the elements of `count` matrices, in elements."""

    address: int
    row: int
    col: int
    batch: int = 0

    def indices(self, rows: int, columns: int, count: int) -> Array:
        b, i, j = np.ogrid[:count, :rows, :columns]
        return np.asarray(b * self.batch + i * self.row + j * self.col)


@dataclass(frozen=True)
class Gemm:
    """A call. Alpha, beta: values, or addresses with SCALARS."""

    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    count: int = 1
    type_ab: int = R_32F
    type_cd: int = R_32F
    type_bias: int = R_32F
    type_scale: int = R_32F
    alpha: float = 1
    beta: float = 0
    bias: int = 0
    bias_batch: int = 0
    flags: int = 0
    math: int = 0  # cublasMath_t
    compute: int | None = None  # cublasComputeType_t; None: by type_scale
    aux: Matrix = Matrix(0, 0, 0)
    how: bytes = bytes(96)  # struct rf_gemm_how

    def scalar(self, value: float) -> int:
        if self.flags & SCALARS:
            return int(value)
        data = encode(np.array([value]), self.type_scale).tobytes()
        return int.from_bytes(data, "little")

    def record(self) -> bytes:
        """struct rf_gemm_aux of channel.h, without the record's header."""
        matrices = [
            x for m in (self.a, self.b, self.c, self.d) for x in (m.address, m.row, m.col, m.batch)
        ]
        return struct.pack(
            "<25Q4B3I4Q",
            1,
            self.m,
            self.n,
            self.k,
            self.count,
            *matrices,
            self.bias,
            self.bias_batch,
            self.scalar(self.alpha),
            self.scalar(self.beta),
            self.type_ab,
            self.type_cd,
            self.type_bias,
            self.type_scale,
            self.flags,
            COMPUTE.get(self.type_scale, 0) if self.compute is None else self.compute,
            self.math,
            self.aux.address,
            self.aux.row,
            self.aux.col,
            self.aux.batch,
        )


def work(device: Device, space: Space, call: Gemm) -> tuple[Any, Any]:
    """The work, and the memory that it refers to."""
    kept = ffi.from_buffer(bytes(16) + call.record() + call.how)
    made = ffi.new("struct hal_work *", {"kind": device.lib.HAL_GEMM})
    made.gemm.space = space.handle
    made.gemm.call = ffi.cast("struct rf_gemm_call *", kept)
    return made, kept


def run(device: Device, space: Space, call: Gemm) -> None:
    made, _kept = work(device, space, call)
    device.run(made)


def gelu(x: float) -> float:
    u = np.float64(np.sqrt(2 / np.pi)) * (x + 0.044715 * x**3)
    return float(x * 0.5 * (1 + np.tanh(u)))


def exactly(call: Gemm, a: Array, b: Array, c: Array, bias: Array | None = None) -> Array:
    """The product as the software GPU promises it, element by element and operation by operation.

    `a`, `b`, `c`: values of one product. GELU is not among the operations here.
    """
    wide = call.type_ab == R_64F
    fma: Callable[..., float] = _libm.fma if wide else _libm.fmaf
    real: Callable[[float], float] = float if wide else lambda x: float(np.float32(x))
    out = np.zeros((call.m, call.n))
    for i in range(call.m):
        for j in range(call.n):
            total = 0.0
            for p in range(call.k if call.alpha else 0):
                total = fma(a[i, p], b[p, j], total)
            x = real(call.alpha * total)
            if call.beta:
                x = fma(call.beta, c[i, j], x)
            if bias is not None:
                x = real(x + bias[i])
            if call.flags & RELU and x <= 0:
                x = 0.0
            out[i, j] = x
    return out


@dataclass
class Operands:
    """Matrices in device memory, laid out as requested, with the gaps between them."""

    space: Space
    call: Gemm
    memory: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def place(self, name: str, values: Array, layout: Matrix, gap: int = 7) -> None:
        """`values`: count x rows x columns. Elements between them are NaN, or 77."""
        kind = self.call.type_ab if name in "ab" else self.call.type_cd
        where = layout.indices(values.shape[1], values.shape[2], values.shape[0])
        between = 77 if kind in (R_8I, R_32I) else np.nan
        memory = encode(np.full(int(where.max(initial=0)) + 1 + gap, between), kind)
        memory[where] = encode(values, kind)
        self.memory[name] = memory
        self.shapes[name] = (values.shape[1], values.shape[2], values.shape[0])
        placed: Any = {name: replace(layout, address=self.space.put(memory))}
        self.call = replace(self.call, **placed)

    def values(self, name: str) -> Array:
        """As they were placed, rounded to their type."""
        kind = self.call.type_ab if name in "ab" else self.call.type_cd
        layout: Matrix = getattr(self.call, name)
        return decode(self.memory[name][layout.indices(*self.shapes[name])], kind)

    def result(self) -> tuple[Array, Array]:
        """D's memory, and where D's elements are in it."""
        call = self.call
        memory = self.space.read(call.d.address, len(self.memory["d"]), TYPES[call.type_cd])
        return memory, call.d.indices(call.m, call.n, call.count)
