"""What stays of runs and devices that are over."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rankfold.reconciler.desired import Device, Job, Origin, Pool
from rankfold.reconciler.layout import Layout, try_lock
from rankfold.reconciler.past import AGAIN_S, DAY_S, FEW, MORE_S, forget
from rankfold.reconciler.recorded import Record
from rankfold.reconciler.store import Store

LONG_AGO = time.time() - 10 * DAY_S


def run(store: Store, layout: Layout, name: str, step: str, ended: float = LONG_AGO) -> None:
    store.put(Job(name, ("true",), "/tmp", 1, 1), None, Origin("run", 0), "token")
    store.save(Record(name, step, incarnation=3))
    layout.logs(name).mkdir(parents=True)
    os.utime(layout.job(name), (ended, ended))


def names(store: Store) -> set[str]:
    return {each.name for each in store.objects()}


def test_of_runs_that_are_over_the_last_are_kept(tmp_path: Path) -> None:
    """Those that ended last, whenever they began. One that goes on, one that has not begun, and
    what a file describes are not among them."""
    store, layout = Store(tmp_path), Layout(tmp_path)
    store.put(Job("described", ("true",), "/tmp", 1, 1), "/specs", Origin("job.yaml", 1), "r")
    store.save(Record("described", "ended"))
    run(store, layout, "began-first-ended-last", "ended", LONG_AGO + 100)
    run(store, layout, "goes-on", "placed")
    run(store, layout, "new", "new")
    store.put(Job("not-looked-at", ("true",), "/tmp", 1, 1), None, Origin("run", 0), "token")
    for number in range(4):
        run(store, layout, f"run-{number}", "ended", LONG_AGO + number)
    assert forget(store, layout, kept=2) == AGAIN_S
    left = {"described", "goes-on", "new", "not-looked-at", "run-3", "began-first-ended-last"}
    assert names(store) == left
    folders = {file.name for file in layout.job("new").parent.iterdir()}
    assert folders == left - {"described", "not-looked-at"}
    assert store.get("incarnations") == dict.fromkeys(("run-0", "run-1", "run-2"), 3)
    forget(store, layout)
    assert names(store) == left
    store.close()


def test_runs_of_the_last_day_are_kept_however_many(tmp_path: Path) -> None:
    """Also where the clock was set back since."""
    store, layout = Store(tmp_path), Layout(tmp_path)
    for number in range(5):
        run(store, layout, f"run-{number}", "ended", time.time() - 1000 * number)
        run(store, layout, f"later-{number}", "ended", time.time() + 1e6 * number)
    before = names(store)
    assert forget(store, layout, kept=0) == AGAIN_S
    assert names(store) == before
    store.close()


def test_a_few_go_at_a_time(tmp_path: Path) -> None:
    """A reconciler of an earlier version may have left thousands."""
    store, layout = Store(tmp_path), Layout(tmp_path)
    for number in range(2 * FEW + 1):
        run(store, layout, f"run-{number}", "ended", LONG_AGO + number)
    assert [forget(store, layout, kept=0) for _ in range(3)] == [MORE_S, MORE_S, AGAIN_S]
    assert names(store) == set()
    store.close()


def test_of_devices_that_nobody_has_the_last_files_are_kept(tmp_path: Path) -> None:
    """Those of a device that a pool has stay, and of one whose proxy lives."""
    store, layout = Store(tmp_path), Layout(tmp_path)
    device = Device("local/soft-0", "soft", 1 << 30)
    store.put(Pool("local", (device,)), "/specs", Origin("", 1), "")
    given = ("local/soft-0", "lives/soft-0", *(f"run-{n}/soft-0" for n in range(5)))
    for at, name in enumerate(given):
        for suffix in (".lock", ".log"):
            file = layout.proxy_file(name, suffix)
            file.write_text(name)
            os.utime(file, (at, at))
    lock = try_lock(layout.proxy_file("lives/soft-0", ".lock"))
    assert lock is not None
    forget(store, layout, kept=2)
    stay = ("lives-soft-0", "local-soft-0", "run-3-soft-0", "run-4-soft-0")
    assert sorted(file.name for file in (tmp_path / "proxies").iterdir()) == [
        f"{name}{suffix}" for name in stay for suffix in (".lock", ".log")
    ]
    os.close(lock)
    store.close()


def test_a_folder_that_cannot_be_removed_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, layout = Store(tmp_path), Layout(tmp_path)
    run(store, layout, "run", "ended")
    monkeypatch.setattr(os, "rmdir", lambda *_args, **_more: (_ for _ in ()).throw(OSError()))
    forget(store, layout, kept=0)
    assert names(store) == set()
    store.close()
