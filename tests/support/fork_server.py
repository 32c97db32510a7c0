"""A process that has imported rankfold's modules, and forks a process for each request.

`support.warm` sends the requests. A fork behaves as ``python -m MODULE ARGUMENTS`` started by the
requester: the same environment, folder, open files, limits, signals, command line in /proc. Two
things differ: its parent is this process, and it is killed when that exits; and hashes have the
same seed in all forks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any, NoReturn

_STORE = ["fsspec.implementations.local", "s3fs", "jsonschema", "jsonschema_specifications"]
# Program (a module, or the path of a script) → modules that it imports later, or by name.
LATER = {
    "rankfold": ["jsonschema", "jsonschema_specifications"],
    "rankfold.reconciler.daemon": ["jsonschema", "jsonschema_specifications"],
    **{f"rankfold.checkpoint.{name}": _STORE for name in ("begin", "fetch", "ownership", "upload")},
    "rankfold.interpose.launcher": ["rankfold.interpose.launcher.start"],
    "rankfold.proxy.server": ["rankfold.proxy.hal.soft.modules"],
    "rankfold.proxy.hal.soft.compiler.server": ["rankfold.proxy.hal.soft.compiler.codegen"],
}
READY = b"ready"
MOST_FDS = 253  # of a message, SCM_MAX_FD
LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
OF_LIBC = {32, 33}  # signals that programs cannot set
_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SET_MM_MAP = 1, 35, 14
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_void_p

Request = dict[str, Any]


class Server:
    """`requests`: a datagram socket. Each datagram has as its files: a text in JSON (see `warm`), a
    socket for the replies, and those that the process gets."""

    def __init__(self, requests: socket.socket, lifeline: int):
        self.requests, self.lifeline = requests, lifeline
        self.own_path = sys.path[:]
        self.children: dict[int, tuple[int, int]] = {}  # pidfd → pid, socket for its end

    def serve(self) -> tuple[Request, list[int]] | None:
        """Returns None when the test run ends; in each forked process its request and files."""
        while True:
            poll = select.poll()
            for fd in (self.requests.fileno(), self.lifeline, *self.children):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll():
                if fd == self.lifeline:
                    return None
                if fd in self.children:
                    self._report(fd)
                elif forked := self._fork():
                    return forked

    def _report(self, pidfd: int) -> None:
        pid, replies = self.children.pop(pidfd)
        os.close(pidfd)
        _reply(replies, os.waitpid(pid, 0)[1])
        os.close(replies)

    def _fork(self) -> tuple[Request, list[int]] | None:
        """Fork for the next request; in the new process its request and files."""
        _, received, _, _ = socket.recv_fds(self.requests, 1, MOST_FDS)
        text, replies, *files = received
        with open(text) as file:
            request: Request = json.loads(file.read())
        load(request["program"])
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # the requester sees that the socket is closed, and starts an interpreter
            pid = -1
        if pid:
            for fd in files:
                os.close(fd)
            if pid == -1:
                os.close(replies)
            else:
                self.children[os.pidfd_open(pid)] = (pid, replies)
                _reply(replies, pid)
            return None
        _end_with(server)
        self.requests.close()
        for fd in (self.lifeline, replies, *self.children):
            os.close(fd)
        for _, of_other in self.children.values():
            os.close(of_other)
        sys.path[:] = [_first_of_path(request), *self.own_path]
        return request, files


def _end_with(parent: int) -> None:
    """Nothing of a test run that was killed runs on, and who waits for it learns of its end."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _first_of_path(request: Request) -> str:
    program: str = request["program"]
    return os.path.dirname(program) if os.path.isabs(program) else request["folder"]


def _reply(replies: int, number: int) -> None:
    with contextlib.suppress(OSError):  # the requester has ended
        os.write(replies, b"%d" % number)


def load(program: str) -> None:
    """Import what processes of a program would import; what fails here fails again in them."""
    names = [_support(program) if os.path.isabs(program) else program, *LATER.get(program, ())]
    for name in names:
        if name in sys.modules:
            continue
        with contextlib.suppress(Exception):
            importlib.import_module(name)
            if name == "rankfold":
                _load_commands()
            if name in ("rankfold", "rankfold.reconciler.daemon"):
                _load_schemas()
            if name == "rankfold.proxy.server":
                _declare_core()
        gc.collect()
        gc.freeze()  # or collecting in the processes would copy all of it


def _support(script: str) -> str:
    """The name under which a script of this folder is imported."""
    return f"support.{os.path.basename(script).removesuffix('.py')}"


def _load_commands() -> None:
    from rankfold.reconciler.cli import COMMANDS

    for module, _ in COMMANDS.values():
        importlib.import_module(f"rankfold.reconciler.commands.{module}")


def _load_schemas() -> None:
    from rankfold.reconciler.source import schemas

    for kind in ("Job", "Policy", "Pool", "Service"):
        schemas.load_schema(kind)


def _declare_core() -> None:
    from rankfold import paths
    from rankfold.proxy import native

    native.declarations(paths.native("include/proxy.h").read_text())


def become(request: Request, files: list[int]) -> None:
    """Give this process what the request says. `files`: those for the numbers in it."""
    if request["session"] != os.getsid(0) or request["new_session"]:
        os.setsid()
    else:
        with contextlib.suppress(OSError):  # the group has ended
            os.setpgid(0, request["group"])
    os.chdir(request["folder"])
    os.umask(request["umask"])
    _set_environment(request["environment"])
    _put_files(dict(zip(request["fds"], files, strict=True)))
    _open_streams()
    for number, limit in zip(LIMITS, request["limits"], strict=True):
        resource.setrlimit(number, limit)
    _set_signals(set(request["ignored"]), request["blocked"])
    show(request["command"], request["environment"])
    begin = request["command"].index(request["program"])
    sys.argv = request["command"][begin:]
    sys.orig_argv = request["command"]


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    if config := sys.modules.get("fsspec.config"):
        _configure_fsspec(config)


def _configure_fsspec(config: Any) -> None:
    """Read again what fsspec read from the environment when it was imported."""
    default = os.path.expanduser("~/.config/fsspec")
    config.conf.clear()
    config.set_conf_files(os.environ.get("FSSPEC_CONFIG_DIR", default), config.conf)
    config.set_conf_env(config.conf)


def _put_files(files: dict[int, int]) -> None:
    """Open files (number → number now) get their numbers; all others are closed."""
    above = max(files, default=0) + 1
    moved = {to: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for to, fd in files.items()}
    for to, fd in moved.items():
        os.dup2(fd, to)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in files:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(entry))


def _open_streams() -> None:
    """Opens the standard streams as an interpreter does, with the encodings of this one."""
    for name, fd in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        ours, stream = getattr(sys, f"__{name}__"), None
        with contextlib.suppress(OSError):  # it is closed
            stream = _stream(fd, ours)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(fd: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    buffers = not like.write_through  # PYTHONUNBUFFERED
    size = -1 if buffers or fd == 0 else 0
    file = open(fd, "wb" if fd else "rb", buffering=size, closefd=False)  # noqa: SIM115
    lines = buffers and (fd == 2 or file.isatty())
    return io.TextIOWrapper(
        file,
        like.encoding,
        like.errors,
        line_buffering=lines,
        write_through=not buffers,
    )


def _set_signals(ignored: set[int], blocked: list[int]) -> None:
    faulthandler.disable()
    own: dict[int, Any] = dict.fromkeys((signal.SIGPIPE, signal.SIGXFSZ), signal.SIG_IGN)
    own[signal.SIGINT] = signal.default_int_handler
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - OF_LIBC:
        wanted = signal.SIG_IGN if number in ignored else own.get(number, signal.SIG_DFL)
        if signal.getsignal(number) != wanted:
            signal.signal(number, wanted)
    if "PYTHONFAULTHANDLER" in os.environ:
        faulthandler.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def show(command: list[str], environment: dict[str, str]) -> None:
    """Make /proc/PID/cmdline and environ show these. Raises OSError where that is not possible."""
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    pairs = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in environment.items())
    text = ctypes.create_string_buffer(words + pairs, len(words + pairs))
    stat = open("/proc/self/stat", "rb").read().rpartition(b") ")[2].split()  # noqa: SIM115
    start_code, end_code, stack, start_data, end_data, start_brk = (
        int(stat[number - 3]) for number in (26, 27, 28, 45, 46, 47)
    )
    at = ctypes.addressof(text)
    middle, end = at + len(words), at + len(words + pairs)
    segments = (start_code, end_code, start_data, end_data, start_brk, _libc.sbrk(0), stack)
    # struct prctl_mm_map: no auxiliary vector, and the executable stays as it is.
    memory = struct.pack("<12QIi", *segments, at, middle, middle, end, 0, 0, -1)
    if _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, memory, ctypes.c_ulong(len(memory)), 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")
    _shown[:] = [text]


_shown: list[Any] = []  # the kernel reads it


def run(program: str) -> NoReturn:
    """Run a program, and exit with its status. The kernel frees the memory, faster than the
    interpreter would."""
    sys.modules.pop(program, None)
    status = 1
    gc.enable()
    try:
        if os.path.isabs(program):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = _status(ended.code)
    except BaseException as error:  # noqa: BLE001, as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream and not stream.closed:
                stream.flush()
    except OSError as error:
        os.write(2, f"Exception ignored when its output was flushed: {error!r}\n".encode())
        status = 120
    os._exit(status)


def _status(code: object) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def main(address: str, lifeline: int) -> None:
    """Serve requests at `address` until nothing holds the other end of `lifeline`."""
    from support import warm

    gc.disable()
    sys.path[:] = [each for each in sys.path if each not in ("", str(warm.TESTS))]
    here = warm.Server.here(address, os.getpid())
    try:
        show(sys.orig_argv, dict(os.environ))
    except OSError as error:
        sys.exit(f"every program starts an interpreter: {error}")
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests.bind(address)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test run ends it
    os.write(1, READY)
    os.dup2(2, 1)
    if forked := Server(requests, lifeline).serve():
        request, files = forked
        become(request, files)
        warm.install(here)
        run(request["program"])
    os.unlink(address)
    os.rmdir(os.path.dirname(address))
