"""Programs that the ranks of these tests run: ``rank_program.py NAME ARGUMENTS…``.

Each function stands for something programs do. They report through files and named pipes,
since no other process may write to a rank's stdout.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from rankfold.interpose.launcher import handshake


def say(fifo: str, word: str) -> None:
    """Blocks until the test reads."""
    Path(fifo).write_text(word)


def facts(path: str) -> None:
    """Writes what the rank sees of itself, as JSON."""
    seen = {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "stdin": os.readlink("/proc/self/fd/0"),
        "open": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    }
    Path(path).write_text(json.dumps(seen))


def wait_forever(ready: str) -> None:
    say(ready, "ready")
    signal.pause()


def family(ready: str) -> None:
    """A rank with a child and a grandchild, all of which wait."""
    if os.fork() == 0 and os.fork() == 0:
        say(ready, "ready")
    signal.pause()


def leave_orphan(pid_file: str) -> None:
    """Ends while a daemon of its own runs on."""
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(pid_file).write_text(str(daemon.pid))
    os._exit(0)


def leave_helper() -> None:
    """Ends while a child of its own runs that exits when it notices."""
    subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    os._exit(0)


def leave_fork_behind(status: str) -> None:
    """Uses the device, and ends while a child that it forked runs on."""
    assert hello(make_channel())[0] == 0
    if os.fork() == 0:
        signal.pause()
    os._exit(int(status))


def daemon(answers: str, end: str, how: str) -> None:
    """Forks and exits, once or "twice"; the child uses the device, "early" before its parent exits,
    lives until `end` is written to, and exits with 7."""
    for _ in range(2 if how == "twice" else 1):
        parent = os.getpid()
        read_end, write_end = os.pipe()
        if os.fork():
            os.read(read_end, 1)
            os._exit(0)
        if how == "early":
            assert hello(make_channel())[0] == 0
        os.write(write_end, b"x")
        while os.getppid() == parent:
            time.sleep(0.001)
    say(answers, json.dumps(hello(None if how == "early" else make_channel())))
    Path(end).read_text()
    os._exit(7)


def orphan_is_reaped() -> None:
    """An orphan ends while the rank runs: it must not stay a zombie."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        orphan = os.fork()
        if orphan:
            os.write(write_end, str(orphan).encode())
        os._exit(0)
    os.wait()
    orphan = int(os.read(read_end, 20))
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(orphan, 0)
            time.sleep(0.001)


def make_channel(rank: int = 0, world_size: int = 4, **wrong: int) -> int:
    """A channel as the library makes it, except for what `wrong` says."""
    fd = os.memfd_create("channel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, wrong.get("bytes", handshake.MEMFD_BYTES))
    header = handshake.HEADER.pack(
        wrong.get("magic", handshake.MAGIC),
        wrong.get("major", handshake.MAJOR),
        handshake.MINOR,
        wrong.get("memfd_bytes", handshake.MEMFD_BYTES),
        os.getpid(),
        wrong.get("rank", rank),
        wrong.get("world_size", world_size),
    )
    os.pwrite(fd, header, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, wrong.get("seals", handshake.SHARED_SEALS))
    return fd


def hello(fd: int | None, major: int = handshake.MAJOR) -> tuple[int, str]:
    """One greeting: (error, message)."""
    pid = 0 if fd is None else os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(os.environ["RANKFOLD_LAUNCHER"])
        greeting = handshake.HELLO.pack(handshake.MAGIC, major, handshake.MINOR, pid, 0)
        socket.send_fds(sock, [greeting], [] if fd is None else [fd])
        reply = sock.recv(handshake.WELCOME.size, socket.MSG_WAITALL)
    _magic, error, count, rank, world_size, device, message = handshake.WELCOME.unpack(reply)
    name = device[:64].rstrip(b"\0").decode()
    return error, message.rstrip(b"\0").decode() or f"{count} {rank} {world_size} {name}"


def say_hello(answers: str, wrong: str) -> None:
    """Ask first, then hand over a channel with the faults in `wrong`."""
    first = hello(None)
    second = hello(make_channel(**json.loads(wrong)))
    say(answers, json.dumps([first, second]))


def own(answers: str, end: str) -> None:
    """Hand over a channel, then live until `end` is written to."""
    say(answers, json.dumps(hello(make_channel())))
    Path(end).read_text()


def own_a_channel(folder: str) -> None:
    """A channel as the library makes it, mapped; at the end says what is in it."""
    fd = make_channel(seals=handshake.SHARED_SEALS | fcntl.F_SEAL_SEAL)
    whole = mmap.mmap(fd, 0x10000000)
    whole[handshake.HEADER.size + 512 : handshake.HEADER.size + 516] = b"mine"
    assert hello(fd)[0] == 0
    os.close(fd)
    Path(folder, "ready").write_text("x")
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.01)
    at = handshake.HEADER.size + 512
    print(whole[at : at + 8].decode(), flush=True)


def own_of_two(answers: str, end: str) -> None:
    """`own`, as one rank of two."""
    say(answers, json.dumps(hello(make_channel(rank=int(os.environ["RANK"]), world_size=2))))
    Path(end).read_text()


def two_owners(answers: str, end: str) -> None:
    """A second process asks while the first lives, and again after the first has ended."""
    read_end, write_end = os.pipe()
    first = os.fork()
    if first == 0:
        hello(make_channel())
        os.write(write_end, b"x")
        signal.pause()
    os.read(read_end, 1)
    asked = hello(None)
    refused = hello(make_channel())
    say(answers, json.dumps([asked, refused]))
    Path(end).read_text()
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    say(answers, json.dumps(hello(make_channel())))
    Path(end).read_text()


def nonsense(answers: str) -> None:
    """Clients that send rubbish, too little, or a channel that is none, then a good one."""
    path = os.environ["RANKFOLD_LAUNCHER"]
    for data in (b"", b"short", b"x" * 64):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(path)
            sock.sendall(data)
    with open("/dev/null") as null:
        not_a_memfd = hello(null.fileno())
    write_only = os.open(f"/proc/self/fd/{make_channel()}", os.O_WRONLY)
    unreadable = hello(write_only)
    old = hello(None, major=handshake.MAJOR + 1)
    say(answers, json.dumps([not_a_memfd, unreadable, old, hello(make_channel())]))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
