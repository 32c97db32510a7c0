"""Promise: what programs call of cuFFT and cuSOLVER is NVIDIA's own function, called by the proxy
with the program's numbers; ranks that share a device get what they get alone; and no number that a
rank sends makes the proxy read or write memory of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from softgpu.harness import CHUNK, Device, Space

from rankfold import paths
from rankfold.proxy.hal.nvidia.modules import Loader
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.fatbin import IMAGE_LIBRARY
from rankfold.proxy.ptx.info import FunctionInfo
from support.command import Rankfold
from support.fixtures import rankfold
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

from .fake_driver import Fake, libraries

__all__ = ["rankfold"]

PROGRAM = Path(__file__).parent / "linear.cu"
STEPS = 6
FORWARD, INVERSE = -1, 1
R_32F, R_64F, C_32F, C_64F = 0, 1, 4, 5
ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719
Functions = Callable[[str], FunctionInfo]


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made


def of_library(name: str) -> Functions:
    loader = Loader(paths.native("lib/librankfold-proxy.so"), (9, 0))
    module = loader.module(b"rankfold library " + name.encode(), IMAGE_LIBRARY)
    return lambda function: loader.function(module, function)


def call(space: Space, function: FunctionInfo, *numbers: int, answer: int = 0) -> None:
    assert function.param_bytes == 8 * (1 + len(numbers)), function.name
    space.launch(function, 1, 1, np.array([answer, *numbers], np.int64).tobytes())


def asked(space: Space, function: FunctionInfo, *numbers: int) -> tuple[int, int, int]:
    """The status, and what the call gives."""
    at = space.put(np.full(3, -1, np.int64))
    call(space, function, *numbers, answer=at)
    status, *outs = (int(n) for n in space.read(at, 3, np.int64))
    return status, outs[0], outs[1]


# ---- transforms ----


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    kind = draw(st.sampled_from(["c2c", "r2c", "c2r"]))
    sizes = {"whole": shape, "half": [*shape[:-1], shape[-1] // 2 + 1]}
    sides = {}
    for side, is_half in (("in", kind == "c2r"), ("out", kind == "r2c")):
        stored = sizes["half" if is_half else "whole"]
        embed = [n + draw(st.integers(0, 2)) for n in stored]
        stride = draw(st.integers(1, 3))
        least = int(np.prod(embed)) * stride
        sides[side] = (stored, embed, stride, least + draw(st.integers(0, 3)))
    return {
        "shape": shape,
        "kind": kind,
        "wide": draw(st.booleans()),
        "batch": draw(st.integers(1, 3)),
        "packed": draw(st.booleans()),
        "sides": sides,
        "seed": draw(st.integers(0, 99)),
    }


def described(plan: dict[str, Any], types: tuple[int, int, int]) -> list[int]:
    def three(numbers: list[int]) -> list[int]:
        return (numbers + [0, 0, 0])[:3]

    rank, packed = len(plan["shape"]), plan["packed"]
    (_, in_embed, in_stride, in_step), (_, out_embed, out_stride, out_step) = (
        plan["sides"]["in"],
        plan["sides"]["out"],
    )
    embedded = [0] + [0] * 6 + [0] * 4
    if not packed:
        strides = [in_stride, in_step, out_stride, out_step]
        embedded = [1, *three(in_embed), *three(out_embed), *strides]
    return [rank, *three(plan["shape"]), *embedded, *types, plan["batch"]]


def places(plan: dict[str, Any], side: str) -> np.ndarray:
    """Where each element is stored."""
    stored, embed, stride, step = plan["sides"][side]
    if plan["packed"]:
        embed, stride, step = stored, 1, int(np.prod(stored))
    at = np.zeros((plan["batch"], *stored), np.int64)
    for index in np.ndindex(*at.shape):
        inner = 0
        for d, i in enumerate(index[1:]):
            inner = inner * (embed[d] if d else 1) + i
        at[index] = index[0] * step + inner * stride
    return at


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(plan=plans())
def test_transforms_of_any_layout_are_those_of_numpy(fake: Fake, plan: dict[str, Any]) -> None:
    with Device(memory=16 * CHUNK, hal="nvidia") as device:
        check_transform(device.space(), plan)


def check_transform(space: Space, plan: dict[str, Any]) -> None:
    functions = of_library("cufft")
    real, pair = (np.float64, np.complex128) if plan["wide"] else (np.float32, np.complex64)
    numbers = {"c": (pair, C_64F if plan["wide"] else C_32F), "r": (real, R_64F * plan["wide"])}
    (taken, in_type), (given_, out_type) = numbers[plan["kind"][0]], numbers[plan["kind"][2]]
    random = np.random.default_rng(plan["seed"])
    at, to = places(plan, "in"), places(plan, "out")
    axes = tuple(range(1, at.ndim))
    values = random.standard_normal((plan["batch"], *plan["shape"]))
    if plan["kind"] == "c2c":
        stored = values + 1j * random.standard_normal(values.shape)
        want = np.fft.fftn(stored, axes=axes)
    elif plan["kind"] == "r2c":
        want, stored = np.fft.rfftn(values, axes=axes), values
    else:
        stored = np.fft.rfftn(values, axes=axes)
        want = values * np.prod(plan["shape"])
    given_in = np.zeros(int(at.max()) + 1, taken)
    given_in[at] = stored
    before = np.full(int(to.max()) + 1, 7, given_)
    source, target = space.put(given_in), space.put(before)
    description = described(plan, (in_type, out_type, C_64F if plan["wide"] else C_32F))
    status, size, _ = asked(space, functions("cufftMakePlan"), *description)
    assert status == 0 and size > 0
    area = space.put(np.zeros(size, np.uint8))
    direction = INVERSE if plan["kind"] == "c2r" else FORWARD
    call(space, functions("cufftExec"), *description, source, target, area, size, direction)
    space.check()
    found = space.read(target, len(before), given_)
    np.testing.assert_allclose(found[to], want, rtol=1e-4, atol=1e-4)
    between = np.ones(len(before), bool)
    between[to] = False
    assert (found[between] == 7).all()


SMALL = [1, 8, 0, 0, 0, *[0] * 6, *[0] * 4, C_32F, C_32F, C_32F, 1]


def test_a_plan_is_made_once(fake: Fake, device: Device) -> None:
    """Ranks share it; the one that was not used for longest is dropped."""
    functions, made = of_library("cufft"), fake.calls("cufftCreate")
    plan = functions("cufftMakePlan")
    assert [asked(device.space(), plan, *SMALL)[0] for _ in range(3)] == [0] * 3
    assert fake.calls("cufftCreate") == made + 1
    space, dropped = device.space(), fake.calls("cufftDestroy")
    for n in range(9, 9 + 257):
        assert asked(space, plan, 1, n, *SMALL[2:])[0] == 0
    assert fake.calls("cufftDestroy") == dropped + 2
    assert asked(space, plan, *SMALL)[0] == 0
    assert fake.calls("cufftCreate") == made + 1 + 257 + 1


def test_a_gpu_that_needs_a_larger_work_area_gets_one(fake: Fake, device: Device) -> None:
    functions, space = of_library("cufft"), device.space()
    values = np.arange(8, dtype=np.complex64)
    at = space.put(values)
    call(space, functions("cufftExec"), *SMALL, at, at, 0, 0, FORWARD)
    space.check()
    np.testing.assert_allclose(space.read(at, 8, np.complex64), np.fft.fft(values), rtol=1e-5)


def test_a_transform_that_the_library_refuses_fails_its_rank(device: Device) -> None:
    functions, space, other = of_library("cufft"), device.space(), device.space()
    at = space.put(np.zeros(64, np.complex64))
    call(space, functions("cufftExec"), *SMALL, at, at, at, 512, 5)
    code, text = space.error()
    assert code == LAUNCH_FAILED and text.startswith("cufftExec gave status 1 of its library")
    other.check()
    assert asked(other, functions("cufftMakePlan"), 4, *SMALL[1:])[0] != 0
    assert asked(other, functions("cufftMakePlan"), -1, *SMALL[1:])[0] != 0
    other.check()


# ---- factorisations ----


@pytest.mark.parametrize("sweeps", [None, 0, 1])
def test_a_descriptor_is_what_the_program_has_set(device: Device, sweeps: int | None) -> None:
    """Jacobi's method, by the fake: without a sweep the diagonal, with its own number of them the
    eigenvalues."""
    functions, space = of_library("cusolver"), device.space()
    there, set_tolerance, set_sweeps = 1, 2, 4
    matrix = np.array([[3.0, 1, 0], [1, 1, 2], [0, 2, -1]])
    at, to, work, info = (
        space.put(each) for each in (matrix, np.zeros(3), np.zeros(9), np.ones(1))
    )
    bits = there | set_tolerance | (set_sweeps if sweeps is not None else 0)
    how = [bits, int(np.float64(1e-9).view(np.int64)), sweeps or 0, 0]
    status, words, _ = asked(
        space, functions("cusolverDnDsyevj_bufferSize"), 0, 0, 3, at, 3, to, *how
    )
    assert (status, words) == (0, 6)
    call(space, functions("cusolverDnDsyevj"), 0, 0, 3, at, 3, to, work, words, info, *how)
    space.check()
    found = space.read(to, 3, np.float64)
    if sweeps == 0:
        assert (found == [-1, 1, 3]).all()
    else:
        exact = np.linalg.eigvalsh(matrix)
        assert np.allclose(found, exact, rtol=0, atol=1e-12) == (sweeps is None)


# ---- numbers of a hostile rank ----


@pytest.mark.parametrize("parameter", [3, 5, 7])
def test_memory_that_is_not_the_ranks_fails_it(device: Device, parameter: int) -> None:
    """cusolverDnDpotrf(handle, uplo, n, A, lda, work, words, info): an address of the proxy's."""
    function, space = of_library("cusolver")("cusolverDnDpotrf"), device.space()
    own = space.put(np.eye(4))
    numbers = [0, 4, own, 4, own, 8, own]
    numbers[parameter - 1] = np.zeros(64).ctypes.data
    call(space, function, *numbers)
    code, text = space.error()
    assert code == ILLEGAL_ADDRESS
    assert f"the memory of parameter {parameter + 1} is not mapped" in text


def test_an_answer_goes_to_memory_of_the_rank_only(device: Device) -> None:
    function = of_library("cusolver")("cusolverDnDpotrf_bufferSize")
    space = device.space()
    own = space.put(np.eye(4))
    call(space, function, 0, 4, own, 4, answer=np.zeros(64).ctypes.data)
    assert space.error()[0] == ILLEGAL_ADDRESS


def test_working_memory_of_the_host_has_a_limit(device: Device) -> None:
    function = of_library("cusolver")("cusolverDnXpotrf")
    space = device.space()
    own = space.put(np.eye(4))
    status, *_ = asked(space, function, 0, 4, R_64F, own, 4, R_64F, own, 256, 1 << 50, own)
    assert status != 0
    space.check()


def test_functions_that_are_not_listed_are_not_called(fake: Fake) -> None:
    functions = of_library("cusolver")
    for name in ("cusolverDnCreate", "cusolverDnSetStream", "malloc", "cufftExec", ""):
        with pytest.raises(ModuleError, match="is not among the functions of cusolver"):
            functions(name)


# ---- where there is none ----


def test_libraries_are_nvidias_and_named(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "c", "../../lib/libc", "cublas\0x"):
        with pytest.raises(ModuleError, match="rankfold calls no functions of a library"):
            of_library(name)


@pytest.mark.parametrize("bytes_of_it", [10, 100, 5000], ids=["text", "head", "part"])
def test_a_library_that_cannot_be_loaded_says_why(
    fake_path: Path, tmp_path: Path, bytes_of_it: int
) -> None:
    """In a process of its own: a library is loaded once."""
    content = b"no library" if bytes_of_it == 10 else fake_path.read_bytes()
    (tmp_path / "libcusolver.so.12").write_bytes(content[:bytes_of_it])
    program = """
from rankfold import paths
from rankfold.proxy.hal.nvidia.modules import Loader
from rankfold.proxy.ptx.fatbin import IMAGE_LIBRARY
Loader(paths.native("lib/librankfold-proxy.so"), (9, 0)).module(
    b"rankfold library cusolver", IMAGE_LIBRARY
)
"""
    env = {**os.environ, "RANKFOLD_LIBRARIES": f"/nowhere:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot load NVIDIA's libcusolver.so.12, which RANKFOLD_LIBRARIES names" in done.stderr
    assert f"{tmp_path}/libcusolver.so.12: " in done.stderr


def test_a_programs_own_version_goes_before_a_newer_one(
    driver: None, rankfold: Rankfold, fake_path: Path, tmp_path: Path
) -> None:
    """For the bits of plain CUDA: folders are in the order of RANKFOLD_LIBRARIES."""
    older, newer = tmp_path / "12", tmp_path / "13"
    for folder, name in ((older, "libcusolver.so.11"), (newer, "libcusolver.so.12")):
        folder.mkdir()
        shutil.copy(fake_path, folder / name)
    for first, second, found in ((older, newer, "12/libcusolver.so.11"), (newer, older, "13/lib")):
        well, path = doctor(rankfold, RANKFOLD_LIBRARIES=f"{first}:{second}")["cusolver"]
        assert well and path.startswith(f"{tmp_path}/{found}")


def test_nvrtcs_builtins_are_loaded_before_what_needs_them(fake_path: Path, tmp_path: Path) -> None:
    """NVRTC names them without a folder, and in NVIDIA's packages nothing else does."""
    for name in ("libnvrtc-builtins.so.13.0", "libcudnn.so.9"):
        shutil.copy(fake_path, tmp_path / name)
    program = """
from rankfold.proxy import examine
print(examine._libraries()["cudnn"], [path for path in examine._mapped() if "/libnvrtc" in path])
"""
    env = {**os.environ, "RANKFOLD_LIBRARIES": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    wanted = {"path": f"{tmp_path}/libcudnn.so.9"}, [f"{tmp_path}/libnvrtc-builtins.so.13.0"]
    assert done.stdout.strip() == " ".join(map(str, wanted)), done.stderr


def doctor(rankfold: Rankfold, **env: str) -> dict[str, tuple[bool, str]]:
    """Its findings about NVIDIA's GPUs and libraries: whether each is well, and the detail."""
    done = rankfold.run("doctor", "-o", "json", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        each["what"].removeprefix("NVIDIA "): (each["ok"], each["detail"])
        for each in json.loads(done.stdout)
        if each["what"].startswith("NVIDIA ")
    }


def test_doctor_says_which_gpus_and_libraries_there_are(
    driver: None, rankfold: Rankfold, libraries_path: Path, fake_path: Path, tmp_path: Path
) -> None:
    some = tmp_path / "libraries"
    some.mkdir()
    (some / "libcufft.so.12").write_bytes(fake_path.read_bytes()[:5000])
    shutil.copy(fake_path, some / "libcudnn.so.9")
    found = doctor(rankfold, RANKFOLD_LIBRARIES=str(some), RANKFOLD_FAKE_DEVICES="2")
    assert found["GPUs"] == (
        True,
        "driver for CUDA 13.0; Fake GPU 0 (9.0, 4096 MiB), Fake GPU 1 (9.0, 4096 MiB)",
    )
    assert found["cudnn"] == (True, str(some / "libcudnn.so.9"))
    well, why = found["cufft"]
    assert not well and f"{some}/libcufft.so.12: the file is cut off; transforms" in why
    well, why = found["cusolver"]
    assert not well and "does not find NVIDIA's libcusolver.so.12" in why
    found = doctor(rankfold, RANKFOLD_LIBRARIES=str(libraries_path))
    assert all(well for well, _ in found.values()), found


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"RANKFOLD_CUDA_DRIVER": "/nowhere/libcuda.so.1"}, "there is no NVIDIA driver: /nowhere"),
        ({"RANKFOLD_FAKE_DEVICES": "0"}, "the driver shows no GPU"),
        ({"RANKFOLD_FAKE_FAIL": "cuInit:1:999"}, "cuInit gives error 999"),
    ],
)
def test_doctor_says_why_there_is_no_gpu(
    driver: None, rankfold: Rankfold, env: dict[str, str], why: str
) -> None:
    ((well, detail),) = doctor(rankfold, **env).values()
    assert not well and why in detail and detail.endswith("devices of type soft need none")


def test_a_program_without_the_library_gets_its_error_and_what_to_do(
    state: State, fake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = cuda.build(
        """
        #include <stdio.h>
        extern "C" int cufftCreate(int *);
        extern "C" int cusolverDnCreate(void **);
        int main()
        {
            int plan;
            void *solver;
            printf("%d %d\\n", cufftCreate(&plan), cusolverDnCreate(&solver));
            printf("%d %d\\n", cufftCreate(&plan), cusolverDnCreate(&solver));
        }
        """,
        args=["-lcufft", "-lcusolver"],
    )
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")
    with Fleet(state, memory=16 * MiB, kinds=("nvidia", "soft")) as fleet:
        for place, why in ((0, "NVIDIA's libcufft.so.12: install it"), (1, "type nvidia only")):
            job = fleet.start(f"job{place}", [str(program)], [place], memory=32 * MiB)
            assert job.wait() == [0]
            assert job.output(0) == "16 9\n16 9\n"
            lines = job.errors(0).splitlines()
            assert any(why in line for line in lines)
            for name in ("cufftCreate", "cusolverDnCreate"):
                refused = [line for line in lines if line.startswith(f"rankfold: {name}:")]
                assert len(refused) == 1 and "on the CPU" in refused[0]


# ---- the whole way ----


@pytest.fixture
def driver(fake_path: Path, libraries_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_LIBRARIES", f"/nowhere:{libraries_path}")
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")


def start(fleet: Fleet, name: str, placement: list[int], steps: int = STEPS) -> RunningJob:
    program = cuda.build(PROGRAM)
    return fleet.start(name, [str(program), str(steps)], placement, memory=32 * MiB)


def outputs(job: RunningJob) -> list[str]:
    assert job.wait() == [0] * job.world_size, [job.errors(r) for r in range(job.world_size)]
    return [job.output(rank) for rank in range(job.world_size)]


def test_folded_and_moved_the_results_are_the_same(driver: None, state: State) -> None:
    with Fleet(state, memory=16 * MiB, kinds=("nvidia", "nvidia")) as fleet:
        wanted = outputs(start(fleet, "apart", [0, 1]))
        assert wanted[0] != wanted[1] and wanted[0].count("\n") == 4 * STEPS
        assert outputs(start(fleet, "folded", [0, 0])) == wanted
        job = start(fleet, "moved", [0, 0])
        until(lambda: job.output(0).count("\n") >= 5)
        job.move([fleet.names[1], fleet.names[0]])
        assert outputs(job) == wanted


@pytest.fixture
def without_folders(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKFOLD_LIBRARIES")


def test_run_finds_the_libraries_of_the_programs_python(
    without_folders: None, rankfold: Rankfold, fake_path: Path, tmp_path: Path
) -> None:
    """`pip install torch` puts them next to the interpreter that runs the program."""
    for name in ("cufft", "cusolver"):
        folder = tmp_path / f"own/lib/python3.12/site-packages/nvidia/{name}/lib"
        folder.mkdir(parents=True)
        for each in libraries(tmp_path / "all" / name, fake_path).glob(f"lib{name}.so*"):
            (folder / each.name).symlink_to(each)
    program = tmp_path / "own/bin/python"
    program.parent.mkdir()
    program.symlink_to(cuda.build(PROGRAM))
    device = ("--world-size", "1", "--device", "nvidia", "--memory", "32MiB")
    assert rankfold("run", *device, "--", str(program), "1").count("\n") == 4
