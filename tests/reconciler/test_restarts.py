"""A reconciler that does not stay up is reported, and restarted more and more slowly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rankfold.reconciler import clock
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.observe import restarts
from support import leaks
from support.command import Rankfold, Specs
from support.leaks import State

LOOP = "the reconciler exited unexpectedly"


@pytest.fixture
def layout(state: State) -> Layout:
    state.path.mkdir(exist_ok=True)
    return Layout(state.path)


def one_that_ends(layout: Layout, error: Exception | None = None) -> restarts.Claim:
    """Holds the state directory, and ends: by an error, or killed where there is none."""
    with contextlib.suppress(ZeroDivisionError), restarts.claimed(layout.state) as claim:
        if error:
            raise error
        note = (layout.state / "reconciler.running").read_bytes()
    os.close(claim._lock)
    if not error:
        (layout.state / "reconciler.running").write_bytes(note)
    return claim


def test_each_unexpected_end_makes_the_next_start_later(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "age", lambda _: 0.0)
    waits = []
    for _ in range(12):
        one_that_ends(layout, ZeroDivisionError("secret"))
        waits.append(restarts.wait_s(layout))
    assert waits == [0, 0, 0.5, 1, 2, 4, 8, 16, *[30] * 4]
    report = restarts.report(layout)
    assert report.startswith(f"{LOOP} 12 times in a row, the last time because: ZeroDivisionError")
    assert "test_restarts.py:" in report and "secret" not in report


@pytest.mark.parametrize("days", [10, -10])
def test_a_wall_clock_that_is_set_makes_no_start_earlier_or_later(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    leave(layout, ends=10)
    there = time.time() + days * 86400
    monkeypatch.setattr(time, "time", lambda: there)
    assert 25 < restarts.wait_s(layout) <= restarts.WAIT_MAX_S


def test_after_a_boot_the_next_start_waits_for_what_the_wall_clock_leaves(layout: Layout) -> None:
    file = layout.state / "reconciler.running"
    for ago, least in ((10, 15), (3600, 0), (-3600, 25)):
        leave(layout, ends=10)
        note = json.loads(file.read_text())
        note["began"] |= {"boot": "another", "monotonic": 9e9, "wall": time.time() - ago}
        file.write_text(json.dumps(note))
        assert least <= restarts.wait_s(layout) <= (least and restarts.WAIT_MAX_S)


def test_one_that_has_run_for_a_while_or_ended_as_it_should_starts_anew(layout: Layout) -> None:
    for _ in range(5):
        claim = one_that_ends(layout)
    assert "it was killed" in restarts.report(layout)
    assert claim.crash_loop.startswith(f"{LOOP} 4 times"), "of those before it"
    with restarts.claimed(layout.state) as claim:
        assert restarts.wait_s(layout) == 0, "it runs"
        assert claim.crash_loop == restarts.report(layout) != ""
        claim.stable()
        assert restarts.report(layout) == ""
    os.close(claim._lock)
    assert restarts.report(layout) == "" and restarts.wait_s(layout) == 0
    one_that_ends(layout)
    assert restarts.report(layout) == "", "once is no loop"
    with restarts.claimed(layout.state) as claim, Journal(layout.state) as journal:
        claim.report(journal)
        claim.trouble(KeyError("secret"), journal)
        assert "every turn of the reconciler fails because: KeyError" in restarts.report(layout)
        claim.trouble(None, journal)
        assert restarts.report(layout) == ""
        told = [(event.reason, event.message) for event in journal.events()]
    os.close(claim._lock)
    assert told[0] == (
        "Restarted",
        "the previous reconciler exited unexpectedly, because: it was killed",
    )
    assert told[1][0] == "TurnFailed" and "secret" not in told[1][1]


@contextlib.contextmanager
def watching(rankfold: Rankfold, folder: Path) -> Iterator[Path]:
    """`watch`; gives the file with what it prints."""
    file = rankfold.state.folder / "watch.txt"
    with file.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankfold", "watch", str(folder)],
            env=rankfold.environment,
            stdout=out,
            stderr=out,
        )
    try:
        yield file
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, file.read_text()


@pytest.mark.slow
def test_a_crash_loop_is_reported_everywhere(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=1, ranks=1)
    with watching(rankfold, specs.folder) as printed:
        rankfold.until(lambda: rankfold.job("gpt").get("devices") == 1)
        for _ in range(restarts.LOOP_AFTER):
            pid = rankfold.until(rankfold.reconciler_pid)
            os.kill(pid, signal.SIGKILL)
            assert leaks.has_ended(pid, leaks.GRACE_S)
        rankfold.until(lambda: f"rankfold: {LOOP} 3 times in a row" in printed.read_text())
        rankfold.until(lambda: "Reconciler  CrashLoop" in printed.read_text())
        rankfold.until(rankfold.reconciler_pid)
        now = rankfold.status()["reconciler"]
        assert now["running"] and now["message"].startswith(f"{LOOP} 3 times in a row")
        assert now["message"] in rankfold.run("status").stderr
        events = json.loads(rankfold("events", "-o", "json"))
        assert [e["reason"] for e in events if e["object"] == "Reconciler"] == [
            "Restarted",
            "CrashLoop",
        ]
        rankfold.until(lambda: rankfold.status()["reconciler"]["message"] == "")


@pytest.mark.slow
def test_one_that_cannot_start_is_not_started_again_and_again(
    rankfold: Rankfold, specs: Specs
) -> None:
    """The command says why, and the next one does not start it before it is due."""
    rankfold("apply", "-f", str(specs.folder))
    rankfold("stop")
    with contextlib.closing(sqlite3.connect(database(rankfold.state.path))) as db:
        (value,) = db.execute("SELECT value FROM meta WHERE key = 'revision'").fetchone()
        db.execute("UPDATE meta SET value = 'nonsense' WHERE key = 'revision'")
        db.commit()
    done = rankfold.run("apply", "-f", str(specs.folder))
    assert done.returncode == 1 and "table meta" in done.stderr
    layout = Layout(rankfold.state.path)
    assert restarts._read(layout).failed.startswith(str(database(rankfold.state.path)))
    leave(layout, ends=10)
    logged = layout.log.read_bytes()
    for command in (["apply", "-f", str(specs.folder)], ["stop", "--cancel"]):
        done = rankfold.run(*command)
        assert done.returncode == 1 and f"{LOOP} 11 times in a row" in done.stderr
        assert "It is started again at" in done.stderr
    assert layout.log.read_bytes() == logged, "it was not started before it was due"
    with contextlib.closing(sqlite3.connect(database(rankfold.state.path))) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'revision'", (value,))
        db.commit()
    leave(layout, ends=restarts.LOOP_AFTER)
    rankfold("apply", "-f", str(specs.folder))
    assert rankfold.status()["reconciler"]["message"].startswith(f"{LOOP} 4 times")


def leave(layout: Layout, ends: int) -> None:
    """The note of a reconciler that has just ended unexpectedly, as so many before it."""
    note = msgspec.json.encode(restarts.Note(ends, began=clock.reading(), failed="a test"))
    (layout.state / "reconciler.running").write_bytes(note)
