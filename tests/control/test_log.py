"""Promise: reconciler, proxies and launchers log time, level and area, at the level of
RANKFOLD_LOG."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from rankfold import log

PROGRAM = """
from rankfold import log
log.set_up()
for file in ("x/plan/__init__.py", "x/service.py", "x/launcher/__main__.py"):
    log.area(file).debug("how")
    log.area(file).info("what")
    log.area(file).error("why")
"""


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", "plan:what plan:why service:what service:why launcher:what launcher:why"),
        ("ERROR", "plan:why service:why launcher:why"),
        (
            "plan:debug,service:error, warning",
            "plan:how plan:what plan:why service:why launcher:why",
        ),
        ("plan.py:error", "plan:why service:what service:why launcher:what launcher:why"),
    ],
)
def test_each_area_says_as_much_as_it_is_asked(setting: str, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, log.SWITCH: setting},
        capture_output=True,
        text=True,
        check=True,
    )
    line = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|ERROR) (\w+): (\w+)")
    found = [line.fullmatch(each) for each in done.stderr.splitlines()]
    assert " ".join(f"{each[2]}:{each[3]}" for each in found if each) == expected
    assert all(found) and done.stdout == ""


@pytest.mark.parametrize("setting", ["plan:", ":debug", "loud", "plan:loud", "plan"])
def test_an_unknown_level_is_reported_and_ignored(setting: str) -> None:
    assert log.parse(f"{setting},service:error") == ({"": "info", "service": "error"}, [setting])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, log.SWITCH: setting},
        capture_output=True,
        text=True,
        check=True,
    )
    first, *others = done.stderr.splitlines()
    assert f" WARNING log: RANKFOLD_LOG: {setting!r} is invalid" in first
    assert len(others) == 6
