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
    "revision.accepted": "a revision is in the store, nothing has been done for it",
    "proxy.started": "a proxy process was started, nobody has spoken to it",
    "start.journalled": "a job is recorded as started, no launcher runs",
    "start.partly": "one launcher of a job runs, the others do not",
    "start.sent": "all launchers run, the journal does not say so",
    "place.journalled": "a placement is recorded, no proxy knows it",
    "place.partly": "one proxy of a placement knows it, the others do not",
    "place.sent": "all proxies know a placement, the journal does not say so",
    "barrier.journalled": "a barrier is recorded, no proxy knows it",
    "barrier.partly": "one proxy has been asked for the barrier",
    "detach.journalled": "a detach is recorded, no proxy knows it",
    "detach.partly": "one proxy has detached, the journal does not say so",
    "detach.sent": "all proxies have detached, the journal does not say that the job is",
    "save.journalled": "a save at a cut is recorded, nobody has been told",
    "save.frozen": "all ranks stand still for their snapshots",
    "save.written": "all snapshots are there, the journal does not say so",
    "dump.journalled": "a dump of a job that rests is recorded, nobody has been told",
    "dump.written": "a job's dump is on the disk, the journal does not say so",
    "upload.journalled": "an upload is recorded, no process works at it",
    "conclude.journalled": "a checkpoint is recorded, its snapshots are still here",
    "vacate.before": "a checkpoint has a job that shall rest, its ranks live",
    "rest.before": "a job has no process, the journal does not say so",
    "fetch.journalled": "a new incarnation is recorded, nothing of it is here",
    "restore.journalled": "a restore is recorded, no launcher runs",
    "restore.launched": "empty launchers run, no rank is back",
    "restore.sent": "all ranks are back, the journal does not say so",
    "restore.done": "a job is restored, what was fetched is still here",
    "finish.before": "a job's devices are free and its ranks gone, its end is not recorded",
}


def asked_for(name: str) -> bool:
    """Whether a test has requested this point."""
    wanted, _, token = os.environ.get("RANKFOLD_FAULT", "").partition("@")
    return wanted == name and os.path.exists(token)


def point(name: str) -> None:
    """Kill this process if a test requested this point, or stop the processes whose pids are in the
    token file."""
    if name not in POINTS:
        raise KeyError(f"fault point {name} is not in the table")
    if asked_for(name):
        token = Path(os.environ["RANKFOLD_FAULT"].partition("@")[2])
        stopped = token.read_text().split()
        for pid in stopped:
            os.kill(int(pid), signal.SIGSTOP)
        token.unlink()
        if not stopped:
            os.kill(os.getpid(), signal.SIGKILL)
