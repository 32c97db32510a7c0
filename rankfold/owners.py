"""The name of a job's owner in the object store: the job's folder in a state directory of a
machine.

``HOST#MARK:FOLDER``, at most 255 characters. The mark belongs to the state directory on its machine
and stays when the machine's host name changes. A copy of a state directory on another machine has
another mark, and so has one at the same path on a machine made from the same disk image. For a name
without a mark, as in older versions, the host name counts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import NamedTuple, TextIO

MACHINE = Path("/etc/machine-id")
LOCKED_S = 10.0  # a process holds the lock of `mark` while it writes 33 bytes
LOCK_AGAIN_S = 0.01
_NAME = re.compile(r"(?P<host>[^:#]*)(#(?P<mark>[0-9a-f]{12}))?:(?P<folder>/.*)\Z", re.DOTALL)


class _Parts(NamedTuple):
    host: str
    mark: str  # empty: the name has none
    folder: Path


def owner_of(job: Path) -> str:
    """The owner's name for a job's folder on this machine. Raises OSError if the state directory
    cannot be written."""
    state = job.parents[1]
    own = _own(state) or _make_own(state)
    who = f"{socket.gethostname()}#{_mark(own)}:"
    return who + str(job)[-(255 - len(who)) :]  # of a long path its end, but the whole `who`


def is_same(one: str, other: str) -> bool:
    a, b = _parts(one), _parts(other)
    if one == other or a is None or b is None:
        return one == other
    known = a.mark == b.mark if a.mark and b.mark else a.host == b.host
    return known and a.folder == b.folder


def local_folder(owner: str) -> Path | None:
    """The folder of the job, if it is on this machine, otherwise None. Raises OSError if that
    cannot be determined."""
    parts = _parts(owner)
    if parts is None or len(parts.folder.parents) < 2:
        return None
    if not parts.mark:
        return parts.folder if parts.host == socket.gethostname() else None
    own = _own(parts.folder.parents[1])
    return parts.folder if own and _mark(own) == parts.mark else None


def description(owner: str) -> str:
    """The name for people: without the mark."""
    parts = _parts(owner)
    return f"{parts.host}:{parts.folder}" if parts else owner


def _parts(owner: str) -> _Parts | None:
    match = _NAME.match(owner)
    return _Parts(match["host"], match["mark"] or "", Path(match["folder"])) if match else None


def _mark(own: str) -> str:
    return hashlib.blake2b(f"{_machine()} {own}".encode(), digest_size=6).hexdigest()


def _machine() -> str:
    """The machine's id; its host name if it has none."""
    with contextlib.suppress(OSError):
        if (id := MACHINE.read_text().strip()) not in ("", "uninitialized"):
            return id
    return socket.gethostname()


def _own(state: Path) -> str:
    """The state directory's own random id; empty: none yet, or an incomplete one."""
    with contextlib.suppress(FileNotFoundError):
        text = (state / "mark").read_text()
        return text.strip() if text.endswith("\n") else ""
    return ""


def _make_own(state: Path) -> str:
    """Make the state directory's id. If several processes do so at once, the first one's id
    holds."""
    with (state / "mark").open("a") as file:
        _lock(file)
        if not (own := _own(state)):
            own = secrets.token_hex(16)
            file.truncate(0)
            file.write(own + "\n")
            file.flush()
            os.fsync(file.fileno())
            folder = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return own


def _lock(file: TextIO) -> None:
    """Lock the file. Raises OSError if another process, which may be stopped, holds its lock."""
    deadline = time.monotonic() + LOCKED_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            why = f"another process has held its lock for {LOCKED_S:g} s"
            raise OSError(errno.ETIMEDOUT, why, file.name)
        time.sleep(LOCK_AGAIN_S)
