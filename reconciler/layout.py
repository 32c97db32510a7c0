"""Paths of a fleet: files in its state directory, and its sockets in a short private folder.

A socket's path has at most 108 bytes. So sockets are in a folder of their own (`rankfold.paths`),
and long names are cut and made unique by a digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path

from rankfold import paths

_NAME_MAX = 24


class Layout:
    """Paths of the fleet in `state`. Of their folders, creates only that of the proxies' files."""

    def __init__(self, state: Path):
        self.state = state
        self.sockets = paths.sockets(state)

    @property
    def interposers(self) -> Path:
        """Copies of the libraries that ranks preload: see interpose/launcher/interposer.py."""
        return self.state / "interposer"

    # ---- the reconciler

    @property
    def lock(self) -> Path:
        return self.state / "reconciler.lock"

    @property
    def clock(self) -> Path:
        """The fleet's time: see clock.py."""
        return self.state / "clock"

    @property
    def reserve(self) -> Path:
        """Disk space reserved for cancelling jobs on a full disk: see reserve.py."""
        return self.state / "reserve"

    @property
    def log(self) -> Path:
        return self.state / "reconciler.log"

    @property
    def socket(self) -> Path:
        return self.sockets / "reconciler.sock"

    @property
    def checkpoints(self) -> str:
        """URL of the store of checkpoints, unless a Policy names another one."""
        return f"file://{self.state}/checkpoints"

    # ---- devices

    def proxy_socket(self, device: str) -> Path:
        return self.sockets / f"d-{short(device)}.sock"

    def proxy_file(self, device: str, suffix: str) -> Path:
        """The ``.log`` or ``.lock`` file of a device's proxy."""
        folder = self.state / "proxies"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder / (device.replace("/", "-") + suffix)

    # ---- jobs

    def job(self, name: str) -> Path:
        return self.state / "jobs" / name

    def logs(self, name: str) -> Path:
        return self.job(name) / "logs"

    def rank_file(self, name: str, rank: int, suffix: str) -> Path:
        """``.json`` (configuration of the launcher), ``.exit`` or ``.kept`` (written by it)."""
        return self.job(name) / f"rank-{rank}{suffix}"

    def save(self, name: str, number: int) -> Path:
        """Folder of the snapshots of a save, or of a fetched checkpoint."""
        return self.job(name) / "saves" / str(number)

    @property
    def modules(self) -> Path:
        """Images of modules, named by their hashes; written by proxies."""
        return self.state / "modules"

    def launcher_lock(self, name: str, rank: int) -> Path:
        """A rank's launcher holds this lock for its life: see interpose/launcher/start.py."""
        return launcher_lock(self.job(name), rank)

    def launcher_socket(self, name: str, rank: int) -> Path:
        return self.sockets / f"l-{short(name)}-{rank}.sock"

    def client_socket(self, name: str, rank: int) -> Path:
        return self.sockets / f"c-{short(name)}-{rank}.sock"


def launcher_lock(job: Path, rank: int) -> Path:
    """As `Layout.launcher_lock`, given the job's folder in any state directory."""
    return job / "logs" / f"rank-{rank}.launcher.log"


def short(name: str) -> str:
    """A unique file name of at most 24 characters for any name."""
    flat = name.replace("/", "-")
    if len(flat) <= _NAME_MAX and flat == name:
        return flat
    return f"{flat[: _NAME_MAX - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the file's lock, or None if a living process holds it.

    The lock belongs to the open file, so a child that inherits the descriptor holds it, too. A
    process is therefore known to live before its socket answers, whichever process started it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def lock_holder(path: Path) -> int:
    """The pid that the lock's holder wrote to the file; 0 if it has not, or no process holds it."""
    with contextlib.suppress(OSError, ValueError):
        if is_locked(path):
            return int(path.read_text())
    return 0


def is_locked(path: Path) -> bool:
    """Whether a living process holds the file's lock; False if the file does not exist."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: concurrent checks do not conflict
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
