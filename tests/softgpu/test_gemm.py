"""Matrix products on the software GPU: what they promise, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softgpu import gemm
from softgpu.gemm import GELU, POINTERS, RELU, SCALARS, Gemm, Matrix, Operands
from softgpu.harness import CHUNK, DEV_BASE, Device, Space, ffi
from support.formats import (
    R_8I,
    R_16BF,
    R_16F,
    R_32F,
    R_32I,
    R_64F,
    decode,
    encode,
)

NOWHERE = Matrix(0, 1, 1)
# (A and B, C and D, alpha and beta)
COMBINATIONS = [
    (R_32F, R_32F, R_32F),
    (R_64F, R_64F, R_64F),
    (R_16F, R_16F, R_32F),
    (R_16F, R_16F, R_16F),
    (R_16F, R_32F, R_32F),
    (R_16BF, R_16BF, R_32F),
    (R_16BF, R_32F, R_32F),
    (R_8I, R_32F, R_32F),
    (R_8I, R_32I, R_32I),
]


@pytest.fixture
def device() -> Iterator[Device]:
    with Device(memory=256 << 20, workers=2) as made:
        yield made


@pytest.fixture
def space(device: Device) -> Space:
    return device.space()


@st.composite
def layouts(draw: st.DrawFn, rows: int, columns: int, count: int) -> Matrix:
    """By rows or by columns, with room between lines and between matrices."""
    by_columns = draw(st.booleans())
    line, lines = (rows, columns) if by_columns else (columns, rows)
    ld = line + draw(st.integers(0, 3))
    batch = ld * lines + draw(st.integers(0, 5)) if count > 1 else 0
    return Matrix(0, 1, ld, batch) if by_columns else Matrix(0, ld, 1, batch)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Gemm, int, bool]:
    """A call with layouts, a seed for its numbers, and whether it has a bias."""
    m, n, k = (draw(st.integers(1, 40)) for _ in range(3))
    count = draw(st.integers(1, 3))
    ab, cd, scale = draw(st.sampled_from(COMBINATIONS))
    integers = st.sampled_from([0, 1, -1, 2])
    d = draw(layouts(m, n, count))
    return (
        Gemm(
            m,
            n,
            k,
            draw(layouts(m, k, count)),
            draw(layouts(k, n, count)),
            draw(layouts(m, n, count)),
            d,
            count,
            ab,
            cd,
            R_64F if ab == R_64F else R_32F,
            scale,
            draw(integers),
            draw(integers),
            flags=0 if cd == R_32I else draw(st.sampled_from([0, RELU])),
        ),
        draw(st.integers(0, 2**32 - 1)),
        cd != R_32I and draw(st.booleans()),
    )


def place(space: Space, call: Gemm, values: Any, bias: np.ndarray[Any, Any] | None) -> Operands:
    operands = Operands(space, call)
    shapes = {
        "a": (call.m, call.k),
        "b": (call.k, call.n),
        "c": (call.m, call.n),
        "d": (call.m, call.n),
    }
    for name, shape in shapes.items():
        operands.place(name, values((call.count, *shape)), getattr(call, name))
    if bias is not None:
        address = space.put(encode(bias, call.type_bias))
        operands.call = replace(operands.call, bias=address, bias_batch=call.m)
    return operands


@settings(max_examples=150, deadline=None)
@given(calls())
def test_integers_give_exactly_the_right_result(drawn: tuple[Gemm, int, bool]) -> None:
    call, seed, biased = drawn
    rng = np.random.default_rng(seed)
    bias = rng.integers(-9, 9, (call.count, call.m)).astype(float) if biased else None
    with Device(memory=64 << 20) as device:
        space = device.space()
        small = 3 if call.type_cd in (R_16F, R_16BF) else 50

        def values(shape: tuple[int, ...]) -> Any:
            drawn = rng.integers(-small, small + 1, shape)
            # Half and bfloat16 hold integers exactly up to 2048 and 256.
            return drawn if call.type_cd != R_16BF else drawn * (rng.random(shape) < 0.2)

        o = place(space, call, values, bias)
        before = o.memory["d"].copy()
        gemm.run(device, space, o.call)
        space.check()
        a, b, c = (o.values(name) for name in "abc")
        expected = call.alpha * (a @ b) + call.beta * c
        if bias is not None:
            expected = expected + bias[:, :, None]
        if call.flags & RELU:
            expected = np.maximum(expected, 0)
        memory, where = o.result()
        np.testing.assert_array_equal(
            decode(memory[where], call.type_cd),
            decode(encode(expected, call.type_cd), call.type_cd),
        )
        before[where] = memory[where]  # and no other byte has changed
        assert memory.tobytes() == before.tobytes()


def test_the_bits_are_those_of_the_promised_operations(device: Device) -> None:
    rng = np.random.default_rng(7)
    for ab, cd, scale in COMBINATIONS[:-1]:
        for m, n, k in ((1, 1, 1), (17, 7, 33), (5, 13, 300), (1, 20, 9)):
            flags = RELU if m == 17 else 0
            call = Gemm(
                m,
                n,
                k,
                Matrix(0, 1, m),
                Matrix(0, n, 1),
                Matrix(0, 1, m + 2),
                Matrix(0, n, 1),
                1,
                ab,
                cd,
                R_64F if ab == R_64F else R_16F,
                scale,
                1.0 if k == 9 else 0.40625,
                0.0 if m == 5 else -1.625,
                flags=flags,
            )
            space = device.space()
            bias = rng.standard_normal(m) if m == 17 else None
            o = place(space, call, lambda s: rng.standard_normal(s) * 4, bias)
            gemm.run(device, space, o.call)
            space.check()
            if bias is not None:
                bias = decode(encode(bias, call.type_bias), call.type_bias)
            a, b, c = (o.values(name)[0] for name in "abc")
            expected = encode(gemm.exactly(call, a, b, c, bias), cd)
            memory, where = o.result()
            assert memory[where][0].tobytes() == expected.tobytes(), (ab, cd, m, n, k)


def test_large_products_are_near_those_in_double(device: Device) -> None:
    rng = np.random.default_rng(3)
    m, n, k = 300, 250, 700  # several tiles and depths each way
    call = Gemm(m, n, k, Matrix(0, k, 1), Matrix(0, 1, k), NOWHERE, Matrix(0, 1, m))
    space = device.space()
    o = Operands(space, call)
    o.place("a", rng.standard_normal((1, m, k)), call.a)
    o.place("b", rng.standard_normal((1, k, n)), call.b)
    o.place("d", np.zeros((1, m, n)), call.d)
    gemm.run(device, space, o.call)
    memory, where = o.result()
    a, b = o.values("a")[0], o.values("b")[0]
    bound = k * 2.0**-24 * (abs(a) @ abs(b))
    assert (abs(memory[where][0] - a @ b) <= bound).all()


@pytest.mark.parametrize("cd", [R_32F, R_16F, R_16BF])
def test_gelu_is_its_formula_with_tanh(device: Device, cd: int) -> None:
    x = np.concatenate([np.linspace(-12, 12, 997), [0.0, -0.0, 1e-30, -200.0, 300.0]])
    call = Gemm(
        len(x),
        1,
        1,
        Matrix(0, 1, len(x)),
        Matrix(0, 1, 1),
        NOWHERE,
        Matrix(0, 1, len(x)),
        1,
        R_32F,
        cd,
        flags=GELU,
    )
    space = device.space()
    o = Operands(space, call)
    o.place("a", x.reshape(1, -1, 1), call.a)
    o.place("b", np.ones((1, 1, 1)), call.b)
    o.place("d", np.zeros((1, len(x), 1)), call.d)
    gemm.run(device, space, o.call)
    memory, where = o.result()
    found = decode(memory[where].ravel(), cd)
    expected = np.array([gemm.gelu(v) for v in o.values("a").ravel()])
    step = {R_32F: 2.0**-23, R_16F: 2.0**-10, R_16BF: 2.0**-7}[cd]
    assert (abs(found - expected) <= step * abs(expected) + 1e-7).all()


def test_nothing_is_read_that_does_not_count(device: Device) -> None:
    """As in BLAS: C with beta 0 and A, B with alpha 0 may be anything, nowhere too."""
    nan = np.full((1, 4, 4), np.nan)
    space = device.space()
    call = Gemm(4, 4, 4, Matrix(0, 1, 4), Matrix(0, 1, 4), Matrix(8, 1, 4), Matrix(0, 1, 4))
    o = Operands(space, call)
    o.place("a", np.ones((1, 4, 4)), call.a)
    o.place("b", np.ones((1, 4, 4)), call.b)
    o.place("d", nan, call.d)
    gemm.run(device, space, o.call)
    assert (o.result()[0][:16] == 4).all()
    gemm.run(device, space, replace(o.call, alpha=0.0, a=NOWHERE, b=NOWHERE, c=o.call.d, beta=2.0))
    space.check()
    assert (o.result()[0][:16] == 8).all()
    gemm.run(device, space, replace(o.call, k=0))
    space.check()
    assert (o.result()[0][:16] == 0).all()


def test_scalars_and_lists_of_matrices_in_device_memory(device: Device) -> None:
    rng = np.random.default_rng(5)
    space = device.space()
    values = rng.integers(-5, 6, (4, 3, 8, 8)).astype(np.float32)  # a, b, c: scattered
    places = [[space.put(values[which, b]) for b in range(3)] for which in range(4)]
    lists = [space.put(np.array(list(reversed(p)), np.uint64)) for p in places]
    scalars = [space.put(np.array([v], np.float32)) for v in (2.0, -3.0)]
    a, b, c, d = (Matrix(at, 1, 8) for at in lists)
    call = Gemm(8, 8, 8, a, b, c, d, 3, alpha=scalars[0], beta=scalars[1], flags=POINTERS | SCALARS)
    gemm.run(device, space, call)
    space.check()
    for index in range(3):  # values are by columns: what NumPy shows is transposed
        found = space.read(places[3][index], 64, np.float32).reshape(8, 8)
        left, right, old = values[1, index], values[0, index], values[2, index]
        assert (found == 2 * (left @ right) - 3 * old).all()


def large(device: Device, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    space = device.space()
    call = Gemm(
        400,
        300,
        500,
        Matrix(0, 1, 400, 200_000),
        Matrix(0, 1, 500, 150_000),
        Matrix(0, 1, 400, 120_000),
        Matrix(0, 1, 400, 120_000),
        3,
        R_16F,
        R_32F,
        alpha=0.7,
        beta=-1.3,
        flags=GELU,
    )
    o = place(space, call, rng.standard_normal, None)
    gemm.run(device, space, o.call)
    space.check()
    return o.result()[0].tobytes()


def test_the_same_bits_with_one_and_with_two_workers() -> None:
    with Device(memory=64 << 20, workers=1) as device:
        one = large(device, 1)
    for _ in range(3):
        with Device(memory=64 << 20, workers=2) as device:
            assert large(device, 1) == one


def test_a_long_product_lets_other_streams_in_between() -> None:
    """On one worker a copy is done while a product of half a minute has hardly begun."""
    n = 6144
    with Device(memory=512 << 20) as device:
        space = device.space()
        a, b, d = (space.alloc(4 * n * n) for _ in range(3))
        call = Gemm(n, n, n, Matrix(a, 1, n), Matrix(b, 1, n), NOWHERE, Matrix(d, 1, n))
        made, _kept = gemm.work(device, space, call)
        number = device.submit(made)
        other, stream = device.space(), device.new_stream()
        fill = ffi.new("struct hal_work *", {"kind": device.lib.HAL_FILL})
        fill.fill.dst.space, fill.fill.dst.addr = other.handle, other.alloc(4)
        fill.fill.width = fill.fill.height = 1
        fill.fill.element = 4
        device.run(fill, stream)
        assert device.hal.completed(device.stream) < number
        device.hal.space_cancel(space.handle)
        device.wait(number)
        assert space.error()[0] == 719


MATRIX = Matrix(DEV_BASE + CHUNK, 1, 4)
GOOD = Gemm(4, 4, 4, MATRIX, MATRIX, MATRIX, MATRIX)
FAR = Matrix(DEV_BASE + 2**39 + 2**38, 1, 4)


@pytest.mark.parametrize(
    "call",
    [
        replace(GOOD, a=FAR),
        replace(GOOD, b=replace(MATRIX, address=8)),
        replace(GOOD, d=replace(MATRIX, address=2**64 - 4)),
        replace(GOOD, d=replace(MATRIX, col=2**62)),
        replace(GOOD, a=replace(MATRIX, row=2**63, col=2**63)),
        replace(GOOD, count=2, a=replace(MATRIX, batch=2**63)),
        replace(GOOD, beta=1, c=FAR),
        replace(GOOD, bias=DEV_BASE),
        replace(GOOD, bias=2**64 - 4),
        replace(GOOD, flags=SCALARS, alpha=DEV_BASE + 2**40 - 2),
        replace(GOOD, flags=POINTERS),
        replace(GOOD, a=replace(MATRIX, address=MATRIX.address + 2)),
    ],
)
def test_an_address_outside_of_memory_fails_only_its_space(device: Device, call: Gemm) -> None:
    space, other = device.space(), device.space()
    space.alloc(4096)  # zeros: as a list of addresses they are NULL
    address = other.put(np.arange(16, dtype=np.float32))
    gemm.run(device, space, call)
    code, text = space.error()
    assert code == 700 and "matrix product" in text
    matrix = Matrix(address, 1, 4)
    gemm.run(device, other, Gemm(4, 4, 4, matrix, matrix, matrix, matrix, alpha=0, beta=1))
    other.check()
    assert (other.read(address, 16, np.float32) == np.arange(16)).all()


@pytest.mark.parametrize(
    "call",
    [
        replace(GOOD, type_ab=4),
        replace(GOOD, type_cd=R_64F),
        replace(GOOD, type_ab=R_64F),
        replace(GOOD, type_scale=R_64F),
        replace(GOOD, type_ab=R_8I, type_cd=R_32I, type_scale=R_32F),
        replace(GOOD, type_ab=R_8I, type_cd=R_32I, type_scale=R_32I, flags=RELU),
        replace(GOOD, bias=DEV_BASE, type_bias=R_8I),
        replace(GOOD, m=2**31),
        replace(GOOD, m=2**31 - 1, n=2**31 - 1, count=2**62),
        replace(GOOD, count=0),
    ],
)
def test_unsupported_products_are_refused_at_once(device: Device, call: Gemm) -> None:
    made, _kept = gemm.work(device, device.space(), call)
    assert device.hal.submit(device.stream, made) == 0
