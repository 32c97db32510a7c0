"""A fixture for tests that run kernels on the software GPU without a proxy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from softgpu.harness import loader

from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.modules import Loader

CACHE = REPOSITORY / "build/tests/kernels"  # named by content and checked: safe to keep


@pytest.fixture(scope="session")
def kernels() -> Iterator[Loader]:
    """Compiles kernels, in a process that ends with the tests; the compiled ones are kept."""
    with (
        tempfile.TemporaryDirectory(prefix="rf-") as folder,
        loader(CACHE, Path(folder) / "c.sock") as made,
    ):
        yield made
