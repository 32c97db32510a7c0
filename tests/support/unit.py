"""Tests marked `unit` start no process: one that does fails. A plugin of tests/conftest.py."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}


class Unit:
    """Refuses what would start a process while a test marked `unit` runs, its fixtures included."""

    def __init__(self) -> None:
        self.watches = False
        self.refused = ""
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if self.watches and event in STARTS:
            self.refused = event
            raise AssertionError(f"a test marked `unit` starts a process: {event}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.watches, self.refused = item.get_closest_marker("unit") is not None, ""
        try:
            return (yield)
        finally:
            self.watches = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        assert not self.refused, f"a test marked `unit` starts a process: {self.refused}"


def configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Unit())
