"""Matrix products on the NVIDIA HAL, over the fake cuBLASLt: every form reaches the library as what
it is, and what cannot be done is the rank's error, with a reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from softgpu import gemm
from softgpu.gemm import GELU, POINTERS, RELU, SCALARS, Array, Gemm, Matrix
from softgpu.harness import CHUNK, DEV_BASE, Device, Space, ffi
from softgpu.test_gemm import calls, place

from support.formats import R_8I, R_16BF, R_16F, R_32F, R_32I, R_64F, decode, encode

from .conftest import Kernels
from .fake_driver import Fake

NOWHERE = Matrix(8, 1, 4)
FAR = Matrix(DEV_BASE + (1 << 38), 1, 4)
relaxed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=64 * CHUNK, hal="nvidia") as made:
        yield made


def square(space: Space, side: int = 4, values: Array | None = None) -> Matrix:
    """A matrix of ones, or of these values, by columns."""
    values = np.ones((side, side)) if values is None else values
    return Matrix(space.put(np.asarray(values.T, np.float32)), 1, side)


def read(space: Space, matrix: Matrix, side: int = 4) -> Array:
    return space.read(matrix.address, side * side, np.float32).reshape(side, side).T


@relaxed
@given(calls())
def test_every_layout_type_and_step_gives_the_right_result(
    fake: Fake, drawn: tuple[Gemm, int, bool]
) -> None:
    call, seed, biased = drawn
    rng = np.random.default_rng(seed)
    if biased and call.d.row != 1:  # cuBLASLt has no such product: see below
        call = replace(call, d=replace(call.d, row=call.d.col, col=call.m, batch=call.m * call.n))
    if call.beta:
        call = replace(call, c=replace(call.d))
    bias = rng.integers(-9, 9, (call.count, call.m)).astype(float) if biased else None
    with Device(memory=32 * CHUNK, hal="nvidia") as device:
        space = device.space()
        small = 3 if call.type_cd in (R_16F, R_16BF) else 50

        def values(shape: tuple[int, ...]) -> Any:
            drawn = rng.integers(-small, small + 1, shape)
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


def test_gelu_goes_to_the_library(device: Device) -> None:
    space = device.space()
    x = np.arange(-8.0, 8.0).reshape(4, 4)
    a, b, d = square(space, 4, x), square(space, 4, np.eye(4)), square(space)
    gemm.run(device, space, Gemm(4, 4, 4, a, b, NOWHERE, d, flags=GELU))
    space.check()
    expected = [gemm.gelu(v) for v in x.ravel()]
    np.testing.assert_allclose(read(space, d).ravel(), expected, rtol=1e-6, atol=1e-7)


def test_a_bias_along_the_rows_of_a_d_by_rows_is_the_librarys_to_refuse(device: Device) -> None:
    space = device.space()
    a, d = square(space), square(space)
    call = Gemm(4, 4, 4, a, a, NOWHERE, replace(d, row=4, col=1), bias=a.address)
    gemm.run(device, space, call)
    code, text = space.error()
    assert code == 801 and "CUBLAS_STATUS_NOT_SUPPORTED of cuBLASLt" in text


@pytest.mark.parametrize(("compute", "scale"), [(68, R_64F), (70, R_32F), (72, R_16F), (64, R_32I)])
def test_types_that_do_not_go_together_are_the_librarys_to_refuse(
    device: Device, compute: int, scale: int
) -> None:
    space = device.space()
    a = square(space)
    gemm.run(device, space, Gemm(4, 4, 4, a, a, a, a, type_scale=scale, compute=compute))
    assert space.error()[0] == 801 and "CUBLAS_STATUS_NOT_SUPPORTED" in space.error()[1]


@pytest.mark.parametrize("elements", [1, 2, 3, 8])
def test_matrices_that_are_aligned_as_their_elements_only(device: Device, elements: int) -> None:
    """No algorithm may be chosen that needs more: the fake looks at what was said of each."""
    space = device.space()
    numbers = np.arange(96, dtype=np.float32)
    at = [space.put(numbers) + 4 * n for n in (elements, 2 * elements, elements + 1)]
    a, b, d = (Matrix(address, 1, 4, 17 if i == 1 else 16) for i, address in enumerate(at))
    gemm.run(device, space, Gemm(4, 4, 4, a, b, NOWHERE, d, 2))
    space.check()
    left, right = (
        np.stack([numbers[n + k * batch :][:16].reshape(4, 4).T for k in range(2)])
        for n, batch in ((elements, 16), (2 * elements, 17))
    )
    found = space.read(d.address, 32, np.float32).reshape(2, 4, 4).transpose(0, 2, 1)
    assert (found == left @ right).all()


@pytest.mark.parametrize("kind", [R_32F, R_16F, R_64F, R_8I])
@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("rows", [False, True])
def test_without_a_and_b_the_rest_remains(device: Device, kind: int, k: int, rows: bool) -> None:
    """k = 0 or alpha = 0. The library would read them anyway, and NaN * 0 is NaN."""
    space = device.space()
    cd = R_32I if kind == R_8I else kind
    scale = R_32F if kind == R_16F else cd
    d = Matrix(0, 5, 1, 21) if rows else Matrix(0, 1, 5, 21)
    call = Gemm(
        4,
        3,
        k,
        Matrix(0, 1, 4),
        Matrix(0, 3, 1),
        replace(d, batch=30),
        d,
        2,
        kind,
        cd,
        cd,
        scale,
        1 if k == 0 else 0,
        2,
    )
    nan = np.nan if kind != R_8I else 7

    def values(shape: tuple[int, ...]) -> Any:
        return np.arange(24).reshape(shape) if shape[1:] == (4, 3) else np.full(shape, nan)

    o = place(space, call, values, None)
    gemm.run(device, space, replace(o.call, a=FAR, b=FAR))
    space.check()
    memory, where = o.result()
    assert (decode(memory[where], cd) == 2 * np.arange(24).reshape(2, 4, 3)).all()


def test_lists_of_matrices_without_a_and_b(device: Device) -> None:
    space = device.space()
    places = [space.put(np.full(16, value, np.float32)) for value in (3, 4)]
    listed = Matrix(space.put(np.array(places, np.uint64)), 1, 4)
    call = Gemm(4, 4, 0, FAR, NOWHERE, listed, listed, 2, beta=-2, flags=POINTERS)
    gemm.run(device, space, call)
    space.check()
    assert [set(space.read(at, 16, np.float32)) for at in places] == [{-6}, {-8}]


@pytest.mark.parametrize("kind", [R_32F, R_16BF])
@pytest.mark.parametrize(("shift", "stride"), [(1, 0), (4, 4), (3, 17), (0, 7), (8, 8), (0, 0)])
def test_a_bias_may_be_anywhere(device: Device, kind: int, shift: int, stride: int) -> None:
    """Between the parameters of one buffer, say. The fake takes none that is not at 16 bytes."""
    space = device.space()
    numbers = np.arange(64) % 32
    bias = space.put(encode(numbers, kind)) + shift * (4 if kind == R_32F else 2)
    a, d = square(space), space.put(np.zeros(48, np.float32))
    call = Gemm(
        4,
        4,
        4,
        a,
        a,
        NOWHERE,
        Matrix(d, 1, 4, 16),
        3,
        type_bias=kind,
        bias=bias,
        bias_batch=stride,
        flags=RELU,
    )
    gemm.run(device, space, call)
    space.check()
    found = space.read(d, 48, np.float32).reshape(3, 4, 4)
    wanted = [4 + numbers[shift + b * stride :][:4] for b in range(3)]
    assert (found == np.array(wanted)[:, None, :]).all()


def test_biases_that_overlap_are_at_16_bytes(device: Device) -> None:
    for shift, code in ((0, 0), (1, 801)):
        space = device.space()
        a, bias = square(space), space.put(np.arange(64, dtype=np.float32)) + 4 * shift
        call = Gemm(
            16,
            4,
            4,
            replace(a, col=16),
            a,
            NOWHERE,
            Matrix(a.address, 1, 16, 64),
            2,
            bias=bias,
            bias_batch=4,
        )
        gemm.run(device, space, call)
        assert space.error()[0] == code


@pytest.mark.parametrize("failing", ["cuMemAllocAsync", "cuMemsetD2D8Async"])
def test_without_memory_for_a_product_its_rank_fails(
    fake: Fake, device: Device, failing: str
) -> None:
    space, other = device.space(), device.space()
    a, d = square(space), square(other)
    fake.fail(failing, 1, 2)
    gemm.run(device, space, Gemm(4, 4, 0, a, a, a, a, beta=1))
    assert space.error()[0] == 2 and "memory for a matrix product" in space.error()[1]
    gemm.run(device, other, Gemm(4, 4, 0, d, d, d, d, beta=2))
    other.check()
    assert (read(other, d) == 2).all()


def test_operands_that_are_not_read_may_have_any_address(device: Device) -> None:
    space = device.space()
    a, d = square(space), square(space)
    gemm.run(device, space, Gemm(4, 4, 4, a, a, FAR, d))
    gemm.run(device, space, Gemm(4, 4, 4, FAR, NOWHERE, d, d, alpha=0, beta=-2))
    space.check()
    assert (read(space, d) == -8).all()


def test_the_modes_of_a_handle_are_kept(fake: Fake, device: Device) -> None:
    """Default, pedantic, TF32, and no reductions of less precision: one preference more."""
    space = device.space()
    a, d = square(space), square(space)
    name = "cublasLtMatmulPreferenceSetAttribute"
    found = []
    for math in (0, 2, 3, 16, 18):
        before = fake.calls(name)
        gemm.run(device, space, Gemm(4, 4, 4, a, a, NOWHERE, d, math=math))
        found.append((fake.computed(), fake.calls(name) - before))
    space.check()
    assert found == [(68, 5), (69, 5), (77, 5), (68, 6), (69, 6)]


def test_products_and_switches_of_ranks_take_turns(device: Device) -> None:
    """Two ranks with their own matrices at the same addresses."""
    spaces = [device.space(), device.space()]
    made = []
    for rank, space in enumerate(spaces):
        a = square(space, 4, np.full((4, 4), rank + 1.0))
        made.append((space, a, square(space)))
    assert made[0][1] == made[1][1]
    for _ in range(3):
        for space, a, d in made:
            gemm.run(device, space, Gemm(4, 4, 4, a, a, d, d, beta=1))
    for rank, (space, _a, d) in enumerate(made):
        space.check()
        assert (read(space, d) == 1 + 3 * 4 * (rank + 1) ** 2).all()


def test_a_record_may_change_once_it_was_submitted(device: Device, kernels: Kernels) -> None:
    """A kernel of another rank holds the product back."""
    other, space = device.space(), device.space()
    flag = other.put(np.zeros(1, np.uint32))
    running, _params = other.kernel_work(kernels("until_set"), 1, 1, flag)
    device.submit(running, device.new_stream())
    a, d, stream = square(space), square(space), device.new_stream()
    made, record = gemm.work(device, space, Gemm(4, 4, 4, a, a, NOWHERE, d))
    number = device.submit(made, stream)
    ffi.buffer(made.gemm.call, len(record))[:] = b"\xff" * len(record)
    other.write(flag, np.ones(1, np.uint32))
    device.wait(number, stream)
    space.check()
    assert (read(space, d) == 4).all()


MATRIX = Matrix(DEV_BASE + CHUNK, 1, 4)
GOOD = Gemm(4, 4, 4, MATRIX, MATRIX, MATRIX, MATRIX)


@pytest.mark.parametrize(
    "call",
    [
        replace(GOOD, a=FAR),
        replace(GOOD, b=NOWHERE),
        replace(GOOD, d=replace(MATRIX, address=2**64 - 4)),
        replace(GOOD, d=replace(MATRIX, col=2**62)),
        replace(GOOD, count=2, a=replace(MATRIX, batch=2**63)),
        replace(GOOD, count=2, d=replace(MATRIX, batch=2**20)),
        replace(GOOD, beta=1, c=FAR),
        replace(GOOD, bias=DEV_BASE),
        replace(GOOD, bias=2**64 - 4),
        replace(GOOD, flags=SCALARS, alpha=DEV_BASE, beta=MATRIX.address),
        replace(GOOD, flags=POINTERS, count=2**31 - 1),
        replace(GOOD, a=replace(MATRIX, address=MATRIX.address + 2)),
    ],
)
def test_an_address_outside_of_memory_fails_only_its_rank(device: Device, call: Gemm) -> None:
    space, other = device.space(), device.space()
    space.alloc(4096)
    gemm.run(device, space, call)
    assert space.error()[0] == 700 and "address that is not mapped" in space.error()[1]
    a, d = square(other), square(other)
    gemm.run(device, other, Gemm(4, 4, 4, a, a, NOWHERE, d))
    other.check()
    assert (read(other, d) == 4).all()


@pytest.mark.parametrize(
    "call",
    [
        replace(GOOD, type_ab=4),
        replace(GOOD, type_scale=R_64F, type_cd=77),
        replace(GOOD, type_scale=R_8I, compute=72),
        replace(GOOD, compute=63),
        replace(GOOD, compute=78),
        replace(GOOD, bias=DEV_BASE, type_bias=55),
        replace(GOOD, m=2**31),
        replace(GOOD, count=0),
    ],
)
def test_products_that_no_device_supports_are_refused_at_once(device: Device, call: Gemm) -> None:
    made, _kept = gemm.work(device, device.space(), call)
    assert device.hal.submit(device.stream, made) == 0


@pytest.mark.parametrize(
    ("failing", "status", "error"),
    [
        ("cublasLtCreate", 3, 2),
        ("cublasLtMatmulDescCreate", 3, 2),
        ("cublasLtMatrixLayoutCreate", 3, 2),
        ("cublasLtMatrixLayoutSetAttribute", 7, 1),
        ("cublasLtMatmulPreferenceSetAttribute", 7, 1),
        ("cublasLtMatmulAlgoGetHeuristic", 15, 801),
        ("cublasLtMatmul", 13, 719),
    ],
)
def test_a_call_that_fails_fails_its_rank_and_leaves_nothing(
    fake: Fake, device: Device, failing: str, status: int, error: int
) -> None:
    """That nothing is left the fake sees when the device is closed."""
    space, other = device.space(), device.space()
    matrices = [square(s) for s in (space, other)]
    batched = [Gemm(4, 4, 4, a, a, NOWHERE, replace(a, batch=16), count=1) for a in matrices]
    fake.fail(failing, 1, status)
    lists = space.put(np.array([matrices[0].address], np.uint64))
    listed = Matrix(lists, 1, 4)
    gemm.run(
        device, space, replace(batched[0], a=listed, b=listed, c=listed, d=listed, flags=POINTERS)
    )
    assert space.error()[0] == error and "matrix product" in space.error()[1]
    gemm.run(device, other, batched[1])
    other.check()


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ("/nowhere/libcublasLt.so.13", "matrix products need cuBLASLt: /nowhere/libcublasLt.so.13"),
        ("libm.so.6", "cuBLASLt has no cublasLtGetStatusName: it must be of CUDA 12"),
        ("ours", "names rankfold's client library"),
    ],
)
def test_without_the_library_the_reason_is_said(fake: Fake, library: str, reason: str) -> None:
    """In a process of its own: a library is loaded once."""
    program = f"""
import os, sys
from rankfold import paths
os.environ["RANKFOLD_CUDA_DRIVER"] = {str(fake.path)!r}
os.environ["RANKFOLD_CUBLASLT"] = {library!r}
if {library!r} == "ours":
    os.environ["RANKFOLD_CUBLASLT"] = str(paths.native("lib/libcublasLt.so.13"))
sys.path.insert(0, "tests")
from nvidia.test_gemm import GOOD, gemm
from softgpu.harness import CHUNK, Device
with Device(memory=4 * CHUNK, hal="nvidia") as device:
    space = device.space()
    space.alloc(4096)
    gemm.run(device, space, GOOD)
    print(*space.error())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("801 ") and reason in done.stdout


def test_no_library_is_loaded_for_programs_without_products(fake: Fake, device: Device) -> None:
    before = fake.calls("cublasLtCreate")
    space = device.space()
    space.read(space.put(np.ones(4, np.float32)), 4, np.float32)
    assert fake.calls("cublasLtCreate") == before


def test_a_beta_of_minus_zero_is_zero_but_of_an_integer(device: Device) -> None:
    """Then C is not read, wherever it is. The integer with these bits is the least of all."""
    lies = Matrix(0, 1, 4)
    for ab, cd, scale in [(R_16F, R_16F, R_16F), (R_64F, R_64F, R_64F), (R_32F, R_32F, R_32F)]:
        space = device.space()
        call = Gemm(4, 4, 4, lies, lies, lies, lies, 1, ab, cd, ab, scale, 1, -0.0)
        o = place(space, call, np.ones, None)
        gemm.run(device, space, replace(o.call, c=FAR))
        space.check()
        memory, where = o.result()
        assert (decode(memory[where], cd) == 4).all()
    space = device.space()
    call = Gemm(4, 4, 4, lies, lies, lies, lies, 1, R_8I, R_32I, R_32I, R_32I, 1, -(2**31))
    gemm.run(device, space, replace(place(space, call, np.ones, None).call, c=FAR))
    assert space.error()[0] == 700
