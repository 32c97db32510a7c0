"""Programs of ranks that are frozen, saved and restored: ``resting_program.py NAME ARGS…``.

They are written as if they were never stopped. Each says "ready" when it is in the
middle of things, and ends with what it found as its output.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def ready(folder: str) -> None:
    Path(folder, "ready").write_text("x")


def count(folder: str) -> None:
    """Numbers, one after the other, until it gets the word to stop."""
    ready(folder)
    number = 0
    while not os.path.exists(f"{folder}/go"):
        number += 1
        print(number, flush=True)
        time.sleep(0.002)


def daemon(folder: str, forks: int = 1) -> None:
    """Cuts itself loose from whoever started it."""
    for number in range(forks):
        parent = os.getpid()
        if os.fork():
            os._exit(0)
        if number == 0:
            os.setsid()
        while os.getppid() == parent:
            time.sleep(0.001)
    ready(folder)
    wait_for(f"{folder}/go")
    print("from the daemon", flush=True)
    os._exit(0)


def second_daemon(folder: str) -> None:
    """That forks once more, so that it can never have a terminal."""
    daemon(folder, forks=2)


def everything(folder: str) -> None:
    """Threads, TCP to itself, a child behind pipes, SQLite, a deleted file, an interval timer."""
    lines = []
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    near.settimeout(20)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    database = sqlite3.connect(f"{folder}/database")
    database.execute("pragma journal_mode=wal")
    database.execute("create table t (n integer)")
    database.execute("insert into t values (1)")
    deleted = open(f"{folder}/deleted", "w+")  # noqa: SIM115
    deleted.write("kept")
    deleted.flush()
    os.unlink(f"{folder}/deleted")
    appended = open(f"{folder}/appended", "a")  # noqa: SIM115
    appended.write("before\n")
    appended.flush()
    ticks = []
    signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    continued: list[int] = []
    signal.signal(signal.SIGCONT, lambda *_: continued.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    alarmed = threading.Event()
    watched = threading.Thread(target=lambda: alarmed.wait(3600), daemon=True)
    watched.start()
    near.sendall(b"on its way")
    child.stdin.write(b"through the child\n")
    ready(folder)
    wait_for(f"{folder}/go")
    seen = len(ticks)
    while len(ticks) == seen:
        time.sleep(0.001)
    far_got = far.recv(100)
    far.sendall(far_got.upper())
    lines.append(near.recv(100).decode())
    child.stdin.close()
    lines.append(child.stdout.read().decode().strip())
    lines.append(f"child {child.wait()}")
    database.execute("insert into t values (2)")
    database.commit()
    lines.append(str(database.execute("select n from t order by n").fetchall()))
    deleted.seek(0)
    lines.append(deleted.read())
    appended.write("after\n")
    appended.flush()
    lines.append(f"continued {len(continued)}, alive {watched.is_alive()}, pid {os.getpid()}")
    alarmed.set()
    watched.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("\n".join(lines), flush=True)


def watchdog(folder: str) -> None:
    """A thread that is to be fed within the seconds of its patience: it bites where it is not."""
    last = [time.monotonic()]
    bitten: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            if time.monotonic() - last[0] > 2:
                bitten.append(time.monotonic() - last[0])

    thread = threading.Thread(target=watch)
    thread.start()
    ready(folder)
    while not os.path.exists(f"{folder}/go"):
        last[0] = time.monotonic()
        time.sleep(0.05)
    stop.set()
    thread.join()
    print(f"bitten {len(bitten)}", flush=True)


def io_uring(folder: str) -> None:
    parameters = ctypes.create_string_buffer(120)
    fd = ctypes.CDLL(None, use_errno=True).syscall(425, 4, parameters)
    if fd < 0:
        return lacking(folder, "io_uring")
    return holding(folder)


def mptcp(folder: str) -> None:
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    except OSError:
        return lacking(folder, "MPTCP")
    with sock:
        holding(folder)


def namespace(folder: str) -> None:
    """A child with a host name of its own."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        done = ctypes.CDLL(None).unshare(0x04000000)  # CLONE_NEWUTS
        os.write(write_end, b"x" if done == 0 else b"-")
        wait_for(f"{folder}/go")
        os._exit(0)
    assert os.read(read_end, 1) == b"x"
    holding(folder)
    os.wait()


def userfaultfd(folder: str) -> None:
    holding_fd(folder, "userfaultfd", 323, os.O_CLOEXEC)


def secret(folder: str) -> None:
    """memfd_secret, mapped."""
    fd = ctypes.CDLL(None, use_errno=True).syscall(447, 0)
    if fd < 0:
        return lacking(folder, "memfd_secret")
    os.ftruncate(fd, 4096)
    with mmap.mmap(fd, 4096):
        os.close(fd)
        holding(folder)


def perf(folder: str) -> None:
    """A software counter of its own time."""
    about = (1).to_bytes(4, "little") + (112).to_bytes(4, "little") + bytes(104)
    holding_fd(folder, "performance counter", 298, about, 0, -1, -1, 0)


def traced(folder: str) -> None:
    """A child watches it, as a debugger does."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        done = ctypes.CDLL(None).ptrace(0x4206, os.getppid(), None, None)  # PTRACE_SEIZE
        os.write(write_end, b"x" if done == 0 else b"-")
        wait_for(f"{folder}/go")
        os._exit(0)
    assert os.read(read_end, 1) == b"x"
    holding(folder)
    os.wait()


def no_main_thread(folder: str) -> None:
    """Another thread continues when the main one has exited, without any code of libpthread's."""

    def continues() -> None:
        while Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        holding(folder)
        os._exit(0)

    threading.Thread(target=continues).start()
    ctypes.CDLL(None).syscall(60, 0)


def holding_fd(folder: str, what: str, number: int, *arguments: bytes | int) -> None:
    """Makes a system call, which returns the descriptor to hold."""
    if ctypes.CDLL(None, use_errno=True).syscall(number, *arguments) < 0:
        return lacking(folder, what)
    return holding(folder)


def holding(folder: str, works: Callable[[], bool] = lambda: True) -> None:
    ready(folder)
    wait_for(f"{folder}/go")
    print("still here", works(), flush=True)


def lacking(folder: str, what: str) -> None:
    print(f"none: {what}", flush=True)
    ready(folder)


def taken_name(folder: str) -> None:
    """Mapped by a name that is another file's by now, while it has one of its own."""
    opened = Path(folder, "made")
    opened.write_bytes(bytes(32))
    with opened.open("r+b") as file, mmap.mmap(file.fileno(), 32) as mapped:
        os.link(opened, f"{folder}/named")
        opened.unlink()
        opened.touch()
        ready(folder)
        wait_for(f"{folder}/go")
        mapped[0] = 1
    print("still here True", flush=True)


def unix_stream(folder: str, path: str) -> None:
    """A connection out of the rank that only CRIU finds out about."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        ready(folder)
        wait_for(f"{folder}/go")
    print("still here", flush=True)


def listen_to_outside(folder: str, host: str, port: str) -> None:
    """Does nothing but wait for a process that is no rank."""
    with socket.create_connection((host, int(port))) as line:
        ready(folder)
        try:
            while data := line.recv(4096):
                print(data.decode(), end="", flush=True)
        except ConnectionAbortedError:
            print("aborted", flush=True)


def connected(folder: str, host: str) -> None:
    """To itself, on an address of the machine."""
    with socket.create_server((host, 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        holding(folder, lambda: near.send(b"still") == 5 and far.recv(5) == b"still")


def receiving(folder: str, host: str) -> None:
    """Datagrams, on an address of the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, 0))
        name = sock.getsockname()
        holding(folder, lambda: sock.sendto(b"x", name) == 1 and sock.recv(9) == b"x")


def orphan(folder: str) -> None:
    """A daemon that has cut itself loose."""
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            ready(folder)
            wait_for(f"{folder}/go")
        os._exit(0)
    os.wait()
    wait_for(f"{folder}/go")


def talk(folder: str, other: str) -> None:
    """A rank of two that asks and answers without end, and is impatient."""
    rank = int(os.environ["RANK"])
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            Path(folder, "port").write_text(str(listener.getsockname()[1]))
            line, _ = listener.accept()
    else:
        wait_for(f"{other}/port")
        while not (port := Path(other, "port").read_text()):
            time.sleep(0.01)
        line = socket.create_connection(("127.0.0.1", int(port)))
    line.settimeout(20)
    ready(folder)
    number = 0
    while not line_ended(folder, line, rank, number):
        number += 1
    print("end", flush=True)


def line_ended(folder: str, line: socket.socket, rank: int, number: int) -> bool:
    """One round: rank 0 says the number or that it ends, rank 1 says it again."""
    if rank == 0:
        said = b"end....." if os.path.exists(f"{folder}/go") else number.to_bytes(8, "big")
        line.sendall(said)
        assert line.recv(8, socket.MSG_WAITALL) == said
    else:
        said = line.recv(8, socket.MSG_WAITALL)
        assert said in (b"end.....", number.to_bytes(8, "big")), (said, number)
        line.sendall(said)
    return said == b"end....."


def shared_memory(folder: str) -> None:
    """System V's, in an IPC namespace of our own."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    identifier = libc.shmget(1234, 4096, 0o1600)
    at = libc.shmat(identifier, None, 0)
    ctypes.memmove(at, b"shared", 6)
    ready(folder)
    wait_for(f"{folder}/go")
    print(ctypes.string_at(at, 6).decode(), libc.shmget(1234, 4096, 0) == identifier, flush=True)


def memory(folder: str) -> None:
    """Enough of it that a dump takes a while."""
    held = bytearray(os.urandom(1 << 20) * 400)
    ready(folder)
    wait_for(f"{folder}/go")
    print(len(held), flush=True)


def poll_forever(folder: str) -> None:
    """Waits in the kernel, and says when it was woken without a reason."""
    ready(folder)
    reader, _writer = os.pipe()
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    with contextlib.suppress(InterruptedError):
        poller.poll(3600_000)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
