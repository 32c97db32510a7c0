"""Freezes a rank's processes in a cgroup (version 2) that exists only while they are frozen.

The kernel stops the processes where they are; they get no signal and cannot notice. Every kernel
has version 2 next to version 1, and in version 2 SIGKILL ends frozen processes, so that no process
survives a launcher that is killed. Such a launcher may leave an empty cgroup. The next launcher to
freeze any rank removes it: a living launcher holds a lock on its own cgroup.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable

from rankfold.interpose.launcher.rank import process, sandbox

PREFIX = "rankfold-"
_ENDS_S = 0.5  # an ending process stays in its cgroup until the kernel has freed its resources
_MOVES_MAX = 100  # rounds: a process that forks meanwhile needs another round
_LOCK_S = 5.0  # for a launcher that removes old cgroups to see that this one has an owner


class CannotFreeze(Exception):
    """The kernel or our privileges do not allow a freeze; the message says what is missing."""


class Freezer:
    """Freezes one rank. `name` must be unique among ranks."""

    def __init__(self, name: str):
        self.name = PREFIX + name
        self._ours = os.getpid()
        self._parent = -1
        self._fd = -1  # of the cgroup, while it exists

    @property
    def path(self) -> str:
        """The path of the cgroup, which every process of our pid namespace can open."""
        return f"/proc/{self._ours}/fd/{self._fd}"

    @property
    def parent(self) -> str:
        """The path of the parent cgroup, where processes run freely."""
        return f"/proc/{self._ours}/fd/{self._parent}"

    def make(self) -> None:
        """Make the cgroup, empty and thawed, if it does not exist yet. Raises CannotFreeze."""
        if self._fd >= 0:
            return
        try:
            if self._parent < 0:
                self._parent = _own_cgroup()
            _sweep(self._parent)
            self._fd = self._made()
        except OSError as error:
            raise CannotFreeze(
                f"cannot create a cgroup in which to freeze the rank: {error}"
            ) from error

    def _made(self) -> int:
        """Make, open and lock the cgroup; make it again if another launcher removed it before the
        lock. Raises OSError."""
        until = time.monotonic() + _LOCK_S
        while time.monotonic() < until:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.name, 0o700, dir_fd=self._parent)
            with contextlib.suppress(FileNotFoundError):
                fd = _opened(self.name, self._parent)
                with contextlib.suppress(FileNotFoundError, BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    now = os.stat(self.name, dir_fd=self._parent)
                    if now.st_ino == os.fstat(fd).st_ino:
                        return fd
                os.close(fd)
            time.sleep(0.001)
        raise OSError(errno.EBUSY, f"another process has held {self.name} for {_LOCK_S:g} s")

    def freeze(self, pids: Callable[[], set[int]]) -> None:
        """Begin to freeze all processes that `pids` returns; `frozen` reports when it is done.

        Children of a process in the cgroup are in it too, so no process is missing once two
        searches in a row have found none outside. Raises CannotFreeze.
        """
        self.make()
        try:
            for _ in range(_MOVES_MAX):
                outside = self._move(pids()) or self._move(pids())
                if not outside:
                    break
            else:
                self.thaw()
                pids_outside = ", ".join(map(str, sorted(outside)))
                raise CannotFreeze(
                    f"the rank cannot be frozen: after {_MOVES_MAX} attempts to move its processes "
                    f"into a cgroup, still outside: {pids_outside}"
                )
            self._write("cgroup.freeze", "1")
        except OSError as error:
            raise CannotFreeze(f"the rank cannot be frozen: {error}") from error

    def join(self) -> None:
        """Move this process, and all that it will start, into the cgroup. Raises OSError."""
        self._write("cgroup.procs", "0")

    def resume(self) -> None:
        """Let the processes in the cgroup, if there is one, run; they stay in it. Raises
        OSError."""
        if self._fd >= 0:
            self._write("cgroup.freeze", "0")

    def refreeze(self) -> None:
        """Freeze the processes in the cgroup, if they are not. Raises OSError."""
        self._write("cgroup.freeze", "1")

    def _move(self, pids: set[int]) -> set[int]:
        """Move processes into the cgroup. Returns those that were outside."""
        members = self._threads()
        outside = {pid for pid in pids if _is_outside(pid, members)}
        for pid in outside:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                self._write("cgroup.procs", str(pid))
        return outside

    def _threads(self) -> set[int]:
        """All threads in the cgroup. A process whose main thread has exited is not in
        ``cgroup.procs``, though its other threads were moved."""
        return {int(line) for line in self._read("cgroup.threads").split()}

    def frozen(self) -> bool:
        """Whether all processes in the cgroup are frozen. Raises OSError."""
        return "frozen 1" in self._read("cgroup.events").splitlines()

    def thaw(self) -> None:
        """Let all processes run in the cgroup that they came from, and remove ours. Raises
        OSError."""
        self.resume()
        self.leave()

    def leave(self) -> None:
        """Move the processes, which run, back into the cgroup that they came from, and remove ours.
        The kernel takes milliseconds for each move. Raises OSError."""
        if self._fd < 0:
            return
        for _ in range(_MOVES_MAX):
            threads = self._threads()
            for thread in threads:  # moves its whole process
                with contextlib.suppress(ProcessLookupError):
                    _write(self._parent, "cgroup.procs", str(thread))
            if not threads:
                break
        self.drop()

    def drop(self) -> None:
        """Remove the cgroup, which is empty except for processes that are ending. Raises
        OSError."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        until = time.monotonic() + _ENDS_S
        while True:
            try:
                os.rmdir(self.name, dir_fd=self._parent)
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    raise
            time.sleep(0.001)

    def _read(self, name: str) -> str:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        with open(fd) as file:
            return file.read()

    def _write(self, name: str, text: str) -> None:
        _write(self._fd, name, text)


def _is_outside(pid: int, members: set[int]) -> bool:
    """Whether a thread of the process, not counting exited ones, is not in `members`."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            if int(name) not in members and process.thread_state(pid, int(name)) not in "ZX":
                return True
    return False


def _own_cgroup() -> int:
    """Open our own cgroup: its limits then apply to the rank as well."""
    root = sandbox.detached("cgroup2")
    try:
        with open("/proc/self/cgroup") as file:
            path = next(line[3:].strip() for line in file if line.startswith("0::"))
        inside = "." if path.startswith("/..") else f".{path}"
        return _opened(inside, root)
    finally:
        os.close(root)


def _sweep(parent: int) -> None:
    """Remove cgroups left by launchers that were killed."""
    for name in os.listdir(parent):
        if not name.startswith(PREFIX):
            continue
        with contextlib.suppress(OSError):  # it has an owner, or is gone
            fd = _opened(name, parent)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rmdir(name, dir_fd=parent)
            finally:
                os.close(fd)


def _opened(name: str, folder: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)


def _write(folder: int, name: str, text: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
