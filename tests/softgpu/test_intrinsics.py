"""CUDA C++ compiled for each architecture, against what Python computes."""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.info import ModuleInfo
from softgpu import test_bit_rows as bit_rows
from softgpu import test_conformance as floats
from softgpu.harness import Space
from softgpu.rows import signed

SOURCE = Path(__file__).with_name("intrinsics.cu")
THREADS = 64
WORD = 0xFFFFFFFF
ARCHITECTURES = ["75", "90", *(pytest.param(a, marks=pytest.mark.slow) for a in ("80", "86", "89"))]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def module(request: pytest.FixtureRequest, kernels: Loader) -> ModuleInfo:
    text = cuda.ptx(SOURCE, args=[f"-arch=compute_{request.param}", "-diag-suppress=177"])
    return kernels.module(text.encode(), 1)


@pytest.fixture(scope="module", params=["75", "90"])
def from_nvrtc(request: pytest.FixtureRequest, kernels: Loader) -> ModuleInfo:
    return kernels.module(nvrtc(f"--gpu-architecture=compute_{request.param}"), 1)


def nvrtc(*options: str) -> bytes:
    """The PTX that NVRTC makes of the part of the source that needs no headers."""
    wheels = Path(sysconfig.get_path("purelib"))
    found = sorted(wheels.glob("nvidia/*/lib/libnvrtc.so.*"))
    lib = ctypes.CDLL(str(found[0]))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    text = SOURCE.read_bytes()
    assert lib.nvrtcCreateProgram(ctypes.byref(program), text, b"i.cu", 0, None, None) == 0
    assert lib.nvrtcCompileProgram(program, len(options), given) == 0
    assert lib.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
    out = ctypes.create_string_buffer(size.value)
    assert lib.nvrtcGetPTX(program, out) == 0
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return out.raw.rstrip(b"\0")


def launch(
    kernels: Loader,
    space: Space,
    module: ModuleInfo,
    name: str,
    data: Any,
    rows: int,
    shared: int = 0,
) -> Any:
    out = space.put(np.zeros((rows, THREADS), data.dtype))
    function = kernels.function(module, name)
    space.launch(function, 1, THREADS, space.put(data), out, shared=shared)
    space.check()
    return space.read(out, rows * THREADS, data.dtype).reshape(rows, THREADS)


def words(seed: int) -> Any:
    data = np.random.default_rng(seed).integers(0, 2**32, (3, THREADS), np.uint32)
    data[:, ::5] &= 0xFF
    data[:, 7] = 0
    return data


def bytewise(one: Callable[[int, int], int], bits: int = 8, sign: bool = False) -> Any:
    def reference(a: int, b: int) -> int:
        mask, word = (1 << bits) - 1, 0
        for place in range(0, 32, bits):
            x, y = a >> place & mask, b >> place & mask
            if sign:
                x, y = signed(x, bits), signed(y, bits)
            word |= (one(x, y) & mask) << place
        return word

    return reference


def dot(a: int, b: int, c: int) -> int:
    return c + sum(signed(a >> p, 8) * signed(b >> p, 8) for p in range(0, 32, 8))


BITS: list[Callable[[int, int, int], int]] = [
    lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    lambda a, b, c: 32 - a.bit_length(),
    lambda a, b, c: (a & -a).bit_length(),
    lambda a, b, c: (
        a.bit_count() + 100 * (a << 32 | b).bit_count() + 10000 * (64 - (a << 32 | b).bit_length())
    ),
    lambda a, b, c: bit_rows.general(a, b, c & 0x7777),
    lambda a, b, c: (b << 32 | a) << (c & 31) >> 32,
    lambda a, b, c: (b << 32 | a) >> min(c, 32),
    dot,
    lambda a, b, c: abs(a - b) + c,
    lambda a, b, c: a * b >> 32 ^ (signed(a, 32) * signed(b, 32) >> 32) & WORD,
    lambda a, b, c: bytewise(lambda x, y: x + y, 16)(a, b),
    lambda a, b, c: bytewise(lambda x, y: min(x + y, 255))(a, b),
    lambda a, b, c: bytewise(lambda x, y: abs(x - y))(a, b),
    lambda a, b, c: bytewise(lambda x, y: 255 * (x > y))(a, b),
    lambda a, b, c: bytewise(min, 16, True)(a, b),
    lambda a, b, c: (a << 32 | b) // (c | 1) ^ (a << 32 | b) % (c | 1),
    lambda a, b, c: (a << 32 | b) ** 2 >> 64,
    lambda a, b, c: (a + b) >> 1,
]


def check_bits(kernels: Loader, space: Space, module: ModuleInfo) -> None:
    data = words(1)
    got = launch(kernels, space, module, "bits", data, len(BITS))
    operands = list(zip(*data.tolist(), strict=True))
    for index, (reference, row) in enumerate(zip(BITS, got.tolist(), strict=True)):
        assert row == [reference(*abc) & WORD for abc in operands], f"result {index}"


def check_warps(kernels: Loader, space: Space, module: ModuleInfo) -> None:
    data = words(2)
    got = launch(kernels, space, module, "warps", data, 8).tolist()
    a, b, c = data.tolist()
    for t in range(THREADS):
        base, lane = t // 32 * 32, t % 32
        warp = range(base, base + 32)
        odd = sum(1 << (n - base) for n in warp if a[n] & 1)
        same = sum(1 << (n - base) for n in warp if b[n] & 3 == b[t] & 3)
        votes = all(a[n] for n in warp) + 2 * any(c[n] == 0 for n in warp)
        some = sum(1 for n in warp if b[n] & 4)
        wanted = [
            a[base + (lane ^ 5)],
            a[t - 3] if lane % 8 >= 3 else a[t],
            odd,
            same,
            votes,
            some if b[t] & 4 else 0,
            sum(a[n] for n in warp) & WORD,
            (a[t] + sum(x & 1 for x in a)) & WORD,
        ]
        assert [row[t] for row in got] == wanted


def rounded(mode: str, exact: Callable[..., Any], *values: float) -> float:
    return floats.apply(exact, "f32", mode, values)


def check_rounding(kernels: Loader, space: Space, module: ModuleInfo) -> None:
    rng = np.random.default_rng(3)
    data = (rng.standard_normal((3, THREADS)) * 2.0 ** rng.integers(-8, 8, (3, THREADS))).astype(
        "f4"
    )
    got = launch(kernels, space, module, "rounding", data, 10)
    f = np.float32
    for t in range(THREADS):
        a, b, c = (float(x) for x in data[:, t])
        product = floats.apply(floats.mul, "f64", "rp", (a, b))
        wanted = [
            rounded("rz", floats.fma, a, b, c),
            rounded("rp", floats.add, a, b),
            rounded("rm", floats.mul, a, b),
            rounded("rz", floats.div, a, b),
            rounded("rp", floats.root, abs(a)),
            f(np.floor(a * 0.37)) + f(np.rint(b)),
            rounded("rm", floats.same, product),
            min(max(a, 0.0), 1.0),
            f(f(np.rint(a)) + f(np.floor(b))) + f(np.trunc(c)),
            f(min(a, b)) - f(max(b, c)),
        ]
        np.testing.assert_array_equal(got[:, t], np.array(wanted, f))


def check_device_code(kernels: Loader, space: Space, module: ModuleInfo) -> None:
    data = words(4)
    got = launch(kernels, space, module, "device_code", data, 5, shared=4 * THREADS)
    a, b, c = data.astype(object)
    counts = [sum(int(x) & 255 for x, y in zip(a, b, strict=True) if y & 3 == n) for n in range(4)]
    xor = int(np.bitwise_xor.reduce(data[2]))
    assert got[2, :4].tolist() == [max(int(x) & 0xFFFF for x in b), THREADS % 10, 5, xor]
    for t in range(THREADS):
        local = (c[t] - b[t]) % 8 * a[t] & WORD
        wanted = [a[(t + 7) % THREADS], counts[b[t] & 3], local, a[t ^ 1]]
        assert got[[0, 1, 3, 4], t].tolist() == wanted


CHECKS = {
    "bits": check_bits,
    "warps": check_warps,
    "rounding": check_rounding,
    "device code": check_device_code,
}


@pytest.mark.parametrize("family", CHECKS)
def test_nvcc(kernels: Loader, space: Space, module: ModuleInfo, family: str) -> None:
    CHECKS[family](kernels, space, module)


@pytest.mark.parametrize("family", CHECKS)
def test_nvrtc(kernels: Loader, space: Space, from_nvrtc: ModuleInfo, family: str) -> None:
    CHECKS[family](kernels, space, from_nvrtc)


def test_half_precision(kernels: Loader, space: Space, module: ModuleInfo) -> None:
    data = words(5)
    got = launch(kernels, space, module, "halves", data, 5)
    a, b, c = data.tolist()
    for t in range(THREADS):
        x, y, z = a[t] & 63, b[t] & 63, c[t] & 15
        root = int(np.sqrt(np.float16(a[t] & 1023)))
        wanted = [(x * z + 1) * 10000 + y * 3 + 1, (x + z) * 1000 + y + 3, root, (x > y) + 2]
        assert got[:4, t].tolist() == wanted
    total = got[4].tobytes()
    assert np.frombuffer(total, np.float16, 2).tolist() == [THREADS, 2 * THREADS]
    assert total[4:8] == bytes.fromhex("80420043")  # bfloat16: 64, 128
    assert np.frombuffer(total, np.float32, 1, 8).tolist() == [THREADS / 2]
    assert np.frombuffer(total, np.float64, 1, 16).tolist() == [THREADS / 4]
    pair = np.frombuffer(total, np.float32, 2, 24).tolist()
    assert pair in ([0, 0], [THREADS, 3 * THREADS])  # compute_90 only


def test_cooperative_groups(kernels: Loader, space: Space, module: ModuleInfo) -> None:
    data = words(6)
    got = launch(kernels, space, module, "groups", data, 5)
    a, b, _ = data.tolist()
    for t in range(THREADS):
        tile = range(t // 16 * 16, t // 16 * 16 + 16)
        warp = range(t // 32 * 32, t // 32 * 32 + 32)
        odd = [n for n in warp if a[n] & 1]
        wanted = [
            sum(a[n] & 0xFFFF for n in tile),
            (a[tile[3]] + t // 16) & WORD,
            any(x & 1023 == 7 for x in a) + 2 * t,
            len(odd) * 100 + odd.index(t) if a[t] & 1 else 0,
            sum(1 for n in tile if b[n] & 1 == b[t] & 1),
        ]
        assert got[:, t].tolist() == wanted


def test_the_library_s_atomics(kernels: Loader, space: Space, module: ModuleInfo) -> None:
    data = words(7)
    got = launch(kernels, space, module, "library_atomics", data, 4)
    a, _, c = data.astype(object)
    assert got[2, 0] == sum(int(x) & 0xFF for x in a)
    assert got[2].tobytes()[8:16] == (int(max(a)) << 8).to_bytes(8, "little")
    assert got[0].tolist() == [a[40]] * THREADS
    assert got[1].tolist() == [(1 + x) & WORD for x in c]
    assert got[3].tolist() == [x ^ y for x, y in zip(a, c, strict=True)]


def test_asynchronous_copies(kernels: Loader, space: Space, module: ModuleInfo) -> None:
    data = words(8)
    got = launch(kernels, space, module, "copies", data, 2)
    index = np.arange(THREADS)
    np.testing.assert_array_equal(got, [data[0, index ^ 3], data[1, index ^ 5]])
