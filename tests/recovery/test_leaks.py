"""The `state` fixture's watch sees what a rank that can be saved may leave behind. The rest is
looked for in tests/repository/test_leaks.py, where CRIU and nft need not be."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

from rankfold import criu
from rankfold.reconciler.node import cgroups
from support import privileges
from support.leaks import State


def test_cgroups_and_tables_of_ranks_are_seen(state: State) -> None:
    privileges.need_criu()
    job = state.path / "jobs/gpt"
    job.mkdir(parents=True)
    door = state.runtime / "l-gpt-0.sock"
    (job / "rank-0.json").write_text(json.dumps({"socket": str(door)}))
    (job / "rank-1.json").write_text('{"socket')
    name = cgroups.name(door)
    assert state.watch.left() == []
    with open("/proc/mounts") as mounts:
        roots = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
    if not roots:
        privileges.missing("no cgroups of version 2 are to be seen here")
    Path(roots[0], name).mkdir()
    subprocess.run([criu.nft(), "add", "table", "inet", name], check=True)
    assert state.watch.left() == [f"cgroup {roots[0]}/{name}", f"table {name}"]
    other = state.folder.with_name("rankfold-test-other")  # of a concurrent test
    assert dataclasses.replace(state.watch, folder=other).left() == []
    state.watch.clean()
    assert state.watch.left() == []
