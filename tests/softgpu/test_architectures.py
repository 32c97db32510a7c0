"""PTX for newer devices is translated like PTX for older ones."""

from __future__ import annotations

from pathlib import Path

import cuda
import pytest

from rankfold.proxy.hal.soft.compiler import lower
from rankfold.proxy.ptx.module import parse_module
from softgpu import test_kernels

MATRICES = cuda.PROGRAMS / "matrices.cu"


def lowered(source: Path, arch: int) -> int:
    """The kernels in it."""
    module = parse_module(cuda.ptx(source, args=[f"-arch=compute_{arch}"]))
    assert module.target == arch
    names = [f.name for f in module.functions.values() if f.entry and f.body_text is not None]
    for name in names:
        lower.lower(module, name, "kernel")
    return len(names)


@pytest.mark.parametrize(
    "arch", [90, *(pytest.param(arch, marks=pytest.mark.slow) for arch in (80, 86, 89))]
)
def test_matrices(arch: int) -> None:
    assert lowered(MATRICES, arch) == 9


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 86, 89, 90])
def test_kernels_of_all_kinds(arch: int) -> None:
    assert lowered(test_kernels.SOURCE, arch) > 20
