"""The way of a job into the store and back out of it: vacate, fetch, restore.

Nothing of a new incarnation begins before the old one is *seen* gone, and restored ranks stay
frozen until they are placed. A checkpoint that cannot be used is said and skipped, for an older
one; what was begun of a restore that fails is ended again.
"""

from __future__ import annotations

from rankfold.reconciler.actions import Action, End, Fetch, Rest, Restore, Vacate
from rankfold.reconciler.model import recorded
from rankfold.reconciler.model.recorded import NODE, Ending, Record
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.plan.saving import taken_over, waited
from rankfold.reconciler.wording import named


def vacating(index: Index, record: Record) -> Action:
    """A checkpoint has the job: end its ranks, and see that they are gone."""
    live = living(index, record)
    return Vacate(record.name, live) if live else Rest(record.name, record.stored)


def fetching(index: Index, record: Record, now: float) -> Action | None:
    """Bring the checkpoint that a job is to go on from out of the store. None: wait."""
    restore, name = record.restore, record.name
    if record.stored == NODE:
        tries, tried_at = (restore.tries, restore.tried_at) if restore else (0, 0.0)
        return restoring(index, record, now) if waited(tries, tried_at, now) else None
    if restore is None:  # what is on its way into the store has come there, or has failed, before
        return None if record.save else Fetch(name, record.saves + 1, record.stored)
    seen = index.observed.transfers.get(name)
    if seen is None or seen.number != restore.number:
        return None
    if seen.lives:
        return Fetch(name, restore.number, restore.id, stuck=True) if seen.stuck else None
    if over := taken_over(record, seen, now):
        return End(name, over)
    if seen.state == "failed" and not seen.retry:
        return _skip(record, restore.id, seen.error, now)
    at_once = seen.state == "done" and not restore.error
    if not at_once and not waited(restore.tries, restore.tried_at, now):
        return None
    return (
        restoring(index, record, now)
        if seen.state == "done"
        else Fetch(name, restore.number, restore.id)
    )


def restoring(index: Index, record: Record, now: float) -> Action | None:
    """Bring back the ranks of a checkpoint that is here, or end what was begun of it."""
    restore, ranks = record.restore, index.ranks(record.name)
    if restore is None:  # as far as the dump goes: nothing had to be fetched
        assert record.dump is not None
        restore = recorded.Restore(record.dump.number, NODE)
    assert record.fixed is not None
    if restore.failed or any(each.state == "exited" for each in ranks.values()):
        live = living(index, record)
        if restore.damaged and not live:
            return _skip(record, restore.id, restore.error, now)
        return Vacate(record.name, live) if live else Rest(record.name, record.stored)
    if any(each.state in ("starting", "silent") for each in ranks.values()):
        return None
    missing = tuple(r for r in range(record.fixed.world_size) if r not in ranks)
    # Those that are back answer again what they have found, if nobody has written it down.
    there = tuple(r for r, each in ranks.items() if each.state in ("empty", "frozen"))
    return Restore(record.name, restore.number, missing, tuple(sorted((*missing, *there))))


def living(index: Index, record: Record) -> tuple[int, ...]:
    """Ranks that have a launcher."""
    ranks = sorted(index.ranks(record.name).items())
    return tuple(rank for rank, seen in ranks if seen.state != "exited")


def newest(record: Record, without: tuple[str, ...]) -> str:
    """The newest of a job's checkpoints that may be good; empty: it has none."""
    return next((each.id for each in reversed(record.checkpoints) if each.id not in without), "")


def _skip(record: Record, id: str, why: str, now: float) -> Action:
    """A checkpoint that cannot be used: go back to the one before, if there is one."""
    older = newest(record, without=(*record.unusable, id))
    if older:
        return Rest(record.name, older, unusable=id, error=why)
    text = f"{named(id)} cannot be restored, and there is no other checkpoint: {why}"
    return End(record.name, Ending("Failed", "NoCheckpoint", text, now))
