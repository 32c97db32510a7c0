"""What is left of things that are over: of `run`s, each a job of its own, and of devices that no
pool has any longer. The last of them are kept, for who wants to know how they ended."""

from __future__ import annotations

import shutil

from rankfold.reconciler.layout import Layout, is_locked
from rankfold.reconciler.store import Store

KEPT = 100


def forget_runs(store: Store, layout: Layout, kept: int = KEPT) -> None:
    """Jobs made by `run` that have ended, but for the last: their journal and their logs. What a
    store of checkpoints has of them stays there."""
    records = store.records()
    runs = [
        each for each in store.objects()
        if each.kind == "Job" and each.source is None
        and (record := records.get(each.name)) and record.step == "ended"
    ]  # fmt: skip
    runs.sort(key=lambda each: each.created)
    for each in runs[: max(0, len(runs) - kept)]:
        store.forget("Job", each.name)
        shutil.rmtree(layout.job(each.name), ignore_errors=True)


def forget_devices(store: Store, layout: Layout, kept: int = KEPT) -> None:
    """The files of proxies that have ended, of devices that no pool has, but for the last."""
    described = {layout.proxy_file(name, ".lock") for name in store.desired().devices()}
    locks = layout.proxy_file("any", ".lock").parent.glob("*.lock")
    gone = [file for file in locks if file not in described and not is_locked(file)]
    gone.sort(key=lambda file: file.stat().st_mtime)
    for file in gone[: max(0, len(gone) - kept)]:
        file.with_suffix(".log").unlink(missing_ok=True)
        file.unlink(missing_ok=True)
