"""Fixtures of the software GPU's tests: a device, a space on it, and kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softgpu.harness import Device, Space
from support.kernels import kernels

__all__ = ["kernels"]


@pytest.fixture
def device() -> Iterator[Device]:
    with Device() as made:
        yield made


@pytest.fixture
def space(device: Device) -> Iterator[Space]:
    yield device.space()
