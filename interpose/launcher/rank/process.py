"""The processes of one rank: their pids, their start, their end.

Used by the launcher only. All calls are for Linux. A launcher has one thread, so fork is safe and
PR_SET_PDEATHSIG refers to the launcher as a whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rankfold import limits, peers
from rankfold.interpose.launcher.rank import sandbox as sandboxes
from rankfold.interpose.launcher.rank.sandbox import check, libc
from rankfold.log import area

log = area(__file__)

PIDS_PER_RANK = 1000
KILL = signal.SIGKILL
_THREADS = 17  # word of /proc/PID/stat behind the name

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_GETFD = 438

# ---- pids ----------------------------------------------------------------------------------


def become_subreaper() -> None:
    """Make orphans of the rank children of this process."""
    check(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "become a subreaper")


def set_name(name: str) -> None:
    """Set the name of this process in `ps -o comm`, if possible: at most 15 characters."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def set_next_pid(rank: int) -> None:
    """As pid 1: give the next process pid 1000·(rank + 1), wrapped below the largest pid."""
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    slots = max(1, pid_max // PIDS_PER_RANK - 1)
    first = PIDS_PER_RANK * (rank % slots + 1)
    set_last_pid(first - 1)


def set_last_pid(pid: int) -> None:
    """As pid 1: give the next process the first free pid after this one. Raises OSError."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid))


def pid_in(proc: int) -> int:
    """This process's pid as the /proc opened as `proc` numbers it.

    A /proc belongs to the namespace in which it was mounted, so one that was opened before
    `sandboxes.unshare_pids` gives the pid that processes outside see.
    """
    return int(os.readlink("self", dir_fd=proc))


def mounts_of(pid: int | str) -> str:
    """The name of a process's mount namespace in /proc. Raises OSError."""
    return os.readlink(f"/proc/{pid}/ns/mnt")


# ---- start ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """The command to execute, its folder, environment and sandbox. `out`, `err`: paths as the rank
    sees them, in its sandbox if it has one."""

    argv: tuple[str, ...]
    workdir: str
    env: dict[str, str]
    out: str
    err: str
    sandbox: sandboxes.Sandbox | None = None


@dataclass(frozen=True)
class Started:
    """A running rank: its pid here, its pid as processes outside see it, and the name in /proc of
    the mount namespace that it was given."""

    pid: int
    host_pid: int
    mounts: str


class CannotStart(Exception):
    """The command cannot be executed. `exit_status` is what a shell would return: 126 or 127."""

    def __init__(self, exit_status: int, message: str):
        super().__init__(message)
        self.exit_status = exit_status


@dataclass
class Starting:
    """A rank that is being started: its pid, and the pipe that closes when the command runs or
    cannot be executed. `output`: the bytes read from the pipe."""

    command: Command
    pid: int
    pipe: int
    output: bytes = b""

    def read(self) -> bool:
        """Read the available bytes without waiting. Returns whether the pipe is closed."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.pipe, 4096):
                self.output += data
            return True
        return False

    def outcome(self) -> Started:
        """The outcome, once the pipe has been read to its end. Raises CannotStart."""
        output, _, failed = self.output.decode().partition("\n")
        if failed:
            raise _cannot_start(self.command, int(failed))
        if not output:
            raise CannotStart(126, f"{self.command.argv[0]} was killed before it started")
        host_pid, mounts = output.split()
        return Started(self.pid, int(host_pid), mounts)

    def waits_for(self) -> str:
        """Why the rank has not started yet, in words."""
        name, state = self.command.argv[0], thread_state(self.pid, self.pid)
        where = {"D": "the kernel waits for a disk", "T": "a signal has stopped it"}.get(state)
        return (
            f"{name} has not started: {where or 'it waits'}. Its working directory, its program "
            f"and its logs must be on file systems that answer: {self.command.workdir}, "
            f"{self.command.out}"
        )


def begin(command: Command, host_proc: int, die_with_parent: bool) -> Starting:
    """Fork a process that executes the rank, in a session of its own. Raises OSError.

    `die_with_parent`: there is no pid namespace, so the kernel is to kill the rank when we die.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
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
    os.set_blocking(read_end, False)
    return Starting(command, pid, read_end)


def _report(pipe: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(pipe, text.encode())


def _become(command: Command, host_proc: int, parent: int | None, report: int) -> None:
    os.setsid()
    if parent is not None:
        check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")
        if os.getppid() != parent:
            os._exit(127)  # the parent died before prctl
    forget_signals()
    if command.sandbox:
        sandboxes.enter(command.sandbox, ipc=True)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for target, source in (
        (0, os.open("/dev/null", os.O_RDONLY)),
        (1, os.open(command.out, append, 0o600)),
        (2, os.open(command.err, append, 0o600)),
    ):
        os.dup2(source, target)
    _report(report, f"{pid_in(host_proc)} {mounts_of('self')}")
    limits.put_back()
    peers.mark()
    os.chdir(command.workdir)
    os.execvpe(command.argv[0], list(command.argv), command.env)


def forget_signals() -> None:
    """Reset all signals: none is handled, ignored or blocked."""
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _cannot_start(command: Command, code: int) -> CannotStart:
    name, workdir = command.argv[0], command.workdir
    exists = code == errno.ENOENT and "/" in name and os.path.exists(os.path.join(workdir, name))
    if not os.path.isdir(workdir):
        reason = f"the working directory {workdir} does not exist"
    elif exists:
        reason = f"the interpreter that {name} names (its #! line, or ELF loader) does not exist"
    elif code == errno.ENOEXEC:
        reason = f"{name} is neither a program nor a script with a #! line"
    else:
        where = workdir if "/" in name else "the folders of its PATH"
        reason = f"{os.strerror(code)} (looked in {where})"
    status = 127 if code in (errno.ENOENT, errno.ENOTDIR) else 126
    return CannotStart(status, f"cannot start {name}: {reason}")


def child(step: Callable[[], None]) -> NoReturn:
    """In a process that was just forked: run the step and exit."""
    try:
        step()
    except BaseException:
        log.exception("a process of the launcher failed")
        raise
    finally:
        os._exit(1)


# ---- end -----------------------------------------------------------------------------------


def parents() -> dict[int, int]:
    """pid → parent's pid of all processes that this /proc shows."""
    parent_of = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path("/proc", entry, "stat").read_bytes()
                parent_of[int(entry)] = int(stat[stat.rindex(b")") + 1 :].split()[1])
    return parent_of


def descendants(root: int) -> list[int]:
    """All processes below `root`, itself not among them."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    pids: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids += below
        waiting += below
    return pids


def living() -> set[int]:
    """All processes that this /proc shows, except zombies. A process whose main thread has exited
    counts while other threads run."""
    pids = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path("/proc", entry, "stat").read_bytes()
                words = stat[stat.rindex(b")") + 1 :].split()
                if words[0] not in (b"Z", b"X") or int(words[_THREADS]) > 1:
                    pids.add(int(entry))
    return pids


def threads(pid: int) -> list[int]:
    """The threads of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def opened(pid: int, begins: str) -> list[int]:
    """Descriptors of a process whose link in /proc begins with `begins`: ``socket:``,
    ``anon_inode:[timerfd]``."""
    files = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith(begins):
                    files.append(int(name))
    return files


def thread_state(pid: int, thread: int) -> str:
    """The thread's state as a letter of proc_pid_stat(5); Z: it has exited, or is gone."""
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/task/{thread}/stat").read_bytes()
        return stat.rpartition(b")")[2].split()[0].decode()
    return "Z"


def stopped(proc: int) -> list[str]:
    """The processes below this one that a signal has stopped: name, and pid in the /proc opened as
    `proc`. A program may have changed its own name."""
    descriptions = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError, ValueError):
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            name, _, words = stat.partition(b"(")[2].rpartition(b")")
            if words.split()[0] == b"T":
                descriptions.append(f"{printable(name)} (pid {host_pid(pid, proc)})")
    return descriptions


def printable(text: bytes) -> str:
    """A program's own name, without characters that could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text.decode(errors="replace"))


def has_children() -> bool:
    """Whether any child is left, dead or alive."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def signal_all(signum: int, namespaced: bool) -> None:
    """Send a signal to every process of the rank.

    As pid 1 that is one call. Otherwise the signal goes to the processes that a search finds: a
    process that forks at this moment may escape, so a caller that needs certainty repeats the call.
    """
    if namespaced:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signum)
        return
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def reap() -> dict[int, int]:
    """Reap the children that have ended, without blocking: pid → wait status."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, how = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            statuses[ended] = how
    return statuses


def host_pid(pid: int, proc: int) -> int:
    """The pid of a process that we see, as the /proc opened as `proc` numbers it. Raises
    OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        fd = os.open(f"self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        with open(fd) as file:
            text = file.read()
    finally:
        os.close(pidfd)
    return int(re.search(r"^Pid:\s*(-?\d+)", text, re.MULTILINE)[1])  # type: ignore[index]


@contextlib.contextmanager
def descriptor(pid: int, number: int) -> Iterator[int]:
    """A duplicate of another process's descriptor, closed after the block. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        taken = int(libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
        if taken < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"descriptor {number} of process {pid}: {os.strerror(code)}")
    finally:
        os.close(pidfd)
    try:
        yield taken
    finally:
        os.close(taken)


@contextlib.contextmanager
def socket_of(pid: int, number: int) -> Iterator[socket.socket]:
    """A duplicate of another process's socket, closed after the block. Raises OSError."""
    with descriptor(pid, number) as taken, socket.socket(fileno=os.dup(taken)) as found:
        yield found


def killed_all(namespaced: bool) -> bool:
    """Kill all processes left of the rank, and reap those that have ended. Returns whether none is
    left. If not, the caller repeats the call: processes that the kernel holds up end later, and a
    subreaper gets the children of killed processes."""
    signal_all(signal.SIGKILL, namespaced)
    reap()
    return not has_children()
