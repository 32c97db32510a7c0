"""The processes of one rank: the namespace they live in, their start, their end.

Used by the launcher only. All calls are for Linux; a launcher has one thread, so fork and
PR_SET_PDEATHSIG mean what they say.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from rankfold import peers

PIDS_PER_RANK = 1000

_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_MS_REC_SLAVE = 16384 | (1 << 19)
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_HIDDEN_BYTES = 1 << 20  # of the empty file system over a folder: names of what is kept
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork: no lock of the loader is held in a child.
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


# ---- namespaces ----------------------------------------------------------------------------


def unshare_pids() -> None:
    """The next child is pid 1 of a new pid namespace, with mounts of its own. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS), "unshare pid and mount namespaces")


def mount_proc() -> None:
    """As pid 1: a /proc of this namespace. Mounts made outside later still reach us."""
    _mount("none", "/", None, _MS_REC_SLAVE)
    _mount("proc", "/proc", "proc", _MS_NOSUID_NODEV_NOEXEC)


def hide(folders: tuple[str, ...], kept: tuple[str, ...]) -> None:
    """Give this process mounts of its own in which the folders are empty and read-only.

    Files and folders of `kept` that lie in them stay where they are. Raises OSError.
    """
    _check(_libc.unshare(_CLONE_NEWNS), "unshare mounts")
    _mount("none", "/", None, _MS_REC_SLAVE)
    real = [os.path.realpath(folder) for folder in folders if os.path.isdir(folder)]
    inside = {
        path: os.open(path, os.O_PATH | os.O_CLOEXEC)
        for path in dict.fromkeys(map(os.path.realpath, kept))
        if any(path.startswith(f"{folder}/") for folder in real) and os.path.exists(path)
    }
    for folder in real:
        _mount("tmpfs", folder, "tmpfs", _MS_NOSUID_NODEV_NOEXEC, f"mode=0700,size={_HIDDEN_BYTES}")
    for path, fd in inside.items():
        _mount_point(path, os.path.isdir(f"/proc/self/fd/{fd}"))
        _mount(f"/proc/self/fd/{fd}", path, None, _MS_BIND)
        os.close(fd)
    for folder in real:
        flags = _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID_NODEV_NOEXEC
        _mount("tmpfs", folder, None, flags | _MS_BIND)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    result = _libc.mount(*encoded[:3], flags, encoded[3])
    _check(result, f"mount {source} on {target}")


def _mount_point(path: str, folder: bool) -> None:
    os.makedirs(path if folder else os.path.dirname(path), mode=0o700, exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o600))


def become_subreaper() -> None:
    """Orphans of the rank become children of this process."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "become a subreaper")


def set_next_pid(rank: int) -> None:
    """As pid 1: the next process gets pid 1000·(rank + 1), wrapped below the largest pid."""
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    slots = max(1, pid_max // PIDS_PER_RANK - 1)
    first = PIDS_PER_RANK * (rank % slots + 1)
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(first - 1))


def pid_in(proc: int) -> int:
    """This process's pid as the /proc opened as `proc` numbers it.

    A /proc belongs to the namespace it was mounted in, so one that was opened before
    `unshare_pids` tells the pid that the outside sees.
    """
    return int(os.readlink("self", dir_fd=proc))


# ---- start ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """What to execute, where, and with what around it. `hidden` is empty but for `kept`."""

    argv: tuple[str, ...]
    workdir: str
    env: dict[str, str]
    out: str
    err: str
    hidden: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Started:
    """A rank that runs: its pid here, and as the outside sees it."""

    pid: int
    host_pid: int


class CannotStart(Exception):
    """The command cannot be executed. `exit_status` as a shell would give it: 126 or 127."""

    def __init__(self, exit_status: int, message: str):
        super().__init__(message)
        self.exit_status = exit_status


def start(command: Command, host_proc: int, die_with_parent: bool) -> Started:
    """Fork and execute the rank, in a session of its own. Raises CannotStart.

    `die_with_parent`: without a pid namespace, the kernel kills the rank when we die.
    """
    read_end, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, host_proc, parent if die_with_parent else None, write_end)
        except OSError as error:
            _report(write_end, f"\n{error.errno or errno.EIO}")
        finally:
            os._exit(127)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        host_pid, _, failed = pipe.read().partition("\n")
    if not failed:
        return Started(pid, int(host_pid))
    os.waitpid(pid, 0)
    raise _cannot_start(command, int(failed))


def _report(pipe: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(pipe, text.encode())


def _become(command: Command, host_proc: int, parent: int | None, report: int) -> None:
    os.setsid()
    if parent is not None:
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")
        if os.getppid() != parent:
            os._exit(127)  # the parent died before prctl
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for target, source in (
        (0, os.open("/dev/null", os.O_RDONLY)),
        (1, os.open(command.out, append, 0o600)),
        (2, os.open(command.err, append, 0o600)),
    ):
        os.dup2(source, target)
    _report(report, str(pid_in(host_proc)))
    peers.mark()
    if command.hidden:
        hide(command.hidden, command.kept)
    os.chdir(command.workdir)
    os.execvpe(command.argv[0], list(command.argv), command.env)


def _cannot_start(command: Command, code: int) -> CannotStart:
    name, workdir = command.argv[0], command.workdir
    found = code == errno.ENOENT and "/" in name and os.path.exists(os.path.join(workdir, name))
    if not os.path.isdir(workdir):
        reason = f"the working directory {workdir} is not there"
    elif found:
        reason = f"the interpreter that {name} names (its #! line, or ELF loader) is not there"
    elif code == errno.ENOEXEC:
        reason = f"{name} is neither a program nor a script with a #! line"
    else:
        where = workdir if "/" in name else "the folders of its PATH"
        reason = f"{os.strerror(code)} (looked in {where})"
    status = 127 if code in (errno.ENOENT, errno.ENOTDIR) else 126
    return CannotStart(status, f"cannot start {name}: {reason}")


# ---- end -----------------------------------------------------------------------------------


def parents() -> dict[int, int]:
    """pid → parent's pid of all processes that this /proc shows."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path("/proc", entry, "stat").read_bytes()
                found[int(entry)] = int(stat[stat.rindex(b")") + 1 :].split()[1])
    return found


def descendants(root: int) -> list[int]:
    """All processes below `root`, itself not among them."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def signal_all(signum: int, namespaced: bool) -> None:
    """Send a signal to every process of the rank.

    As pid 1 that is one call. Otherwise those that we find: a process which forks at this
    very moment may escape, so whoever needs certainty repeats.
    """
    if namespaced:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signum)
        return
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def reap_until(pid: int | None = None) -> int | None:
    """Reap what has ended, without blocking. The wait status of `pid` if it was among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, how = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                status = how
    return status


def kill_the_rest(namespaced: bool) -> None:
    """End all that is left of the rank and reap it: as a subreaper, generation by generation."""
    while True:
        signal_all(signal.SIGKILL, namespaced)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
