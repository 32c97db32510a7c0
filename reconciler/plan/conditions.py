"""The conditions of each job."""

from __future__ import annotations

from collections.abc import Mapping, Set

from rankfold.reconciler.model import runtimes
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import RESTARTING, Condition, Record
from rankfold.reconciler.observe import sharing
from rankfold.reconciler.observe import stalls as waits
from rankfold.reconciler.plan import saving
from rankfold.reconciler.plan.grants import AGAIN_S, START_WITHIN_S
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.wording import count, restore_source

OPAQUE = "opaque code: "  # prefix of alarms about opaque code (proxy/core/loop/alarm.c)
NOT_STARTED = (
    f"it was given devices and did not start there within {START_WITHIN_S:.0f} s: for "
    f"{AGAIN_S / 60:.0f} min other jobs get them first; `describe` shows its ranks"
)
NO_LONGER_SHARED = "; its ranks no longer share anything"


def conditions(
    index: Index,
    name: str,
    waiting: Mapping[str, Condition],
    converged: Set[str],
    reasons: Mapping[str, str],
    unguaranteed: Set[str] = frozenset(),
    late: bool = False,
) -> tuple[Condition, ...]:
    """waiting: why jobs do not have what they request; converged: jobs that are as desired;
    reasons: why the policy changes their devices; unguaranteed: jobs that are treated as basic;
    late: whether it did not start in time."""
    job, record = index.desired.jobs[name], index.records[name]
    result = [_ready(job, record, name in converged)]
    if name in index.silent:
        result.append(index.silent[name])
    elif record.error:
        kind = "Stalled" if record.error_permanent else "Progressing"
        result.append(Condition(kind, "True", "ActionFailed", record.error))
    elif name in waiting and record.step != "ended":
        result.append(waiting[name])
    elif name not in converged:
        why = f"{reasons[name]}; " if name in reasons else ""
        refused = saving.refusal(index, record)
        end = f"; it cannot stop: {refused}" if refused else ""
        message = f"{why}step: {record.step}{end}"
        result.append(Condition("Progressing", "True", "Converging", message))
    if late and record.step != "ended":
        result.append(Condition("NotStarted", "True", "GrantWithdrawn", NOT_STARTED))
    if name in unguaranteed:
        message = (
            f"the fraction of {job.tier} is not guaranteed to it, because what other jobs are "
            "guaranteed leaves too few devices: it is treated as basic until they end"
        )
        result.append(Condition("NotGuaranteed", "True", "NoCapacity", message))
    if record.alarms:
        result += _alarms(record)
    if record.races:
        result.append(_races(record))
    if record.restart_cost:
        result.append(Condition("Restarted", "True", "WentBack", record.restart_cost))
    if record.file_problems:
        result.append(Condition("FilesDiffer", "True", "NotAsSaved", record.file_problems))
    if record.step != "ended":
        result += _unsaved(index, job, record)
    if index.holds[name] or name in index.observed.transfers:  # others are most of a large fleet
        result += _of_its_work(index, record)
    if record.step != "ended":
        result += _by_hand_or_file(job)
    return tuple(result)


def _of_its_work(index: Index, record: Record) -> list[Condition]:
    costs = sharing.too_much(record, index.observed)
    wait = waits.waiting(record, index.observed, index.ranks(record.name))
    return [each for each in (costs, wait) if each]


def _unsaved(index: Index, job: Job, record: Record) -> list[Condition]:
    """Conditions with the reasons why a job cannot be saved or restored."""
    if (restore := record.restore) is not None and (why := delayed(index.observed, record)):
        message = f"{restore_source(restore.id)}: {why}; it will be retried"
        return [Condition("Progressing", "True", "RestoreFailed", message)]
    if why := delayed(index.observed, record):
        message = f"{why}; it will be retried"
        return [Condition("NotSaved", "True", "UploadFailed", message)]
    if record.rest_error and record.step == "detached" and job.suspended:
        message = f"its ranks rest in memory and cannot be saved on the node: {record.rest_error}"
        return [Condition("NotSaved", "True", "RestsInMemory", message)]
    if record.save_error:
        return [Condition("NotSaved", "True", "SaveFailed", record.save_error)]
    if record.save_obstacle and record.obstacle_checked == record.incarnation:
        return [Condition("NotSaved", "True", "CannotBeSaved", record.save_obstacle)]
    why = runtimes.no_saves(job, index.observed.no_saves)
    if why and (job.save_every_s or job.save_every_steps):
        return [Condition("NotSaved", "True", "Unavailable", why)]
    return []


def delayed(observed: Observed, record: Record) -> str:
    """Why the upload or fetch of a job's checkpoint was started again; empty: it makes progress."""
    save, restore, transfer = record.save, record.restore, observed.transfers.get(record.name)
    if restore is not None:
        bytes_done, last_error = (transfer.bytes if transfer else 0), restore.error
    elif save is not None and save.stage == "uploading":
        bytes_done, last_error = (transfer.stored if transfer else 0), save.error
    else:
        return ""
    if transfer is not None and transfer.lives and bytes_done:
        return ""
    return (transfer.error if transfer is not None else "") or last_error


def _by_hand_or_file(job: Job) -> list[Condition]:
    result = []
    if job.suspended:
        why = "its file was removed" if job.orphaned else "spec.suspend is true"
        if job.idle and not job.orphaned and not job.suspend:
            why = "the load needs fewer replicas"
        result.append(
            Condition("Suspended", "True", "Orphaned" if job.orphaned else "Desired", why)
        )
    if job.orphaned:
        message = "its file was removed: the job is suspended; put the file back, or cancel the job"
        result.append(Condition("Orphaned", "True", "FileRemoved", message))
    if job.drifted:
        message = "changed by hand, until the object changes in its source"
        result.append(Condition("Drifted", "True", "Override", message))
    return result


def _first(messages: tuple[str, ...]) -> str:
    more = len(messages) - 1
    return messages[0] + (f" (and {more} more: see its events)" if more else "")


def _races(record: Record) -> Condition:
    return Condition("Races", "True", "AccessesNotOrdered", _first(record.races))


def _alarms(record: Record) -> list[Condition]:
    """Conditions for alarms. The cause of the difference may have affected other bytes: the job's
    results should not be trusted."""
    opaque = tuple(text for text in record.alarms if text.startswith(OPAQUE))
    others = tuple(text for text in record.alarms if not text.startswith(OPAQUE))
    result = []
    if opaque:
        result.append(
            Condition("OpaqueCode", "True", "EffectsDiffer", _first(opaque) + NO_LONGER_SHARED)
        )
    if others:
        cause = (
            ". Its results may be wrong since the previous comparison: a device's memory is "
            "faulty, opaque code did not do the same for all ranks, or rankfold has a defect"
        )
        message = _first(others) + NO_LONGER_SHARED + cause
        result.append(Condition("Alarm", "True", "ContentsDiffer", message))
    return result


def _ready(job: Job, record: Record, converged: bool) -> Condition:
    if record.ending and record.step == "ended":
        good = "True" if record.phase == "Succeeded" else "False"
        return Condition("Ready", good, record.ending.reason, record.ending.message)
    if record.ending:
        phase = RESTARTING if record.ending.phase == RESTARTING else "Ending"
        return Condition("Ready", "False", phase, record.ending.message)
    if not converged:
        return Condition("Ready", "False", "NotAsDesired", "")
    if job.suspended:
        return Condition("Ready", "False", "Suspended", "the job holds no device")
    where = f"{count(job.world_size, 'rank')} on {count(len(set(record.placement)), 'device')}"
    return Condition("Ready", "True", "AsDesired", where)
