"""PyTorch, and the fixtures of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from recovery.conftest import rankfold, specs

from rankfold.paths import REPOSITORY

__all__ = ["rankfold", "specs"]


@pytest.fixture(scope="session")
def torch() -> Path:
    """The interpreter that imports PyTorch."""
    python = REPOSITORY / "build/torch/python"
    if not python.exists():
        pytest.skip("build/torch/python is missing: `make torch` fetches PyTorch (572 MB)")
    return python
