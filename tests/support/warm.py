"""Commands of `rankfold` as forks of one process that has imported them already.

Each command has its own process, environment, working directory and output, as if it had been
started by its name; what it saves is the 0.3 s of CPU that importing takes. Settings that only take
effect when an interpreter starts (`COLD`) need a new interpreter: `takes` is false for them.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from typing import NoReturn

COLD = ("LD_", "PYTHON", "LC_", "LANG")
EITHER_WAY = {"PYTHONFAULTHANDLER"}  # the warm process has it on
LARGEST = 1 << 20  # bytes of a request


class Warm:
    """The process that commands are forked from. `close` ends it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
        self._environment = dict(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.warm", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Whether a command with this environment needs no interpreter of its own."""
        names = {*self._environment, *environment} - EITHER_WAY
        return not any(
            self._environment.get(name, "") != environment.get(name, "")
            for name in names
            if name.startswith(COLD)
        )

    def run(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run with text captured. Raises subprocess.TimeoutExpired."""
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as later:
            later.enter_context(ours)
            out, err = (later.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            request = {"arguments": arguments, "env": dict(environment), "folder": os.getcwd()}
            with theirs:
                fds = [out.fileno(), err.fileno(), theirs.fileno()]
                socket.send_fds(self._ours, [json.dumps(request).encode()], fds)
            ours.settimeout(timeout_s)
            try:
                status = int(ours.recv(16).decode())
            except TimeoutError:
                raise subprocess.TimeoutExpired(["rankfold", *arguments], timeout_s) from None
            printed = [os.pread(each.fileno(), 1 << 30, 0).decode() for each in (out, err)]
        command = ["rankfold", *arguments]
        return subprocess.CompletedProcess(command, status, *printed)

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


@functools.cache
def process() -> Warm:
    """The one of this test run. `state` begins with it, so that no test seems to have left it."""
    found = Warm()
    atexit.register(found.close)
    return found


def serve(requests: socket.socket) -> None:
    """Fork a process for each request until no process can send one any more."""
    from rankfold.reconciler.cli import COMMANDS

    for module, _ in COMMANDS.values():  # what each fork would import
        importlib.import_module(f"rankfold.reconciler.commands.{module}")
    faulthandler.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test run ends it
    while True:
        data, fds, _, _ = socket.recv_fds(requests, LARGEST, 3)
        if not data:
            return
        if os.fork() == 0:
            requests.close()
            _wait_for(json.loads(data), *fds)
        for fd in fds:
            os.close(fd)


def _wait_for(request: dict[str, object], out: int, err: int, done: int) -> NoReturn:
    """Run one command in a child of this process and send its exit status to `done`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(done)
        _command(request, out, err)
    os.close(out)
    os.close(err)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):  # the test has given up
        os.write(done, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _command(request: dict[str, object], out: int, err: int) -> NoReturn:
    from rankfold.__main__ import main

    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, 256)
        os.chdir(str(request["folder"]))
        os.environ.clear()
        os.environ.update(request["env"])  # type: ignore[call-overload]
        sys.argv = ["rankfold", *request["arguments"]]  # type: ignore[misc]
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001, as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
