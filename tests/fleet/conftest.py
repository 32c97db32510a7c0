"""Promise: what people see through the command, whatever goes wrong, with nothing replaced.

The real reconciler, proxies, launchers and CUDA programs. What each part promises by itself is
tested next to it (tests/reconciler: all fault points; tests/running: all programs).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cuda import PROGRAMS, build

from support.command import Rankfold, Specs
from support.leaks import State

from .neighbour import Neighbour


@pytest.fixture
def rankfold(state: State) -> Iterator[Rankfold]:
    command = Rankfold(state, {**os.environ, "RANKFOLD_LINGER": "0.5"})
    yield command
    command.end()


@pytest.fixture
def specs(state: State) -> Specs:
    return Specs(state.folder / "specs")


@pytest.fixture
def neighbour(rankfold: Rankfold, specs: Specs) -> Neighbour:
    """A job of two ranks that trains until told. Its bits are known."""
    return Neighbour(rankfold, specs, build(PROGRAMS / "until_told.cu"))
