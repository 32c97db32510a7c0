"""Conversions to and from floats of 8 bits (e4m3, e5m2), to tf32 and to finite halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.harness import Space

Array = np.ndarray[Any, Any]

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void to_fp8(const float2 *in, ushort4 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    __half2_raw halves = __float22half2_rn(in[i]);
    out[i].x = __nv_cvt_float2_to_fp8x2(in[i], __NV_SATFINITE, __NV_E4M3);
    out[i].y = __nv_cvt_float2_to_fp8x2(in[i], __NV_SATFINITE, __NV_E5M2);
    out[i].z = __nv_cvt_halfraw2_to_fp8x2(halves, __NV_SATFINITE, __NV_E4M3);
    out[i].w = __nv_cvt_halfraw2_to_fp8x2(halves, __NV_SATFINITE, __NV_E5M2);
}

extern "C" __global__ void from_fp8(ushort4 *out)
{
    unsigned short pair = blockIdx.x * blockDim.x + threadIdx.x;
    __half2_raw a = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
    __half2_raw b = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E5M2);
    out[pair] = make_ushort4(a.x, a.y, b.x, b.y);
}

extern "C" __global__ void with_relu(const float *in, ushort2 *out, uint2 *back, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %1;" : "=h"(out[i].x) : "f"(in[i]));
    asm("cvt.rn.satfinite.relu.e5m2x2.f32 %0, %1, %1;" : "=h"(out[i].y) : "f"(in[i]));
    unsigned short any = i * 257 & 0xffff;
    asm("cvt.rn.relu.f16x2.e4m3x2 %0, %1;" : "=r"(back[i].x) : "h"(any));
    asm("cvt.rn.relu.f16x2.e5m2x2 %0, %1;" : "=r"(back[i].y) : "h"(any));
}

extern "C" __global__ void to_tf32(const float *in, uint4 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out[i].x) : "f"(in[i]));
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(out[i].y) : "f"(in[i]));
    asm("cvt.rz.tf32.f32 %0, %1;" : "=r"(out[i].z) : "f"(in[i]));
    asm("cvt.rn.relu.tf32.f32 %0, %1;" : "=r"(out[i].w) : "f"(in[i]));
}

extern "C" __global__ void to_finite(const float *in, uint4 *out, uint2 *pairs, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned short h, b;
    asm("cvt.rn.satfinite.f16.f32 %0, %1;" : "=h"(h) : "f"(in[i]));
    asm("cvt.rn.satfinite.bf16.f32 %0, %1;" : "=h"(b) : "f"(in[i]));
    out[i].x = h, out[i].y = b;
    asm("cvt.rz.satfinite.f16.f32 %0, %1;" : "=h"(h) : "f"(in[i]));
    asm("cvt.rz.relu.satfinite.bf16.f32 %0, %1;" : "=h"(b) : "f"(in[i]));
    out[i].z = h, out[i].w = b;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pairs[i].x) : "f"(in[i]), "f"(1.0f));
    asm("cvt.rn.relu.satfinite.bf16x2.f32 %0, %2, %1;" : "=r"(pairs[i].y) : "f"(in[i]), "f"(1.0f));
}
"""
FORMATS = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}  # fraction, bias, largest finite


def decoded(kind: str) -> Array:
    """The value of each of the 256 codes."""
    fraction, bias, largest = FORMATS[kind]
    codes = np.arange(128)
    exponent, rest = codes >> fraction, codes & (1 << fraction) - 1
    whole = np.where(exponent > 0, 1 << fraction, 0) + rest
    values = whole * 2.0 ** (np.maximum(exponent, 1) - bias - fraction)
    values[largest + 1 :] = np.nan
    if kind == "e5m2":
        values[0x7C] = np.inf
    return np.concatenate([values, -values])


def encoded(x: Array, kind: str) -> Array:
    """The nearest finite code, of two equally near ones the even one; NaN is 0x7F."""
    largest = FORMATS[kind][2]
    values = decoded(kind)[: largest + 1]
    number = np.where(np.isnan(x), 0, x).astype(np.float64)
    size = np.minimum(np.abs(number), values[-1])
    above = np.clip(np.searchsorted(values, size), 1, largest)
    down, up = size - values[above - 1], values[above] - size
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)
    return np.where(np.isnan(x), 0x7F, code + 0x80 * np.signbit(x))


def interesting() -> Array:
    """All halves; the codes' values, midpoints, and their neighbours; random bits."""
    floats = [np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)]
    for kind in FORMATS:
        values = decoded(kind)
        values = values[np.isfinite(values)].astype(np.float32)
        places = np.concatenate([values, np.convolve(np.sort(values), [0.5, 0.5], "valid")])
        places = places.astype(np.float32)
        floats += [places, *(np.nextafter(places, np.float32(end)) for end in (-np.inf, np.inf))]
    bits = np.random.default_rng(3).integers(0, 1 << 32, 1 << 15, dtype=np.uint32)
    floats.append(bits.view(np.float32))
    found = np.concatenate(floats)
    return found[: len(found) // 2 * 2]


@pytest.fixture(scope="module")
def source() -> bytes:
    return cuda.ptx(SOURCE, args=["-arch=compute_90"]).encode()


def blocks(count: int) -> int:
    return (count + 255) // 256


def test_to_8_bits(kernels: Loader, space: Space, source: bytes) -> None:
    x = interesting()
    pairs = x.reshape(-1, 2)
    at, out = space.put(x), space.put(np.zeros((len(pairs), 4), np.uint16))
    function = kernels.function(kernels.module(source, 1), "to_fp8")
    space.launch(function, blocks(len(pairs)), 256, at, out, len(pairs))
    space.check()
    found = space.read(out, 4 * len(pairs), np.uint16).reshape(-1, 4)
    with np.errstate(over="ignore", invalid="ignore"):
        halves = pairs.astype(np.float16)
    for column, (values, kind) in enumerate(
        (values, kind) for values in (pairs, halves) for kind in FORMATS
    ):
        wanted = encoded(values[:, 0], kind) | encoded(values[:, 1], kind) << 8
        np.testing.assert_array_equal(found[:, column], wanted)


def test_from_8_bits(kernels: Loader, space: Space, source: bytes) -> None:
    out = space.put(np.zeros((1 << 16, 4), np.uint16))
    space.launch(kernels.function(kernels.module(source, 1), "from_fp8"), 256, 256, out)
    space.check()
    found = space.read(out, 4 << 16, np.uint16).reshape(-1, 4)
    pair = np.arange(1 << 16)
    for column, kind in enumerate(("e4m3", "e4m3", "e5m2", "e5m2")):
        values = decoded(kind)[pair >> 8 if column % 2 else pair & 255].astype(np.float16)
        wanted = np.where(np.isnan(values), 0x7FFF, values.view(np.uint16))
        np.testing.assert_array_equal(found[:, column], wanted)


def test_with_relu(kernels: Loader, space: Space, source: bytes) -> None:
    x = interesting()
    at, out = space.put(x), space.put(np.zeros((len(x), 2), np.uint16))
    back = space.put(np.zeros((len(x), 2), np.uint32))
    function = kernels.function(kernels.module(source, 1), "with_relu")
    space.launch(function, blocks(len(x)), 256, at, out, back, len(x))
    space.check()
    found = space.read(out, 2 * len(x), np.uint16).reshape(-1, 2)
    halves = space.read(back, 2 * len(x), np.uint32).reshape(-1, 2)
    code = np.arange(len(x)) * 257 & 255
    for column, kind in enumerate(FORMATS):
        one = encoded(np.where(x > 0, x, np.where(np.isnan(x), x, 0)), kind)
        np.testing.assert_array_equal(found[:, column], one * 257)
        values = decoded(kind)[code].astype(np.float16)
        values = np.where(np.signbit(values) & ~np.isnan(values), np.float16(0), values)
        bits = np.where(np.isnan(values), 0x7FFF, values.view(np.uint16))
        np.testing.assert_array_equal(halves[:, column] & 0xFFFF, bits)


HALVES = {"f16": (10, 15, 0x7BFF), "bf16": (7, 127, 0x7F7F)}


def half_of(x: Array, kind: str, rounded: Callable[[Array], Array]) -> Array:
    """The finite half that the number, divided by what the last bit is worth, is rounded to."""
    fraction, bias, largest = HALVES[kind]
    size = np.minimum(np.abs(np.where(np.isnan(x), np.float32(0), x).astype(np.float64)), 2.0**128)
    exponent = np.maximum(np.frexp(np.maximum(size, 2.0**-149))[1], 2 - bias)
    units = rounded(np.ldexp(size, fraction + 1 - exponent)).astype(np.int64)
    code = np.minimum(units + ((exponent + bias - 2) << fraction), largest)
    return np.where(np.isnan(x), 0x7FFF, code | np.where(np.signbit(x), 0x8000, 0))


def test_to_finite_halves(kernels: Loader, space: Space, source: bytes) -> None:
    ends = [65504, 65519.996, 65520, 65536, 3.3895314e38, 3.3961775e38, np.inf, np.nan]
    places = np.array(ends, np.float32)
    x = np.concatenate([interesting(), places, -places])
    at, out = space.put(x), space.put(np.zeros((len(x), 4), np.uint32))
    pairs = space.put(np.zeros((len(x), 2), np.uint32))
    function = kernels.function(kernels.module(source, 1), "to_finite")
    space.launch(function, blocks(len(x)), 256, at, out, pairs, len(x))
    space.check()
    found = space.read(out, 4 * len(x), np.uint32).reshape(-1, 4)
    both = space.read(pairs, 2 * len(x), np.uint32).reshape(-1, 2)
    above = np.where(x > 0, x, np.where(np.isnan(x), x, np.float32(0)))
    np.testing.assert_array_equal(found[:, 0], half_of(x, "f16", np.rint))
    np.testing.assert_array_equal(found[:, 1], half_of(x, "bf16", np.rint))
    np.testing.assert_array_equal(found[:, 2], half_of(x, "f16", np.trunc))
    np.testing.assert_array_equal(found[:, 3], half_of(above, "bf16", np.trunc))
    np.testing.assert_array_equal(both[:, 0], half_of(x, "f16", np.rint) << 16 | 0x3C00)
    np.testing.assert_array_equal(both[:, 1], half_of(above, "bf16", np.rint) | 0x3F80 << 16)


def test_to_tf32(kernels: Loader, space: Space, source: bytes) -> None:
    x = interesting()
    at, out = space.put(x), space.put(np.zeros((len(x), 4), np.uint32))
    function = kernels.function(kernels.module(source, 1), "to_tf32")
    space.launch(function, blocks(len(x)), 256, at, out, len(x))
    space.check()
    found = space.read(out, 4 * len(x), np.uint32).reshape(-1, 4)
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    step = np.ldexp(1.0, np.maximum(np.frexp(finite)[1], -125) - 11)  # 11 bits of significand
    for column, rounded in enumerate(
        (
            np.copysign(np.floor(np.abs(finite) / step + 0.5), finite),
            np.rint(finite / step),
            np.trunc(finite / step),
            np.rint(np.maximum(finite, 0) / step),
        )
    ):
        with np.errstate(over="ignore"):
            values = (rounded * step).astype(np.float32)
        values = np.where(np.isfinite(x), values, np.maximum(x, 0) if column == 3 else x)
        wanted = np.where(np.isnan(x), 0x7FFFFFFF, values.view(np.uint32))
        np.testing.assert_array_equal(found[:, column], wanted)
