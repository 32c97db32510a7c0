"""Promise: products support what training needs in addition: results kept for a later step,
derivatives, and sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from softgpu import gemm
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
    Array,
    Gemm,
    Matrix,
    Operands,
)
from softgpu.harness import CHUNK, DEV_BASE, Device, Space
from support.formats import R_8I, R_16BF, R_16F, R_32F, R_32I, R_64F, TYPES, decode, encode

NOWHERE = Matrix(0, 1, 1)
STEP = {R_64F: 2.0**-50, R_32F: 2.0**-23, R_16F: 2.0**-10, R_16BF: 2.0**-7}


@pytest.fixture
def device() -> Iterator[Device]:
    with Device(memory=64 << 20, workers=2) as made:
        yield made


def product(space: Space, kind: int, m: int, n: int, k: int, count: int, flags: int) -> Operands:
    """The operands of a product of random numbers, with space for an auxiliary matrix and for a
    bias behind NaN."""
    rng = np.random.default_rng(m * n + k)
    bits, long = bool(flags & (RELU | DRELU)), n if flags & SUM_B else m
    ld = -(-m // 128) * 128 + 128 if bits else -(-m // 8) * 8 + 8
    batch = ld * n + (128 if bits else 8)
    memory = np.full(count * batch // 8, 0xAA, np.uint8)
    if not bits:
        memory = encode(rng.standard_normal(count * batch) * 3, kind)
    elif flags & DRELU:
        memory = rng.integers(0, 256, count * batch // 8).astype(np.uint8)
    call = Gemm(
        m,
        n,
        k,
        Matrix(0, 1, m, m * k),
        Matrix(0, n, 1, n * k),
        NOWHERE,
        Matrix(0, 1, m + 1, (m + 1) * n),
        count,
        kind,
        kind,
        kind,
        R_64F if kind == R_64F else R_32F,
        0.5,
        flags=flags,
        aux=Matrix(space.put(memory), 1, ld, batch),
    )
    o = Operands(space, call)
    o.place("a", rng.standard_normal((count, m, k)), call.a)
    o.place("b", rng.standard_normal((count, k, n)), call.b)
    o.place("d", np.zeros((count, m, n)), call.d)
    o.memory["aux"] = memory
    if flags & (SUM_A | SUM_B | SUM_D):
        address = space.put(encode(np.full((count, long + 3), np.nan), kind))
        o.call = replace(o.call, bias=address, bias_batch=long + 3)
    return o


def sums(o: Operands, length: int) -> Array:
    """Returns the bias. Checks that nothing was written behind a vector."""
    call = o.call
    found = o.space.read(call.bias, call.count * (length + 3), TYPES[call.type_bias])
    values = decode(found, call.type_bias).reshape(call.count, -1)
    assert np.isnan(values[:, length:]).all()
    return values[:, :length]


def plain(device: Device, o: Operands) -> Array:
    """The same product without extras."""
    room = o.space.put(np.zeros_like(o.memory["d"]))
    call = replace(o.call, flags=0, bias=0, d=replace(o.call.d, address=room))
    gemm.run(device, o.space, call)
    memory = o.space.read(room, len(o.memory["d"]), TYPES[call.type_cd])
    return decode(memory[call.d.indices(call.m, call.n, call.count)], call.type_cd)


def aux(o: Operands) -> Array:
    call = o.call
    memory = o.space.read(call.aux.address, len(o.memory["aux"]), o.memory["aux"].dtype)
    if call.flags & (RELU | DRELU):
        return np.unpackbits(memory, bitorder="little")[
            call.aux.indices(call.m, call.n, call.count)
        ]
    return decode(memory[call.aux.indices(call.m, call.n, call.count)], call.type_cd)


def result(o: Operands) -> Array:
    memory, where = o.result()
    return decode(memory[where], o.call.type_cd)


SHAPES = [(5, 3, 4, 3), (131, 200, 9, 2)]
REALS = [R_32F, R_64F, R_16F, R_16BF]


@pytest.mark.parametrize("kind", REALS)
@pytest.mark.parametrize("m, n, k, count", SHAPES)
def test_gelu_keeps_what_it_was_given(
    device: Device, kind: int, m: int, n: int, k: int, count: int
) -> None:
    o = product(device.space(), kind, m, n, k, count, GELU | KEEP)
    before = plain(device, o)
    gemm.run(device, o.space, o.call)
    o.space.check()
    assert (aux(o) == before).all()
    expected = before * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (before + 0.044715 * before**3)))
    assert (abs(result(o) - expected) <= 4 * STEP[kind] * (abs(before) + 1e-6)).all()


@pytest.mark.parametrize("kind", REALS)
@pytest.mark.parametrize("m, n, k, count", SHAPES)
def test_relu_keeps_a_bit_for_each_element(
    device: Device, kind: int, m: int, n: int, k: int, count: int
) -> None:
    o = product(device.space(), kind, m, n, k, count, RELU | KEEP)
    before = plain(device, o)
    gemm.run(device, o.space, o.call)
    o.space.check()
    assert (aux(o) == (before > 0)).all()
    assert (result(o) == np.maximum(before, 0)).all()
    # Bits of no element are as they were.
    memory = o.space.read(o.call.aux.address, len(o.memory["aux"]), np.uint8)
    bits, old = (np.unpackbits(x, bitorder="little") for x in (memory, o.memory["aux"]))
    untouched = np.ones(len(bits), bool)
    untouched[o.call.aux.indices(m, n, count)] = False
    assert (bits[untouched] == old[untouched]).all()


@pytest.mark.parametrize("kind", REALS)
@pytest.mark.parametrize("m, n, k, count", SHAPES)
@pytest.mark.parametrize("extra", [0, SUM_D])
def test_relus_derivative_lets_through_what_has_its_bit(
    device: Device, kind: int, m: int, n: int, k: int, count: int, extra: int
) -> None:
    o = product(device.space(), kind, m, n, k, count, DRELU | extra)
    before = plain(device, o)
    gemm.run(device, o.space, o.call)
    o.space.check()
    assert (result(o) == np.where(aux(o), before, 0)).all()
    if extra:
        near = result(o).sum(axis=2)
        bound = n * STEP[kind] * (abs(result(o)).sum(axis=2) + 1)
        assert (abs(sums(o, m) - near) <= bound).all()


@pytest.mark.parametrize("kind", REALS)
@pytest.mark.parametrize("m, n, k, count", SHAPES)
@pytest.mark.parametrize("extra", [0, SUM_D])
def test_gelus_derivative_is_that_of_its_formula(
    device: Device, kind: int, m: int, n: int, k: int, count: int, extra: int
) -> None:
    o = product(device.space(), kind, m, n, k, count, DGELU | extra)
    before, x = plain(device, o), aux(o)
    gemm.run(device, o.space, o.call)
    o.space.check()
    root = np.sqrt(2 / np.pi)
    t = np.tanh(root * (x + 0.044715 * x**3))
    slope = (1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x)
    bound = 4 * STEP[kind] * (abs(before) * (1 + x * x) + 1e-4)  # NumPy's own tanh is not exact
    assert (abs(result(o) - before * slope) <= bound).all()
    assert (aux(o) == x).all()
    if extra:
        bound = n * STEP[kind] * (abs(result(o)).sum(axis=2) + 1)
        assert (abs(sums(o, m) - result(o).sum(axis=2)) <= bound).all()


def test_gelus_derivative_far_out(device: Device) -> None:
    x = np.array([-np.inf, -1e300, -70, -30, -0.0, 0.0, 30, 70, 1e300, np.inf, np.nan, 1.0])
    space = device.space()
    call = Gemm(
        12,
        1,
        1,
        Matrix(0, 1, 12),
        Matrix(0, 1, 1),
        NOWHERE,
        Matrix(0, 1, 12),
        1,
        R_64F,
        R_64F,
        R_64F,
        R_64F,
        flags=DGELU,
        aux=Matrix(space.put(x), 1, 16),
    )
    o = Operands(space, call)
    o.place("a", np.ones((1, 12, 1)), call.a)
    o.place("b", np.ones((1, 1, 1)), call.b)
    o.place("d", np.zeros((1, 12, 1)), call.d)
    gemm.run(device, space, o.call)
    space.check()
    expected = [0, 0, 0, 0, 0.5, 0.5, 1, 1, 1, 1, np.nan, 1.0829640838457826]
    np.testing.assert_allclose(result(o)[0, :, 0], expected, rtol=1e-15, atol=1e-300)


@pytest.mark.parametrize("kind", REALS)
@pytest.mark.parametrize("m, n, k, count", SHAPES)
@pytest.mark.parametrize("which", [SUM_A, SUM_B])
@pytest.mark.parametrize("alpha", [0.5, 0])
def test_sums_of_a_factor_run_over_k_upwards(
    device: Device, kind: int, m: int, n: int, k: int, count: int, which: int, alpha: float
) -> None:
    """Whatever alpha is: they belong to the factor, not to the product."""
    o = product(device.space(), kind, m, n, k, count, which)
    o.call = replace(o.call, alpha=alpha)
    before = plain(device, o)
    gemm.run(device, o.space, o.call)
    o.space.check()
    assert (result(o) == before).all()
    real = np.float64 if kind == R_64F else np.float32
    values = o.values("a") if which == SUM_A else o.values("b").transpose(0, 2, 1)
    expected = np.zeros(values.shape[:2], real)
    for p in range(k):
        expected += values[:, :, p].astype(real)
    wanted = decode(encode(expected, kind), kind)
    assert (sums(o, m if which == SUM_A else n) == wanted).all()


def test_sums_of_ds_rows_run_over_its_columns_upwards(device: Device) -> None:
    """Bit by bit, over several tiles; and the same with one worker."""
    o = product(device.space(), R_32F, 300, 500, 7, 2, DRELU | SUM_D)
    gemm.run(device, o.space, o.call)
    expected = np.zeros((2, 300), np.float32)
    for j in range(500):
        expected += result(o)[:, :, j].astype(np.float32)
    assert (sums(o, 300) == expected).all()


def test_nothing_of_k_is_a_sum_of_zero(device: Device) -> None:
    o = product(device.space(), R_32F, 5, 3, 4, 1, SUM_A)
    gemm.run(device, o.space, replace(o.call, k=0, a=NOWHERE, b=NOWHERE))
    o.space.check()
    assert (sums(o, 5) == 0).all() and (result(o) == 0).all()


AT = DEV_BASE + CHUNK
MATRIX = Matrix(AT, 1, 4)
FAR = Matrix(DEV_BASE + 2**39 + 2**38, 1, 128)
GOOD = Gemm(4, 4, 4, MATRIX, MATRIX, MATRIX, MATRIX, aux=Matrix(AT, 1, 128), bias=AT)


@pytest.mark.parametrize(
    "call",
    [
        replace(GOOD, flags=RELU | KEEP, aux=FAR),
        replace(GOOD, flags=GELU | KEEP, aux=replace(FAR, address=2**64 - 4)),
        replace(GOOD, flags=DGELU, aux=replace(GOOD.aux, col=2**62)),
        replace(GOOD, flags=DRELU, count=2, aux=replace(GOOD.aux, batch=2**62)),
        replace(GOOD, flags=DGELU, aux=replace(GOOD.aux, address=AT + 2)),
        replace(GOOD, flags=SUM_B, bias=FAR.address),
        replace(GOOD, flags=SUM_D | DRELU, bias=2**64 - 4),
        replace(GOOD, flags=SUM_A, bias=AT + 1),
    ],
)
def test_an_address_outside_of_memory_fails_its_space(device: Device, call: Gemm) -> None:
    space = device.space()
    space.alloc(4096)
    gemm.run(device, space, call)
    code, text = space.error()
    assert code == 700 and "matrix product" in text


@pytest.mark.parametrize(
    "call",
    [
        replace(GOOD, flags=KEEP),
        replace(GOOD, flags=KEEP | DRELU),
        replace(GOOD, flags=RELU | GELU),
        replace(GOOD, flags=DRELU | DGELU),
        replace(GOOD, flags=SUM_A | SUM_B),
        replace(GOOD, flags=SUM_A, bias=0),
        replace(GOOD, flags=SUM_A | POINTERS),
        replace(GOOD, flags=DGELU | POINTERS),
        replace(GOOD, flags=DRELU, aux=replace(GOOD.aux, col=136)),
        replace(GOOD, flags=RELU | KEEP, aux=replace(GOOD.aux, batch=8)),
        replace(GOOD, flags=DGELU, aux=replace(GOOD.aux, col=3)),
        replace(GOOD, flags=DGELU, aux=replace(GOOD.aux, row=4)),
        replace(GOOD, flags=SUM_B, type_ab=R_8I),
        replace(GOOD, flags=DRELU, type_ab=R_8I, type_cd=R_32I, type_scale=R_32I, bias=0),
    ],
)
def test_incompatible_options_are_refused_at_once(device: Device, call: Gemm) -> None:
    made, _kept = gemm.work(device, device.space(), call)
    assert device.hal.submit(device.stream, made) == 0
