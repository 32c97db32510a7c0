"""The core, built once: whatever ranks, device and time do, turn by turn of the loop, no rank reads
other bytes than alone, and whoever waits continues."""

from __future__ import annotations

import pytest

from .world import Library, load


@pytest.fixture(scope="package")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return load(tmp_path_factory.mktemp("turns"))
