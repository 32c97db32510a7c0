"""Files of tests in the order of how long they take, the longest first.

With several processes (pytest-xdist) the last files are short ones, so no process waits long for
another. The seconds are in tests/durations.json: ``pytest --record-durations tests/durations.json``
writes them. A file that is not listed counts as short. A plugin of tests/conftest.py.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

DURATIONS = Path(__file__).resolve().parents[1] / "durations.json"
LEAST_S = 1.0  # shorter files are not listed


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations",
        metavar="FILE",
        type=Path,
        help="write how many seconds each file of tests took",
    )


def recorded() -> dict[str, float]:
    """Seconds of each file, by its path below the repository."""
    found: dict[str, float] = json.loads(DURATIONS.read_text())
    return found


class Order:
    def __init__(self, seconds: dict[str, float], record: Path | None):
        self.seconds, self.record = seconds, record
        self.took: dict[str, float] = defaultdict(float)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: -self.seconds.get(item.nodeid.split("::")[0], 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took[report.nodeid.split("::")[0]] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.record and not hasattr(session.config, "workerinput"):
            listed = {file: round(s, 1) for file, s in sorted(self.took.items()) if s >= LEAST_S}
            self.record.write_text(json.dumps(listed, indent=0) + "\n")


def configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Order(recorded(), config.getoption("--record-durations")))
