"""A test marked `unit` that starts a process fails, even if it hides the refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.native import REPOSITORY

CONFTEST = """
from support import unit


def pytest_configure(config):
    unit.configure(config)
"""
TESTS = """
import contextlib, os, subprocess
import pytest

unit = pytest.mark.unit


@unit
def test_starts(): subprocess.run(["true"])


@unit
def test_forks_and_hides_it():
    with contextlib.suppress(AssertionError):
        os.fork()


@pytest.fixture
def started():
    subprocess.run(["true"])


@unit
def test_a_fixture_that_starts_a_process(started): pass


@unit
def test_starts_nothing(): os.getpid()


def test_without_the_mark(): subprocess.run(["true"])
"""


def test_a_test_that_starts_a_process_is_no_unit_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_marked.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests"), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "2 failed, 2 passed" in done.stdout and "1 error" in done.stdout, done.stdout
    assert done.stdout.count("a test marked `unit` starts a process") >= 3
