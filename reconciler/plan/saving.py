"""Decides when a job is saved, and the steps of a save from the cut to the checkpoint.

A save never blocks a job: one that fails, or takes too long, is recorded as failed, and the job
continues. The execution of `Save` ensures that, and so do the rules in steps.py for a job that is
paused without a reason. A failed save is tried again when the next one would be due, never at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankfold.reconciler.actions import (
    Action,
    Barrier,
    Conclude,
    End,
    QueryStore,
    Save,
    Upload,
    subject,
)
from rankfold.reconciler.model import runtimes
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.observed import Transfer
from rankfold.reconciler.model.recorded import Checkpoint, Ending, Record
from rankfold.reconciler.plan.index import Index

CUT_WITHIN_S = 120.0  # a job that reaches no cut in this time continues unsaved
SAVE_AGAIN_S = 60.0  # for this long a save is continued whose reconciler was killed
REST_AGAIN_S = 300.0  # between tries to save a resting job, in the store or on disk
REQUEST_TRIES = 3  # of a requested save, if the reason may pass
REQUESTED_AGAIN_S = 10.0  # between two of them
LOOK_AFTER_S = 10.0  # then a program has imported and opened what it works with
LOOK_AGAIN_S = 60.0  # whether it still has what cannot be saved
QUERY_STORE_AGAIN_S = 15.0  # queries for jobs that were taken over: one process of 0.2 s for all
TRIES = 8  # of an upload, while the job runs
WAIT_MAX_S = 300.0  # between two of them, and between queries to a store that does not answer


def due(index: Index, job: Job, record: Record, now: float) -> str:
    """Why a placed job should be saved now (recorded.Save.why); empty: it should not be."""
    if record.save is not None:
        return ""
    if record.requested and _may_again(record, now):
        return "request"
    if _no_saves(index, job) or not record.saved_at:
        return ""
    if job.save_every_s and not 0 <= now - record.saved_at < job.save_every_s:
        return "interval"
    steps_done = steps(index, record)  # fewer than at the last save: it was restored
    if (
        job.save_every_steps
        and steps_done
        and not 0 <= steps_done - record.saved_steps < job.save_every_steps
    ):
        return "steps"
    return ""


def _no_saves(index: Index, job: Job) -> str:
    return runtimes.no_saves(job, index.observed.no_saves)


def unknown(index: Index, job: Job, record: Record, now: float) -> bool:
    """Whether to query the launchers of a placed job about what cannot be saved: once its ranks
    have had time to open it, and again while they have it."""
    if _no_saves(index, job) or record.save is not None or record.placed_since is None:
        return False
    if 0 <= now - record.placed_since < LOOK_AFTER_S:
        return False
    if any(each.state != "running" for each in index.ranks(job.name).values()):
        return False  # one has exited, and the others may follow
    if record.obstacle_checked != record.incarnation:
        return True
    return bool(record.save_obstacle) and not 0 <= now - record.obstacle_checked_at < LOOK_AGAIN_S


def querying(index: Index, running: Sequence[Record], now: float) -> Action | None:
    """A query to the store for these jobs' owners: for all at once, as soon as one has run long
    enough since the last query. An upload makes this query itself."""
    last = index.observed.store_query
    wait = _doubled(QUERY_STORE_AGAIN_S, last.silent)
    known = [each for each in running if each.known and each.save is None]
    begun = (each.placed_since for each in known if each.placed_since is not None)
    if any(not 0 <= now - max(last.at, since) < wait for since in begun):
        return QueryStore(tuple(each.name for each in known))
    return None


def _may_again(record: Record, now: float) -> bool:
    """Whether it is time for the save that a person requested."""
    return record.request_tries == 0 or not 0 <= now - record.saved_at < REQUESTED_AGAIN_S


def steps(index: Index, record: Record) -> int:
    """Collectives completed by each rank of a placed job: the minimum over its ranks."""
    counted = {
        each.rank: int(each.counters.get("collectives", 0))
        for there in index.on_devices(record.name).values()
        if there.epoch == record.epoch
        for each in there.ranks
    }
    return min(counted.values(), default=0) if len(counted) == len(record.placement) else 0


def stopping(
    index: Index, job: Job, record: Record, states: dict[str, str], now: float
) -> Action | None:
    """The next step of a placed job's save that has begun and is not uploaded yet."""
    save = record.save
    assert save is not None
    devices = tuple(states)
    if all(state == "cut" for state in states.values()):
        if save.stage == "stopping" or 0 <= now - save.since < CUT_WITHIN_S + SAVE_AGAIN_S:
            ranks = tuple(range(job.world_size))
            return Save(job.name, record.epoch, devices, ranks, save.number)
        return Conclude(job.name, save.number, error="it timed out", again=True)
    if save.stage == "saving":
        return Conclude(job.name, save.number, error="it was interrupted", again=True)
    if not 0 <= now - save.since < CUT_WITHIN_S:
        text = f"the job timed out: it did not reach a consistent cut within {CUT_WITHIN_S:.0f} s"
        return Conclude(job.name, save.number, error=text)
    if why := refusal(index, record):
        return Conclude(job.name, save.number, error=why, again=True)
    if all(state in ("stopping", "cut") for state in states.values()):
        return None
    return Barrier(job.name, record.epoch, devices, save=save.why)


def refusal(index: Index, record: Record) -> str:
    """Why a job that is to stop cannot, as one of its devices reports; it runs on meanwhile."""
    reports = index.on_devices(record.name).values()
    return next((each.reason for each in reports if each.state == "stopping" and each.reason), "")


def resting(index: Index, job: Job, record: Record, now: float) -> Action | None:
    """The next step of a job that rests in memory and is to rest in the store, or to be saved
    without ending its processes. None: wait, or nothing is requested."""
    save, number = record.save, record.saves + 1
    if save is not None:
        if save.stage == "uploading":
            return None  # `upload` continues it
        if save.stage == "stopping":
            return Conclude(job.name, save.number, error="the job was suspended meanwhile")
        number = save.number  # its reconciler was killed
    elif not (_is_to_be_stored(job, record, now) or _saved_in_memory(index, record, now)):
        return None
    return Save(job.name, record.epoch, (), tuple(range(job.world_size)), number)


def _is_to_be_stored(job: Job, record: Record, now: float) -> bool:
    return job.store and not (record.save_error and 0 <= now - record.saved_at < REST_AGAIN_S)


def _saved_in_memory(index: Index, record: Record, now: float) -> bool:
    """Whether a person wants a checkpoint of a job that rests in memory, and no local snapshot will
    be made, which would end the processes to save."""
    if record.step != "detached" or not record.requested or not _may_again(record, now):
        return False
    return index.observed.rest_save_after is None or bool(record.rest_error)


def sending(job: Job, record: Record, now: float) -> Action | None:
    """The start of the upload of a local snapshot; no process of the job is started for it. None:
    it was not requested, or is in progress."""
    assert record.local_snapshot is not None
    requested = bool(record.requested) and _may_again(record, now)
    if record.save is None and (requested or _is_to_be_stored(job, record, now)):
        return Upload(job.name, record.local_snapshot.number, job.keep)
    return None


def dumping(index: Index, job: Job, record: Record, now: float) -> Action | None:
    """The action that makes a local snapshot of a job that rests in memory. None: not yet, or
    never."""
    after, save = index.observed.rest_save_after, record.save
    if record.step != "detached" or after is None or _no_saves(index, job):
        return None
    if save is not None and save.stage != "uploading":
        return None
    if 0 <= now - record.rested_at < after:
        return None
    if record.rest_error and 0 <= now - record.rest_failed_at < REST_AGAIN_S:
        return None
    number = record.local_snapshot.number if record.local_snapshot else record.saves + 1
    return Save(job.name, record.epoch, (), tuple(range(job.world_size)), number, node=True)


def upload(index: Index, record: Record, keep: int, rests: bool, now: float) -> Action | None:
    """The next step of the upload of a save's snapshots, concurrently with the job.

    rests: the job waits for it, to rest in the store.
    """
    save, transfer = record.save, index.observed.transfers.get(record.name)
    if (
        save is None
        or save.stage != "uploading"
        or transfer is None
        or transfer.number != save.number
    ):
        return None
    action = Upload(record.name, save.number, keep)
    if subject(action) in index.in_flight:  # its process does not exist yet
        return None
    if transfer.lives and transfer.stuck:
        if save.tries < TRIES or rests:
            return Upload(record.name, save.number, keep, stuck=True)
        why = f"its upload is stuck repeatedly: {save.error}"
        return Conclude(record.name, save.number, error=why)
    if transfer.lives:
        return None
    if transfer.state == "done":
        checkpoint = Checkpoint(transfer.id, save.at, transfer.bytes, save.cut)
        rest = rests and save.why == "rest" and _unchanged_since_save(index, record)
        return Conclude(record.name, save.number, checkpoint, keep=keep, rest=rest)
    if record.holds() and (ending := taken_over(record, transfer, now)):
        return End(record.name, ending)
    failed = transfer.state == "failed" and not transfer.retry
    if failed or (save.tries >= TRIES and not rests):
        why = transfer.error or save.error or "its upload process exits repeatedly"
        return Conclude(record.name, save.number, error=why)
    return action if waited(save.tries, save.tried_at, now) else None


def taken_over(record: Record, transfer: Transfer, now: float) -> Ending | None:
    """The end of a job that the store refused because another owner has taken it over: a second
    copy of its ranks must not run. A job that this owner never had in the store is only not
    saved."""
    if not record.known or transfer.state != "failed" or transfer.code != "old-incarnation":
        return None
    return Ending("Failed", "TakenOver", transfer.error, now)


def _unchanged_since_save(index: Index, record: Record) -> bool:
    """Whether nothing has run since the save: all ranks are still frozen, or the job rests in the
    local snapshot that was uploaded."""
    assert record.fixed is not None and record.save is not None
    if record.step == "stored":
        return (
            record.local_snapshot is not None and record.local_snapshot.number == record.save.number
        )
    ranks = index.ranks(record.name)
    return all(
        rank in ranks and ranks[rank].state == "frozen" for rank in range(record.fixed.world_size)
    )


def waited(tries: int, tried_at: float, now: float) -> bool:
    """Whether something that was tried this often, last at `tried_at`, may be tried again."""
    return tries == 0 or not 0 <= now - tried_at < _doubled(1.0, tries)


def _doubled(first_s: float, times: int) -> float:
    """A wait that doubles each time, up to a limit: a store may be unreachable for weeks."""
    return min(WAIT_MAX_S, first_s * 2.0 ** min(times, 20))
