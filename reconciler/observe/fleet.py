"""The observed state of the fleet: answers of proxies and launchers, and exit files.

Never relies on a pid: a process that does not answer on its socket does not exist, unless it holds
its lock file (then it is starting or busy). Only reads; `status` uses it without a reconciler.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from rankfold import control, switches
from rankfold.messages import (
    JobReport,
    LauncherHello,
    LauncherStatus,
    ProxyHello,
    ProxyStatus,
    RankFault,
    RankReport,
)
from rankfold.reconciler import clock
from rankfold.reconciler.deadlines import SILENT_AFTER_S
from rankfold.reconciler.layout import Layout, is_locked
from rankfold.reconciler.model.observed import (
    CrossCheck,
    JobOnDevice,
    Observed,
    ObservedDevice,
    ObservedRank,
    RankOnDevice,
    Spent,
)
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.reports import Reports
from rankfold.reconciler.observe.prober import Answer, Prober

HOST_MEMORY_SHARE = 0.8  # share of the machine's memory that folded and resting ranks may need


def observe(
    layout: Layout,
    devices: Iterable[str],
    records: Mapping[str, Record],
    prober: Prober,
    within_s: float,
    noted: Mapping[str, float],
    no_saves: str = "",
) -> Observed:
    """Query every device of `devices` and every rank of the jobs that have started.

    noted: processes known to be unresponsive, and since when (wall clock), by a device's name or
        ``<job>/<rank>``. They are queried, too, but not waited for.
    no_saves: as `Node.no_saves` returns it.
    """
    reports = Reports(layout)
    doors = {layout.proxy_socket(name): name for name in devices}
    ended: dict[tuple[str, int], ObservedRank] = {}
    ranks: dict[Path, tuple[str, int]] = {}
    for record in records.values():
        if record.fixed is None or record.step == "ended":
            continue
        for rank in range(record.fixed.world_size):
            # The exit file takes precedence: a launcher writes it, then ends.
            if observed := reports.ended(record.name, rank):
                ended[record.name, rank] = observed
            else:
                ranks[reports.door(record.name, rank)] = (record.name, rank)
    hung = {path for path, name in doors.items() if name in noted}
    hung |= {path for path, (job, rank) in ranks.items() if rank_name(job, rank) in noted}
    answers = prober.query([*doors, *ranks], within_s, hung)
    observed_devices = (
        see_device(layout, name, answers.get(path), noted.get(name)) for path, name in doors.items()
    )
    observed_ranks = (
        see_rank(reports, job, rank, answers.get(path), noted.get(rank_name(job, rank)))
        for path, (job, rank) in ranks.items()
    )
    return Observed(
        {observed.name: observed for observed in observed_devices if observed},
        ended
        | {(observed.job, observed.rank): observed for observed in observed_ranks if observed},
        host_memory(),
        no_saves=no_saves,
        rest_save_after=switches.rest_save_after_s(),
        minute=int(time.time() / 60) % (24 * 60),
        transfers={
            record.name: reports.transferred(record.name, number)
            for record in records.values()
            if (number := transfer_of(record)) is not None
        },
    )


def transfer_of(record: Record) -> int | None:
    """The number of the folder of snapshots that a job uploads, or fetches, now; None: none."""
    if record.save is not None and record.save.stage == "uploading":
        return record.save.number
    return None if record.restore is None else record.restore.number


def rank_name(job: str, rank: int) -> str:
    """The name of a rank for people, and in `noted`."""
    return f"{job}/{rank}"


def _silent_since(answer: Answer, noted: float | None) -> float | None:
    """Since when a process is unresponsive (wall clock); None: it is not, or not for long."""
    if noted is not None:
        return noted
    return answer.queried if answer.waited_s >= SILENT_AFTER_S else None


def known_devices(layout: Layout) -> set[str]:
    """Devices whose lock file a process holds, also those that are in no pool any more."""
    names = set()
    with contextlib.suppress(FileNotFoundError):
        for file in (layout.state / "proxies").iterdir():
            if file.suffix == ".lock" and is_locked(file):
                names.add(file.read_text().strip())
    return names - {""}


def see_device(
    layout: Layout, name: str, answer: Answer | None, noted: float | None = None
) -> ObservedDevice | None:
    """The state of a device by its proxy's answer; None: it has no proxy."""
    silent_since, pid = None, answer.pid if answer else 0
    if answer is not None and answer.status is not None:
        with contextlib.suppress(control.ControlError):
            hello = control.expect(ProxyHello, answer.hello)
            status = control.expect(ProxyStatus, answer.status)
            return _device(hello, status, answer.heard) if hello.device == name else None
    elif answer is not None:
        silent_since = _silent_since(answer, noted)
    if is_locked(layout.proxy_file(name, ".lock")):
        return ObservedDevice(name, ready=False, pid=pid, silent_since=silent_since)
    return None


def reported_jobs(status: Json) -> list[JobOnDevice]:
    """The jobs in the status that a proxy has just reported. Raises ControlError if it is
    malformed."""
    return [_job(each, clock.now()) for each in control.expect(ProxyStatus, status).jobs]


def _device(hello: ProxyHello, status: ProxyStatus, heard: float) -> ObservedDevice:
    counted = (
        "switches",
        "swapped_in",
        "swapped_out",
        "kernels",
        "squashed",
        "shared",
        "spared",
        "copies",
        "unforeseen",
        "prepared",
    )
    return ObservedDevice(
        hello.device,
        True,
        hello.pid,
        status.type,
        status.memory,
        status.used,
        status.swap,
        tuple(_job(each, heard) for each in status.jobs),
        {key: getattr(status, key) for key in counted},
        _kernels(status),
        trouble=status.trouble,
        lost=status.lost,
        cc=hello.cc,
        speed=hello.speed,
        shares=status.shares,
        loaded=status.loaded,
        core_count=hello.core_count,
        first_core=hello.first_core,
        cores=tuple(hello.cores),
        facts=hello.facts,
        own_cc=hello.own_cc,
        runtime=hello.runtime,
        gpu=hello.gpu,
    )


def _kernels(status: ProxyStatus) -> dict[str, int]:
    """Kernels that each rank ran on this device, including ended placements."""
    counted: dict[str, int] = {}
    ended = [(gone.job, gone) for gone in status.history]
    now = [(job.job, rank) for job in status.jobs if job.state != "saved" for rank in job.ranks]
    for job, each in [*ended, *now]:
        name = f"{job}/{each.rank}"
        counted[name] = counted.get(name, 0) + each.kernels_here
    return {name: count for name, count in counted.items() if count}


def _job(report: JobReport, heard: float) -> JobOnDevice:
    cut, released = report.cut_age_s, report.released_age_s
    return JobOnDevice(
        report.job,
        report.epoch,
        report.state,
        report.reason,
        None if cut is None else heard - cut,
        None if released is None else heard - released,
        tuple(_rank(each) for each in report.ranks),
        tuple(report.races),
        tuple(report.alarms),
        report.shared,
        Spent(**msgspec.structs.asdict(report.spent)) if report.spent else Spent(),
        CrossCheck(**msgspec.structs.asdict(report.guard)) if report.guard else None,
        report.incarnation,
        tuple(sorted(report.indirect.items())),
        report.direct,
        report.through_host,
        report.links_bytes,
        report.links_why_not,
    )


def _rank(report: RankReport) -> RankOnDevice:
    counters = msgspec.structs.asdict(report)
    for name in ("rank", "state", "error", "at", "quiet_s"):
        del counters[name]
    error = _error_text(report.error)
    return RankOnDevice(report.rank, report.state, counters, error, report.at, report.quiet_s)


def _error_text(error: RankFault | None) -> str:
    return "" if error is None else error.text or f"CUDA error {error.code}"


def see_rank(
    reports: Reports, job: str, rank: int, answer: Answer | None, noted: float | None = None
) -> ObservedRank | None:
    """The state of a rank by its launcher's answer, lock or exit file; None: it has none of
    these."""
    silent_since = None
    if answer is not None and answer.status is not None:
        with contextlib.suppress(control.ControlError):
            hello = control.expect(LauncherHello, answer.hello)
            status = control.expect(LauncherStatus, answer.status)
            if status.state != "exited":
                return ObservedRank(
                    job,
                    rank,
                    status.state,
                    hello.pid,
                    status.channel,
                    incarnation=hello.incarnation,
                    stopped=tuple(status.stopped),
                )
    elif answer is not None:
        silent_since = _silent_since(answer, noted)
    # It may have ended since its exit file was read, or be about to write it.
    if ended := reports.ended(job, rank):
        return ended
    if reports.lives(job, rank):
        state = "starting" if silent_since is None else "silent"
        launcher = answer.pid if answer else 0
        return ObservedRank(job, rank, state, silent_since=silent_since, launcher=launcher)
    return reports.ended(job, rank)


def host_memory() -> int:
    """Bytes of host memory that jobs may need: a share of the machine's, or of the cgroup's
    limit."""
    if (explicit := switches.host_memory()) is not None:
        return explicit
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return int(total * HOST_MEMORY_SHARE)
