"""Starts launchers in the background.

``python -m rankfold.interpose.launcher --config FILE…`` starts one launcher for each file. It
returns when their sockets listen and the ranks have been started: it prints a line of JSON for
each, ``{"rank": rank, "pid": launcher, "rank_pid": rank's or null}`` (pids as the caller sees
them), and exits with status 0. If a launcher itself cannot start (bad config, no permission), the
command prints the reason to stderr, leaves nothing of that launcher behind, and exits with status 1
when the others have started. It waits at most `START_S` for each launcher; a launcher that takes
longer may still start later. A command that cannot be executed counts as an end of the *rank*: see
the exit file.

Descriptors that the caller passes on (a lock) stay open for the launcher's life; the rank does not
get them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from rankfold import limits
from rankfold.control import Message
from rankfold.interpose.launcher.config import Config, ConfigError, parse_config
from rankfold.interpose.launcher.launcher import Launcher
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank import sandbox as sandboxes
from rankfold.log import area, set_up

log = area(__file__)

AT_ONCE = 8  # launchers that one process starts at a time: each keeps a core busy for a while
START_S = 25  # per launcher: its working directory may be on a file system that does not answer
KILLED_ENDS_S, KILLED_POLL_S = 10.0, 0.01  # for killed processes to end, after the loop has failed


class _CannotLaunch(Exception):
    """The launcher could not start. `namespace`: because privileges are missing."""

    def __init__(self, message: str, namespace: bool = False):
        super().__init__(message)
        self.namespace = namespace


def launch(config: Config) -> Message:
    """Start the launcher in the background. Returns its pids once it listens and the rank runs.

    Raises _CannotLaunch.
    """
    for folder in (config.logs, os.path.dirname(config.exit_file)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    log_file = os.open(config.log("launcher.log"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # The launcher holds the lock for its life: a second launcher for the same rank is refused.
        fcntl.flock(log_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _CannotLaunch(f"rank {config.rank} of {config.job} has a launcher already") from None
    if os.path.exists(config.exit_file):
        raise _CannotLaunch(f"the rank has ended already: {config.exit_file} is there")
    if config.namespaces == "none":
        return _spawn(config, log_file, namespaced=False)
    try:
        return _spawn(config, log_file, namespaced=True)
    except _CannotLaunch as failure:
        if not failure.namespace or config.namespaces == "require":
            raise
    return _spawn(config, log_file, namespaced=False)


def _spawn(config: Config, log_file: int, namespaced: bool) -> Message:
    """Fork twice and wait for the report of the second process, which is in the namespace and not
    our child."""
    host_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    read_end, write_end = os.pipe()
    middle = os.fork()
    if middle == 0:
        status = 1
        try:
            os.close(read_end)
            os.setsid()
            if namespaced:
                _in_namespace(write_end, sandboxes.unshare_pids)
            if os.fork() == 0:
                status = _background(config, log_file, namespaced, host_proc, write_end)
            else:
                status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    os.close(host_proc)
    os.waitpid(middle, 0)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    report: Message = (
        json.loads(text) if text else {"error": f"it exited; see {config.log('launcher.log')}"}
    )
    if "error" in report:
        raise _CannotLaunch(report["error"], bool(report.get("namespace")))
    return report


def _in_namespace(report: int, step: Callable[[], None]) -> None:
    """Do a step that needs privileges; without them, report that and end this process."""
    try:
        step()
    except OSError as error:
        body = {"error": f"{error}: needs root or CAP_SYS_ADMIN", "namespace": True}
        os.write(report, json.dumps(body).encode())
        os._exit(1)


def _background(
    config: Config, log_file: int, namespaced: bool, host_proc: int, report: int
) -> int:
    """Run the launcher in the background. Returns its exit status."""
    launcher: Launcher | None = None
    try:
        _detach(log_file)
        process.set_name(f"launcher {config.rank}")  # several launchers share its command line
        set_up()
        if namespaced:
            _in_namespace(report, sandboxes.mount_proc)
        else:
            process.become_subreaper()
        launcher = made = Launcher(config, namespaced, host_proc)
        launcher.start(lambda: _report_pids(report, made))
        launcher.run()
        return 0
    except Exception as error:  # whatever the error is, record the rank's end
        log.exception("the launcher failed")
        if launcher is None or launcher.state() == "empty":
            with contextlib.suppress(OSError):  # it is closed already
                os.write(report, json.dumps({"error": f"{error}"}).encode())
        else:
            until = time.monotonic() + KILLED_ENDS_S
            while not process.killed_all(namespaced) and time.monotonic() < until:
                time.sleep(KILLED_POLL_S)
            launcher.end(-signal.SIGKILL, f"its launcher failed: {error!r}")
        return 1
    finally:
        for path in (config.socket, config.client_socket):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _report_pids(report: int, launcher: Launcher) -> None:
    pids = {
        "pid": process.pid_in(launcher.host_proc),
        "rank_pid": launcher.started.host_pid if launcher.started else None,
    }
    with contextlib.suppress(BrokenPipeError):  # the caller was killed: nothing reads the report
        os.write(report, json.dumps(pids).encode())
    os.close(report)


def _detach(log_file: int) -> None:
    """Detach from the caller: folder, standard streams, signals meant for a terminal."""
    os.chdir("/")
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            os.set_inheritable(int(fd), False)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(log_file, 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


def main() -> int:
    parser = argparse.ArgumentParser(prog="rankfold.interpose.launcher")
    parser.add_argument("--config", type=Path, nargs="+", required=True)
    limits.lift()
    statuses, starting = [], 0
    for path in parser.parse_args().config:
        if starting == AT_ONCE:
            statuses.append(os.wait()[1])
            starting -= 1
        try:
            child = os.fork()
        except OSError as error:  # no more processes
            statuses.append(_print_error(path, error))
            continue
        if child == 0:
            os._exit(_launch(path))
        starting += 1
    statuses += [os.wait()[1] for _ in range(starting)]
    return int(any(statuses))


def _launch(path: Path) -> int:
    """Start a launcher, and print its pids or why it cannot start. Returns the exit status."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it has not started within {START_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(START_S)
    try:
        config = parse_config(json.loads(path.read_text()))
        line = json.dumps({"rank": config.rank, **launch(config)})
        os.write(1, f"{line}\n".encode())  # in one write, because other processes write here too
    except (OSError, ValueError, ConfigError, _CannotLaunch) as error:
        return _print_error(path, error)
    return 0


def _print_error(path: Path, error: Exception) -> int:
    os.write(2, f"launcher: {path}: {error}{limits.hint()}\n".encode())
    return 1
