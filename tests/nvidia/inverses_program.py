"""A rank that calls functions of cuBLAS which only NVIDIA's library has, and complex products by
cudaDataType, and compares the results with NumPy's. Prints a line with a hash of the bits of each
result. Arguments: the number of rounds, a seed, and the types."""

from __future__ import annotations

import os
import sys
from ctypes import byref, c_int, c_longlong, c_void_p
from random import Random

import numpy as np
from cublas.routines_program import BLAS, KINDS, RUNTIME, Case, E, Memory, good, structured

LOWER, UPPER = 0, 1


def inverses(c: Case) -> None:
    n, count = c.size(), 1 + c.r.randrange(3)
    a, to = c.matrix(n, n, count), c.matrix(n, n, count)
    a.memory.before[a.places] += 150 * np.eye(n, dtype=c.dtype)
    a.memory.put(a.memory.before)
    values = a.values.copy()
    infos = Memory(np.full(count, -1, np.int32))
    name = c.call(
        "cublas?matinvBatched", n, a.lists().at, a.step, to.lists().at, to.step, infos.at,
        count,
    )  # fmt: skip
    to.check(name, np.linalg.inv(values))
    pivots, at = Memory(np.zeros((count, n), np.int32)), a.lists().at
    c.call("cublas?getrfBatched", n, at, a.step, pivots.at, infos.at, count)
    to.memory.put(to.memory.before)
    name = c.call(
        "cublas?getriBatched", n, at, a.step, pivots.at, to.lists().at, to.step, infos.at,
        count,
    )  # fmt: skip
    to.check(name, np.linalg.inv(values))
    assert not infos.now().any()


def least_squares(c: Case) -> None:
    n, columns, count = 1 + c.r.randrange(4), c.size(), 1 + c.r.randrange(3)
    m = n + c.r.randrange(4)
    a, b = c.matrix(m, n, count), c.matrix(m, columns, count)
    a.memory.before[a.places] += 9 * np.eye(m, n, dtype=c.dtype)
    a.memory.put(a.memory.before)
    infos, info = Memory(np.full(count, -1, np.int32)), c_int(7)
    name = c.call(
        "cublas?gelsBatched", E(0), m, n, columns, a.lists().at, a.step, b.lists().at,
        b.step, byref(info), infos.at, count,
    )  # fmt: skip
    assert info.value == 0 and not infos.now().any()
    wanted = np.stack(
        [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(a.values, b.values, strict=True)]
    )
    c.same(name, b.memory.now()[b.places][:, :n], wanted)


def packs(c: Case) -> None:
    n, uplo = c.size(), c.r.randrange(2)
    packed, dense = structured(c, n, "triangular", uplo, -2)
    whole, _ = structured(c, n, "triangular", uplo, None)
    i, j = np.indices((n, n))
    inside = ((i <= j) if uplo == UPPER else (i >= j))[None]
    name = c.call("cublas?tpttr", E(uplo), n, packed.memory.at, whole.memory.at, whole.step)
    whole.check(name, dense[None], inside)
    packed.memory.put(np.zeros_like(packed.memory.before))
    c.call("cublas?trttp", E(uplo), n, whole.memory.at, whole.step, packed.memory.at)
    assert (packed.memory.now()[packed.places[inside]] == dense[inside[0]]).all()


def products(c: Case) -> None:
    for form in ("", "Batched", "StridedBatched"):
        m, n, k, ta, tb = c.size(), c.size(), c.size(), c.op(), c.op()
        count = 2 if form else 1
        (alpha, at), (beta, b_at) = c.scalar(1, 2), c.scalar(0, 1, -1)
        a, b, d = (
            c.matrix(*((k, m) if ta else (m, k)), count),
            c.matrix(*((n, k) if tb else (k, n)), count),
            c.matrix(m, n, count),
        )
        old, kind, kept = c.old(beta, d), E(KINDS[c.letter]), [o.lists() for o in (a, b, d)]
        given = [
            [
                lists.at if form == "Batched" else o.memory.at,
                kind,
                o.step,
                *([c_longlong(o.batch)] if form == "StridedBatched" else []),
            ]
            for o, lists in zip((a, b, d), kept, strict=True)
        ]
        name = c.call(
            f"cublasGemm{form}Ex", E(ta), E(tb), m, n, k, at, *given[0], *given[1], b_at,
            *given[2], *([count] if form else []), E(68 if c.letter == "C" else 70), E(-1),
        )  # fmt: skip
        d.check(name, alpha * (c.turned(a.values, ta) @ c.turned(b.values, tb)) + old)


def main() -> None:
    r = Random(int(sys.argv[2]) + int(os.environ["RANK"]))
    handle = c_void_p()
    good(BLAS.cublasCreate_v2(byref(handle)))
    for _ in range(int(sys.argv[1])):
        for letter in sys.argv[3]:
            for function in (inverses, least_squares, packs, products):
                case = Case(r, handle, letter)
                if function is not products or case.complex:
                    function(case)
    # A status of NVIDIA's library, which the client could not foresee.
    zero, one = Memory(np.zeros(4)), c_void_p(np.ones(1).ctypes.data)
    print("mixed", BLAS.cublasScalEx(handle, 4, one, 1, zero.at, 0, 1, 1), flush=True)
    good(RUNTIME.cudaDeviceSynchronize())
    good(BLAS.cublasDestroy_v2(handle))


main()
