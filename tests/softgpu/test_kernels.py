"""Kernels compiled by nvcc, against NumPy."""

from __future__ import annotations

import math
from pathlib import Path

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo
from softgpu.harness import Space

RNG = np.random.default_rng
SOURCE = Path(__file__).with_name("kernels.cu")


@pytest.fixture(scope="session", params=["compute_75", "compute_80"])
def module(request: pytest.FixtureRequest, kernels: Loader) -> ModuleInfo:
    args = [f"-arch={request.param}", *(["-DNO_REDUX"] if request.param == "compute_75" else [])]
    text = cuda.ptx(SOURCE, args=args)
    return kernels.module(text.encode(), 1)


class Kernels:
    """The module's kernels by name."""

    def __init__(self, loader: Loader, module: ModuleInfo):
        self.loader, self.module = loader, module

    def __getattr__(self, name: str) -> FunctionInfo:
        return self.loader.function(self.module, name)


@pytest.fixture
def k(kernels: Loader, module: ModuleInfo) -> Kernels:
    return Kernels(kernels, module)


def randn(*shape: int, seed: int = 1) -> np.ndarray:
    return RNG(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n", [1, 31, 1000, 5000])
def test_saxpy(k: Kernels, space: Space, n: int) -> None:
    x, y = randn(n), randn(n, seed=2)
    at = space.put(y)
    space.launch(k.saxpy, 7, 96, 2.5, space.put(x), at, n)
    space.check()
    wanted = (np.float64(np.float32(2.5)) * x + y).astype(np.float32)  # nvcc contracts to an fma
    np.testing.assert_array_equal(space.read(at, n, np.float32), wanted)


@pytest.mark.parametrize("shape", [(16, 16, 16), (33, 50, 70), (64, 17, 5)])
def test_matmul_in_tiles(k: Kernels, space: Space, shape: tuple[int, int, int]) -> None:
    m, n, inner = shape
    a, b = randn(m, inner), randn(inner, n, seed=2)
    out = space.alloc(4 * m * n)
    grid = ((n + 15) // 16, (m + 15) // 16)
    space.launch(k.matmul, grid, (16, 16), space.put(a), space.put(b), out, m, n, inner)
    space.check()
    wanted = np.zeros((m, n))
    for i in range(inner):  # an fma for each step: the very same bits
        wanted = (a[:, i, None].astype(float) * b[i] + wanted).astype(np.float32).astype(float)
    np.testing.assert_array_equal(space.read(out, m * n, np.float32).reshape(m, n), wanted)


@pytest.mark.parametrize("columns", [5, 64, 300])
def test_softmax_and_layernorm(k: Kernels, space: Space, columns: int) -> None:
    x, gamma, beta = randn(6, columns), randn(columns, seed=2), randn(columns, seed=3)
    at, out = space.put(x), space.alloc(x.nbytes)
    space.launch(k.softmax, 6, 128, at, out, columns, shared=128)
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    got = space.read(out, x.size, np.float32).reshape(x.shape)
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=2e-6)
    space.launch(k.layernorm, 6, 64, at, space.put(gamma), space.put(beta), out, columns)
    wide = x.astype(float)
    scale = 1 / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    got = space.read(out, x.size, np.float32).reshape(x.shape)
    np.testing.assert_allclose(
        got, (wide - wide.mean(1, keepdims=True)) * scale * gamma + beta, rtol=1e-4, atol=1e-5
    )
    space.check()


def test_adam(k: Kernels, space: Space) -> None:
    n = 1000
    p, g, m, v = (randn(n, seed=s) for s in range(4))
    v = np.abs(v)
    at = [space.put(a) for a in (p, g, m, v)]
    parameters = np.array([1e-3, 0.9, 0.999, 1e-8, 0.01], np.float32).tobytes() + (7).to_bytes(
        4, "little"
    )
    space.launch(k.adam, 4, 256, *at, parameters, n)
    space.check()
    m2, v2 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = m2 / (1 - 0.9**7) / (np.sqrt(v2 / (1 - 0.999**7)) + 1e-8) + 0.01 * p
    for address, wanted in zip((at[0], at[2], at[3]), (p - 1e-3 * step, m2, v2), strict=True):
        np.testing.assert_allclose(space.read(address, n, np.float32), wanted, rtol=2e-5, atol=1e-6)


def test_functions(k: Kernels, space: Space, module: ModuleInfo) -> None:
    x = np.linspace(-9, 9, 501).astype(np.float32)
    n = len(x)
    out = space.alloc(9 * 4 * n)
    tables = space.put(np.frombuffer(module.globals_image, np.uint8))
    space.launch(k.functions, 4, 128, space.put(x), out, n, globals_addr=tables)
    space.check()
    got = space.read(out, 9 * n, np.float32).reshape(9, n)
    w = x.astype(float)
    with np.errstate(divide="ignore"):
        wanted = [
            np.exp(w),
            np.log(np.abs(w)),
            np.sin(w),
            np.cos((x * np.float32(1e6)).astype(float)),
            np.tanh(w),
            np.array([math.erf(v) for v in w]),
            np.abs(w) ** np.float32(1.7),
            np.exp(w),
            np.exp(w),
        ]
    for got_row, wanted_row in zip(got, wanted, strict=True):
        np.testing.assert_allclose(got_row, wanted_row, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("threads", [32, 96])
def test_divergent_warps(k: Kernels, space: Space, threads: int) -> None:
    times = RNG(5).integers(0, 9, threads).astype(np.int32)
    out = space.alloc(16 * threads)
    space.launch(k.divergent, 1, threads, space.put(times), out)
    space.check()
    got = space.read(out, 4 * threads, np.int32).reshape(threads, 4)
    t = np.arange(threads)
    sums = times * (times - 1) // 2 * (t + 1)
    for warp in range(threads // 32):
        lanes = slice(32 * warp, 32 * warp + 32)
        np.testing.assert_array_equal(got[lanes, 0], sums[lanes])
        assert set(got[lanes, 1]) == {sums[lanes].sum()}
        even = sum(1 << i for i, s in enumerate(sums[lanes]) if s % 2 == 0)
        assert set(got[lanes, 2].view(np.uint32)) == {even}
        inside = np.where(
            t[lanes] % 32 < 10, sums[32 * warp + 3], np.where(t[lanes] % 3 == 0, -1, 0)
        )
        np.testing.assert_array_equal(got[lanes, 3], inside)


@pytest.mark.parametrize(("threads", "n"), [(64, 64), (64, 50), (33, 33), (128, 1)])
def test_barriers_in_a_loop(k: Kernels, space: Space, threads: int, n: int) -> None:
    data = RNG(1).integers(0, 100, (3, n)).astype(np.int32)
    at = space.put(data)
    space.launch(k.barrier_loop, 3, threads, at, n, 11, shared=4 * n)
    space.check()
    step = np.where(np.arange(n) & 1, 1, 2)
    for _ in range(11):
        data = np.roll(data, -1, axis=1) + step
    np.testing.assert_array_equal(space.read(at, data.size, np.int32).reshape(data.shape), data)


def test_barriers_that_vote(k: Kernels, space: Space) -> None:
    x = RNG(2).integers(-50, 50, 96).astype(np.int32)
    out = space.alloc(12 * 96)
    space.launch(k.barrier_votes, 1, 96, space.put(x), out)
    space.check()
    got = space.read(out, 3 * 96, np.int32).reshape(96, 3)
    assert (got == [(x > 0).sum(), 1, 0]).all()


def test_named_barriers(k: Kernels, space: Space) -> None:
    x = RNG(2).integers(0, 1000, (5, 64)).astype(np.int32)
    out = space.alloc(x.nbytes)
    space.launch(k.named_barriers, 1, 128, space.put(x), out, 5)
    space.check()
    got = space.read(out, x.size, np.int32).reshape(5, 64)
    np.testing.assert_array_equal(got, x[:, ::-1] * 2)


def _match(values: np.ndarray) -> np.ndarray:
    masks = {v: sum(1 << i for i, w in enumerate(values) if w == v) for v in set(values)}
    return np.array([masks[v] for v in values], np.uint32)


def test_warp_operations(k: Kernels, space: Space, module: ModuleInfo) -> None:
    x = RNG(9).integers(0, 2**32, 64, dtype=np.uint32)
    x[40] = 0
    x[:32] |= 3
    out = space.alloc(14 * 4 * 64)
    space.launch(k.warp_operations, 1, 64, space.put(x), out)
    space.check()
    got = space.read(out, 14 * 64, np.uint32).reshape(2, 32, 14)
    lane = np.arange(32)
    for warp in range(2):
        v, o = x[32 * warp : 32 * warp + 32], got[warp].T
        np.testing.assert_array_equal(o[0], np.where(lane >= 3, v[lane - 3], v))
        np.testing.assert_array_equal(o[1], np.where(lane % 8 + 5 < 8, v[(lane + 5) % 32], v))
        np.testing.assert_array_equal(o[2], v[v & 31])
        np.testing.assert_array_equal(o[3], v[lane ^ 9])
        assert set(o[4]) == {1} and set(o[5]) == {int((v > 0).all())}
        np.testing.assert_array_equal(o[6], _match(v & 3))
        assert set(o[7]) == {0 if warp else 2**32 - 3}
        if module.ptx.target >= 80:
            assert set(o[8]) == {v.sum(dtype=np.uint32)} and set(o[9]) == {v.max()}
            assert set(o[10].view(np.int32)) == {v.view(np.int32).min()}
            assert set(o[11]) == {np.bitwise_xor.reduce(v)}
        assert set(o[12]) == {2**32 - 1}
        np.testing.assert_array_equal(o[13], _match(v & 1))


def test_atomics(k: Kernels, space: Space, module: ModuleInfo) -> None:
    n = 777
    x = RNG(4).integers(0, 2**32, n, dtype=np.uint32)
    out = np.zeros(24, np.uint32)
    out[1], out[3] = 2**32 - 1, 2**32 - 1
    out[8] = 1 << 31
    at, fat = space.put(out), space.put(np.zeros(2, np.float32))
    wide, dat = space.put(np.zeros(1, np.uint64)), space.put(np.zeros(1))
    area = space.put(np.frombuffer(module.globals_image, np.uint8))
    for expected in (5, 7):
        space.launch(k.atomics, 7, 128, space.put(x), at, fat, wide, dat, n, globals_addr=area)
        result = space.alloc(4)
        space.launch(k.read_total, 1, 1, result, globals_addr=area)
        space.check()
        weights = np.array([1, 10, 100, 1000])[x & 3].sum()
        assert space.read(result, 1, np.uint32)[0] == expected + weights + 1000
    got = space.read(at, 24, np.uint32)
    both = np.concatenate([x, x])
    assert got[0] == both.sum(dtype=np.uint32)
    assert (got[1], got[2]) == (x.min(), x.max())
    assert got[3] == np.bitwise_and.reduce(x | 0xFF) and got[4] == np.bitwise_or.reduce(x & 0xFF00)
    assert got[5] == 0 and got[9] == x.max()
    assert got[6] == (2 * n) % 7
    low = 0
    for _ in range(2 * n):
        low = 9 if low == 0 or low > 9 else low - 1
    assert got[7] == low
    assert got[8].view(np.int32) == x.view(np.int32).max()
    np.testing.assert_array_equal(got[16:], np.bincount(both & 7, minlength=8))
    np.testing.assert_array_equal(space.read(fat, 2, np.float32), [n / 2, n])
    assert space.read(wide, 1, np.uint64)[0] == 2 * int((x.astype(np.uint64) << np.uint64(8)).sum())
    assert space.read(dat, 1, np.float64)[0] == n / 4


def test_calls(k: Kernels, space: Space) -> None:
    t = np.arange(64)
    c, x = np.array([1, -2, 3, -4], np.float32), (t - 30).astype(np.float32)
    at, out = space.put(x), space.alloc(4 * 64)
    space.launch(k.calls, 1, 64, space.put(c), at, out)
    space.check()
    times = 2 + t % 2
    np.testing.assert_array_equal(
        space.read(at, 64, np.float32), (((x - 2) * x + 3) * x - 4) * times
    )
    second = np.stack([t, 2 * t, 3 * t])
    second[times % 3, t] += times
    np.testing.assert_array_equal(
        space.read(out, 64, np.int32), second[0] + second[1] * 1000 + second[2] * 1000000
    )


def test_local_arrays(k: Kernels, space: Space) -> None:
    x = RNG(1).integers(-9, 9, 16).astype(np.int32)
    out = space.alloc(4 * 40)
    space.launch(k.local_array, 1, 40, space.put(x), out, 100)
    space.check()
    wanted = []
    for t in range(40):
        table = [int(v) * t for v in x]
        for i in range(100):
            table[(i * 7 + t) & 15] += i
        total = 0
        for v in table:
            total = total * 3 + v
        wanted.append(total)
    np.testing.assert_array_equal(space.read(out, 40, np.int32), np.array(wanted).astype(np.int32))


def test_generic_pointers(k: Kernels, space: Space) -> None:
    t = np.arange(32)
    wanted = [
        ((t + 1) & 31) * 5 + 100,
        np.array([101, 102, 103, 0])[t & 3] + np.where(t % 4 == 3, t + 100, 0),
        t + 107,
    ]
    for which in range(3):
        out = space.put(np.concatenate([np.zeros(32), t + 7]).astype(np.int32))
        space.launch(k.generic_pointers, 1, 32, out, which)
        space.check()
        np.testing.assert_array_equal(space.read(out, 32, np.int32), wanted[which])


def test_vectors(k: Kernels, space: Space) -> None:
    x, s = randn(32, 4), RNG(3).integers(-99, 99, (32, 2)).astype(np.int16)
    out, so = space.alloc(x.nbytes), space.alloc(s.nbytes)
    space.launch(k.vectors, 1, 32, space.put(x), out, space.put(s), so)
    space.check()
    wanted = np.stack([x[:, 3], x[:, 2] + x[:, 1], x[:, 1], x[:, 0]], 1)
    np.testing.assert_array_equal(space.read(out, x.size, np.float32).reshape(x.shape), wanted)
    np.testing.assert_array_equal(
        space.read(so, s.size, np.int16).reshape(s.shape), np.stack([s[:, 1], s.sum(1)], 1)
    )


def test_halves(k: Kernels, space: Space) -> None:
    a, b = randn(32, 2).astype(np.float16), randn(32, 2, seed=2).astype(np.float16)
    out, bf, f = space.alloc(a.nbytes), space.alloc(64), space.alloc(128)
    space.launch(k.halves, 1, 32, space.put(a), space.put(b), out, bf, f)
    space.check()
    wanted = (a.astype(float) * b + (a + b)).astype(np.float16)
    np.testing.assert_array_equal(space.read(out, 64, np.float16).reshape(32, 2), wanted)
    np.testing.assert_array_equal(
        space.read(f, 32, np.float32), (a[:, 1] * b[:, 0]).astype(np.float32)
    )
    bits = (a[:, 0].astype(np.float32) * 3).view(np.uint32)
    np.testing.assert_array_equal(
        space.read(bf, 32, np.uint16), (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    )


@pytest.mark.parametrize("block", [(5, 1, 1), (8, 4, 2), (3, 7, 5), (1, 64, 1)])
def test_shapes(k: Kernels, space: Space, block: tuple[int, int, int]) -> None:
    grid = (2, 3, 2)
    threads, blocks = int(np.prod(block)), int(np.prod(grid))
    out = space.alloc(4 * threads * blocks)
    space.launch(k.shapes, grid, block, out)
    space.check()
    z, y, x = np.meshgrid(*(np.arange(d) for d in block[::-1]), indexing="ij")
    inner = (x + 100 * y + 10000 * z).ravel()
    wanted = (np.arange(blocks)[:, None] * 1000000 + inner).astype(np.int32)
    np.testing.assert_array_equal(
        space.read(out, wanted.size, np.int32).reshape(wanted.shape), wanted
    )


def test_threads_that_wait_for_each_other(k: Kernels, space: Space) -> None:
    flags, out = space.put(np.zeros(2, np.int32)), space.alloc(256)
    space.launch(k.spin, 1, 64, flags, out)
    space.check()
    assert space.read(out, 64, np.int32)[32] == 2


def test_waiting_by_way_of_the_threads_own_memory(k: Kernels, space: Space) -> None:
    """Where unoptimised code (nvcc -G) keeps all that it reads."""
    flag, out = space.put(np.zeros(1, np.int32)), space.alloc(256)
    space.launch(k.spin_by_reference, 1, 64, flag, out)
    space.check()
    assert (space.read(out, 64, np.int32) == 7).all()


def test_the_same_bits_every_time(k: Kernels, space: Space) -> None:
    x = randn(64, 100)
    results = []
    for _ in range(3):
        out = space.alloc(x.nbytes)
        space.launch(k.softmax, 64, 96, space.put(x), out, 100, shared=128)
        results.append(space.read(out, x.size, np.float32).tobytes())
    space.check()
    assert len(set(results)) == 1
