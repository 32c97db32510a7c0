"""Promise: the reconciler waits only a bounded time for a process that is stopped (SIGSTOP) during
a save or an upload: the job continues as soon as it can, and a message says what happened."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfold import control
from rankfold.reconciler import liveness
from rankfold.reconciler.layout import Layout, is_locked, try_lock
from rankfold.reconciler.model.observed import Transfer
from rankfold.reconciler.node import launchers as nodes
from rankfold.reconciler.node.launchers import Node, write_atomically
from rankfold.reconciler.observe.progress import Progress
from support.command import Rankfold, Specs
from support.leaks import State
from support.patience import scaled

SAVED_ON_REQUEST = "checkpoint: {interval: 0s}"
POINTS_OF_A_SAVE = ("save.journalled", "save.frozen", "save.written")


def parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 1 :].split()[1])


class Counting:
    """A job of two ranks that count in their memory alone, and print it."""

    def __init__(self, rankfold: Rankfold, specs: Specs):
        self.rankfold, self.specs = rankfold, specs
        stop = specs.stop_file
        text = f"n=0; until [ -e {stop} ]; do n=$((n+1)); echo $n; sleep 0.05; done"
        specs.program(
            ["sh", "-c", text], "gpt", gpus=2, ranks=2, extra="checkpoint: {interval: 0s}"
        )

    def apply(self) -> None:
        self.rankfold("apply", "-f", str(self.specs.folder), "--wait")

    def launcher(self, rank: int) -> int:
        return parent(self.rankfold.job("gpt")["ranks"][rank]["pid"])

    def counted(self, rank: int) -> int:
        log = Layout(self.rankfold.state.path).logs("gpt") / f"rank-{rank}.out"
        return log.read_text().count("\n")

    def continues(self, *ranks: int) -> None:
        before = {rank: self.counted(rank) for rank in ranks}
        self.rankfold.until(lambda: all(self.counted(r) > before[r] + 3 for r in ranks))

    def finish(self) -> None:
        """It ends well, and no rank has lost or repeated a number."""
        self.specs.finish_jobs()
        with self.rankfold.watching(str(self.specs.folder)):
            self.rankfold.until(lambda: self.rankfold.job("gpt")["phase"] == "Succeeded")
        for rank in range(2):
            lines = self.rankfold("logs", "gpt", "--rank", str(rank)).split()
            assert lines == [str(n + 1) for n in range(len(lines))]


@pytest.fixture
def counting(rankfold: Rankfold, specs: Specs) -> Counting:
    return Counting(rankfold, specs)


def not_saved(rankfold: Rankfold) -> str:
    conditions = rankfold.job("gpt").get("conditions", ())
    return next((c["message"] for c in conditions if c["reason"] == "SaveFailed"), "")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(p, marks=() if p == "save.frozen" else pytest.mark.slow)
        for p in ("", *POINTS_OF_A_SAVE)
    ],
)
def test_a_launcher_that_stops_in_a_save_holds_only_its_own_rank(
    point: str, rankfold: Rankfold, counting: Counting
) -> None:
    """At each point of a save; at some of them its rank stands, and nothing else can let it
    continue."""
    halt = counting.specs.folder / "halt"
    rankfold.environment["RANKFOLD_FAULT"] = f"{point}@{halt}"
    counting.apply()
    launcher = counting.launcher(1)
    if point:
        write_atomically(halt, str(launcher))
        asking = rankfold.start("checkpoint", "gpt", "--wait")
        rankfold.until(lambda: not halt.exists())
    else:
        os.kill(launcher, signal.SIGSTOP)
        asking = rankfold.start("checkpoint", "gpt", "--wait")
    try:
        rankfold.until(lambda: "DoesNotAnswer" in str(rankfold.job("gpt")))
        if point in ("save.journalled", "save.frozen"):
            rankfold.until(lambda: "rank 1" in not_saved(rankfold))
        counting.continues(*((0,) if point in ("save.frozen", "save.written") else (0, 1)))
    finally:
        os.kill(launcher, signal.SIGCONT)
    out, err = asking.communicate(timeout=scaled(100))
    assert asking.returncode == 0 and out.strip(), err
    counting.continues(0, 1)
    counting.finish()


# ---- those who bring snapshots into the store ----------------------------------------------------


def stop_one(saves: Path) -> int:
    """Stop the process that works on one of these; gives its pid, or 0."""
    for lock in saves.glob("*/lock"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(lock.read_text())
            os.kill(pid, signal.SIGSTOP)
            return pid
    return 0


@pytest.mark.slow
def test_a_stopped_uploader_is_reported_and_named(rankfold: Rankfold, counting: Counting) -> None:
    counting.apply()
    pid = 0
    while not pid:
        asking = rankfold.start("checkpoint", "gpt", "--wait")
        while not pid and asking.poll() is None:  # it may be faster than we are
            pid = stop_one(rankfold.state.path / "jobs/gpt/saves")
    remedy = f"`kill -CONT {pid}` lets it continue"
    try:
        rankfold.until(lambda: remedy in str(rankfold.job("gpt")["conditions"]))
        assert remedy in rankfold("status").replace("\n", " ")
    finally:
        os.kill(pid, signal.SIGCONT)
    out, err = asking.communicate(timeout=scaled(100))
    assert asking.returncode == 0 and out.startswith("1-"), err
    rankfold.until(lambda: remedy not in str(rankfold.job("gpt")))
    counting.finish()


@pytest.mark.slow
def test_an_uploader_that_stops_is_killed_and_another_continues(
    rankfold: Rankfold, counting: Counting
) -> None:
    rankfold.environment |= {"RANKFOLD_STUCK": "1", "RANKFOLD_FAULT": ""}
    counting.apply()
    state = rankfold.state.path
    number = 0
    while not number:
        asking = rankfold.start("checkpoint", "gpt", "--wait")
        while not number and asking.poll() is None:  # it may be faster than we are
            number = stop_one(state / "jobs/gpt/saves")
    out, err = asking.communicate(timeout=scaled(100))
    assert asking.returncode == 0 and out.startswith("1-"), err  # a number may be left out
    assert "no progress for 1 s; its process was killed" in rankfold("events", "gpt")
    counting.finish()


def test_a_transfer_without_progress_is_stuck_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress(60.0)

    def stuck(**fields: Any) -> bool:
        return progress.note({"a": Transfer(1, **{"state": "working", "lives": True, **fields})})[
            "a"
        ].stuck

    assert not stuck(bytes=1)
    now[0] += 59
    assert not stuck(bytes=1)
    now[0] += 2
    assert stuck(bytes=1) and not stuck(bytes=2)
    now[0] += 61
    assert not stuck(bytes=3), "it has moved"
    now[0] += 61
    assert stuck(bytes=3) and not stuck(bytes=3, lives=False)
    now[0] += 61
    progress.note({})
    assert not stuck(bytes=3, lives=False), "another one"


def test_only_who_works_on_a_folder_is_killed(tmp_path: Path) -> None:
    node = Node(Layout(tmp_path))
    folder = node.layout.save("a", 1)
    folder.mkdir(parents=True)
    node.end_transfer("a", 1)  # there is none
    lock = try_lock(folder / "lock")
    assert lock is not None
    os.write(lock, str(os.getpid()).encode())  # an old pid that another process has by now
    let_go = threading.Timer(0.3, lambda: os.close(lock))
    let_go.start()
    node.end_transfer("a", 1)
    assert not is_locked(folder / "lock")
    let_go.join()


# ---- a launcher ----------------------------------------------------------------------------------


@pytest.fixture
def deaf(state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A launcher of rank 0 that takes calls and answers none."""
    monkeypatch.setattr(nodes, "HUNG_S", 0.2)
    monkeypatch.setattr(liveness, "HUNG_LOOK_S", 0.05)
    node = Node(Layout(state.path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(node.door("a", 0)))
        listening.listen()
        yield node
    node.door("a", 0).unlink()


def test_a_launcher_that_hangs_is_given_up_on_long_before_its_time_is_over(deaf: Node) -> None:
    with pytest.raises(control.ControlError, match="rank 0: its launcher is unresponsive") as told:
        deaf.request("a", 0, "snapshot", 3600.0, folder="/x")
    assert told.value.code == "timeout"
