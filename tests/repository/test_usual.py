"""`make test` runs the cases that a test's mark `usual` names, and detects all seeded faults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support.seeding import faults

CONFTEST = """
from support import usual


def pytest_configure(config):
    usual.configure(config)
"""
TESTS = """
import pytest


@pytest.mark.usual("2-b", {named!r})
@pytest.mark.parametrize("letter", "ab")
@pytest.mark.parametrize("n", range(3))
def test_it(n, letter): ...


def test_other(): ...
"""


def collected(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY / "tests"), "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [*command, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  usual\n")
    (tmp_path / "test_it.py").write_text(TESTS.format(named="0-a"))
    return tmp_path


def test_cases_that_are_not_named_are_slow(folder: Path) -> None:
    listed = collected("-m", "not slow", cwd=folder).stdout
    tests = [line.rpartition("::")[2] for line in listed.splitlines() if "::" in line]
    assert tests == ["test_it[0-a]", "test_it[2-b]", "test_other"]
    listed = collected("-m", "slow", cwd=folder).stdout
    assert listed.count("::") == 4


def test_a_case_that_does_not_exist_is_refused(folder: Path) -> None:
    (folder / "test_it.py").write_text(TESTS.format(named="7-a"))
    done = collected(cwd=folder)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_it: no such cases: ['7-a']" in done.stdout + done.stderr
    assert collected("test_it.py::test_it[2-b]", cwd=folder).returncode == 0


def test_tests_that_notice_seeded_faults_are_not_slow() -> None:
    named = {f.noticed_by for f in faults() if isinstance(f.noticed_by, str)}
    named |= {test for fault in faults() for test in fault.tests}
    named = {test for test in named if "::" in test}
    listed = collected(*sorted({test.partition("::")[0] for test in named})).stdout.splitlines()
    tests = set(listed) | {line.partition("[")[0] for line in listed}
    assert sorted(named - tests) == []


def test_arguments_that_notice_seeded_faults_select_tests() -> None:
    named = {
        f.noticed_by for f in faults() if isinstance(f.noticed_by, tuple) and "-k" in f.noticed_by
    }
    assert [test for test in named if "::" not in collected(*test).stdout] == []
