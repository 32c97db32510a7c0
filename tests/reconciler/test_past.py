"""What stays of runs and devices that are over."""

from __future__ import annotations

import os
from pathlib import Path

from rankfold.reconciler.desired import Device, Job, Origin, Pool
from rankfold.reconciler.layout import Layout, try_lock
from rankfold.reconciler.past import forget_devices, forget_runs
from rankfold.reconciler.recorded import Record
from rankfold.reconciler.store import Store


def test_of_runs_that_are_over_the_last_are_kept(tmp_path: Path) -> None:
    """One that goes on, one that has not begun, and what a file describes are not among them."""
    store, layout = Store(tmp_path), Layout(tmp_path)
    steps = {"goes-on": "placed", "new": "new", **{f"run-{n}": "ended" for n in range(5)}}
    described = Job("described", ("true",), "/tmp", 1, 1)
    store.put(described, "/specs", Origin("job.yaml", 1), "r")
    store.save(Record("described", "ended"))
    for name, step in steps.items():
        store.put(Job(name, ("true",), "/tmp", 1, 1), None, Origin("run", 0), "token")
        store.save(Record(name, step, incarnation=3))
        layout.logs(name).mkdir(parents=True)
    store.put(Job("not-looked-at", ("true",), "/tmp", 1, 1), None, Origin("run", 0), "token")
    forget_runs(store, layout, kept=2)
    names = {"described", "goes-on", "new", "not-looked-at", "run-3", "run-4"}
    assert {each.name for each in store.objects()} == names
    assert {file.name for file in layout.job("new").parent.iterdir()} == names - {
        "described", "not-looked-at",
    }  # fmt: skip
    assert store.get("incarnations") == dict.fromkeys(("run-0", "run-1", "run-2"), 3)
    forget_runs(store, layout)
    assert {each.name for each in store.objects()} == names
    store.close()


def test_of_devices_that_nobody_has_the_last_files_are_kept(tmp_path: Path) -> None:
    """Those of a device that a pool has stay, and of one whose proxy lives."""
    store, layout = Store(tmp_path), Layout(tmp_path)
    store.put(
        Pool("local", (Device("local/soft-0", "soft", 1 << 30),)), "/specs", Origin("", 1), ""
    )
    for at, name in enumerate(
        ("local/soft-0", "lives/soft-0", *(f"run-{n}/soft-0" for n in range(5)))
    ):
        for suffix in (".lock", ".log"):
            file = layout.proxy_file(name, suffix)
            file.write_text(name)
            os.utime(file, (at, at))
    lock = try_lock(layout.proxy_file("lives/soft-0", ".lock"))
    assert lock is not None
    forget_devices(store, layout, kept=2)
    stay = ("lives-soft-0", "local-soft-0", "run-3-soft-0", "run-4-soft-0")
    assert sorted(file.name for file in (tmp_path / "proxies").iterdir()) == [
        f"{name}{suffix}" for name in stay for suffix in (".lock", ".log")
    ]
    os.close(lock)
    store.close()
