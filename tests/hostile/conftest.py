"""Fixtures of the hostile tests: kernels for clients that are made of bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from softgpu.harness import loader

from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.modules import Loader


@pytest.fixture(scope="session")
def kernels() -> Iterator[Loader]:
    """Compiles what the ranks load; its cache lasts, named by content and checked."""
    with (
        tempfile.TemporaryDirectory(prefix="rf-") as folder,
        loader(REPOSITORY / "build/tests/kernels", Path(folder) / "c.sock") as made,
    ):
        yield made
