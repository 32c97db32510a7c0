"""A slice of the tests: as many as fit into a short time, others for each commit.

``pytest --slice WORD`` puts the tests into an order that WORD draws and begins none after
`--slice-seconds`; concurrently (pytest-xdist) each process has that time. The number of tests
depends on the machine's speed, their order on WORD alone: the same WORD finds a failure again. A
plugin of tests/conftest.py."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("slice")
    group.addoption("--slice", metavar="WORD", help="run tests in the order that WORD draws")
    group.addoption(
        "--slice-seconds", type=float, default=300.0, help="begin none after so many seconds (300)"
    )


class Slice:
    """One run's slice. At least one test runs."""

    def __init__(self, word: str, seconds: float):
        self.word, self.seconds = word, seconds
        self.begun: float | None = None
        self.left_out = 0

    def place(self, item: pytest.Item) -> bytes:
        return hashlib.blake2b(f"{self.word}\0{item.nodeid}".encode()).digest()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=self.place)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        now = time.monotonic()
        if self.begun is None:
            self.begun = now
        elif now - self.begun >= self.seconds:
            self.left_out += 1
            return True
        return None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker of pytest-xdist reports how many tests it left out."""
        if reported := getattr(session.config, "workeroutput", None):
            reported["left_out"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left_out += getattr(node, "workeroutput", {}).get("left_out", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(
            f"slice {self.word}: {self.left_out} tests left out after {self.seconds:g} s"
        )


def configure(config: pytest.Config) -> None:
    if word := config.getoption("--slice"):
        config.pluginmanager.register(Slice(word, config.getoption("--slice-seconds")))
