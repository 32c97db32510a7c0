"""Decides whether a job has ended, and which actions release it then."""

from __future__ import annotations

import signal

from msgspec.structs import replace

from rankfold.reconciler.actions import (
    Action,
    Conclude,
    Discard,
    End,
    Finish,
    Rest,
    Signal,
    Vacate,
)
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.recorded import RESTARTING, Ending, Record
from rankfold.reconciler.model.states import ON_DEVICES
from rankfold.reconciler.plan import restoring, saving
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.wording import count, some_ranks, still_running

KILL_AFTER_S = 5.0  # a rank that has to end gets SIGTERM, and after this SIGKILL
RAN_S, RESTART_S = 10.0, 10.0  # a replica that ran for less restarts so long after its end
RESTARTABLE = ("RankFailed", "LauncherLost", "DeviceLost", "DeviceReported")


def find_ending(index: Index, job: Job | None, record: Record, now: float) -> Ending | None:
    """The end of a job whose ranks ended, whose devices are lost, or that is not wanted; or
    None."""
    if record.step == "new":
        if job is not None and job.cancelled:
            return Ending("Failed", "Cancelled", "cancelled before it started", now)
        return None
    assert record.fixed is not None
    if record.step in ("vacating", "stored", "restoring"):  # its processes come and go
        return _cancelled(job, now)
    failed = _ranks_ended(index, record, record.fixed.world_size, now) or _devices_lost(
        index, record, now
    )
    if failed is None or _never_ran(index, record, failed):
        return failed or _cancelled(job, now) or _over_time(job, record, now)
    return or_restart(job, record, failed)


def _never_ran(index: Index, record: Record, failed: Ending) -> bool:
    """Whether it failed because its command cannot be started, which would fail again."""
    observed = None if failed.rank is None else index.ranks(record.name).get(failed.rank)
    return bool(observed and observed.error and observed.exit_status in (126, 127))


def or_restart(job: Job | None, record: Record, ending: Ending) -> Ending:
    """Turn a fault into a restart, if the job may have another one. A replica of a service restarts
    however it has ended."""
    if job is not None and job.service is not None and not job.cancelled:
        ends = ending.reason not in (*RESTARTABLE, "Completed")
        return ending if ends else replace(ending, phase=RESTARTING)
    if ending.phase != "Failed" or ending.reason not in RESTARTABLE:
        return ending
    if job is not None and not job.cancelled and record.restarts < job.max_restarts:
        return replace(ending, phase=RESTARTING)
    if not record.restarts:
        return ending
    return replace(ending, message=f"{ending.message}; after {count(record.restarts, 'restart')}")


def _ranks_ended(index: Index, record: Record, world_size: int, now: float) -> Ending | None:
    ranks = index.ranks(record.name)
    observed = [ranks.get(r) for r in range(world_size)]
    for rank, each in enumerate(observed):
        if each is None and record.step != "started":
            message = f"the launcher of rank {rank} was killed: it exited without a report"
            return Ending("Failed", "LauncherLost", message, now)
        if each and each.state == "exited" and each.exit_status != 0:
            message = rank_failure(rank, each.exit_status, each.error)
            message = "; ".join([message, *still_running({rank: each.killed})])
            return Ending("Failed", "RankFailed", message, now, rank)
    ended_ranks = [each for each in observed if each is not None and each.state == "exited"]
    if len(ended_ranks) == world_size:
        left = still_running({each.rank: each.killed for each in ended_ranks})
        message = "; ".join([f"{count(world_size, 'rank')} exited with 0", *left])
        return Ending("Succeeded", "Completed", message, now)
    return None


def _devices_lost(index: Index, record: Record, now: float) -> Ending | None:
    if record.step not in ON_DEVICES:
        return None
    reported: Ending | None = None
    for device in dict.fromkeys(record.placement):
        if device in record.detached:
            continue
        observed = index.observed_device(device)
        if observed is not None and not observed.ready:
            continue  # it holds its lock: it starts, or is too busy to answer
        report = index.on_devices(record.name).get(device)
        if report and report.epoch == record.epoch and report.state == "failed":
            text = f"{device}: {report.reason}"
            reported = reported or Ending("Failed", "DeviceReported", text, now)
            continue
        served_by = record.proxies.get(device)
        gone = observed is None or (served_by is not None and observed.pid != served_by)
        if gone or (record.step == "placed" and index.state(device, record) == "lost"):
            ranks = some_ranks([r for r, d in enumerate(record.placement) if d == device])
            message = f"the proxy of {device} exited; the device memory of {ranks} is lost"
            return Ending("Failed", "DeviceLost", message, now)
    return reported  # a lost device explains more than what its peers noticed


def _cancelled(job: Job | None, now: float) -> Ending | None:
    if job is None or job.cancelled:
        return Ending("Failed", "Cancelled", "cancelled by hand", now)
    return None


def _over_time(job: Job | None, record: Record, now: float) -> Ending | None:
    if job is None or (left := record.time_left(job, now)) is None or left > 0:
        return None
    limit = f"{count(job.time_limit_s, 'second')} on {count(job.gpus, 'device')}"
    message = f"it ran for its timeLimit: {limit}; a run that takes longer needs a larger one"
    return Ending("Failed", "TimeLimit", message, now)


def release(
    index: Index, job: Job | None, record: Record, ending: Ending, now: float
) -> list[Action]:
    """Release the devices and end the ranks; when nothing is left, finish the job or restart it."""
    unwanted = _cancelled(job, now)
    if ending.phase == RESTARTING and unwanted:
        return [End(record.name, unwanted)]
    actions: list[Action] = []
    holding = index.not_answering(record)
    for name, report in sorted(index.on_devices(record.name).items(), key=lambda each: each[0]):
        if index.is_up(name) and report.state != "saved":
            holding.append(name)
            actions.append(Discard(record.name, report.epoch, name))
    ranks = [
        (rank, observed.state)
        for rank, observed in sorted(index.ranks(record.name).items())
        if observed.state != "exited"
    ]
    live = tuple(rank for rank, state in ranks if state == "running")
    without_signals = tuple(rank for rank, state in ranks if state in ("frozen", "empty"))
    if without_signals:  # frozen and empty ranks get no signal
        actions.append(Vacate(record.name, without_signals))
    elif live:
        late = not 0 <= now - ending.since <= KILL_AFTER_S  # or the clock was set back
        signum = signal.SIGKILL if late else signal.SIGTERM
        actions.append(Signal(record.name, live, int(signum)))
    if not holding and not ranks:
        actions += _finish_or_restart(index, job, record, ending, now)
    return actions


def _finish_or_restart(
    index: Index, job: Job | None, record: Record, ending: Ending, now: float
) -> list[Action]:
    """The next action when nothing of the job runs any more."""
    if ending.phase != RESTARTING:
        return [Finish(record.name, ending.phase)]
    assert job is not None
    if job.service is not None and 0 <= now - ending.since < _pause_of(record, ending):
        return []
    if record.save is not None and record.save.stage == "uploading":  # may become the newest
        action = saving.upload(index, record, job.keep, False, now)
        return [action] if action else []
    if record.save is not None:
        return [
            Conclude(record.name, record.save.number, error="the job failed meanwhile", again=True)
        ]
    stored = record.back_to or restoring.newest(record, record.unusable)
    return [Rest(record.name, stored, restart=True)]


def _pause_of(record: Record, ending: Ending) -> float:
    """Seconds after which a replica of a service restarts: one that keeps failing must not take all
    of the processor's time."""
    ran_for = ending.since - (ending.since if record.placed_since is None else record.placed_since)
    return 0.0 if ran_for >= RAN_S else RESTART_S


def rank_failure(rank: int, exit_status: int | None, error: str) -> str:
    """How a rank ended, for people."""
    if exit_status is None:
        how = "exited with an unknown status"
    elif exit_status < 0:
        try:
            how = f"was killed by {signal.Signals(-exit_status).name}"
        except ValueError:
            how = f"was killed by signal {-exit_status}"
    else:
        how = f"exited with status {exit_status}"
    return f"rank {rank} {how}" + (f": {error}" if error else "")
