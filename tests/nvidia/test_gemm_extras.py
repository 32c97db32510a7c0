"""Promise: the NVIDIA HAL passes each extra of a matrix product to the library as the matching
epilogue. softgpu/test_gemm_extras.py states the expected results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from softgpu import gemm, test_gemm_extras
from softgpu.gemm import (
    DGELU,
    DRELU,
    GELU,
    KEEP,
    POINTERS,
    RELU,
    SUM_A,
    SUM_B,
    SUM_D,
    Gemm,
    Matrix,
)
from softgpu.harness import CHUNK, DEV_BASE, Device
from softgpu.test_gemm_extras import NOWHERE, aux, plain, product, result, sums

from support.formats import R_16BF, R_32F

from .fake_driver import Fake


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=64 * CHUNK, hal="nvidia") as made:
        yield made


@pytest.mark.parametrize(
    "flags",
    [GELU | KEEP, RELU | KEEP, DRELU, DRELU | SUM_D, DGELU, DGELU | SUM_D, SUM_A, SUM_B],
)
@pytest.mark.parametrize("kind", [R_32F, R_16BF])
def test_each_gives_the_right_results(device: Device, kind: int, flags: int) -> None:
    m, n, k, count = 11, 7, 5, 2
    o = product(device.space(), kind, m, n, k, count, flags)
    before, x = plain(device, o), aux(o)
    gemm.run(device, o.space, o.call)
    o.space.check()
    expected = before
    if flags & GELU:
        expected = np.vectorize(gemm.gelu)(before)
    elif flags & RELU:
        expected = np.maximum(before, 0)
    elif flags & DRELU:
        expected = np.where(x, before, 0)
    elif flags & DGELU:
        near = np.vectorize(gemm.gelu)
        expected = before * (near(x + 1e-5) - near(x - 1e-5)) / 2e-5
    bound = 2.0**-6 if kind == R_16BF else 1e-5
    np.testing.assert_allclose(result(o), expected, rtol=bound, atol=bound)
    if flags & KEEP:
        assert (aux(o) == (before > 0 if flags & RELU else before)).all()
    wanted = {SUM_A: o.values("a").sum(2), SUM_B: o.values("b").sum(1), SUM_D: result(o).sum(2)}
    for which, values in wanted.items():
        if flags & which:
            found = sums(o, n if which == SUM_B else m)
            np.testing.assert_allclose(found, values, rtol=2 * bound, atol=2 * bound)


@pytest.mark.parametrize("which", [SUM_A, SUM_B, SUM_D | DRELU])
@pytest.mark.parametrize("shift", [1, 4])
def test_sums_may_go_anywhere(device: Device, which: int, shift: int) -> None:
    """The fake accepts only addresses aligned to 16 bytes; here 12 and 19 floats follow one
    another."""
    m, n = (9, 16) if which != SUM_B else (16, 9)
    o = product(device.space(), R_32F, m, n, 6, 3, which)
    o.call = replace(o.call, bias=o.call.bias + 4 * shift, count=2)
    gemm.run(device, o.space, o.call)
    o.space.check()
    d = result(o)
    values = {SUM_A: o.values("a").sum(2), SUM_B: o.values("b").sum(1)}.get(which, d.sum(2))
    found = o.space.read(o.call.bias, 12 + 9, np.float32)
    np.testing.assert_allclose(found[:9], values[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[12:], values[1], rtol=1e-5, atol=1e-5)
    assert np.isnan(found[9:12]).all()


def test_sums_of_a_factor_need_it_whatever_alpha_is(device: Device) -> None:
    o = product(device.space(), R_32F, 9, 5, 6, 1, SUM_A)
    gemm.run(device, o.space, replace(o.call, alpha=0))
    np.testing.assert_allclose(sums(o, 9), o.values("a").sum(2), rtol=1e-5, atol=1e-5)
    gemm.run(device, o.space, replace(o.call, k=0, a=NOWHERE, b=NOWHERE))
    o.space.check()
    assert (sums(o, 9) == 0).all() and (result(o) == 0).all()


FAR = Matrix(DEV_BASE + (1 << 38), 1, 128)
GOOD = test_gemm_extras.GOOD


@pytest.mark.parametrize(
    "call",
    [
        replace(GOOD, flags=RELU | KEEP, aux=FAR),
        replace(GOOD, flags=GELU | KEEP, aux=replace(FAR, address=2**64 - 4)),
        replace(GOOD, flags=DGELU, aux=replace(GOOD.aux, col=2**62)),
        replace(GOOD, flags=DRELU, count=2, aux=replace(GOOD.aux, batch=2**62)),
        replace(GOOD, flags=SUM_B, bias=FAR.address),
        replace(GOOD, flags=SUM_D | DRELU, bias=2**64 - 4),
    ],
)
def test_an_address_outside_of_memory_fails_its_rank(device: Device, call: Gemm) -> None:
    space = device.space()
    space.alloc(4096)
    gemm.run(device, space, call)
    assert space.error()[0] == 700 and "address that is not mapped" in space.error()[1]


@pytest.mark.parametrize(
    "call",
    [
        replace(GOOD, flags=SUM_A, bias=0),
        replace(GOOD, flags=SUM_D),
        replace(GOOD, flags=SUM_A | POINTERS),
        replace(GOOD, flags=DGELU | POINTERS),
        replace(GOOD, flags=DGELU, aux=replace(GOOD.aux, col=3)),
        replace(GOOD, flags=DGELU, aux=replace(GOOD.aux, row=4)),
    ],
)
def test_products_that_no_device_supports_are_refused_at_once(device: Device, call: Gemm) -> None:
    made, _kept = gemm.work(device, device.space(), call)
    assert device.hal.submit(device.stream, made) == 0
