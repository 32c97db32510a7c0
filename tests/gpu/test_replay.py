"""`make gpu-check` repeats all that a kernel did on a GPU, and sees each difference."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from softgpu.harness import CHUNK, DEV_BASE, Device, loader

from gpu import replay
from gpu.recorder import Launch
from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.modules import Loader

Array = np.ndarray[Any, Any]
FILE = "tests/softgpu/test_threads.py"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Launch]:
    folder = tmp_path_factory.mktemp("launches")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "gpu.recorder", FILE],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.DEVNULL,
        env={
            **os.environ,
            "RECORDED_LAUNCHES": str(folder),
            "PYTHONPATH": "tests",
            "RANKFOLD_TEST_CI": "",
            "CI": "1",
        },
    )
    return [Launch.load(path) for path in sorted(folder.iterdir())]


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[Loader]:
    with loader(REPOSITORY / "build/tests/kernels", tmp_path / "c.sock") as made:
        yield made


def again(kernels: Loader, launch: Launch) -> bytes:
    """The software GPU repeats the launch at the same addresses, from the record alone."""
    function = kernels.function(kernels.module(launch.ptx.encode(), 1), launch.name)
    with Device() as device:
        space = device.space()
        assert space.put(np.frombuffer(launch.before, np.uint8)) == DEV_BASE + CHUNK
        values = [launch.params[at : at + size] for at, size in function.params]
        space.launch(function, launch.grid, launch.block, *values, shared=launch.shared)
        space.check()
        return bytes(space.read(DEV_BASE + CHUNK, len(launch.before), np.uint8))


@pytest.mark.slow
def test_a_record_is_all_that_a_kernel_needs(kernels: Loader, recorded: list[Launch]) -> None:
    changed = 0
    for launch in recorded:
        got = again(kernels, launch)
        assert got == launch.after and not replay.differences(launch, got), launch.name
        changed += launch.before != launch.after
    assert changed > 20


def launch_with(after: bytes, test: str = "tests/x.py::test_it (call)") -> Launch:
    return Launch(test, "", "k", (1, 1, 1), (1, 1, 1), 0, b"", bytes(len(after)), after)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            np.array([1, np.nan, 3], np.float32),
            np.array([0x3F800000, 0x7FFFFFFF, 0x40400000], np.uint32),
        ),
        (np.array([1, np.nan], np.float64), np.array([0x3FF << 52, 0xFFF8 << 48 | 7], np.uint64)),
        (np.array([np.nan, 1], np.float16), np.array([0x7FFF, 0x3C00], np.uint16)),
    ],
)
def test_two_nan_are_the_same(one: Array, other: Array) -> None:
    launch = launch_with(one.tobytes())
    assert one.tobytes() != other.tobytes() and not replay.differences(launch, other.tobytes())
    for at in range(len(other)):
        changed = other.copy()
        changed[at] = 5
        assert replay.differences(launch, changed.tobytes())


def test_differences_are_reported_where_none_is_allowed() -> None:
    launch, answer = launch_with(bytes(8)), {"differ": [4]}
    assert "words [4] differ" in replay.verdict(launch, answer)
    assert "cuCtxSynchronize: 700" in replay.verdict(launch, {"failed": "cuCtxSynchronize: 700"})
    assert not replay.verdict(launch, {"differ": []})
    adam = launch_with(bytes(8), "tests/softgpu/test_kernels.py::test_adam[compute_75] (call)")
    assert not replay.verdict(adam, answer) and replay.verdict(adam, {"failed": "it hung"})
