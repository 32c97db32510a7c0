"""Programs of rankfold as forks of one process that has imported their modules already.

After `start`, ``subprocess`` starts ``python -m rankfold…`` and `SCRIPTS` in this way, also in the
processes that were started so: a reconciler's proxies and launchers are forks, too. A program has
its own process, environment, folder and files as otherwise (`fork_server`); what is saved is 0.2 s
of CPU for the interpreter and the imports. Where a fork would differ, an interpreter is started:
settings that have an effect only then (`COLD`), other users, namespaces, cgroups.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import fork_server

TESTS = Path(__file__).resolve().parents[1]
# Variables that are read when a process starts, or when a module is imported that forks have.
COLD = ("LD_", "PYTHON", "LC_", "LANG", "MALLOC_", "GLIBC_", "S3FS_")
EITHER_WAY = {"PYTHONFAULTHANDLER"}
PACKAGES = {"rankfold"}
ENDS_WITH_ITS_PARENT = {"rankfold.plugin_process"}  # which is the one that started it
SCRIPTS = {str(TESTS / "support" / name) for name in ("peer_proxy.py",)}
# Lines of /proc/self/status that processes inherit and that no request contains.
INHERITED = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:", "Cpus_allowed:")
cold = subprocess.Popen
_parameters = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Server:
    """The process that others are forked from: where it listens, and what its forks inherit."""

    address: str
    pid: int
    session: int
    environment: dict[str, str]
    limits: list[tuple[int, int]]
    inherited: list[str]

    @classmethod
    def here(cls, address: str, pid: int) -> Server:
        """One that is started by this process."""
        return cls(address, pid, os.getsid(0), dict(os.environ), _limits(), _inherited())

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork with this environment does what a new interpreter would do."""
        different = {
            name
            for name in {*self.environment, *environment} - EITHER_WAY
            if self.environment.get(name, "") != environment.get(name, "")
        }
        return not any(name.startswith(COLD) for name in different)

    def start(self, request: fork_server.Request, files: list[int]) -> tuple[int, _Reply]:
        """Returns the pid, and a handle that gets the exit status. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reply = _Reply(ours)
        text = os.memfd_create("request")
        try:
            os.write(text, json.dumps(request).encode())
            os.lseek(text, 0, os.SEEK_SET)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
                requests.connect(self.address)
                socket.send_fds(requests, [b"-"], [text, theirs.fileno(), *files])
        finally:
            os.close(text)
            theirs.close()
        pid = reply.receive()
        assert pid
        return pid, reply


class _Reply:
    """The socket at which the server reports how a process ended."""

    def __init__(self, ours: socket.socket):
        # As a number: the garbage collector complains about sockets that it finds open.
        self.fd = ours.detach()

    def receive(self, flags: int = 0) -> int | None:
        """The next number; None: none has come, and MSG_DONTWAIT does not wait."""
        with socket.socket(fileno=os.dup(self.fd)) as sock, contextlib.suppress(BlockingIOError):
            if not (report := sock.recv(32, flags)):
                raise ConnectionResetError("the fork server has ended")
            return int(report)
        return None

    def status(self, flags: int) -> int | None:
        """As waitpid gives it, and again each time, because forks of this process have the socket
        too; None: it has not ended. MSG_DONTWAIT does not wait."""
        try:
            return self.receive(flags | socket.MSG_PEEK)
        except ConnectionResetError:
            return signal.SIGKILL

    def wait(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(seconds * 1000)

    def __del__(self, close: Any = os.close) -> None:
        close(self.fd)


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(number) for number in fork_server.LIMITS]


def _inherited() -> list[str]:
    """The properties that a fork inherits and cannot change. Raises OSError."""
    own = Path("/proc/self")
    lines = (own / "status").read_text().splitlines()
    values = [line for line in lines if line.startswith(INHERITED)]
    values += [os.readlink(own / "ns" / name) for name in sorted(os.listdir(own / "ns"))]
    values += [os.readlink(own / "root"), (own / "cgroup").read_text()]
    values += [(own / "oom_score_adj").read_text(), str(os.getpriority(os.PRIO_PROCESS, 0))]
    return [*values, f"ignored: {sorted(_ignored() & fork_server.OF_LIBC)}"]


def _ignored() -> set[int]:
    """Signals that this process ignores."""
    lines = Path("/proc/self/status").read_text().splitlines()
    mask = int(next(line.split()[1] for line in lines if line.startswith("SigIgn")), 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


class Popen(subprocess.Popen[Any]):
    """A process, forked if it can be."""

    _server: Server | None = None
    _reply: _Reply | None = None
    _waitpid_lock: Any

    def _execute_child(self, *given: Any) -> None:
        asked = _parameters.bind(self, *given).arguments
        started = self._server and _started(self._server, asked)
        if not started:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self.pid, self._reply = started
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in ends))  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._reply is None:
            ended: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return ended
        status = self._reply.status(socket.MSG_DONTWAIT if wait_flags else 0)
        return (0, 0) if status is None else (self.pid, status)

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._reply is None:
            code: int | None = super()._internal_poll(*given, **named)  # type: ignore[misc]
            return code
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        """Waits without the pauses that grow to 50 ms."""
        if self._reply is not None and timeout is not None and self.returncode is None:
            self._reply.wait(max(timeout, 0))
            if self._internal_poll() is None:
                raise subprocess.TimeoutExpired(self.args, timeout)
        code: int = super()._wait(timeout)  # type: ignore[misc]
        return code


def _started(server: Server, asked: Mapping[str, Any]) -> tuple[int, _Reply] | None:
    """Start a process by a fork. None: it needs an interpreter of its own."""
    command = _command(asked)
    program = _program(command)
    if not program:
        return None
    environment = os.environ if asked["env"] is None else asked["env"]
    try:
        folder = os.path.join(os.getcwd(), os.fsdecode(asked["cwd"] or ""))
        files = _files(asked)
        if (
            not os.path.isdir(folder)
            or _has_rankfold(folder)
            or not server.takes(environment)
            or any(now[1] > then[1] for now, then in zip(_limits(), server.limits, strict=True))
            or _inherited() != server.inherited
        ):
            return None
        sys.audit("subprocess.Popen", command[0], command, asked["cwd"], asked["env"])
        request = {
            "program": program,
            "command": command,
            "environment": dict(environment),
            "folder": folder,
            "fds": [*files],
            "session": os.getsid(0),
            "new_session": bool(asked["start_new_session"]),
            "group": os.getpgid(0),
            "umask": asked["umask"] if asked["umask"] != -1 else _umask(),
            "limits": _limits(),
            "ignored": sorted(_ignored()),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        }
        return server.start(request, [*files.values()])
    except (OSError, TypeError):  # the interpreter, or subprocess, says what is wrong
        return None


def _command(asked: Mapping[str, Any]) -> list[str]:
    """The command; empty if it is started in an unusual way."""
    unusual = (
        asked["shell"]
        or asked["preexec_fn"]
        or asked["executable"] not in (None, sys.executable)
        or not asked["close_fds"]
        or not asked["restore_signals"]
        or any(asked[name] is not None for name in ("gid", "gids", "uid"))
        or asked["process_group"] not in (None, -1)
    )
    if unusual or not isinstance(asked["args"], (list, tuple)):
        return []
    return [os.fsdecode(word) for word in asked["args"]]


def _program(command: list[str]) -> str:
    """The module of rankfold, or the script, that a command runs; "": it runs something else."""
    if command[:2] == [sys.executable, "-m"] and len(command) > 2:
        module = command[2]
        forked = module.split(".")[0] in PACKAGES and module not in ENDS_WITH_ITS_PARENT
        return module if forked else ""
    if command[:1] == [sys.executable] and len(command) > 1 and command[1] in SCRIPTS:
        return command[1]
    return ""


def _has_rankfold(folder: str) -> bool:
    """Whether an interpreter would find another rankfold in its working directory."""
    package = os.path.join(folder, "rankfold")
    return os.path.exists(package) and not os.path.samefile(folder, TESTS.parent)


def _files(asked: Mapping[str, Any]) -> dict[int, int]:
    """Number → open file of ours that the process has there. Raises OSError."""
    files = {}
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        with contextlib.suppress(OSError):  # ours is closed, and so will be the child's
            if (fd := asked[name]) != -1 or os.get_inheritable(number):
                files[number] = number if fd == -1 else fd
    return files | {int(fd): int(fd) for fd in asked["pass_fds"]}


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask")), 8)


def install(server: Server) -> None:
    """From now on `server` forks the programs of rankfold that this process starts."""
    Popen._server = server
    subprocess.Popen = Popen  # type: ignore[misc]


@functools.cache
def start() -> None:
    """Start the server of this test run and `install` it; once. It ends when this process does.

    Not below sanitizers, which are preloaded: how their forks behave is not known.
    """
    if "LD_PRELOAD" not in os.environ and (server := launch()):
        install(server)


def launch() -> Server | None:
    """Start a server, which ends when this process does. None: it cannot work on this machine, and
    has said why."""
    folder = tempfile.mkdtemp(prefix="rankfold-warm-")
    address = os.path.join(folder, "requests")
    lifeline, ours = os.pipe()
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from support import fork_server; "
    code += f"fork_server.main({address!r}, {lifeline})"
    process = cold(
        [sys.executable, "-c", code],
        pass_fds=[lifeline],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    os.close(lifeline)

    def end() -> None:
        os.close(ours)
        process.kill()  # forks of this process may have the pipe, too
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    assert process.stdout
    with process.stdout:
        ready = process.stdout.read(len(fork_server.READY))
    return Server.here(address, process.pid) if ready else None
