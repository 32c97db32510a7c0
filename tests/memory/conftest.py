"""The memory library, built once, and worlds around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .world import Make, load, worlds


@pytest.fixture(scope="package")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load(tmp_path_factory.mktemp("memory"))


@pytest.fixture
def make(library: tuple[Any, Any]) -> Iterator[Make]:
    with worlds(library) as one:
        yield one
