"""Checks what a person may change in a job by hand. `requests` makes the changes."""

from __future__ import annotations

from msgspec.structs import replace

from rankfold.control import ControlError
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.rows import Object
from rankfold.reconciler.model import runtimes
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.fitting import Groups
from rankfold.reconciler.model.recorded import NODE, Checkpoint, Record
from rankfold.reconciler.model.values import Json, too_many_devices
from rankfold.reconciler.operations import RollBack, SavedJob
from rankfold.reconciler.wording import count

RESTING = ("new", "started", "detached", "stored")  # steps from which a job may go back


def check(journal: Journal, each: Object, fields: Json, force: bool, no_processes: str) -> None:
    """Check whether these fields of a job may be overridden now. Raises ControlError.

    force: allowed for a job that a source describes, too; no_processes: why no process can be saved
    here.
    """
    record = journal.record(each.name) or Record(each.name)
    check_source(each, force)
    job = each.effective()
    assert isinstance(job, Job)
    why = runtimes.no_saves(job, no_processes)
    if fields.get("store") and why and record.step != "stored":
        raise ControlError("unavailable", f"{each.name} cannot be stored: {why}")
    if record.step == "ended":
        raise ControlError("ended", f"{each.name} has ended")
    gpus = fields.get("gpus")
    if gpus is not None:
        if gpus < 1:
            raise ControlError("invalid", f"gpus must be at least 1, not {gpus}")
        if reason := too_many_devices(gpus, job.world_size):
            raise ControlError("invalid", f"gpus {reason}")
        devices = journal.desired().devices().values()
        most = Groups(devices).most(job, record)
        if gpus > most:
            raise ControlError(
                "invalid",
                f"requests {count(gpus, 'device')}; the pools have {most} that {each.name} may use",
            )
    if each.removed and fields.get("suspend") is False:
        raise ControlError(
            "orphaned",
            f"{each.name} is suspended because {each.origin.file} no "
            "longer names it: put it back there",
        )


def check_source(each: Object, force: bool) -> None:
    if each.source is not None and not force:
        raise ControlError(
            "from_source",
            f"{each.name} is defined in {each.origin} ({each.source}): change it there, or use "
            "--override, which lasts until the object changes in the source",
        )


def check_save(each: Object, record: Record, no_processes: str) -> None:
    """Check whether a save of a job may be requested now. Raises ControlError."""
    job = each.effective()
    assert isinstance(job, Job)
    why = runtimes.no_saves(job, no_processes)
    if why and record.step != "stored":
        raise ControlError("unavailable", f"{record.name} cannot be saved: {why}")
    if record.step == "ended":
        raise ControlError("ended", f"{record.name} has ended")
    if record.step in ("new", "started"):
        raise ControlError("new", f"{record.name} has not started yet: there is nothing to save")


def saved_already(each: Object, record: Record) -> str:
    """The checkpoint in which a job rests; empty: it runs, or does not rest in the store."""
    job = each.effective()
    assert isinstance(job, Job)
    rests = job.suspended and record.step == "stored" and record.stored != NODE
    return record.stored if rests and record.restore is None else ""


def check_roll_back(each: Object, record: Record, request: RollBack) -> None:
    """Check whether a job may continue from that checkpoint now. Raises ControlError."""
    check_source(each, request.force)
    job = each.effective()
    assert isinstance(job, Job)
    if request.begun is not None and request.begun.world_size != job.world_size:
        raise ControlError(
            "world_size",
            f"checkpoint {request.checkpoint} is of {count(request.begun.world_size, 'rank')}, "
            f"{each.name} has {job.world_size}",
        )
    if record.step == "ended":
        raise ControlError("ended", f"{each.name} has ended")
    if record.step == "new" and request.begun is None:
        raise ControlError("new", f"{each.name} has not started")
    if record.holds() or record.ending or record.step not in RESTING:
        raise ControlError(
            "runs", f"{each.name} runs, or is starting or stopping: suspend it first"
        )


def record_of_other_owner(each: Object, record: Record, checkpoint: str, begun: SavedJob) -> Record:
    """The record of a job that another owner has started and stored."""
    job = each.effective()
    assert isinstance(job, Job)
    found = Checkpoint(checkpoint, begun.time, begun.bytes)
    return replace(
        record,
        step="stored",
        stored=checkpoint,
        checkpoints=(found,),
        fixed=job,
        device=begun.device,
        device_type=begun.device_type,
        master_port=begun.master_port,
        epoch=begun.epoch,
        **takeover_fields(record, begun),
    )


def takeover_fields(record: Record, begun: SavedJob | None) -> Json:
    """Fields of a record that takes a job over: the other owner's incarnation is superseded."""
    if begun is None:
        return {}
    newest = begun.incarnation
    return {
        "incarnation": max(record.incarnation, newest),
        "known": max(record.known, newest),
        "previous_owner": begun.owner,
    }
