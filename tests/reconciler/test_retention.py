"""The journal retains a bounded history of ended runs and devices."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.retention import AGAIN_S, DAY_S, FEW, MORE_S, forget
from rankfold.reconciler.layout import Layout, try_lock
from rankfold.reconciler.model.desired import Device, Job, Origin, Pool
from rankfold.reconciler.model.recorded import Record

pytestmark = pytest.mark.unit

LONG_AGO = time.time() - 10 * DAY_S


def run(journal: Journal, layout: Layout, name: str, step: str, ended: float = LONG_AGO) -> None:
    journal.put(Job(name, ("true",), "/tmp", 1, 1), None, Origin("run", 0), "token")
    journal.save(Record(name, step, incarnation=3))
    layout.logs(name).mkdir(parents=True)
    os.utime(layout.job(name), (ended, ended))


def names(journal: Journal) -> set[str]:
    return {each.name for each in journal.objects()}


def test_the_last_completed_runs_are_kept(tmp_path: Path) -> None:
    """Those that ended last, whenever they began. One that continues, one that has not begun, and
    what a file describes are not among them."""
    journal, layout = Journal(tmp_path), Layout(tmp_path)
    journal.put(Job("described", ("true",), "/tmp", 1, 1), "/specs", Origin("job.yaml", 1), "r")
    journal.save(Record("described", "ended"))
    run(journal, layout, "began-first-ended-last", "ended", LONG_AGO + 100)
    run(journal, layout, "goes-on", "placed")
    run(journal, layout, "new", "new")
    journal.put(Job("not-looked-at", ("true",), "/tmp", 1, 1), None, Origin("run", 0), "token")
    for number in range(4):
        run(journal, layout, f"run-{number}", "ended", LONG_AGO + number)
    assert forget(journal, layout, kept=2) == AGAIN_S
    left = {"described", "goes-on", "new", "not-looked-at", "run-3", "began-first-ended-last"}
    assert names(journal) == left
    folders = {file.name for file in layout.job("new").parent.iterdir()}
    assert folders == left - {"described", "not-looked-at"}
    assert journal.get("incarnations") == dict.fromkeys(("run-0", "run-1", "run-2"), 3)
    forget(journal, layout)
    assert names(journal) == left
    journal.close()


def test_runs_of_the_last_day_are_kept_however_many(tmp_path: Path) -> None:
    """Retention works even if the clock was set back since."""
    journal, layout = Journal(tmp_path), Layout(tmp_path)
    for number in range(5):
        run(journal, layout, f"run-{number}", "ended", time.time() - 1000 * number)
        run(journal, layout, f"later-{number}", "ended", time.time() + 1e6 * number)
    before = names(journal)
    assert forget(journal, layout, kept=0) == AGAIN_S
    assert names(journal) == before
    journal.close()


def test_a_few_go_at_a_time(tmp_path: Path) -> None:
    """A reconciler of an earlier version may have left thousands."""
    journal, layout = Journal(tmp_path), Layout(tmp_path)
    for number in range(2 * FEW + 1):
        run(journal, layout, f"run-{number}", "ended", LONG_AGO + number)
    assert [forget(journal, layout, kept=0) for _ in range(3)] == [MORE_S, MORE_S, AGAIN_S]
    assert names(journal) == set()
    journal.close()


def test_the_last_files_of_devices_in_no_pool_are_kept(tmp_path: Path) -> None:
    """Those of a device that a pool has stay, and of one whose proxy lives."""
    journal, layout = Journal(tmp_path), Layout(tmp_path)
    device = Device("local/soft-0", "soft", 1 << 30)
    journal.put(Pool("local", (device,)), "/specs", Origin("", 1), "")
    given = ("local/soft-0", "lives/soft-0", *(f"run-{n}/soft-0" for n in range(5)))
    for at, name in enumerate(given):
        for suffix in (".lock", ".log"):
            file = layout.proxy_file(name, suffix)
            file.write_text(name)
            os.utime(file, (at, at))
    lock = try_lock(layout.proxy_file("lives/soft-0", ".lock"))
    assert lock is not None
    forget(journal, layout, kept=2)
    stay = ("lives-soft-0", "local-soft-0", "run-3-soft-0", "run-4-soft-0")
    assert sorted(file.name for file in (tmp_path / "proxies").iterdir()) == [
        f"{name}{suffix}" for name in stay for suffix in (".lock", ".log")
    ]
    os.close(lock)
    journal.close()


def test_a_folder_that_cannot_be_removed_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, layout = Journal(tmp_path), Layout(tmp_path)
    run(journal, layout, "run", "ended")
    monkeypatch.setattr(os, "rmdir", lambda *_args, **_more: (_ for _ in ()).throw(OSError()))
    forget(journal, layout, kept=0)
    assert names(journal) == set()
    journal.close()
