"""A rank that calls BLAS's routines of levels 1 and 2 and the others of level 3, each in its types,
and compares them with NumPy's.

Operands are small integers, so most results are exact. Memory that a routine must not read (the
other triangle, gaps between elements and columns, results where beta is 0) is NaN, and memory that
it must not write is checked afterwards. Prints a line with a hash of each result's bits, then
errors. Arguments: the number of rounds, a seed, and the types."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_int64, c_longlong, c_size_t, c_void_p
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from support.formats import R_16BF, R_16F, R_32F, encode

RUNTIME = ctypes.CDLL("libcudart.so.13")
BLAS = ctypes.CDLL("libcublas.so.13")
Array = np.ndarray[Any, Any]
DTYPES = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
KINDS = {"S": 0, "D": 1, "C": 4, "Z": 5}
LEFT, RIGHT, LOWER, UPPER, UNIT = 0, 1, 0, 1, 1
N, T, C = 0, 1, 2
# Functions that have no form with sizes of 64 bits.
NARROW = ("rotg", "rotmg", "getr", "matinv", "gels", "tpttr", "trttp")


def good(status: int) -> None:
    if status:
        raise SystemExit(f"status {status}")


class Memory:
    """Numbers on the device; a call may change some of them."""

    def __init__(self, numbers: Array):
        self.before, self.at = np.ascontiguousarray(numbers), c_void_p()
        good(RUNTIME.cudaMalloc(byref(self.at), c_size_t(self.before.nbytes or 1)))
        self.address = self.at.value or 0
        self.put(self.before)

    def put(self, numbers: Array) -> None:
        size = c_size_t(numbers.nbytes)
        good(RUNTIME.cudaMemcpy(self.at, c_void_p(numbers.ctypes.data), size, 1))

    def now(self) -> Array:
        out = np.empty_like(self.before)
        good(RUNTIME.cudaMemcpy(c_void_p(out.ctypes.data), self.at, c_size_t(out.nbytes), 2))
        return out


@dataclass
class Operand:
    """Elements at places of a memory, `count` times."""

    memory: Memory
    places: Array
    step: int  # a vector's, or a matrix's leading dimension
    batch: int

    @property
    def values(self) -> Array:
        return np.asarray(self.memory.before[self.places])

    def lists(self) -> Memory:
        size = self.memory.before.itemsize
        starts = [self.memory.address + b * self.batch * size for b in range(len(self.places))]
        return Memory(np.array(starts, np.uint64))

    def check(self, name: str, expected: Array, changes: Array | bool = True) -> None:
        """They are as expected (where they may change), and all else is as it was."""
        now, wanted = self.memory.now(), self.memory.before.copy()
        wanted[self.places[..., :] if changes is True else self.places[changes]] = (
            expected if changes is True else expected[changes]
        )
        exact = wanted.dtype.type(0).real.dtype
        bound = (1e-4 if exact == np.float32 else 1e-11) * (1 + np.nanmax(abs(wanted), initial=0))
        same = (now == wanted) | (np.isnan(now) & np.isnan(wanted)) | (abs(now - wanted) <= bound)
        if not same.all():
            raise SystemExit(f"{name}: {now[~same]} where {wanted[~same]} should be")
        print(name, hashlib.sha256(now.tobytes()).hexdigest()[:16], flush=True)


class Case:
    """One call: its type, its random numbers, its handle."""

    def __init__(self, r: Random, handle: c_void_p, letter: str):
        self.r, self.handle, self.letter = r, handle, letter
        self.dtype, self.complex = np.dtype(DTYPES[letter]), letter in "CZ"
        self.real = np.dtype(np.float32 if letter in "SC" else np.float64)
        self.wide, self.on_device = r.random() < 0.3, r.random() < 0.3
        self.rng = np.random.default_rng(r.getrandbits(32))
        self.kept: list[Any] = []
        good(BLAS.cublasSetPointerMode_v2(handle, int(self.on_device)))

    def size(self) -> int:
        return self.r.randrange(1, 24)

    def numbers(self, *shape: int, real: bool = False) -> Array:
        values = self.rng.integers(-4, 5, shape).astype(self.real if real else self.dtype)
        if self.complex and not real:
            values = values + (1j * self.rng.integers(-4, 5, shape)).astype(self.dtype)
        return np.asarray(values, self.real if real else self.dtype)

    def vector(self, n: int, count: int = 1, step: int | None = None) -> Operand:
        step = step or self.r.choice((1, 1, 2, -1, -3))
        batch = n * abs(step) + 2
        memory = np.full(count * batch, np.nan, self.dtype)
        line = np.arange(n) * abs(step)
        places = np.arange(count)[:, None] * batch + (line[::-1] if step < 0 else line)
        memory[places] = self.numbers(count, n)
        return Operand(Memory(memory), places, step, batch)

    def matrix(self, rows: int, columns: int, count: int = 1) -> Operand:
        ld = rows + self.r.randrange(3)
        batch = ld * columns + 3
        memory = np.full(count * batch, np.nan, self.dtype)
        b, i, j = np.ogrid[:count, :rows, :columns]
        places = b * batch + i + j * ld
        memory[places] = self.numbers(count, rows, columns)
        return Operand(Memory(memory), places, ld, batch)

    def scalar(self, *choices: float, real: bool = False) -> tuple[Any, Any]:
        """Its value, and what the call takes."""
        value = np.array([self.r.choice(choices)], self.real if real else self.dtype)
        if self.complex and not real and value[0] not in (0, 1):
            value += np.array([1j], self.dtype)
        self.kept.append(value)
        if self.on_device:
            self.kept.append(Memory(value))
            return value[0], self.kept[-1].at
        return value[0], c_void_p(value.ctypes.data)

    def result(self, dtype: Any, length: int = 1, before: Array | None = None) -> Any:
        """Where a number goes to, and how to see it."""
        value = np.zeros(length, dtype) if before is None else before.astype(dtype)
        self.kept.append(value)
        if self.on_device:
            memory = Memory(value)
            self.kept.append(memory)
            return memory.at, memory.now
        return c_void_p(value.ctypes.data), lambda: value

    def call(self, name: str, *arguments: Any) -> str:
        """`?` is the type's letter; integers are sizes."""
        wide = self.wide and not any(word in name for word in NARROW)
        real = name.replace("?", self.letter) + "_64" * wide
        whole: Callable[[int], Any] = c_int64 if wide else c_int
        passed = [whole(a) if isinstance(a, int) else a for a in arguments]
        status = getattr(BLAS, real)(self.handle, *passed)
        if status:
            raise SystemExit(f"{real}: status {status}")
        return real

    def turned(self, values: Array, op: int) -> Array:
        values = values.swapaxes(-1, -2) if op else values
        return values.conj() if op == C else values

    def old(self, beta: Any, y: Operand) -> Any:
        """beta * y; if beta is 0, y is something that must not be read."""
        if beta:
            return beta * y.values
        y.memory.before[y.places] = np.nan
        y.memory.put(y.memory.before)
        return 0

    def op(self) -> int:
        return self.r.randrange(3)

    def same(self, name: str, found: Array, wanted: Any) -> None:
        bound = (1e-4 if self.real == np.float32 else 1e-11) * (1 + np.max(abs(np.asarray(wanted))))
        if not (abs(found - wanted) <= bound).all():
            raise SystemExit(f"{name}: {found} where {wanted} should be")
        print(name, hashlib.sha256(found.tobytes()).hexdigest()[:16], flush=True)


E = c_int  # an enumerator
ROUTINES: list[Callable[[Case], None]] = []


def routine(function: Callable[[Case], None]) -> Callable[[Case], None]:
    ROUTINES.append(function)
    return function


# ---- level 1 ----


@routine
def axpy(c: Case) -> None:
    n, (alpha, at) = c.size(), c.scalar(0, 1, -2)
    x, y = c.vector(n), c.vector(n)
    name = c.call("cublas?axpy_v2", n, at, x.memory.at, x.step, y.memory.at, y.step)
    y.check(name, alpha * x.values + y.values)


@routine
def scal(c: Case) -> None:
    n, real = c.size(), c.complex and c.r.random() < 0.5
    (alpha, at), x = c.scalar(0, 1, -2, real=real), c.vector(n, step=c.r.choice((1, 3)))
    letter = {"C": "Cs", "Z": "Zd"}[c.letter] if real else c.letter
    name = c.call(f"cublas{letter}scal_v2", n, at, x.memory.at, x.step)
    x.check(name, alpha * x.values)


@routine
def copy_and_swap(c: Case) -> None:
    n = c.size()
    x, y = c.vector(n), c.vector(n)
    y.check(c.call("cublas?copy_v2", n, x.memory.at, x.step, y.memory.at, y.step), x.values)
    y.memory.put(y.memory.before)
    name = c.call("cublas?swap_v2", n, x.memory.at, x.step, y.memory.at, y.step)
    y.check(name, x.values)
    x.check(name, y.values)


@routine
def dot(c: Case) -> None:
    n = c.r.randrange(0, 700)
    x, y = c.vector(n), c.vector(n)
    for which in ("dotu", "dotc") if c.complex else ("dot",):
        at, found = c.result(c.dtype)
        name = c.call(f"cublas?{which}_v2", n, x.memory.at, x.step, y.memory.at, y.step, at)
        first = x.values.conj() if which == "dotc" else x.values
        c.same(name, found(), (first * y.values).sum())


@routine
def norms(c: Case) -> None:
    n = c.r.randrange(1, 700)
    x = c.vector(n, step=c.r.choice((1, 2)))
    sizes = abs(x.values.real) + abs(x.values.imag)
    long = {"S": "S", "D": "D", "C": "Sc", "Z": "Dz"}[c.letter]
    at, found = c.result(c.real)
    name = c.call(f"cublas{long}nrm2_v2", n, x.memory.at, x.step, at)
    c.same(name, found(), np.sqrt((abs(x.values.astype(complex)) ** 2).sum()))
    at, found = c.result(c.real)
    c.same(c.call(f"cublas{long}asum_v2", n, x.memory.at, x.step, at), found(), sizes.sum())
    for which, wanted in (("amax", sizes.argmax()), ("amin", sizes.argmin())):
        at, found = c.result(np.int64 if c.wide else np.int32)
        name = c.call(f"cublasI{c.letter.lower()}{which}_v2", n, x.memory.at, x.step, at)
        c.same(name, found(), wanted + 1)


@routine
def rotations(c: Case) -> None:
    n = c.size()
    x, y = c.vector(n), c.vector(n)
    (cosine, c_at), (sine, s_at) = c.scalar(2, real=True), c.scalar(-3)
    name = c.call("cublas?rot_v2", n, x.memory.at, x.step, y.memory.at, y.step, c_at, s_at)
    x.check(name, cosine * x.values + sine * y.values)
    y.check(name, cosine * y.values - np.conj(sine) * x.values)
    a, b = c.numbers(1), c.numbers(1)
    (a_at, a_now), (b_at, _), (c_at, c_now), (s_at, s_now) = (
        c.result(c.dtype, before=a),
        c.result(c.dtype, before=b),
        c.result(c.real),
        c.result(c.dtype),
    )
    name = c.call("cublas?rotg_v2", a_at, b_at, c_at, s_at)
    found = np.array(
        [c_now()[0] * a[0] + s_now()[0] * b[0], c_now()[0] * b[0] - np.conj(s_now()[0]) * a[0]]
    )
    c.same(name, found, np.array([a_now()[0], 0]))


@routine
def modified_rotations(c: Case) -> None:
    if c.complex:
        return
    n, flag = c.size(), c.r.choice((-2, -1, 0, 1))
    x, y = c.vector(n), c.vector(n)
    at, _ = c.result(c.dtype, before=np.array([flag, 2, 3, -2, 4.0]))
    h = {-2: [[1, 0], [0, 1]], -1: [[2, -2], [3, 4]], 0: [[1, -2], [3, 1]], 1: [[2, 1], [-1, 4]]}
    name = c.call("cublas?rotm_v2", n, x.memory.at, x.step, y.memory.at, y.step, at)
    (h11, h12), (h21, h22) = h[flag]
    x.check(name, h11 * x.values + h12 * y.values)
    y.check(name, h21 * x.values + h22 * y.values)
    d1, d2, x1, y1 = (np.array([v]) for v in (c.r.choice((3.0, 1e-9)), 2.0, c.size(), c.size()))
    ats, nows = zip(*(c.result(c.dtype, before=v) for v in (d1, d2, x1, y1)), strict=True)
    at, now = c.result(c.dtype, 5)
    name = c.call("cublas?rotmg_v2", *ats, at)
    p = now()
    h11, h21, h12, h22 = {-1: p[1:5], 0: [1, p[2], p[3], 1], 1: [p[1], -1, 1, p[4]]}[int(p[0])]
    new = [h11 * x1[0] + h12 * y1[0], h21 * x1[0] + h22 * y1[0]]
    norms = [float(d1[0] * x1[0] ** 2 + d2[0] * y1[0] ** 2), nows[0]()[0] * nows[2]()[0] ** 2]
    c.same(name, np.array([*new, norms[1]]), np.array([nows[2]()[0], 0, norms[0]]))


@routine
def by_type(c: Case) -> None:
    n, kind = c.size(), c_int(KINDS[c.letter])
    real = c_int(KINDS["S" if c.letter in "SC" else "D"])
    (alpha, at), x, y = c.scalar(2, -3), c.vector(n, step=2), c.vector(n)
    name = c.call(
        "cublasAxpyEx", n, at, kind, x.memory.at, kind, x.step, y.memory.at, kind, y.step, kind
    )
    y.check(name, alpha * x.values + y.values)
    at, found = c.result(c.real)
    name = c.call("cublasNrm2Ex", n, x.memory.at, kind, x.step, at, real, real)
    c.same(name, found(), np.sqrt((abs(x.values.astype(complex)) ** 2).sum()))
    at, found = c.result(c.dtype)
    y.memory.put(y.memory.before)
    name = c.call(
        "cublasDotcEx", n, x.memory.at, kind, x.step, y.memory.at, kind, y.step, at, kind, kind
    )
    c.same(name, found(), (x.values.conj() * y.values).sum())


# ---- level 2 ----


def structured(
    c: Case, n: int, shape: str, uplo: int, k: int | None, unit: bool = False, solved: bool = False
) -> tuple[Operand, Array]:
    """Half of a symmetric, hermitian or triangular matrix, however stored; and all of it."""
    i, j = np.indices((n, n))
    inside = (i <= j) if uplo == UPPER else (i >= j)
    if k is not None and k >= 0:
        inside &= abs(i - j) <= k
    dense = np.where(inside, c.numbers(n, n), 0)
    if shape == "hermitian":
        dense[range(n), range(n)] = dense[range(n), range(n)].real
    if solved:  # its inverse is small
        dense = dense / 16
        dense[range(n), range(n)] = 2
    if k is None:
        ld, places = n + 2, i + j * (n + 2)
    elif k >= 0:
        ld = k + 3
        places = (k + i - j if uplo == UPPER else i - j) + j * ld
    else:
        ld, places = 0, i + (j * (j + 1) // 2 if uplo == UPPER else j * (2 * n - j - 1) // 2)
    memory = np.full(int(places[inside].max()) + 3, np.nan, c.dtype)
    memory[places[inside]] = dense[inside]
    if unit:
        memory[places[range(n), range(n)]] = np.nan
        dense[range(n), range(n)] = 1
    if shape != "triangular":
        other = dense.T.conj() if shape == "hermitian" else dense.T
        dense = np.where(inside, dense, other)
    return Operand(Memory(memory), places[None], ld, 0), dense.astype(c.dtype)


@routine
def gemv(c: Case) -> None:
    m, n, op = c.size(), c.size(), c.op()
    form = c.r.choice(("", "Batched", "StridedBatched", "gb"))
    count = 3 if "Batched" in form else 1
    (alpha, at), (beta, b_at) = c.scalar(0, 1, 2), c.scalar(0, 0, 1, -1)
    long, short = (n, m) if op == N else (m, n)
    x, y = c.vector(long, count), c.vector(short, count)
    old = c.old(beta, y)
    if form == "gb":
        kl, ku = c.r.randrange(3), c.r.randrange(3)
        ld = kl + ku + 2
        memory = np.full(ld * n, np.nan, c.dtype)
        i, j = np.indices((m, n))
        inside = (i - j <= kl) & (j - i <= ku)
        memory[(ku + i - j + j * ld)[inside]] = c.numbers(int(inside.sum()))
        band = Memory(memory)
        dense = np.where(inside, memory[np.where(inside, ku + i - j + j * ld, 0)], 0)[None]
        name = c.call(
            "cublas?gbmv_v2",
            E(op),
            m,
            n,
            kl,
            ku,
            at,
            band.at,
            ld,
            x.memory.at,
            x.step,
            b_at,
            y.memory.at,
            y.step,
        )
    else:
        a = c.matrix(m, n, count)
        dense, lists = a.values, [o.lists() for o in (a, x, y)]
        places = [
            m_.at if form == "Batched" else o.memory.at
            for m_, o in zip(lists, (a, x, y), strict=True)
        ]
        batch = [[c_longlong(o.batch)] if form == "StridedBatched" else [] for o in (a, x, y)]
        name = c.call(
            f"cublas?gemv{form or '_v2'}",
            E(op),
            m,
            n,
            at,
            places[0],
            a.step,
            *batch[0],
            places[1],
            x.step,
            *batch[1],
            b_at,
            places[2],
            y.step,
            *batch[2],
            *([count] if form else []),
        )
    product = (c.turned(dense, op) @ x.values[:, :, None])[:, :, 0]
    y.check(name, alpha * product + old)


@routine
def symv(c: Case) -> None:
    n, uplo = c.size(), c.r.randrange(2)
    (alpha, at), (beta, b_at) = c.scalar(0, 1, 2), c.scalar(0, 0, 1, -1)
    x, y = c.vector(n), c.vector(n)
    old, k = c.old(beta, y), c.r.choice((None, -2, c.r.randrange(4)))
    symmetric = not c.complex or (k is None and c.r.random() < 0.5)
    a, dense = structured(c, n, "symmetric" if symmetric else "hermitian", uplo, k)
    family = {None: "symv" if symmetric else "hemv", -2: "spmv" if symmetric else "hpmv"}
    name = family.get(k, "sbmv" if symmetric else "hbmv")
    matrix = [a.memory.at] + ([] if k == -2 else [a.step])
    name = c.call(
        f"cublas?{name}_v2",
        E(uplo),
        n,
        *([k] if k is not None and k >= 0 else []),
        at,
        *matrix,
        x.memory.at,
        x.step,
        b_at,
        y.memory.at,
        y.step,
    )
    y.check(name, alpha * (dense @ x.values[0])[None] + old)


@routine
def triangular_vector(c: Case) -> None:
    n, uplo, op, unit = c.r.randrange(1, 300), c.r.randrange(2), c.op(), c.r.randrange(2)
    k = c.r.choice((None, -2, c.r.randrange(4)))
    solve = c.r.random() < 0.5
    n = n if k is not None and k >= 0 else n % 20 + 1
    a, dense = structured(c, n, "triangular", uplo, k, unit == UNIT, solve)
    x = c.vector(n)
    letter = {None: "tr", -2: "tp"}.get(k, "tb")
    name = c.call(
        f"cublas?{letter}{'sv' if solve else 'mv'}_v2",
        E(uplo),
        E(op),
        E(unit),
        n,
        *([k] if k is not None and k >= 0 else []),
        a.memory.at,
        *([] if k == -2 else [a.step]),
        x.memory.at,
        x.step,
    )
    full = c.turned(dense.astype(np.complex128), op)
    wanted = np.linalg.solve(full, x.values[0]) if solve else full @ x.values[0]
    x.check(name, (wanted if c.complex else wanted.real)[None].astype(c.dtype))


@routine
def updates(c: Case) -> None:
    m, n = c.size(), c.size()
    (alpha, at), a, x, y = c.scalar(0, 1, 2), c.matrix(m, n), c.vector(m), c.vector(n)
    which = c.r.choice(("geru", "gerc")) if c.complex else "ger"
    name = c.call(
        f"cublas?{which}_v2",
        m,
        n,
        at,
        x.memory.at,
        x.step,
        y.memory.at,
        y.step,
        a.memory.at,
        a.step,
    )
    second = y.values.conj() if which == "gerc" else y.values
    a.check(name, a.values + alpha * np.einsum("bi,bj->bij", x.values, second))


@routine
def symmetric_updates(c: Case) -> None:
    n, uplo, twice, hermitian = c.size(), c.r.randrange(2), c.r.random() < 0.5, c.complex
    packed = c.r.random() < 0.5
    alpha, at = c.scalar(0, 1, 2, real=hermitian and not twice)
    shape = "hermitian" if hermitian else "symmetric"
    a, dense = structured(c, n, shape, uplo, -2 if packed else None)
    x, y = c.vector(n), c.vector(n)
    letter = ("hp" if hermitian else "sp") if packed else ("he" if hermitian else "sy")
    name = f"cublas?{letter}r{'2' if twice else ''}_v2"
    name = c.call(
        name,
        E(uplo),
        n,
        at,
        x.memory.at,
        x.step,
        *([y.memory.at, y.step] if twice else []),
        a.memory.at,
        *([] if packed else [a.step]),
    )
    v, w = x.values[0], y.values[0] if twice else x.values[0]
    star = np.conj if hermitian else np.asarray
    added = alpha * np.outer(v, star(w))
    if twice:
        added = added + star(alpha) * np.outer(w, star(v))
    i, j = np.indices((n, n))
    inside = (i <= j) if uplo == UPPER else (i >= j)
    a.check(name, (dense + added)[None], inside[None])


# ---- level 3, and extensions ----


@routine
def complex_gemm(c: Case) -> None:
    if not c.complex:
        return
    form = c.r.choice(("_v2", "Batched", "StridedBatched", "3m", "Ex"))
    m, n, k, ta, tb, count = c.size(), c.size(), c.size(), c.op(), c.op(), 2 if "B" in form else 1
    (alpha, at), (beta, b_at) = c.scalar(0, 1, 2), c.scalar(0, 0, 1, -1)
    a = c.matrix(*((k, m) if ta else (m, k)), count)
    b, d = c.matrix(*((n, k) if tb else (k, n)), count), c.matrix(m, n, count)
    old = c.old(beta, d)
    lists = [o.lists().at if form == "Batched" else o.memory.at for o in (a, b, d)]
    kept = [o.lists() for o in (a, b, d)]
    lists = [m_.at for m_ in kept] if form == "Batched" else lists
    batch = [[c_longlong(o.batch)] if form[0] == "S" else [] for o in (a, b, d)]
    full = f"cublas?gemm{form}" if form != "Ex" else "cublasGemmEx"
    kind = [E(KINDS[c.letter])] if form == "Ex" else []
    last = [E(68 if c.letter == "C" else 70), E(-1)] if form == "Ex" else []
    name = c.call(
        full,
        E(ta),
        E(tb),
        m,
        n,
        k,
        at,
        lists[0],
        *kind,
        a.step,
        *batch[0],
        lists[1],
        *kind,
        b.step,
        *batch[1],
        b_at,
        lists[2],
        *kind,
        d.step,
        *batch[2],
        *([count] if "B" in form else []),
        *last,
    )
    d.check(name, alpha * (c.turned(a.values, ta) @ c.turned(b.values, tb)) + old)


@routine
def symm(c: Case) -> None:
    m, n, side, uplo = c.size(), c.size(), c.r.randrange(2), c.r.randrange(2)
    hermitian = c.complex and c.r.random() < 0.5
    (alpha, at), (beta, b_at) = c.scalar(0, 1, 2), c.scalar(0, 0, 1, -1)
    shape = "hermitian" if hermitian else "symmetric"
    a, dense = structured(c, n if side else m, shape, uplo, None)
    b, d = c.matrix(m, n), c.matrix(m, n)
    old = c.old(beta, d)
    name = c.call(
        f"cublas?{'he' if hermitian else 'sy'}mm_v2",
        E(side),
        E(uplo),
        m,
        n,
        at,
        a.memory.at,
        a.step,
        b.memory.at,
        b.step,
        b_at,
        d.memory.at,
        d.step,
    )
    product = b.values @ dense if side == RIGHT else dense @ b.values
    d.check(name, alpha * product + old)


@routine
def syrk(c: Case) -> None:
    n, k, uplo = c.size(), c.size(), c.r.randrange(2)
    hermitian = c.complex and c.r.random() < 0.5
    form = c.r.choice(("k", "2k", "kx"))
    op = c.r.choice((N, C if hermitian else T))
    alpha, at = c.scalar(0, 1, 2, real=hermitian and form == "k")
    beta, b_at = c.scalar(0, 1, -1, real=hermitian)
    a, b = (c.matrix(*((k, n) if op else (n, k))) for _ in range(2))
    d, dense = structured(c, n, "hermitian" if hermitian else "symmetric", uplo, None)
    name = f"cublas?{'he' if hermitian else 'sy'}r{form}" + ("" if form == "kx" else "_v2")
    name = c.call(
        name,
        E(uplo),
        E(op),
        n,
        k,
        at,
        a.memory.at,
        a.step,
        *([] if form == "k" else [b.memory.at, b.step]),
        b_at,
        d.memory.at,
        d.step,
    )
    left, right = c.turned(a.values[0], op), c.turned((a if form == "k" else b).values[0], op)
    star = np.conj if hermitian else np.asarray
    wanted = alpha * (left @ star(right).T)
    if form == "2k":
        wanted = wanted + star(alpha) * (right @ star(left).T)
    wanted = wanted + beta * dense
    if hermitian:
        wanted[range(n), range(n)] = wanted[range(n), range(n)].real
    i, j = np.indices((n, n))
    d.check(name, wanted[None], ((i <= j) if uplo == UPPER else (i >= j))[None])


@routine
def triangular_matrix(c: Case) -> None:
    m, n, side, uplo, op = c.size(), c.size(), c.r.randrange(2), c.r.randrange(2), c.op()
    unit, solve, (alpha, at) = c.r.randrange(2), c.r.random() < 0.6, c.scalar(1, 2, 0)
    order = n if side == RIGHT else m
    a, dense = structured(c, order, "triangular", uplo, None, unit == UNIT, solve)
    full, b = c.turned(dense.astype(np.complex128), op), c.matrix(m, n)
    first = [E(side), E(uplo), E(op), E(unit), m, n, at]
    if solve and c.r.random() < 0.4:
        second, other = structured(c, order, "triangular", uplo, None, unit == UNIT, True)
        b = c.matrix(m, n, 2)
        lists = Memory(np.array([a.memory.address, second.memory.address], np.uint64)), b.lists()
        name = c.call("cublas?trsmBatched", *first, lists[0].at, a.step, lists[1].at, b.step, 2)
        full = np.stack([full, c.turned(other.astype(np.complex128), op)])
        to = b
    elif solve:
        name = c.call("cublas?trsm_v2", *first, a.memory.at, a.step, b.memory.at, b.step)
        to = b
    else:
        to = b if c.r.random() < 0.5 else c.matrix(m, n)
        name = c.call(
            "cublas?trmm_v2",
            *first,
            a.memory.at,
            a.step,
            b.memory.at,
            b.step,
            to.memory.at,
            to.step,
        )
    inverse = np.linalg.inv(full) if solve else full
    wanted = alpha * (b.values @ inverse if side == RIGHT else inverse @ b.values)
    to.check(name, (wanted if c.complex else wanted.real).astype(c.dtype))


def factors(c: Case) -> None:
    """LU of several matrices, with and without pivots, and solutions from the factors."""
    n, columns, count, op = c.size(), c.size(), 1 + c.r.randrange(3), c.op()
    swapped, singular = c.r.random() < 0.7, c.r.random() < 0.2
    a, b = c.matrix(n, n, count), c.matrix(n, columns, count)
    large = 150 * np.eye(n, dtype=c.dtype)
    values = a.values + (large[c.rng.permutation(n)] if swapped else large)
    if singular:
        values[-1][:, -1] = 0
    a.memory.before[a.places] = values
    a.memory.put(a.memory.before)
    pivots, infos = Memory(np.zeros((count, n), np.int32)), Memory(np.full(count, -1, np.int32))
    at = pivots.at if swapped else None
    name = c.call("cublas?getrfBatched", n, a.lists().at, a.step, at, infos.at, count)
    lu, rows = a.memory.now()[a.places], np.tile(np.arange(n), (count, 1))
    for order, places in zip(rows, pivots.now() - 1, strict=True):
        for i, other in enumerate(places if swapped else []):
            order[[i, other]] = order[[other, i]]
    product = (np.tril(lu, -1) + np.eye(n)) @ np.triu(lu)
    if not np.allclose(product, np.take_along_axis(values, rows[:, :, None], 1), 1e-4, 1e-3):
        raise SystemExit(f"{name}: the product of the factors is {product}")
    zeros = [0] * (count - 1) + [n if singular else 0]
    if infos.now().tolist() != zeros:
        raise SystemExit(f"{name}: infos {infos.now()}, not {zeros}")
    a.check(name, lu)
    if singular:
        return
    a.memory.before, info = a.memory.now(), c_int(7)
    given = E(op), n, columns, a.lists().at, a.step, at, b.lists().at, b.step, byref(info), count
    name = c.call("cublas?getrsBatched", *given)
    if info.value:
        raise SystemExit(f"{name}: info {info.value}")
    wide = np.stack([c.turned(each.astype(np.complex128), op) for each in values])
    wanted = np.linalg.solve(wide, b.values.astype(np.complex128))
    b.check(name, (wanted if c.complex else wanted.real).astype(c.dtype))


@routine
def elementwise(c: Case) -> None:
    m, n, ta, tb = c.size(), c.size(), c.op(), c.op()
    (alpha, at), (beta, b_at) = c.scalar(0, 1, 2), c.scalar(0, 0, 1, -1)
    a, b = (c.matrix(*((n, m) if op else (m, n))) for op in (ta, tb))
    d, right = c.matrix(m, n), c.r.randrange(2)
    name = c.call(
        "cublas?geam",
        E(ta),
        E(tb),
        m,
        n,
        at,
        a.memory.at,
        a.step,
        b_at,
        b.memory.at,
        b.step,
        d.memory.at,
        d.step,
    )
    d.check(name, alpha * c.turned(a.values, ta) + beta * c.turned(b.values, tb))
    a, x = c.matrix(m, n), c.vector(n if right else m)
    d.memory.put(d.memory.before)
    name = c.call(
        "cublas?dgmm", E(right), m, n, a.memory.at, a.step, x.memory.at, x.step, d.memory.at, d.step
    )
    d.check(name, a.values * (x.values[0] if right else x.values[0][:, None]))


# ---- what is wrong, and what a capture makes of calls ----


def errors(handle: c_void_p) -> Iterator[tuple[str, int]]:
    x, one = Memory(np.ones(64, np.float32)), c_void_p(np.ones(1, np.float32).ctypes.data)
    good(BLAS.cublasSetPointerMode_v2(handle, 0))
    at = x.at
    yield "handle", BLAS.cublasSaxpy_v2(c_void_p(1), 4, one, at, 1, at, 1)
    yield "no scalar", BLAS.cublasSaxpy_v2(handle, 4, None, at, 1, at, 1)
    yield "no result", BLAS.cublasSdot_v2(handle, 4, at, 1, at, 1, None)
    yield "nothing to do", BLAS.cublasSaxpy_v2(handle, 0, one, None, 1, None, 1)
    yield "step", BLAS.cublasSgemv_v2(handle, 0, 4, 4, one, at, 4, at, 0, one, at, 1)
    yield "ld", BLAS.cublasSgemv_v2(handle, 0, 4, 4, one, at, 3, at, 1, one, at, 1)
    yield "operation", BLAS.cublasSgemv_v2(handle, 3, 4, 4, one, at, 4, at, 1, one, at, 1)
    yield "triangle", BLAS.cublasStrsv_v2(handle, 2, 0, 0, 4, at, 4, at, 1)
    yield "diagonal", BLAS.cublasStrsm_v2(handle, 0, 0, 0, 2, 4, 4, one, at, 4, at, 4)
    yield "side", BLAS.cublasStrsm_v2(handle, 2, 0, 0, 0, 4, 4, one, at, 4, at, 4)
    yield "size", BLAS.cublasStrsm_v2(handle, 0, 0, 0, 0, -1, 4, one, at, 4, at, 4)
    yield "band", BLAS.cublasSsbmv_v2(handle, 0, 4, -1, one, at, 4, at, 1, one, at, 1)
    yield "types", BLAS.cublasDotEx(handle, 4, at, 0, 1, at, 1, 1, at, 0, 0)
    yield "half", BLAS.cublasScalEx(handle, 4, one, 2, at, 2, 1, 2)
    to = c_void_p(np.zeros(1, np.float16).ctypes.data)
    backwards = BLAS.cublasDotEx(handle, 4, at, R_16F, 1, at, R_16F, -1, to, R_16F, R_32F)
    yield "half backwards", backwards


def captured(handle: c_void_p, stream: c_void_p) -> None:
    """A captured axpy runs with each launch; a result for the host cannot wait for one."""
    x, two = Memory(np.ones(8)), np.full(1, 2.0)
    y, graph, executable = Memory(np.arange(8.0)), c_void_p(), c_void_p()
    result, at = np.zeros(1), c_void_p(two.ctypes.data)
    good(BLAS.cublasSetPointerMode_v2(handle, 0))
    good(RUNTIME.cudaStreamBeginCapture(stream, 0))
    good(BLAS.cublasDaxpy_v2(handle, 8, at, x.at, 1, y.at, 1))
    good(RUNTIME.cudaStreamEndCapture(stream, byref(graph)))
    two[0] = 99  # it was read
    good(RUNTIME.cudaGraphInstantiate(byref(executable), graph, c_size_t(0)))
    for _ in range(3):
        good(RUNTIME.cudaGraphLaunch(executable, stream))
    good(RUNTIME.cudaStreamSynchronize(stream))
    assert (y.now() == np.arange(8) + 6).all()
    good(RUNTIME.cudaStreamBeginCapture(stream, 0))
    to = c_void_p(result.ctypes.data)
    told = BLAS.cublasDnrm2_v2(handle, 8, x.at, 1, to)
    ended = RUNTIME.cudaStreamEndCapture(stream, byref(graph))
    good(BLAS.cublasDnrm2_v2(handle, 8, x.at, 1, to))
    print("captured", told, ended, float(result[0]) ** 2, flush=True)


def dots_of_halves(handle: c_void_p) -> None:
    """With sums in float: 2049 is no half, and 257 no bfloat16; the result is the nearest."""
    for kind in (R_16F, R_16BF):
        values = np.array([2048.0, 1.0, -1.0, 2.0, 3.0, 0.5])
        bits = encode(values, kind)
        x, result = Memory(bits), Memory(np.full(1, 0x1234, np.uint16))
        for step, sign in ((1, 1), (2, 1), (1, -1)):
            used = values[::step]
            expected = encode(np.array([np.dot(used, used)]), kind).view(np.uint16)
            for dot in (BLAS.cublasDotEx, BLAS.cublasDotcEx):
                for on_device in (0, 1):
                    host = np.zeros(1, np.uint16)
                    to = result.at if on_device else c_void_p(host.ctypes.data)
                    good(BLAS.cublasSetPointerMode_v2(handle, on_device))
                    inc = c_int(sign * step)
                    arguments = (x.at, kind, inc, x.at, kind, inc, to, kind, R_32F)
                    good(dot(handle, len(used), *arguments))
                    assert (result.now() if on_device else host) == expected, (kind, step, sign)
    good(BLAS.cublasSetPointerMode_v2(handle, 0))


def after_a_reset() -> None:
    """The kernels are as before their first use."""
    handle, one = c_void_p(), np.ones(1)
    good(RUNTIME.cudaDeviceReset())
    x, y = Memory(np.ones(8)), Memory(np.arange(8.0))
    good(BLAS.cublasCreate_v2(byref(handle)))
    good(BLAS.cublasDaxpy_v2(handle, 8, c_void_p(one.ctypes.data), x.at, 1, y.at, 1))
    assert (y.now() == np.arange(8) + 1).all()


def main() -> None:
    rounds, seed = int(sys.argv[1]), int(sys.argv[2]) + int(os.environ["RANK"])
    r, of_factors = Random(seed), Random(seed)
    handle, stream = c_void_p(), c_void_p()
    good(BLAS.cublasCreate_v2(byref(handle)))
    good(RUNTIME.cudaStreamCreate(byref(stream)))
    for _ in range(rounds):
        for letter in sys.argv[3]:
            good(BLAS.cublasSetStream_v2(handle, r.choice((stream, c_void_p()))))
            for function in ROUTINES:
                function(Case(r, handle, letter))
                good(RUNTIME.cudaDeviceSynchronize())
            factors(Case(of_factors, handle, letter))
    good(BLAS.cublasSetStream_v2(handle, stream))
    captured(handle, stream)
    dots_of_halves(handle)
    print("told", dict(errors(handle)), flush=True)
    good(RUNTIME.cudaDeviceSynchronize())
    good(BLAS.cublasDestroy_v2(handle))
    after_a_reset()


if __name__ == "__main__":
    main()
