"""Devices that a job was given and on which it does not start.

A rank's launcher may hang in a file system, a barrier may wait for a kernel that does not end. The
devices are idle meanwhile. After START_WITHIN_S the job is *late*: for AGAIN_S it goes last, takes
nothing from others and does not grow, so that others get these devices. A checkpoint that is being
fetched or restored, or a save before the move, counts as a start.
"""

from __future__ import annotations

from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.plan.index import Index

START_WITHIN_S = 120.0
AGAIN_S = 600.0


def is_late(record: Record, now: float) -> bool:
    """Whether a job goes last. now: fleet time; a clock that is set back ends that."""
    return (
        record.granted_at > 0
        and START_WITHIN_S <= now - record.granted_at < START_WITHIN_S + AGAIN_S
    )


def granted_at(
    index: Index, record: Record, target: tuple[str, ...] | None, now: float
) -> float | None:
    """The new value of `Record.granted_at`; None: it stays. target: the job's devices, as they were
    decided."""
    had = record.granted_at
    if is_late(record, now):
        return None
    if target and record.step != "ended" and not record.ending and _awaited(index, record, target):
        return None if 0 <= now - had < START_WITHIN_S else now
    return 0.0 if had else None


def _awaited(index: Index, record: Record, target: tuple[str, ...]) -> bool:
    """Whether a job is to start on its target, and nothing is being done for it that takes time."""
    if record.step in ("placing", "restoring"):
        return False
    if record.step == "placed" and target == record.placement:
        return False
    if record.save is not None and record.save.stage != "uploading":
        return False
    transfer = index.observed.transfers.get(record.name)
    return transfer is None or not transfer.lives or transfer.stuck
