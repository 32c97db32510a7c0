"""Fixtures that several folders share; a folder's conftest.py imports those that its tests use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import Rankfold, Specs
from support.leaks import State


@pytest.fixture
def rankfold(state: State) -> Iterator[Rankfold]:
    """The command on a fleet of real processes, which end with the test."""
    command = Rankfold(state, {**os.environ, "RANKFOLD_LINGER": "0.5"})
    yield command
    command.end()


@pytest.fixture
def specs(state: State) -> Specs:
    return Specs(state.folder / "specs")


@pytest.fixture(scope="session")
def empty_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that stands for the native build: a library without a function in it."""
    folder = tmp_path_factory.mktemp("native")
    (folder / "lib").mkdir()
    target = str(folder / "lib/librankfold.so")
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", target], check=True)
    return folder
