"""Reports that launchers, and the processes that upload or fetch snapshots, leave on this machine:
sockets, locks, exit files, reports, logs. Only reads; imports little, because `status` needs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from rankfold.reconciler import liveness
from rankfold.reconciler.layout import Layout, is_locked, lock_holder
from rankfold.reconciler.model.observed import ObservedRank, Transfer


class _Progress(Struct):
    """The report of a transfer in state.json."""

    state: Literal["", "working", "done", "failed"]
    id: str | None = None
    bytes: int = 0
    stored: int = 0
    total: int = 0
    error: str | None = None
    retry: bool = False
    code: str | None = None
    waits_for: str = ""


class Reports:
    """The reports of one state directory."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def door(self, job: str, rank: int) -> Path:
        """The socket of a rank's launcher, for its proxy and for requests."""
        return self.layout.launcher_socket(job, rank)

    def lives(self, job: str, rank: int) -> bool:
        """Whether a process is the rank's launcher, whether or not it answers."""
        return is_locked(self.layout.launcher_lock(job, rank))

    def ended(self, job: str, rank: int) -> ObservedRank | None:
        """How a rank ended, from its launcher's exit file; None: there is none."""
        return read_exit(self.layout, job, rank)

    def transferred(self, job: str, number: int) -> Transfer:
        """The state of the upload or fetch in this folder."""
        folder = self.layout.save(job, number)
        pid = lock_holder(folder / "lock")
        stopped = pid if liveness.is_stopped(pid) else 0
        lives = is_locked(folder / "lock")  # before the report is read: it writes, then ends
        try:
            report = msgspec.json.decode((folder / "state.json").read_bytes(), type=_Progress)
        except (OSError, msgspec.MsgspecError):
            return Transfer(number, "none", lives, stopped=stopped)
        return Transfer(
            number,
            report.state or "none",
            lives,
            report.id or "",
            report.bytes,
            report.stored,
            report.total,
            report.error or "",
            report.retry,
            report.code or "",
            waits_for=report.waits_for,
            stopped=stopped,
        )


def read_exit(layout: Layout, job: str, rank: int) -> ObservedRank | None:
    try:
        data = json.loads(layout.rank_file(job, rank, ".exit").read_text())
        status = data["exit_status"]
        return ObservedRank(
            job,
            rank,
            "exited",
            None,
            False,
            int(status) if status is not None else None,
            str(data.get("error") or ""),
            killed=tuple(map(str, data.get("killed") or ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def last_lines(file: Path, count: int = 3, bytes_max: int = 4096) -> str:
    """The end of a log, for a message."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - bytes_max))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-count:])
