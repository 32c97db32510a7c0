"""CuPy from PyPI, unmodified, in a rank: its extension modules contain static CUDA runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import guest
from support.leaks import State


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.timeout(1200)
def test_cupy_computes_what_numpy_does(state: State) -> None:
    """Its own kernels come as PTX of compute_120; a switch of CuPy's compiles others to PTX."""
    folder = Path(__file__).parent
    packages = guest.site_packages(guest.environment(folder / "requirements.txt"))
    toolkit = str(packages / "nvidia/cu13")
    printed = guest.printed(
        state, folder, capability="12.0", CUPY_COMPILE_WITH_PTX="1", CUDA_PATH=toolkit
    )
    assert printed == "12 checks\n"
