"""Promise: what people see through the command, whatever goes wrong, with nothing replaced.

The real reconciler, proxies, launchers and CUDA programs. The promises of single parts are
tested next to them (tests/reconciler: all fault points; tests/running: all programs).
"""

from __future__ import annotations

import pytest
from cuda import PROGRAMS, build

from support.command import Rankfold, Specs
from support.fixtures import rankfold, specs

from .neighbour import Neighbour

__all__ = ["rankfold", "specs"]


@pytest.fixture
def neighbour(rankfold: Rankfold, specs: Specs) -> Neighbour:
    """A job of two ranks that trains until it is stopped. Its bits are known."""
    return Neighbour(rankfold, specs, build(PROGRAMS / "until_told.cu"))
