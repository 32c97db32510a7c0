"""The `state` fixture's watch sees every kind of thing that a test can leave behind."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support import leaks, privileges
from support.leaks import State
from support.patience import scaled

ORPHAN = """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    os._exit(0)
os.wait()
"""


def other_watch(state: State) -> leaks.Watch:
    """The watch of a test that runs concurrently."""
    return dataclasses.replace(state.watch, folder=state.folder.with_name("rankfold-test-other"))


def test_nothing_is_left_when_nothing_was_done(state: State) -> None:
    assert state.watch.left() == []


def test_an_orphaned_daemon_is_seen_and_ended(state: State) -> None:
    subprocess.run([sys.executable, "-c", ORPHAN], check=True)
    assert [line.split()[0] for line in state.watch.left()] == ["process"]
    state.watch.clean()
    assert state.watch.new_processes() == set()


def test_a_process_in_a_pid_namespace_is_seen(state: State) -> None:
    privileges.need_namespaces()
    inside = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "1000"])
    while len(state.watch.new_processes()) < 2:
        assert inside.poll() is None
    assert len(state.watch.left()) == 2
    state.watch.clean()
    inside.wait()


def test_sockets_are_seen(state: State) -> None:
    state.runtime.mkdir()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as named,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as abstract,
    ):
        named.bind(str(state.runtime / "control"))
        abstract.bind(f"\0{state.folder.name}")
        assert sorted(line.split()[0] for line in state.watch.left()) == ["socket", "socket"]
    assert state.watch.left() == [f"socket {state.runtime}/control"]
    state.watch.clean()
    assert state.watch.left() == []


def test_shared_memory_is_seen(state: State) -> None:
    path = Path(f"/dev/shm/{state.folder.name}")
    path.write_text("left")
    assert state.watch.left() == [f"shared memory {path}"]
    assert other_watch(state).left() == []
    state.watch.clean()
    assert not path.exists()


def test_mounts_are_seen(state: State) -> None:
    privileges.need_namespaces()
    point = state.folder / "mounted"
    point.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"tmpfs", str(point).encode(), b"tmpfs", 0, None) == 0
    assert state.watch.left() == [f"mount {point}"]
    assert other_watch(state).left() == []
    state.watch.clean()
    assert state.watch.left() == []


def test_a_zombie_is_no_leak(state: State) -> None:
    child = subprocess.Popen(["true"])
    assert leaks.has_ended(child.pid, 20)
    assert state.watch.left() == []
    child.wait()


FAILING = """
import subprocess, sys
import pytest
from support import leaks

leaks.GRACE_S = 0.2

def test_fails(state):
    (state.path / "proxy.log").write_text("the proxy's last words")
    assert False

def test_compares_much():
    assert list(range(30000)) == list(range(1, 30001))

def test_leaks(state):
    subprocess.Popen(["sleep", "1000"])

@pytest.mark.timeout(1)
def test_hangs(state):
    script = "import sys, time; print('up', flush=True); time.sleep(1000)"
    err = open(state.path / "child.err", "w")
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=err)
    child.stdout.readline()
    child.stdout.readline()
"""


INTERRUPTED = """
import os, signal, subprocess

def test_is_interrupted():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.kill(os.getpid(), signal.SIGINT)
"""


def run_tests(state: State, text: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests with the fixtures of these, in the test's folder."""
    tests = Path(__file__).parents[1]
    for name in ("conftest.py", "support"):
        (state.folder / name).symlink_to(tests / name)
    (state.folder / "test_it.py").write_text(text)
    folder = str(state.folder)
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", folder]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--tb=short", "test_it.py"],
        cwd=state.folder,
        env={
            **os.environ,
            "PYTHONPATH": folder,
            "RANKFOLD_TEST_FOLDER": folder,
            "CI": "true",
            "PYTEST_ADDOPTS": "",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
    )


def test_output_of_a_failing_test(state: State) -> None:
    """Through pytest itself: a failure keeps its files, a leak fails, a hang shows stacks; and what
    differs in much is reported at once, in CI, too."""
    out = run_tests(state, FAILING).stdout
    assert "3 failed, 1 passed, 1 error" in out, out
    assert "At index 0 diff: 0 != 1" in out and "Full diff" not in out
    assert "the proxy's last words" in out
    assert "the test left behind:\n  process" in out and "sleep 1000" in out
    assert "most recent call first" in out and 'File "<string>", line 1' in out, out
    assert out.count("the test's files are kept in") == 3


def test_nothing_is_left_by_tests_that_are_interrupted(state: State) -> None:
    done = run_tests(state, INTERRUPTED)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    assert state.watch.new_processes() == set()
