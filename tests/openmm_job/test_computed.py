"""OpenMM from PyPI, unmodified, in a rank: its kernels count on the threads of a warp going in step
(proxy/hal/soft/compiler/meeting.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import guest
from support.leaks import State


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.timeout(1200)
def test_openmm_computes_what_its_reference_does(state: State) -> None:
    assert guest.printed(state, Path(__file__).parent) == "66 compared\n"
