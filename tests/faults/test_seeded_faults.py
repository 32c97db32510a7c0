"""Tests detect what they are for: each fault that is seeded into the source is noticed.

`-k memory-` runs the faults that tests/memory lists, `-k memory-handed-in-part` one of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.copied_tree import CopiedTree
from support.seeding import Check, SeededFault, faults, outcome

FAULTS = faults()
SLOW = (pytest.mark.slow, pytest.mark.timeout(600))
# Tests of files in C run without a fault in the suite itself.
ONE_OF_EACH_CHECK = {f.noticed_by: f for f in FAULTS if isinstance(f.noticed_by, Check)}.values()
ROOMS_OF_PYTHON = sorted({f.room for f in FAULTS if isinstance(f.noticed_by, str)})


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> CopiedTree:
    return CopiedTree(tmp_path_factory.mktemp("tree") / "rankfold")


@pytest.mark.parametrize(
    "fault", [pytest.param(f, id=str(f), marks=() if f.quick else SLOW) for f in FAULTS]
)
def test_a_seeded_fault_is_noticed(fault: SeededFault, tmp_path: Path, tree: CopiedTree) -> None:
    found = outcome(fault, tmp_path, tree)
    if found.skipped:
        pytest.skip(f"{fault.noticed_by} was skipped")
    assert found.noticed, (
        f"{fault.noticed_by} passes with the fault in {fault.file}:\n{found.output}"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ONE_OF_EACH_CHECK, ids=str)
def test_without_the_fault_its_check_passes(
    fault: SeededFault, tmp_path: Path, tree: CopiedTree
) -> None:
    found = outcome(fault.undone(), tmp_path, tree)
    assert not found.noticed, found.output


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("room", ROOMS_OF_PYTHON)
def test_without_faults_the_tests_that_notice_them_pass(room: str, tree: CopiedTree) -> None:
    named = {f.noticed_by for f in FAULTS if f.room == room and isinstance(f.noticed_by, str)}
    done = tree.pytest(*sorted(named))
    assert done.returncode == 0, done.stdout + done.stderr
