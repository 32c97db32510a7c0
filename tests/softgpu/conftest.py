"""Fixtures of the software GPU's tests: a device, and a loader with a cache that lasts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.modules import Loader
from softgpu.harness import Device, Space, loader

CACHE = REPOSITORY / "build/tests/kernels"  # named by content and checked: safe to keep


@pytest.fixture(scope="session")
def kernels() -> Iterator[Loader]:
    with (
        tempfile.TemporaryDirectory(prefix="rf-") as folder,
        loader(CACHE, Path(folder) / "c.sock") as made,
    ):
        yield made


@pytest.fixture
def device() -> Iterator[Device]:
    with Device() as made:
        yield made


@pytest.fixture
def space(device: Device) -> Iterator[Space]:
    yield device.space()
