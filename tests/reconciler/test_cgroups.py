"""The remains of a frozen rank whose launcher was killed are found, wherever they are."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.reconciler.node import cgroups
from support import privileges
from support.leaks import State


@pytest.fixture
def above(state: State) -> Iterator[Path]:
    """A cgroup of the test's, two below the root."""
    privileges.need_namespaces()
    with open("/proc/mounts") as mounts:
        root = next(line.split()[1] for line in mounts if line.split()[2] == "cgroup2")
    folder = Path(root) / state.folder.name / "below"
    folder.mkdir(parents=True)
    yield folder
    for path in (*folder.iterdir(), folder, folder.parent):
        if path.is_dir():
            path.rmdir()


def test_only_those_of_the_doors_are_removed(above: Path, state: State) -> None:
    doors = [state.runtime / f"l-job-{rank}.sock" for rank in range(3)]
    for door in doors:
        (above / cgroups.name(door)).mkdir()
    cgroups.remove(doors[:2])
    assert [path.name for path in above.iterdir() if path.is_dir()] == [cgroups.name(doors[2])]


def test_a_living_frozen_process_keeps_it(above: Path, state: State) -> None:
    folder = above / cgroups.name(state.runtime / "door")
    folder.mkdir()
    sleeper = subprocess.Popen(["sleep", "1000"])
    (folder / "cgroup.procs").write_text(str(sleeper.pid))
    (folder / "cgroup.freeze").write_text("1")
    cgroups.remove([state.runtime / "door"])
    assert folder.exists() and sleeper.poll() is None
    sleeper.kill()
    cgroups.remove([state.runtime / "door"])
    assert not folder.exists()
    sleeper.wait()
