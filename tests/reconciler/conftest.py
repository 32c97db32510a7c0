"""Promise: desired state in, actions out; whatever happens, the fleet comes to what is desired."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import peer_proxy
from support.command import Rankfold
from support.fixtures import empty_library, specs
from support.leaks import State

__all__ = ["empty_library", "specs"]


@pytest.fixture
def rankfold(state: State, empty_library: Path) -> Iterator[Rankfold]:
    environment = {
        **os.environ,
        "RANKFOLD_STATE": str(state.path),
        "RANKFOLD_RUNTIME": str(state.runtime),
        "RANKFOLD_NATIVE": str(empty_library),
        "RANKFOLD_PROXY": shlex.join([sys.executable, str(peer_proxy.__file__)]),
        "RANKFOLD_LINGER": "0.5",
    }
    command = Rankfold(state, environment)
    yield command
    command.end()
    assert command.refused_by_peers() == ""
