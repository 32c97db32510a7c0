"""Dr.Jit from PyPI, unmodified, in a rank: it writes its own PTX, and links it by the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import guest
from support.leaks import State


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.timeout(1200)
def test_dr_jit_computes_what_numpy_does(state: State) -> None:
    assert guest.printed(state, Path(__file__).parent) == "96 checks\n"
