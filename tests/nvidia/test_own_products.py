"""Promise: where NVIDIA's cuBLAS is, a program's product is the program's own call of it, with its
workspace, modes and preferences; where it is not, the result is the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cuda
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from softgpu import gemm
from softgpu.gemm import POINTERS, RELU, SCALARS, Gemm, Matrix
from softgpu.harness import CHUNK, Device, Space

from support.fleet import Fleet, MiB, until
from support.formats import R_16BF, R_16F, R_32F, R_64F, TYPES, decode, encode
from support.leaks import State

from .fake_driver import Fake

LT, ONE, STRIDED, LISTED, ONE_EX, STRIDED_EX, LISTED_EX = range(1, 8)
CALLS = {
    ONE: "cublas{}gemm",
    STRIDED: "cublas{}gemmStridedBatched",
    LISTED: "cublas{}gemmBatched",
    ONE_EX: "cublasGemmEx",
    STRIDED_EX: "cublasGemmStridedBatchedEx",
    LISTED_EX: "cublasGemmBatchedEx",
}
LETTERS = {R_32F: "S", R_64F: "D", R_16F: "H"}


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made


def how(
    api: int,
    lds: tuple[int, int, int],
    ops: tuple[int, int] = (0, 0),
    workspace: tuple[int, int] = (0, 0),
    most: int = 0,
    aligned: int = 0,
) -> bytes:
    """struct rf_gemm_how."""
    return struct.pack(
        "<6Q4B3i6IQ",
        *workspace,
        *lds,
        lds[2],
        api,
        *ops,
        0,
        -1,
        0,
        0,
        0xFFFFFFFF,
        *[aligned] * 4,
        0,
        most,
    )


@st.composite
def calls(draw: st.DrawFn) -> dict[str, int]:
    api = draw(st.sampled_from(sorted(CALLS)))
    kinds = [R_32F, R_64F, R_16F, R_16BF] if api >= ONE_EX else sorted(LETTERS)
    return {
        "api": api,
        "kind": draw(st.sampled_from(kinds)),
        **{name: draw(st.integers(1, 5)) for name in "mnk"},
        **{f"more_{name}": draw(st.integers(0, 3)) for name in "abc"},
        "turn_a": draw(st.integers(0, 1)),
        "turn_b": draw(st.integers(0, 1)),
        "count": draw(st.integers(1, 3)) if api not in (ONE, ONE_EX) else 1,
        "beta": draw(st.sampled_from([0, 1, -2])),
        "on_device": draw(st.booleans()),
        "workspace": draw(st.sampled_from([0, 512])),
    }


def stored(
    space: Space, drawn: dict[str, int], name: str, rows: int, columns: int
) -> tuple[Matrix, int, np.ndarray]:
    """Matrices of small whole numbers, by columns, as op(X): the record, ld, and the values."""
    turned, kind = drawn.get(f"turn_{name}", 0), drawn["kind"]
    height, width = (columns, rows) if turned else (rows, columns)
    ld, count = height + drawn[f"more_{name}"], drawn["count"]
    step = ld * width + 2
    flat = np.arange(count * step) * 7 % 5 - 2.0
    matrix = Matrix(0, ld, 1, step) if turned else Matrix(0, 1, ld, step)
    if count == 1:
        matrix = replace(matrix, batch=0)
    values = flat[replace(matrix, batch=step).indices(rows, columns, count)]
    at = space.put(encode(flat, kind))
    if drawn["api"] in (LISTED, LISTED_EX):
        size = encode(flat[:1], kind).nbytes
        listed = space.put(np.array([at + b * step * size for b in range(count)], np.uint64))
        return replace(matrix, address=listed, batch=at), ld, values
    return replace(matrix, address=at), ld, values


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=calls())
def test_each_call_of_cublas_is_made_as_it_is(fake: Fake, drawn: dict[str, int]) -> None:
    with Device(memory=16 * CHUNK, hal="nvidia") as device:
        check_call(fake, device, drawn)


def check_call(fake: Fake, device: Device, drawn: dict[str, int]) -> None:
    space, kind, count = device.space(), drawn["kind"], drawn["count"]
    m, n, k = drawn["m"], drawn["n"], drawn["k"]
    a, lda, a_values = stored(space, drawn, "a", m, k)
    b, ldb, b_values = stored(space, drawn, "b", k, n)
    c, ldc, c_values = stored(space, drawn, "c", m, n)
    listed = drawn["api"] in (LISTED, LISTED_EX)
    scale = kind if kind != R_16BF else R_32F
    flags = (POINTERS if listed else 0) | (SCALARS if drawn["on_device"] else 0)
    alpha, beta = 2, drawn["beta"]
    places = [space.put(encode(np.array([float(x)]), scale)) for x in (alpha, beta)]
    workspace = (space.put(np.zeros(512, np.uint8)), 512) if drawn["workspace"] else (0, 0)

    def of_record(x: Matrix) -> Matrix:
        return replace(x, batch=0 if listed else x.batch)

    call = Gemm(
        m, n, k, of_record(a), of_record(b), of_record(c), of_record(c),
        count=count, type_ab=kind, type_cd=kind, type_scale=scale, flags=flags,
        alpha=places[0] if drawn["on_device"] else alpha,
        beta=places[1] if drawn["on_device"] else beta,
        how=how(drawn["api"], (lda, ldb, ldc), (drawn["turn_a"], drawn["turn_b"]), workspace),
    )  # fmt: skip
    gemm.run(device, space, call)
    space.check()
    name = CALLS[drawn["api"]].format(LETTERS.get(kind, ""))
    assert fake.called() == (name, workspace[1])
    at, step = (c.batch, ldc * n + 2) if listed else (c.address, ldc * n + 2)
    places_of_c = Matrix(0, 1, ldc, step).indices(m, n, count)
    found = decode(space.read(at, count * step, TYPES[kind]), kind)[places_of_c]
    assert np.array_equal(found, alpha * a_values @ b_values + beta * c_values)


def square(space: Space) -> tuple[Gemm, np.ndarray]:
    values = np.arange(16.0).reshape(4, 4)
    a, b, c = (Matrix(space.put(values.astype(np.float32)), 1, 4) for _ in range(3))
    return Gemm(4, 4, 4, a, b, c, c), values


def result(space: Space, call: Gemm) -> np.ndarray:
    return space.read(call.d.address, 16, np.float32).reshape(4, 4)


def test_cublaslt_gets_the_programs_workspace_and_preference(fake: Fake, device: Device) -> None:
    space = device.space()
    call, values = square(space)
    workspace = (space.put(np.zeros(4096, np.uint8)), 4096)
    own = how(LT, (4, 4, 4), workspace=workspace, most=4096, aligned=16)
    gemm.run(device, space, replace(call, how=own, flags=RELU))
    space.check()
    assert fake.called() == ("cublasLtMatmul", 4096)
    assert (result(space, call) == values @ values).all()
    # The algorithm needs a larger one than the program then has.
    own = how(LT, (4, 4, 4), workspace=workspace, most=8192, aligned=16)
    gemm.run(device, space, replace(call, how=own))
    code, text = space.error()
    assert code != 0 and "CUBLAS_STATUS_INVALID_VALUE" in text


def test_without_an_algorithm_cublaslt_chooses_in_the_call(fake: Fake, device: Device) -> None:
    space = device.space()
    call, values = square(space)
    before = fake.calls("cublasLtMatmulAlgoGetHeuristic")
    gemm.run(device, space, replace(call, how=how(LT, (4, 4, 4), (1, 1)),
                                    a=replace(call.a, row=4, col=1),
                                    b=replace(call.b, row=4, col=1)))  # fmt: skip
    space.check()
    assert fake.called() == ("cublasLtMatmul by itself", 0)
    assert fake.calls("cublasLtMatmulAlgoGetHeuristic") == before
    assert (result(space, call) == (values.T @ values.T)).all()


@pytest.mark.parametrize("own", [True, False])
def test_the_heuristic_is_asked_once_for_equal_products(
    fake: Fake, device: Device, own: bool
) -> None:
    """Wherever they are, and whosever; for another size, type, step or alignment it is asked
    again."""
    asked = fake.calls("cublasLtMatmulAlgoGetHeuristic")
    said = how(LT, (4, 4, 4), aligned=16) if own else bytes(96)
    for n in range(1, 4):
        space = device.space()
        space.alloc(4096 * n)
        call, values = square(space)
        gemm.run(device, space, replace(call, how=said))
        gemm.run(device, space, replace(call, how=said, alpha=2))
        assert (result(space, call) == 2 * values @ values).all()
    assert fake.calls("cublasLtMatmulAlgoGetHeuristic") == asked + 1
    others = [
        replace(call, m=3, how=said),
        replace(call, flags=RELU, how=said),
        replace(call, bias=call.a.address, how=said),
        replace(call, d=replace(call.d, address=call.d.address + 4), how=said),
    ]
    if own:  # there the program has said what is aligned, and not where D is
        others = others[:3] + [replace(call, how=how(LT, (4, 4, 4), aligned=4))]
    for each in [*others, *others]:
        gemm.run(device, space, each)
        space.check()
    assert fake.calls("cublasLtMatmulAlgoGetHeuristic") == asked + 1 + len(others)


@pytest.mark.parametrize("api", [LT, ONE])
@pytest.mark.parametrize("bytes_there", [0, CHUNK])
def test_a_workspace_that_is_not_the_ranks_fails_it(
    device: Device, api: int, bytes_there: int
) -> None:
    space, other = device.space(), device.space()
    call, values = square(space)
    at = space.put(np.zeros(256, np.uint8)) if bytes_there else 0x200100000000
    own = how(api, (4, 4, 4), workspace=(at, 1 << 30))
    gemm.run(device, space, replace(call, how=own))
    assert space.error()[0] == 700
    again, _ = square(other)
    gemm.run(device, other, again)
    other.check()
    assert (result(other, again) == values @ values).all()


def test_sides_beyond_an_int_are_refused(device: Device) -> None:
    space = device.space()
    call, _ = square(space)
    gemm.run(device, space, replace(call, how=how(ONE, (4, 4, 1 << 31))))
    code, text = space.error()
    assert code == 801 and "CUBLAS_STATUS_NOT_SUPPORTED" in text


# ---- the whole way ----


@pytest.fixture
def driver(fake_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_CUBLASLT", str(fake_path))
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")


@pytest.mark.parametrize("call", ["Sgemm", "SgemmBatched", "GemmStridedBatchedEx"])
def test_the_programs_call_is_made(
    driver: None, state: State, libraries_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Its failure is the rank's."""
    monkeypatch.setenv("RANKFOLD_LIBRARIES", str(libraries_path))
    monkeypatch.setenv("RANKFOLD_FAKE_FAIL", f"cublas{call}:1:13")
    program = str(cuda.build(Path(__file__).parent / "products.cu"))
    with Fleet(state, memory=16 * MiB, kinds=("nvidia",)) as fleet:
        job = fleet.start("failing", [program, "2"], [0], memory=32 * MiB)
        assert job.wait() != [0]
        assert "a matrix product" in job.errors(0)


@pytest.mark.parametrize("found", [True, False], ids=["its own", "none"])
def test_programs_get_the_same_products(
    driver: None, state: State, libraries_path: Path, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    """Whole numbers: the bits are those of the software GPU, folded too."""
    if found:
        monkeypatch.setenv("RANKFOLD_LIBRARIES", str(libraries_path))
    program = str(cuda.build(Path(__file__).parent / "products.cu"))
    with Fleet(state, memory=16 * MiB, kinds=("nvidia", "soft")) as fleet:
        outputs = []
        for name, placement in (("soft", [1, 1]), ("folded", [0, 0])):
            job = fleet.start(name, [program, "8"], placement, memory=32 * MiB)
            assert job.wait() == [0, 0], [job.errors(r) for r in range(2)]
            assert [job.errors(r) for r in range(2)] == ["", ""]
            outputs.append([job.output(r) for r in range(2)])
        assert outputs[0] == outputs[1]


def test_a_rank_takes_its_products_to_another_kind_of_device(
    driver: None, state: State, libraries_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's cuBLAS is nothing that the rank has. Whole numbers have the same bits everywhere."""
    monkeypatch.setenv("RANKFOLD_LIBRARIES", str(libraries_path))
    program = str(cuda.build(Path(__file__).parent / "products.cu"))
    with Fleet(state, memory=16 * MiB, kinds=("nvidia", "soft")) as fleet:
        job = fleet.start("apart", [program, "12"], [1, 1], memory=32 * MiB)
        assert job.wait() == [0, 0]
        wanted = [job.output(rank) for rank in range(2)]
        job = fleet.start("moved", [program, "12"], [0, 0], memory=32 * MiB)
        until(lambda: job.output(0).count("\n") >= 3)
        job.move([fleet.names[1], fleet.names[0]])
        assert job.wait() == [0, 0], [job.errors(rank) for rank in range(2)]
        assert [job.output(rank) for rank in range(2)] == wanted
        assert job.epoch >= 2
