"""Where the things of one fleet lie: files in its state directory, sockets beside it.

A socket's path holds 108 bytes, so sockets lie in a short private folder (`rankfold.paths`) and
long names are cut and told apart by a digest.
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
    """Paths of the fleet in `state`; makes the folders that are requested."""

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
        """The fleet's time: clock.py."""
        return self.state / "clock"

    @property
    def reserve(self) -> Path:
        """Room for cancels on a full disk: reserve.py."""
        return self.state / "reserve"

    @property
    def log(self) -> Path:
        return self.state / "reconciler.log"

    @property
    def socket(self) -> Path:
        return self.sockets / "reconciler.sock"

    @property
    def checkpoints(self) -> str:
        """URL of the store of checkpoints, unless a Policy names another."""
        return f"file://{self.state}/checkpoints"

    # ---- devices

    def proxy_socket(self, device: str) -> Path:
        return self.sockets / f"d-{short(device)}.sock"

    def proxy_file(self, device: str, suffix: str) -> Path:
        """``.log`` or ``.lock`` of a device's proxy."""
        folder = self.state / "proxies"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder / (device.replace("/", "-") + suffix)

    # ---- jobs

    def job(self, name: str) -> Path:
        return self.state / "jobs" / name

    def logs(self, name: str) -> Path:
        return self.job(name) / "logs"

    def rank_file(self, name: str, rank: int, suffix: str) -> Path:
        """``.json`` (its launcher's config), ``.exit`` or ``.kept`` (its own)."""
        return self.job(name) / f"rank-{rank}{suffix}"

    def save(self, name: str, number: int) -> Path:
        """Snapshots of a save, or of a checkpoint that was fetched."""
        return self.job(name) / "saves" / str(number)

    @property
    def modules(self) -> Path:
        """Images of modules, by their hashes; from proxies."""
        return self.state / "modules"

    def launcher_lock(self, name: str, rank: int) -> Path:
        """Held by a rank's launcher for its life (see rankfold/interpose/launcher/launcher.py)."""
        return launcher_lock(self.job(name), rank)

    def launcher_socket(self, name: str, rank: int) -> Path:
        return self.sockets / f"l-{short(name)}-{rank}.sock"

    def client_socket(self, name: str, rank: int) -> Path:
        return self.sockets / f"c-{short(name)}-{rank}.sock"


def launcher_lock(job: Path, rank: int) -> Path:
    """In the folder of a job, whosever it is."""
    return job / "logs" / f"rank-{rank}.launcher.log"


def short(name: str) -> str:
    """A file name of at most 24 characters that no other name gives."""
    flat = name.replace("/", "-")
    if len(flat) <= _NAME_MAX and flat == name:
        return flat
    return f"{flat[: _NAME_MAX - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the file's lock, or None if a living process holds it.

    The lock belongs to the open file, so a child that inherits the descriptor goes on holding
    it: a process that was started is known to live even before its socket answers, whoever
    started it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def lock_holder(path: Path) -> int:
    """The pid that the holder of a lock has written there; 0: it has not, or nobody holds it."""
    with contextlib.suppress(OSError, ValueError):
        if is_locked(path):
            return int(path.read_text())
    return 0


def is_locked(path: Path) -> bool:
    """Whether a living process holds the file's lock; a file that is not there has none."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not collide
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
