"""The steps of a job into the store and out of it: vacate, fetch, restore.

Nothing of a new incarnation begins before the old one is *seen* gone, and restored ranks stay
frozen until they are placed. A checkpoint that cannot be used is reported and skipped for an older
one; processes that were started for a failed restore are ended.
"""

from __future__ import annotations

from rankfold.reconciler.actions import Action, End, Fetch, Rest, Restore, Vacate
from rankfold.reconciler.model import recorded
from rankfold.reconciler.model.recorded import NODE, Ending, Record
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.plan.saving import taken_over, waited
from rankfold.reconciler.wording import restore_source


def vacating(index: Index, record: Record) -> Action:
    """A checkpoint has the job: end its ranks, and check that they are gone."""
    live = living(index, record)
    return Vacate(record.name, live) if live else Rest(record.name, record.stored)


def fetching(index: Index, record: Record, now: float) -> Action | None:
    """The next step to fetch the checkpoint that a job is to continue from. None: wait."""
    restore, name = record.restore, record.name
    if record.stored == NODE:
        tries, tried_at = (restore.tries, restore.tried_at) if restore else (0, 0.0)
        return restoring(index, record, now) if waited(tries, tried_at, now) else None
    if restore is None:  # an upload must have ended, or failed, before
        return None if record.save else Fetch(name, record.saves + 1, record.stored)
    transfer = index.observed.transfers.get(name)
    if transfer is None or transfer.number != restore.number:
        return None
    if transfer.lives:
        return Fetch(name, restore.number, restore.id, stuck=True) if transfer.stuck else None
    if over := taken_over(record, transfer, now):
        return End(name, over)
    if transfer.state == "failed" and not transfer.retry:
        return _skip(record, restore.id, transfer.error, now)
    at_once = transfer.state == "done" and not restore.error
    if not at_once and not waited(restore.tries, restore.tried_at, now):
        return None
    return (
        restoring(index, record, now)
        if transfer.state == "done"
        else Fetch(name, restore.number, restore.id)
    )


def restoring(index: Index, record: Record, now: float) -> Action | None:
    """Restore the ranks of a checkpoint that was fetched, or end those of a failed restore."""
    restore, ranks = record.restore, index.ranks(record.name)
    if restore is None:  # a local snapshot: nothing had to be fetched
        assert record.local_snapshot is not None
        restore = recorded.Restore(record.local_snapshot.number, NODE)
    assert record.fixed is not None
    if restore.failed or any(each.state == "exited" for each in ranks.values()):
        live = living(index, record)
        if restore.damaged and not live:
            return _skip(record, restore.id, restore.error, now)
        return Vacate(record.name, live) if live else Rest(record.name, record.stored)
    if any(each.state in ("starting", "silent") for each in ranks.values()):
        return None
    missing = tuple(r for r in range(record.fixed.world_size) if r not in ranks)
    # Ranks that are restored already report their result again, in case it was not recorded.
    there = tuple(r for r, each in ranks.items() if each.state in ("empty", "frozen"))
    return Restore(record.name, restore.number, missing, tuple(sorted((*missing, *there))))


def living(index: Index, record: Record) -> tuple[int, ...]:
    """Ranks that have a launcher."""
    ranks = sorted(index.ranks(record.name).items())
    return tuple(rank for rank, observed in ranks if observed.state != "exited")


def newest(record: Record, without: tuple[str, ...]) -> str:
    """The newest of a job's checkpoints that is not in `without`; empty: none."""
    return next((each.id for each in reversed(record.checkpoints) if each.id not in without), "")


def _skip(record: Record, id: str, why: str, now: float) -> Action:
    """Skip a checkpoint that cannot be used: return to the one before, or end the job."""
    older = newest(record, without=(*record.unusable, id))
    if older:
        return Rest(record.name, older, unusable=id, error=why)
    text = f"{restore_source(id)} cannot be restored, and there is no other checkpoint: {why}"
    return End(record.name, Ending("Failed", "NoCheckpoint", text, now))
