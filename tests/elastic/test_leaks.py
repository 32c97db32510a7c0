"""A run that changes its number of processes often keeps no thread, descriptor, memory or file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic.conftest import Python

pytestmark = pytest.mark.torch
WINDOW = 8  # steps; each has another number of processes than the one before
GROWTH_KIB = 2048  # an allocator may map a little more; a leak of 30 KiB per change exceeds it


@pytest.mark.parametrize("changes", [24, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_changes_leave_nothing(python: Python, tmp_path: Path, changes: int) -> None:
    counts, state = tmp_path / "counts", tmp_path / "state"
    schedule = ",".join(f"{step}:{1 + step % 2}" for step in range(changes + 1))
    command = ("-m", "rankfold.elastic", "run", "--world=2", f"--schedule={schedule}")
    script = (Path(__file__).parent / "counted.py", counts, changes + 1)
    done = python(*command, "--state", state, *script, LIMIT_S="600")
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in counts.read_text().splitlines()]
    assert len(found) == changes + 1
    first, last = most(found[WINDOW : 2 * WINDOW]), most(found[-WINDOW:])
    for which in ("own", "parent"):
        for what in ("fds", "threads"):
            assert last[which, what] == first[which, what], (which, what)
        assert last[which, "memory"] - first[which, "memory"] < GROWTH_KIB, which
    assert {path.name for path in state.iterdir()} == {
        f"rank-{rank}.{name}" for rank in range(2) for name in ("out", "err")
    }


def most(lines: list[Any]) -> dict[tuple[str, str], int]:
    return {
        (which, what): max(line[which][what] for line in lines)
        for which in lines[0]
        for what in lines[0][which]
    }
