"""Finds what a test leaves behind: processes, namespaces, mounts, sockets, shared memory, cgroups
and tables of nft.

A `Watch` remembers what is there when a test begins and names what the test added. pytest is a
subreaper (see conftest.py), so a process that a test started is below pytest forever, however
often it forked, and in whatever namespace; a namespace without a process is one that was
bound to a file, which shows as a mount or below /run/netns. Cgroups and tables are looked for by
the names that ranks of the test's fleets give them: tests next to it have others.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankfold import criu
from rankfold.reconciler.node import cgroups
from support.patience import scaled

NAME = "rankfold"
GRACE_S = 5.0
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans below this process become its children."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def interrupt_when_the_parent_exits() -> None:
    """A worker of xdist stops testing when its controller is killed, and ends what it started."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG")


def processes() -> dict[int, tuple[int, str]]:
    """pid → (parent's pid, state letter) of everything that /proc shows."""
    pids = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                text = _read(f"/proc/{entry}/stat")
                state, parent = text[text.rindex(b")") + 2 :].split(b" ", 2)[:2]
                pids[int(entry)] = (int(parent), state.decode())
    return pids


def _read(path: str) -> bytes:
    """A short file, in a third of the time of `Path.read_bytes`: each test reads thousands."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def parent(pid: int) -> int:
    """The parent's pid. Raises OSError if there is no such process."""
    text = Path(f"/proc/{pid}/stat").read_bytes()
    return int(text[text.rindex(b")") + 1 :].split()[1])


def below(root: int) -> set[int]:
    """The living processes below `root` (zombies are dead)."""
    table = processes()
    pids: set[int] = set()
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, (above, _) in table.items() if above == parent]
        waiting += children
        pids.update(pid for pid in children if table[pid][1] not in "ZX")
    return pids


def end_all() -> None:
    """Kill what is still below this process when it ends: tests that were interrupted, or whose
    process was killed, did not end what they had started."""
    deadline = time.monotonic() + scaled(GRACE_S)
    while (left := below(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        has_ended(min(left), scaled(GRACE_S))


def describe(pid: int) -> str:
    """One line about a process, for a failure report."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
        wchan = Path(f"/proc/{pid}/wchan").read_text()
        pids = next(
            line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "NSpid" in line
        )
    except (OSError, StopIteration):
        return f"{pid} (ended meanwhile)"
    return f"{pid} [{pids.split(maxsplit=1)[1]}] {words.strip()[:200]} (waits in {wchan or '-'})"


def has_ended(pid: int, timeout_s: float) -> bool:
    """Wait until a process has ended (reaped or not); False if it runs on after `timeout_s`."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(fd)


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """These processes are stopped while this lasts."""
    with contextlib.ExitStack() as later:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            later.callback(os.kill, pid, signal.SIGCONT)
        yield


def _mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines}


def _names(folder: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {f"{folder}/{name}" for name in os.listdir(folder)}
    return set()


def _abstract_sockets() -> set[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return {line.split()[7] for line in lines if len(line.split()) == 8 and "@" in line.split()[7]}


def _tables() -> set[str]:
    """Names of the tables of nft; none where it is missing, or not allowed."""
    try:
        listed = subprocess.run(
            [criu.nft(), "list", "tables"], capture_output=True, text=True, check=False
        )
    except criu.Missing:
        return set()
    return {line.split()[-1] for line in listed.stdout.splitlines()}


UNDECLARED = "no transition is declared"  # the journal writes it


@dataclass
class Watch:
    """Everything that existed before the test whose files are in `folder`."""

    folder: Path
    pids: set[int] = field(default_factory=lambda: below(os.getpid()))
    mounts: set[str] = field(default_factory=_mounts)
    shared: set[str] = field(default_factory=lambda: _names("/dev/shm"))
    networks: set[str] = field(default_factory=lambda: _names("/run/netns"))
    abstract: set[str] = field(default_factory=_abstract_sockets)

    def new_processes(self) -> set[int]:
        return below(os.getpid()) - self.pids

    def settle(self) -> None:
        """Give processes that are on their way out the time to get there, and reap them.

        Not a grace for leaks: what is still there after GRACE_S is one.
        """
        deadline = time.monotonic() + scaled(GRACE_S)
        while (left := self.new_processes()) and time.monotonic() < deadline:
            has_ended(min(left), deadline - time.monotonic())
            self.reap()
        self.reap()

    def reap(self) -> None:
        """Bury the test's dead. Children that were there before belong to another test."""
        for pid, (parent, state) in processes().items():
            if parent == os.getpid() and state == "Z" and pid not in self.pids:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def left(self) -> list[str]:
        """All that the test left, one line each. Others' things on this machine do not count."""
        named = {
            "mount": _mounts() - self.mounts,
            "shared memory": _names("/dev/shm") - self.shared,
            "network namespace": _names("/run/netns") - self.networks,
            "socket": _abstract_sockets() - self.abstract,
        }
        remains = [f"process {describe(pid)}" for pid in sorted(self.new_processes())]
        for kind, names in named.items():
            remains += [f"{kind} {name}" for name in sorted(names) if self._is_ours(name)]
        ranks = self._ranks()
        remains += [f"cgroup {path}" for path in sorted(cgroups.find(ranks))]
        remains += [f"table {name}" for name in sorted(ranks & _tables() if ranks else ())]
        remains += [f"undeclared transition in {log}" for log in self._logs_of_undeclared()]
        return remains + [f"socket {path}" for path in self._sockets()]

    def _logs_of_undeclared(self) -> list[Path]:
        """Logs of reconcilers that report a transition which reconciler/model/states.py lacks."""
        logs = [path for path in below_folder(self.folder) if path.name == "reconciler.log"]
        return [log for log in logs if UNDECLARED in log.read_text(errors="replace")]

    def _is_ours(self, name: str) -> bool:
        """With the test's folder in it, or the project's name; but none of a test next to it."""
        return self.folder.name in name or (NAME in name and f"{NAME}-test-" not in name)

    def _ranks(self) -> set[str]:
        """The names of cgroups and tables of the ranks of the test's fleets."""
        names = set()
        found = below_folder(self.folder)
        for file in (path for path in found if path.match("jobs/*/rank-*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError):  # its writer was killed
                names.add(cgroups.name(Path(json.loads(file.read_text())["socket"])))
        return names

    def _sockets(self) -> list[Path]:
        return [
            path
            for path in below_folder(self.folder)
            if not path.is_symlink() and path.exists() and stat.S_ISSOCK(path.stat().st_mode)
        ]

    def clean(self) -> None:
        """End and remove everything that `left` would name, files excepted."""
        while left := self.new_processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            has_ended(min(left), scaled(GRACE_S))
            self.reap()
        for point in sorted(_mounts() - self.mounts, reverse=True):
            if point.startswith(str(self.folder)):
                _libc.umount2(point.encode(), _MNT_DETACH)
        for name in _names("/dev/shm") - self.shared:
            if NAME in name:
                Path(name).unlink(missing_ok=True)
        for path in self._sockets():
            path.unlink()
        ranks = self._ranks()
        for place in list(cgroups.find(ranks)):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        for name in ranks & _tables() if ranks else ():
            subprocess.run([criu.nft(), "delete", "table", "inet", name], check=False)

    def stacks(self) -> None:
        """Make the test's Python processes write their stacks to their stderr, and end.

        They have PYTHONFAULTHANDLER set, so SIGABRT does it, whatever they wait for.
        """
        python = [
            pid
            for pid in self.new_processes()
            if "python" in os.path.basename(executable(pid)) and pid != os.getpid()
        ]
        for pid in python:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
        for pid in python:
            has_ended(pid, 1.0)

    def logs(self, lines: int = 60) -> str:
        """The ends of all logs and outputs in the test's folder."""
        parts = []
        for path in below_folder(self.folder):
            if path.suffix in (".log", ".err", ".out") and path.is_file() and path.stat().st_size:
                text = path.read_text(errors="replace").splitlines()[-lines:]
                parts.append(f"--- {path}\n" + "\n".join(text))
        return "\n".join(parts)

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def below_folder(folder: Path) -> list[Path]:
    """All that has a name below a folder, in order. Path.rglob of some versions of Python raises at
    a link to a name that is too long."""
    walk = os.walk(folder)
    return sorted(Path(at, name) for at, folders, names in walk for name in (*folders, *names))


def executable(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


@dataclass(frozen=True)
class State:
    """A test's own place: `folder` holds all of it, `path` is the fleet's state directory."""

    folder: Path
    path: Path
    runtime: Path
    watch: Watch
