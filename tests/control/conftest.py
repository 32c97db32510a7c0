"""Promise: whatever comes over a control socket, the reconciler, proxies and launchers continue,
and ranks do not get through."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import peer_proxy
from support.command import Rankfold
from support.fixtures import empty_library, specs
from support.leaks import State

__all__ = ["empty_library", "specs"]

Commands = Callable[..., Rankfold]


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
