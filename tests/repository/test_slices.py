"""A slice of the slow tests: which come first depends on its word alone, and it comes to an end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY

CONFTEST = """
from support import slices

def pytest_addoption(parser):
    slices.add_options(parser)

def pytest_configure(config):
    slices.configure(config)
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(20))
def test_it(n):
    print(f"ran {n}.")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    return tmp_path


def order(folder: Path, word: str, seconds: float, *more: str) -> tuple[list[str], str]:
    """The tests that ran, first to last, and all that was said."""
    options = ["-s", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        "--slice",
        word,
        "--slice-seconds",
        str(seconds),
        *more,
        str(folder),
    ]
    env = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "tests"),
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split()[-1] for line in done.stdout.splitlines() if "ran " in line], done.stdout


def test_the_word_draws_the_order(folder: Path) -> None:
    first, _ = order(folder, "one", 300)
    assert sorted(first) == sorted(f"{n}." for n in range(20))
    assert order(folder, "one", 300)[0] == first != order(folder, "other", 300)[0]


def test_none_begins_when_the_time_is_over_but_the_first(folder: Path) -> None:
    ran, said = order(folder, "one", 0)
    assert ran == order(folder, "one", 300)[0][:1]
    assert "slice one: 19 tests left out after 0 s" in said and "1 passed" in said


def test_concurrent_processes_have_their_own_time(folder: Path) -> None:
    _, said = order(folder, "one", 0, "-p", "xdist", "--numprocesses=2", "--maxschedchunk=1")
    assert "slice one: 18 tests left out after 0 s" in said and "2 passed" in said
