"""Only the same user, outside of every rank, may use a control socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold import control, messages, peers
from rankfold.control import ControlError
from support import privileges

from .test_server import serving

NOBODY = 65534
ASK = """
import os, sys
from rankfold import control, messages, peers
path, uid, marked = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "marked"
if marked:
    peers.mark()
os.setuid(uid)
try:
    with control.Client(path) as client:
        print(client.request("hello")[0]["kind"])
except control.ControlError as error:
    print(f"{error.code}: {error.message}")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """That everybody may look into: what keeps others out is then the check alone."""
    with tempfile.TemporaryDirectory(prefix="rankfold-test-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def reply_to_user(path: Path, uid: int, marked: bool = False) -> str:
    """The reply to a process of that user."""
    command = [sys.executable, "-c", ASK, str(path), str(uid), "marked" if marked else ""]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_our_own_are_let_in(folder: Path) -> None:
    with serving(folder / "s"):
        assert reply_to_user(folder / "s", os.getuid()) == "test"


def test_another_user_is_refused_where_the_file_lets_it_in(folder: Path) -> None:
    if os.getuid() != 0:
        privileges.missing("needs root to become another user")
    with serving(folder / "s"):
        assert "Permission denied" in reply_to_user(folder / "s", NOBODY)
        os.chmod(folder / "s", 0o666)
        assert reply_to_user(folder / "s", NOBODY) == f"denied: the peer is user {NOBODY}"


def test_a_process_marked_as_a_rank_s_is_refused(folder: Path) -> None:
    with serving(folder / "s"):
        told = reply_to_user(folder / "s", os.getuid(), marked=True)
    assert told.startswith("denied: process") and "ranks must not connect to rankfold" in told


def test_children_of_a_marked_process_are_marked() -> None:
    start = "os.execvp('sh', ['sh', '-c', 'setsid cat /proc/self/limits'])"
    script = f"import os; from rankfold import peers; peers.mark(); {start}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("Max realtime timeout")]
    assert line.split()[4] == str(peers.RANK_LIMIT_US)


def test_a_message_of_another_version_is_refused_by_a_client_too() -> None:
    ours, theirs = socket.socketpair()
    channel = control.Channel(ours)
    with theirs:
        body = b'{"v":%d,"id":1,"ok":true}' % (messages.VERSION + 1)
        theirs.sendall(len(body).to_bytes(4, "little") + body)
        assert channel.fill()
        with pytest.raises(ControlError, match="has protocol version"):
            channel.take()
    channel.close()
