"""A program that is forked from the fork server finds and does what it would as an interpreter."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import leaks, privileges, seen, warm
from support.leaks import State
from support.patience import scaled

CLONE_NEWUTS = 0x04000000
Kind = type[subprocess.Popen[Any]]


@pytest.fixture(autouse=True)
def of_tests(state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs of the tests are forked as well."""
    monkeypatch.setattr(warm, "PACKAGES", {"support"})
    yield


def start(kind: Kind, way: str, **options: Any) -> Any:
    options = {"cwd": warm.TESTS, "stdout": subprocess.PIPE, "env": dict(os.environ), **options}
    process = kind([sys.executable, "-m", "support.seen", way], **options)
    assert was_forked(process) == (kind is warm.Popen)
    return process


def was_forked(process: subprocess.Popen[Any]) -> bool:
    return isinstance(process, warm.Popen) and process._reply is not None


def finds(kind: Kind, **options: Any) -> Any:
    """The state that a program finds, with pipes without their numbers."""
    with start(kind, "find", **options) as process:
        found = json.loads(process.stdout.read())
    assert process.returncode == 0
    for file in found["files"].values():
        file[0] = file[0].partition("[")[0]
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "own session": {"start_new_session": True, "stdin": subprocess.DEVNULL},
    "one output": {"stderr": subprocess.STDOUT, "stdin": subprocess.PIPE},
    "environment": {"env": {**os.environ, "TZ": "Asia/Tokyo", "word": "\u00fc\udcff", "empty": ""}},
    "stores": {"env": {**os.environ, "FSSPEC_S3_KEY": "k"}},  # read when fsspec is imported
    "umask": {"umask": 0o27},
    "faults": {"env": {**os.environ, "PYTHONFAULTHANDLER": "1"}},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_fork_finds_what_an_interpreter_finds(options: dict[str, Any]) -> None:
    assert finds(warm.Popen, **options) == finds(warm.cold, **options)


def test_a_fork_has_the_files_that_it_is_given() -> None:
    ends = os.pipe()
    try:
        forked = finds(warm.Popen, pass_fds=ends)
        assert forked == finds(warm.cold, pass_fds=ends)
    finally:
        for end in ends:
            os.close(end)
    assert {str(end) for end in ends} <= {*forked["files"]}


def test_a_fork_inherits_limits_signals_and_mask() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 100, hard))
    try:
        forked, started = finds(warm.Popen), finds(warm.cold)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before:
            signal.signal(number, handler)
    assert forked == started
    assert [soft - 100, hard] in forked["limits"]


@pytest.mark.parametrize("way", [each for each in seen.WAYS if each not in ("find", "another")])
def test_a_fork_ends_as_an_interpreter_does(way: str) -> None:
    ended = []
    for kind in (warm.Popen, warm.cold):
        with start(kind, way, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            output, errors = process.communicate(b"a line", timeout=scaled(20))
        ended.append((process.returncode, output, errors.splitlines()[-1:]))
    if way == "full":  # each in its own words
        assert ended[0][0] == ended[1][0] != 0
    else:
        assert ended[0] == ended[1]


def test_waiting_for_a_fork() -> None:
    with start(warm.Popen, "wait", stdin=subprocess.PIPE) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.terminate()
        assert process.wait(scaled(20)) == -signal.SIGTERM == process.poll()


def test_a_fork_starts_forks() -> None:
    for kind, forks in ((warm.Popen, "True"), (warm.cold, "False")):
        with start(kind, "another", text=True) as process:
            assert process.stdout.read().splitlines()[-1] == forks


def test_forks_end_with_a_server_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting requester notices, and an interpreter starts the next program."""
    server = warm.launch()
    assert server
    monkeypatch.setattr(warm.Popen, "_server", server)
    with start(warm.Popen, "wait", stdin=subprocess.PIPE) as process:
        os.kill(server.pid, signal.SIGKILL)
        assert process.wait(scaled(20)) == -signal.SIGKILL
        assert leaks.has_ended(process.pid, scaled(20))
    with warm.Popen([sys.executable, "-m", "support.seen", "status"], cwd=warm.TESTS) as process:
        assert process.wait() == 7
    assert not was_forked(process)


class TestAnInterpreterIsStarted:
    """A fork would not do the same."""

    @pytest.mark.parametrize(
        "options",
        [
            {"env": {**os.environ, "LD_LIBRARY_PATH": "/nowhere"}},
            {"env": {**os.environ, "PYTHONHASHSEED": "1"}},
            {"env": {**os.environ, "S3FS_LOGGING_LEVEL": "INFO"}},  # read when s3fs is imported
            {"preexec_fn": lambda: None},
            {"close_fds": False},
            {"user": os.getuid()},
        ],
        ids=["LD_", "PYTHON", "S3FS_", "preexec_fn", "close_fds", "user"],
    )
    def test_for(self, options: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "support.seen", "status"]
        with warm.Popen(command, cwd=warm.TESTS, **options) as process:
            assert process.wait() == 7
        assert not was_forked(process)

    def test_for_a_program_that_ends_with_its_parent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(warm, "PACKAGES", {"rankfold"})
        command = [sys.executable, "-m", "rankfold.plugin_process", "none", str(os.getpid())]
        with warm.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.communicate()[0], "it has answered that there is no such policy"
        assert not was_forked(process)

    def test_where_the_folder_has_another_rankfold(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(warm, "PACKAGES", {"rankfold"})
        (tmp_path / "rankfold").mkdir()
        (tmp_path / "rankfold/__init__.py").touch()
        (tmp_path / "rankfold/__main__.py").write_text("print('another')")
        found = subprocess.check_output([sys.executable, "-m", "rankfold"], cwd=tmp_path)
        assert found == b"another\n"

    def test_in_another_namespace(self) -> None:
        privileges.need_namespaces()
        pid = os.fork()
        if pid == 0:
            try:
                assert ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0
                self.test_for({})
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
