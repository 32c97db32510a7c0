"""Runs work on a save's folder in a background process; common to upload and fetch.

    FOLDER/task.json    what to do; written by the process that starts the work, never changed
    FOLDER/lock         held while a process works on the folder; contains its pid
    FOLDER/state.json   the progress, rewritten atomically
    FOLDER/log          errors in detail
    FOLDER/rank-N/      the snapshots

FOLDER is STATE/jobs/JOB/saves/N; the images of modules are in STATE/modules.

`state` is "working", "done" or "failed". If it is "working" and the lock is free, the process has
died: the reconciler starts it again, and it continues with what is there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from rankfold import limits, log, owners
from rankfold.checkpoint.snapshot import Unfit
from rankfold.checkpoint.store import (
    Damaged,
    Full,
    Missing,
    OldIncarnation,
    Overtaken,
    Refused,
    StoreError,
    Unavailable,
)

BUSY, WRONG = 1, 2  # exit statuses: another process works on the folder; the task cannot be read
STATE_WRITE_S = 0.25  # between two writes of state.json
CODES: dict[type[Exception], str] = {
    Full: "full",
    Unavailable: "unavailable",
    OldIncarnation: "old-incarnation",
    Overtaken: "overtaken",
    Refused: "refused",
    Missing: "missing",
    Damaged: "damaged",
    StoreError: "store",
    Unfit: "unfit",
    OSError: "local",
}
RETRY = {"full", "unavailable", "local"}

logger = logging.getLogger(__name__)


class Task(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of `task.json`. `url` and `fleet` are the store's; `options` as fsspec takes
    them.

    For an upload: `incarnation` is the one that saves, `keep` the number of checkpoints to keep
    (null: all), `about` goes into the manifest. For a fetch: `incarnation` is the one that begins
    with this checkpoint (null: none does), `id` names the checkpoint (null: the newest that is
    whole). `known`: the newest incarnation in the store that belongs to this job, or did before the
    job was brought here; 0: none. If another owner has begun a later one, the job was taken over.
    """

    url: str
    fleet: str
    job: str
    incarnation: int | None
    ranks: list[int]
    about: dict[str, Any] = {}
    keep: int | None = None
    id: str | None = None
    options: dict[str, Any] = {}
    known: int = 0


class State(msgspec.Struct):
    """The content of `state.json`. Sizes in bytes: `bytes` of `total` are done, `stored` were new
    to the store. `error` is for people, `code` for programs; `retry`: a later attempt may succeed.
    While it works, `error` is the reason why the previous attempt failed. `skipped`: newer
    checkpoints that cannot be used, each with the reason. `waits_for`: what the work waits for, if
    not for the store."""

    state: Literal["", "working", "done", "failed"] = ""
    id: str | None = None
    bytes: int = 0
    stored: int = 0
    total: int = 0
    error: str | None = None
    code: str | None = None
    retry: bool = False
    note: str | None = None
    skipped: list[tuple[str, str]] = []
    token: str = ""  # identifies this save in its manifest, so that nothing is saved twice
    boot: str = ""
    waits_for: str = ""


class WorkFolder:
    """A save's folder while we hold its lock."""

    def __init__(self, folder: Path, task: Task):
        self.folder, self.task, self.previous = folder, task, _read_state(folder)
        token = self.previous.token or os.urandom(8).hex()
        id, error = self.previous.id, self.previous.error
        self.state = State("working", id=id, error=error, token=token, boot=boot())

    def rank(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}"

    @property
    def modules(self) -> Path:
        """The folder in which the proxies of this state directory keep the images of modules."""
        return self.folder.parents[3] / "modules"

    @property
    def owner(self) -> str:
        """The job's owner in the store: this job's folder on this machine."""
        return owners.owner_of(self.folder.parent.parent)

    def forget(self) -> None:
        """Discard the record of earlier work."""
        self.previous = State()
        self.state.id = None

    def write_state(self) -> None:
        """Write state.json."""
        unfinished = self.folder / "state.part"
        unfinished.write_bytes(msgspec.json.encode(self.state))
        unfinished.rename(self.folder / "state.json")


class Work(NamedTuple):
    """The work to do with a folder; `run` raises StoreError, Unfit and OSError. `nice`: how far it
    gives way to other processes on this machine. `durable`: a stop of the machine does not undo
    it."""

    run: Callable[[WorkFolder], None]
    nice: int
    durable: bool


def start(arguments: list[str], work: Work) -> int:
    """Begin the work on the folder named in `arguments` and return while it runs: 0, or an exit
    status after a message on stderr. Finished work is not repeated."""
    if len(arguments) != 1:
        print("give the folder of a save", file=sys.stderr)
        return WRONG
    folder = Path(arguments[0]).absolute()
    try:
        task = msgspec.json.decode((folder / "task.json").read_bytes(), type=Task)
    except (OSError, msgspec.MsgspecError) as error:
        print(f"{folder / 'task.json'}: {error}", file=sys.stderr)
        return WRONG
    # The lock belongs to the open file, so the child keeps it.
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{folder}: another process is working on it already", file=sys.stderr)
        return BUSY
    os.ftruncate(lock, 0)
    try:
        work_folder = prepared(folder, task, work)
    except OSError as error:
        print(f"{folder}: {error.strerror or error}", file=sys.stderr)
        return WRONG
    if work_folder is None or os.fork():
        return 0
    try:
        os.write(lock, str(os.getpid()).encode())
        limits.lift()
        _detach(folder)
        os.nice(work.nice)  # this also lowers the priority of its I/O
        run(work_folder, work)
    finally:
        logging.shutdown()
        os._exit(0)


def prepared(folder: Path, task: Task, work: Work) -> WorkFolder | None:
    """Read the folder's earlier state, and record that a process works on it. None if all is
    done."""
    work_folder = WorkFolder(folder, task)
    if work_folder.previous.boot != work_folder.state.boot and not work.durable:
        work_folder.forget()  # what was written before the reboot may not have reached the disk
    if work_folder.previous.state == "done":
        return None
    work_folder.write_state()
    return work_folder


def run(work_folder: WorkFolder, work: Work) -> None:
    """Do the work, and record the result in state.json."""
    finished = threading.Event()
    writer = threading.Thread(target=_write_state_periodically, args=(work_folder, finished))
    writer.start()
    state = work_folder.state
    try:
        work.run(work_folder)
        end: Literal["done", "failed"] = "done"
        state.error = None
    except (StoreError, Unfit, OSError) as error:
        end = "failed"
        state.error = _message(work_folder, error)
        state.code = next(code for kind, code in CODES.items() if isinstance(error, kind))
        state.retry = state.code in RETRY
        logger.warning("%s", error)
    except Exception as error:  # whatever it is, report it in state.json
        end = "failed"
        state.error = f"an internal error of rankfold, see {work_folder.folder / 'log'}: {error!r}"
        state.code = "internal"
        logger.exception("%s", work_folder.folder)
    finally:
        finished.set()
        writer.join()
    state.state = end
    work_folder.write_state()


def _message(work_folder: WorkFolder, error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    remedy = "; free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{error.filename or work_folder.folder}: {error.strerror or error}{remedy}"


def _write_state_periodically(work_folder: WorkFolder, finished: threading.Event) -> None:
    while not finished.wait(STATE_WRITE_S):
        with contextlib.suppress(OSError):  # the work itself reports a full disk
            work_folder.write_state()


def _detach(folder: Path) -> None:
    """Detach from the caller: session, folder and standard streams."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDONLY)
    log_file = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (log_file, 1), (log_file, 2)):
        os.dup2(source, target)
    log.set_up()


def _read_state(folder: Path) -> State:
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=State)
    except (FileNotFoundError, msgspec.MsgspecError):
        return State()


def boot() -> str:
    """The id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
