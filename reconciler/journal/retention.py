"""Removes what is left of jobs of `run` that have ended, and of devices that are in no pool any
more. Those of the last day and the newest hundred are kept, so that people can see how they ended.
A few are removed at a time, between the turns of the reconciler."""

from __future__ import annotations

import shutil
from pathlib import Path

from rankfold.reconciler import clock
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout, is_locked

NEWEST_KEPT, DAY_S = 100, 24 * 3600.0
FEW = 4  # removed per call
AGAIN_S, MORE_S = 60.0, 0.5  # until the next call: if none is left, or some are


def forget(journal: Journal, layout: Layout, kept: int = NEWEST_KEPT) -> float:
    """Remove what ended long enough ago; return the seconds until the next call is due. Checkpoints
    of a run stay in the store. Raises sqlite3.Error, JournalError, OSError."""
    runs = _runs(journal, layout)
    ended_at = _end_times(journal, {**runs, **_devices(journal, layout)})
    old_runs = _old({each: since for each, since in ended_at.items() if each in runs}, kept)
    old_locks = _old({each: since for each, since in ended_at.items() if each not in runs}, kept)
    for folder in old_runs[:FEW]:
        shutil.rmtree(folder, ignore_errors=True)
        journal.forget("Job", Path(folder).name)
    for lock in old_locks[:FEW]:
        Path(lock).with_suffix(".log").unlink(missing_ok=True)
        Path(lock).unlink(missing_ok=True)
    more = max(len(old_runs), len(old_locks)) > FEW
    return MORE_S if more else AGAIN_S


def _end_times(journal: Journal, changed: dict[str, float]) -> dict[str, float]:
    """When each of these ended (fleet time). The time is recorded when an end is first seen,
    because the wall clock, which dates files, may be set later."""
    recorded: dict[str, float] = journal.get("over") or {}
    ended_at = {each: recorded.get(each, clock.of_wall(at)) for each, at in changed.items()}
    if ended_at != recorded:
        journal.set("over", ended_at)
    return ended_at


def _runs(journal: Journal, layout: Layout) -> dict[str, float]:
    """Folders of jobs of `run` that have ended, with the time of their last change."""
    records = journal.records()
    ended = (
        each.name
        for each in journal.objects()
        if each.kind == "Job"
        and each.source is None
        and (record := records.get(each.name))
        and record.step == "ended"
    )
    return {str(layout.job(name)): _changed(layout.job(name)) for name in ended}


def _devices(journal: Journal, layout: Layout) -> dict[str, float]:
    """Locks of proxies that have ended, of devices that are in no pool, with the time of their last
    change."""
    described = {layout.proxy_file(name, ".lock") for name in journal.desired().devices()}
    locks = layout.proxy_file("any", ".lock").parent.glob("*.lock")
    unused = (file for file in locks if file not in described and not is_locked(file))
    return {str(file): _changed(file) for file in unused}


def _changed(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _old(ended: dict[str, float], kept: int) -> list[str]:
    """Those to remove, the oldest first: over a day old, and not among the newest `kept`."""
    order = sorted(ended, key=ended.__getitem__)
    return [
        name for name in order[: max(0, len(order) - kept)] if clock.now() - ended[name] > DAY_S
    ]
