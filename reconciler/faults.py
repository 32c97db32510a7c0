"""Named points at which a test kills the reconciler, as a power failure would.

With ``RANKFOLD_FAULT=place.partly@FILE`` the background reconciler kills itself with SIGKILL at
that point if FILE exists. It removes FILE first, so the next reconciler gets past the point. The
table has every point; a test reaches each of them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

POINTS = {
    "revision.accepted": "a revision is in the journal, no action was taken for it",
    "proxy.started": "a proxy process was started, no request was sent to it",
    "start.journalled": "a job is recorded as started, no launcher runs",
    "start.partly": "one launcher of a job runs, the others do not",
    "start.sent": "all launchers run, the journal does not show it",
    "place.journalled": "a placement is recorded, no proxy has it",
    "place.partly": "one proxy of a placement has it, the others do not",
    "place.sent": "all proxies have a placement, the journal does not show it",
    "barrier.journalled": "a barrier is recorded, no proxy has it",
    "barrier.partly": "one proxy has received the barrier request",
    "detach.journalled": "a detach is recorded, no proxy has it",
    "detach.partly": "one proxy has detached, the journal does not show it",
    "detach.sent": "all proxies have detached, the journal does not show that the job is",
    "save.journalled": "a save at a cut is recorded, no launcher was notified",
    "save.frozen": "all ranks are frozen for their snapshots",
    "save.written": "all snapshots are there, the journal does not show it",
    "local_snapshot.journalled": "a local snapshot is recorded, no launcher was notified",
    "local_snapshot.written": "a job's local snapshot is on the disk, the journal does not show it",
    "upload.journalled": "an upload is recorded, no process performs it",
    "conclude.journalled": "a checkpoint is recorded, its snapshots are still here",
    "vacate.before": "a job that is to rest is in a checkpoint, its ranks live",
    "rest.before": "a job has no process, the journal does not show it",
    "fetch.journalled": "a new incarnation is recorded, nothing of it exists yet",
    "restore.journalled": "a restore is recorded, no launcher runs",
    "restore.launched": "empty launchers run, no rank is back",
    "restore.sent": "all ranks are back, the journal does not show it",
    "restore.done": "a job is restored, the fetched files are still here",
    "finish.before": "a job's devices are free and its ranks gone, its end is not recorded",
}


def requested(name: str) -> bool:
    """Whether a test has requested this point."""
    wanted, _, token = os.environ.get("RANKFOLD_FAULT", "").partition("@")
    return wanted == name and os.path.exists(token)


def point(name: str) -> None:
    """Kill this process if a test requested this point, or stop the processes whose pids are in the
    token file."""
    if name not in POINTS:
        raise KeyError(f"fault point {name} is not in the table")
    if requested(name):
        token = Path(os.environ["RANKFOLD_FAULT"].partition("@")[2])
        stopped = token.read_text().split()
        for pid in stopped:
            os.kill(int(pid), signal.SIGSTOP)
        token.unlink()
        if not stopped:
            os.kill(os.getpid(), signal.SIGKILL)
