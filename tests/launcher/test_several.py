"""Launchers that one process starts: as separate as those that each had their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.interpose.launcher.start import AT_ONCE, START_S
from rankfold.reconciler.layout import Layout, is_locked
from rankfold.reconciler.node.launchers import CannotLaunch, Node
from support import leaks
from support.fleet import until
from support.leaks import State

from .conftest import Launched, Rig


def start(rig: Rig, ranks: range, *command: str, **fields: object) -> list[Launched]:
    configs = [rig.config(*command, rank=rank, world_size=64, **fields) for rank in ranks]
    files = [rig.launcher_argv(config)[-1] for config in configs]
    argv = [*rig.launcher_argv(configs[0])[:-1], *files]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    told = {report["rank"]: report for report in map(json.loads, done.stdout.splitlines())}
    assert sorted(told) == list(ranks)
    return [
        Launched(told[rank]["pid"], told[rank]["rank_pid"], config)
        for rank, config in zip(ranks, configs, strict=True)
    ]


def descriptors(pid: int) -> dict[tuple[int, int], str]:
    """The files that they stand for, and how they are called."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found[status.st_dev, status.st_ino] = os.readlink(path)
    return found


def test_more_than_start_at_once_all_start(rig: Rig) -> None:
    launched = start(rig, range(2 * AT_ONCE + 1), "sh", "-c", "exit $RANK")
    for rank, each in enumerate(launched):
        assert each.end()["exit_status"] == rank


def test_one_that_is_killed_takes_nothing_of_the_others_and_leaves_nothing_with_them(
    rig: Rig,
) -> None:
    """Its lock, sockets and log are its own."""
    first, second = start(rig, range(2), "sleep", "1000")
    held = {each.pid: descriptors(each.pid) for each in (first, second)}
    own = ("socket:", "/memfd:", f"{rig.folder}/")
    names = held[first.pid].values()
    assert all(any(name.startswith(mark) for name in names) for mark in own)
    both = held[first.pid].keys() & held[second.pid].keys()
    assert not [held[first.pid][each] for each in both if held[first.pid][each].startswith(own)]
    for each in (first, second):
        comm = Path(f"/proc/{each.pid}/comm").read_text()
        assert comm == f"launcher {each.config['rank']}\n"
    os.kill(first.pid, signal.SIGKILL)
    assert leaks.has_ended(first.pid, 20)
    locks = [Path(first.config["logs"], f"rank-{rank}.launcher.log") for rank in (0, 1)]
    assert [is_locked(lock) for lock in locks] == [False, True]
    with second.client() as client:
        assert client.request("status")[0]["state"] == "running"
        client.request("signal", signum=signal.SIGTERM)
    assert second.end()["signal"] == signal.SIGTERM
    assert start(rig, range(1), "true")[0].end()["exit_status"] == 0


def launcher_config(rank: int, folder: Path, **fields: object) -> dict[str, object]:
    return {
        "job": "several",
        "rank": rank,
        "world_size": 3,
        "command": [sys.executable, "-c", "pass"],
        "workdir": str(folder),
        "env": {},
        "inherit": False,
        "master_addr": "127.0.0.1",
        "master_port": 1,
        "device": {"name": "Test", "memory_bytes": 1 << 30},
        "preload": [],
        **fields,
    }


def test_the_reconciler_learns_why_a_launcher_does_not_start(state: State) -> None:
    """The others have."""
    layout = Layout(state.path)
    node = Node(layout)
    node.begin("several")
    layout.sockets.mkdir(parents=True, exist_ok=True)
    configs = [launcher_config(rank, state.path) for rank in range(3)]
    configs[1]["namespaces"] = configs[2]["namespaces"] = "perhaps"
    with pytest.raises(CannotLaunch) as raised:
        node.launch(configs)
    text = str(raised.value)
    assert text.startswith("the launcher of rank 1 did not start (nor did 1 more): ")
    assert "auto, require, none" in text and "rank-1.json" in text and "rank-2.json" not in text
    until(lambda: node.ended("several", 0) is not None)
    assert not node.lives("several", 1) and node.ended("several", 1) is None
    node.launch(configs[:1])  # it has ended: nothing is to be started


@pytest.mark.slow
def test_one_that_hangs_is_waited_for_a_while_and_delays_no_other(plain_rig: Rig) -> None:
    """Its log cannot be opened: so it is with a folder on a server that does not answer."""
    rig, configs = plain_rig, [plain_rig.config("true", rank=rank) for rank in range(2)]
    Path(configs[0]["logs"]).mkdir()
    stuck = Path(configs[0]["logs"], "rank-0.out")
    os.mkfifo(stuck)
    files = [rig.launcher_argv(config)[-1] for config in configs]
    done = subprocess.run(
        [*rig.launcher_argv(configs[0])[:-1], *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert [json.loads(line)["rank"] for line in done.stdout.splitlines()] == [1]
    assert done.stderr == f"launcher: {files[0]}: it has not started within {START_S} s\n"
    until(lambda: Path(configs[1]["exit_file"]).exists())
    reader = os.open(stuck, os.O_RDONLY | os.O_NONBLOCK)
    until(lambda: Path(configs[0]["exit_file"]).exists())
    os.close(reader)
