"""Promise: whatever comes over a control socket, the reconciler, proxies and launchers continue,
and ranks do not get through."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import peer_proxy
from support.command import Rankfold, Specs
from support.leaks import State

Commands = Callable[..., Rankfold]


@pytest.fixture(scope="session")
def empty_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that stands for the native build: a library without a function in it."""
    folder = tmp_path_factory.mktemp("native")
    (folder / "lib").mkdir()
    target = str(folder / "lib/librankfold.so")
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", target], check=True)
    return folder


@pytest.fixture
def commands(state: State, empty_library: Path) -> Iterator[Commands]:
    """Makes the command for fleets whose devices are doubles; `prefix` runs it."""
    made: list[Rankfold] = []

    def make(*prefix: str) -> Rankfold:
        environment = {
            **os.environ,
            "RANKFOLD_STATE": str(state.path),
            "RANKFOLD_RUNTIME": str(state.runtime),
            "RANKFOLD_NATIVE": str(empty_library),
            "RANKFOLD_PROXY": shlex.join([sys.executable, str(peer_proxy.__file__)]),
            "RANKFOLD_LINGER": "0.5",
        }
        made.append(Rankfold(state, environment, prefix))
        return made[-1]

    yield make
    for command in made:
        command.end()
        assert command.refused_by_peers() == ""


@pytest.fixture
def specs(state: State) -> Specs:
    return Specs(state.folder / "specs")
