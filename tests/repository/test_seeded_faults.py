"""Seeded faults fit the source and name tests that exist; the page of tests agrees with them; and a
fault is noticed where an assertion fails or the process crashes, and nowhere else."""

from __future__ import annotations

import os
import re
import signal

import pytest

from rankfold.paths import REPOSITORY
from support.seeding import SeededFault, faults, noticed

from .test_tidy import read

FAULTS = faults()


def test_seeded_faults_fit_the_source() -> None:
    for fault in FAULTS:
        assert fault.text() != fault.undone().text(), f"{fault} changes nothing"


def test_each_has_a_name_of_its_own() -> None:
    names = [str(fault) for fault in FAULTS]
    assert sorted(names) == sorted(set(names))
    assert len(names) > 700, "some lists are not found"


def exists(test: str) -> bool:
    """file.py::test_name, file.py::test_name[case], a file or a folder."""
    file, _, name = test.partition("::")
    function = name.partition("[")[0]
    path = REPOSITORY / file
    return path.exists() and (not function or f"def {function}(" in path.read_text())


def test_the_tests_that_notice_them_exist() -> None:
    named = {f.noticed_by for f in FAULTS if isinstance(f.noticed_by, str)}
    named |= {test for fault in FAULTS for test in fault.tests}
    assert sorted(test for test in named if not exists(test)) == []


# ---- the page: tests/README.md ----


def page() -> dict[str, set[str]]:
    """Folders of tests that its table names, by the file or folder that one changes."""
    found = {}
    for line in read("tests/README.md").splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")]
        if len(cells) != 3 or not cells[0]:
            continue
        tests = {
            name.removeprefix("tests/").partition("/")[0] for each in cells[1:] for name in each
        }
        folder = cells[0][0].rpartition("/")[0]
        for name in cells[0]:
            found[name if "/" in name or not folder else f"{folder}/{name}"] = tests
    return found


def row_of(fault: SeededFault, rows: dict[str, set[str]]) -> set[str]:
    """The row of the longest path that names its file or a folder that has it."""
    at = [path for path in rows if fault.file == path or fault.file.startswith(f"{path}/")]
    return rows[max(at, key=len)] if at else set()


def test_the_page_names_the_tests_that_notice_faults() -> None:
    rows = page()
    assert len(rows) > 30
    left_out = {
        (fault.file.rpartition("/")[0], folder)
        for fault in FAULTS
        for folder in {test.split("/")[1] for test in fault.tests} - row_of(fault, rows)
    }
    assert sorted(left_out) == [], "tests/README.md: rows that do not name these folders of tests"


# ---- what counts as noticed ----


def fails() -> None:
    raise AssertionError


def several_fail() -> None:
    raise ExceptionGroup("two", [AssertionError(), ExceptionGroup("one", [AssertionError()])])


def is_wrong() -> None:
    raise KeyError("what a test forgot")


def exits() -> None:
    os._exit(7)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_failed_assertion_and_a_crash_are_noticed() -> None:
    assert all(noticed(each).noticed for each in (fails, several_fail, os.abort))
    assert not noticed(lambda: None).noticed


@pytest.mark.parametrize(
    ("check", "message"),
    [(is_wrong, "what a test forgot"), (exits, "exited with 7"), (is_killed, "exited with -9")],
)
def test_any_other_exit_fails_the_test(check: object, message: str) -> None:
    assert callable(check)
    with pytest.raises(AssertionError, match=message):
        noticed(check)
