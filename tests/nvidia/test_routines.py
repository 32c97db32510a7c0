"""Promise: where NVIDIA's cuBLAS is, it runs a program's routines, with the program's modes,
workspace and numbers; results, errors and captures are as elsewhere."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cublas.test_routines import run_spread_and_folded, start
from softgpu.harness import CHUNK, Device, Space

from support.fleet import Fleet, MiB, until
from support.leaks import State
from support.native import REPOSITORY

from .fake_driver import Fake
from .test_libraries import asked, call, of_library

ON_DEVICE = 1 << 32
ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made


def handle(
    *, on_device: bool = False, math: int = 0, atomics: int = 0, sm_count: int = 0,
    workspace: tuple[int, int] = (0, 0),
) -> list[int]:  # fmt: skip
    return [math | on_device << 32 | atomics << 40, sm_count, *workspace]


def bits(*values: float) -> list[int]:
    """A number as a call sends it: 16 bytes."""
    return list(struct.unpack("<2q", struct.pack("<2d", *values, *[0] * (2 - len(values)))))


def vectors(space: Space) -> tuple[int, int]:
    return space.put(np.arange(4.0)), space.put(np.ones(4))


# ---- a call in the proxy ----


@pytest.mark.parametrize("on_device", [False, True])
def test_a_factor_is_where_the_pointer_mode_says(device: Device, on_device: bool) -> None:
    space, function = device.space(), of_library("cublas")("cublasDaxpy_v2")
    x, y = vectors(space)
    alpha = [space.put(np.full(1, 3.0)), 0] if on_device else bits(3)
    call(space, function, *handle(on_device=on_device), 4, *alpha, x, 1, y, 1)
    space.check()
    assert (space.read(y, 4, np.float64) == 3 * np.arange(4) + 1).all()


def test_a_call_has_the_programs_modes_and_workspace(fake: Fake, device: Device) -> None:
    space, function = device.space(), of_library("cublas")("cublasDscal_v2")
    x, _ = vectors(space)
    at = space.put(np.zeros(512, np.uint8))
    settings = handle(math=3, atomics=1, sm_count=20, workspace=(at, 512))
    call(space, function, *settings, 4, *bits(2), x, 1)
    space.check()
    assert fake.called() == ("cublasDscal_v2", 512)
    assert fake.settings() == (3, 0, 1, 20)
    call(space, function, *handle(on_device=True), 4, x, 0, x, 1)
    space.check()
    assert fake.called() == ("cublasDscal_v2", 0)
    assert fake.settings() == (0, 1, 0, 0)


def test_numbers_of_the_host_that_change_come_back(device: Device) -> None:
    space, at = device.space(), device.space()
    place = space.put(np.full(18, -1, np.int64))
    given = [number for value in (3, 4, 0, 0) for number in bits(value)]
    call(space, of_library("cublas")("cublasDrotg_v2"), *handle(), *given, answer=place)
    space.check()
    status, *values = struct.unpack("<q8d", space.read(place, 72, np.uint8).tobytes())
    assert status == 0
    np.testing.assert_allclose(values[::2], [5, 4 / 3, 0.6, 0.8][:1] + [4, 0.6, 0.8])
    at.check()


def test_a_routine_without_an_answer_fails_its_rank(fake: Fake, device: Device) -> None:
    function, space, other = of_library("cublas")("cublasDscal_v2"), device.space(), device.space()
    fake.fail("cublasDscal_v2", 1, 13)
    call(space, function, *handle(), 4, *bits(2), vectors(space)[0], 1)
    code, text = space.error()
    assert code == LAUNCH_FAILED and text.startswith("cublasDscal_v2 gave status 13")
    assert asked(other, function, *handle(), 4, *bits(2), vectors(other)[0], 1)[0] == 0
    other.check()


@pytest.mark.parametrize("what", ["workspace", "factor", "vector", "result"])
def test_memory_that_is_not_the_ranks_fails_it(device: Device, what: str) -> None:
    functions, space = of_library("cublas"), device.space()
    x, _ = vectors(space)
    stray = np.zeros(64).ctypes.data
    settings = handle(
        on_device=True, workspace=(stray & ~255, 256) if what == "workspace" else (0, 0)
    )
    factor = stray if what == "factor" else x
    vector = stray if what == "vector" else x
    if what == "result":
        call(space, functions("cublasDnrm2_v2"), *settings, 4, x, 1, stray)
    else:
        call(space, functions("cublasDscal_v2"), *settings, 4, factor, 0, vector, 1)
    code, text = space.error()
    number = {"workspace": 1, "factor": 3, "vector": 4, "result": 5}[what]
    assert code == ILLEGAL_ADDRESS and f"the memory of parameter {number} is not mapped" in text


# ---- the whole way ----


@pytest.fixture
def faults(
    fake_path: Path, libraries_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Which rules of the driver and of cuBLAS the proxies break."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_CUBLASLT", str(fake_path))
    monkeypatch.setenv("RANKFOLD_LIBRARIES", str(libraries_path))
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")
    monkeypatch.setenv("RANKFOLD_FAKE_FAULTS", str(tmp_path / "faults"))
    return tmp_path / "faults"


@pytest.mark.usual("SZ")
@pytest.mark.parametrize("types", ["SZ", "DC"])
def test_programs_get_nvidias_routines(faults: Path, state: State, types: str) -> None:
    """The fake driver does not have the client's kernels: none of them has run."""
    kinds = ("nvidia", "nvidia")
    run_spread_and_folded(state, "1", "5", types, kinds=kinds, **{"half backwards": 0})
    assert not faults.exists()


def test_functions_that_only_nvidias_library_has(faults: Path, state: State) -> None:
    """On other devices their first call is refused by name."""
    program = str(Path(__file__).with_name("inverses_program.py"))
    env = {"PYTHONPATH": str(REPOSITORY / "tests")}
    with Fleet(state, memory=16 * MiB, kinds=("nvidia", "soft")) as fleet:
        command = [sys.executable, program, "1", "5", "SDCZ"]
        folded = fleet.start("folded", command, [0, 0], env, memory=16 * MiB)
        assert folded.wait() == [0, 0], folded.errors(0) + folded.errors(1)
        for name in ("SmatinvBatched", "ZgetriBatched", "CgelsBatched", "Dtpttr"):
            assert f"cublas{name} " in folded.output(0)
        assert "cublasGemmBatchedEx" in folded.output(0) + folded.output(1)
        assert folded.output(0).endswith("mixed 15\n")
        refused = fleet.start("refused", command, [1], env, memory=16 * MiB)
        assert refused.wait() != [0]
        assert "cublasSmatinvBatched: not supported by rankfold on this device" in refused.errors(0)
    assert not faults.exists()


def test_products_and_transformations_that_only_nvidias_cublaslt_has(
    faults: Path, state: State
) -> None:
    """Products of complex numbers and 8-bit floats, and transformations."""
    env = {"PYTHONPATH": str(REPOSITORY / "tests")}
    command = [sys.executable, str(Path(__file__).with_name("lt_program.py"))]
    with Fleet(state, memory=16 * MiB, kinds=("nvidia", "soft")) as fleet:
        folded = fleet.start("folded", command, [0, 0], env, memory=16 * MiB)
        assert folded.wait() == [0, 0], folded.errors(0) + folded.errors(1)
        for name, count in (("complex", 2), ("scaled", 2), ("transformed", 3)):
            assert folded.output(0).count(f"{name} ") == count
        refused = fleet.start("refused", command, [1], env, memory=16 * MiB)
        assert refused.wait() == [0] and refused.output(0) == "told 15\n"
        assert "cublasLtMatrixTransform: not supported by rankfold" in refused.errors(0)
    assert not faults.exists()


def test_a_rank_with_routines_that_moves_to_a_device_without_cublas_fails_by_name(
    faults: Path, state: State
) -> None:
    """The reconciler moves jobs between devices of one type only; a pool may still be mixed."""
    with Fleet(state, memory=16 * MiB, kinds=("nvidia", "soft")) as fleet:
        job = start(fleet, "moved", [0, 0], "50", "5", "S")
        until(lambda: job.output(0).count("\n") > 3, 60, "the first calls")
        job.move([fleet.names[1]] * 2)
        assert job.wait() != [0, 0]
        assert "NVIDIA's own libraries run on devices of type nvidia only" in job.errors(0)
    assert not faults.exists()
