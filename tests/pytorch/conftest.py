"""PyTorch, and the fixtures of a fleet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support.command import Rankfold
from support.fixtures import specs
from support.leaks import State

__all__ = ["specs"]
COMPILED_S = 900.0  # within this time a program does its first steps, with no kernel compiled


@pytest.fixture
def rankfold(state: State) -> Iterator[Rankfold]:
    environment = {**os.environ, "RANKFOLD_LINGER": "0.5"}
    command = Rankfold(state, environment, deadline_s=COMPILED_S)
    yield command
    command.end()


@pytest.fixture(scope="session")
def torch() -> Path:
    """The interpreter that imports PyTorch."""
    python = REPOSITORY / "build/torch/python"
    if not python.exists():
        pytest.skip("build/torch/python is missing: `make torch` fetches PyTorch (572 MB)")
    return python
