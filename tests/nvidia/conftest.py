"""The fake driver for a test, and kernels for a device on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import cuda
import pytest

from rankfold import paths
from rankfold.proxy.hal.nvidia.modules import Loader
from rankfold.proxy.ptx.info import FunctionInfo

from .fake_driver import HERE, Fake, build, libraries

Kernels = Callable[[str], FunctionInfo]


@pytest.fixture(scope="session")
def fake_path() -> Path:
    return build()


@pytest.fixture(scope="session")
def libraries_path(fake_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libraries of NVIDIA's names that are the fake's."""
    return libraries(tmp_path_factory.mktemp("libraries"), fake_path)


@pytest.fixture
def fake(fake_path: Path, libraries_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The driver that a device in this process gets. No test may break a rule of it."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_CUBLASLT", str(fake_path))
    monkeypatch.setenv("RANKFOLD_LIBRARIES", str(libraries_path))
    made = Fake(fake_path)
    made.faults()
    yield made
    assert made.faults() == ""


@pytest.fixture
def kernels() -> Kernels:
    """The kernels of programs.cu, for the open device."""
    loader = Loader(paths.native("lib/librankfold-proxy.so"), (9, 0))
    ptx = cuda.ptx(HERE / "programs.cu").encode()
    return lambda name: loader.function(loader.module(ptx, 1), name)
