"""A rank's program that tries to reach rankfold: ``rogue.py PLAN RESULTS``.

PLAN is JSON: sockets {path: request}, door (another rank's client socket), command, hidden
(folders). RESULTS gets a line of JSON for each attempt: [who tries, what, how it ended].
"Refused" is what every attempt must end with.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def receive(sock: socket.socket) -> bytes:
    """Whatever is answered, until the other side has said all."""
    sock.settimeout(20)
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            data += part
            if len(data) > 4 and len(data) >= 4 + struct.unpack_from("<I", data)[0]:
                break
    return data


def reply_to(path: str, request: dict[str, Any]) -> str:
    """One request as the protocol has it."""
    body = json.dumps({"v": 1, "id": 1, **request}).encode()
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except OSError as error:
            return f"refused: {error}"
        with contextlib.suppress(BrokenPipeError):
            sock.sendall(struct.pack("<I", len(body)) + body)
        answer = receive(sock)
    if not answer:
        return "refused: hung up"
    reply = json.loads(answer[4:])
    if reply["ok"] is False and reply["error"]["code"] == "denied":
        return "refused: denied"
    return f"answered: {reply}"


def knock(path: str) -> str:
    """At the door where another rank's library leaves its channel."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
            sock.sendall(struct.pack("<QIIII", 0x444C4F464B4E4152, 1, 6, 0, 0))
        except OSError as error:
            return f"refused: {error}"
        sock.settimeout(20)
        try:
            told = sock.recv(64)
        except ConnectionResetError:
            told = b""
    return f"answered: {told!r}" if told else "refused: hung up"


def listing(folder: str) -> str:
    """The names of rankfold's files that the process sees in the folder, without its own socket."""
    own = os.path.basename(os.environ["RANKFOLD_LAUNCHER"])
    try:
        found = [name for name in os.listdir(folder) if name != own]
    except OSError as error:
        return f"refused: {error}"
    return f"answered: {found}" if found else "refused: empty"


def inherited() -> str:
    """Descriptors that are sockets, or open files of rankfold's other than our own output."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(name)
    return f"answered: {found}" if found else "refused: none"


def environment() -> str:
    told = [name for name in os.environ if name.startswith("RANKFOLD_")]
    return "refused: none" if told == ["RANKFOLD_LAUNCHER"] else f"answered: {told}"


def command(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    return f"refused: {done.stderr}" if done.returncode else f"answered: {done.stdout}"


def attempts(plan: dict[str, Any], who: str, results: str) -> None:
    tries: list[tuple[str, Callable[[], str]]] = [
        (path, lambda path=path, request=request: reply_to(path, request))  # type: ignore[misc]
        for path, request in plan["sockets"].items()
    ]
    tries += [("door", lambda: knock(plan["door"])), ("descriptors", inherited)]
    if who == "rank":
        tries += [("environment", environment), ("command", lambda: command(plan["command"]))]
        tries += [(folder, lambda folder=folder: listing(folder)) for folder in plan["hidden"]]  # type: ignore[misc]
    with open(results, "a") as file:
        for what, attempt in tries:
            file.write(json.dumps([who, what, attempt()]) + "\n")


def child(plan: dict[str, Any], results: str) -> None:
    pid = os.fork()
    if pid == 0:
        attempts(plan, "child", results)
        os._exit(0)
    os.waitpid(pid, 0)


def orphan(plan: dict[str, Any], results: str) -> None:
    """A daemon: its own session, its parents gone, nothing of our environment."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        parent = os.getpid()
        if os.fork() == 0:
            os.close(read_end)
            while os.getppid() == parent:
                time.sleep(0.001)
            os.environ.clear()
            attempts(plan, "orphan", results)
            os._exit(0)
        os._exit(0)
    os.wait()
    os.close(write_end)
    os.read(read_end, 1)  # its end closes the last one


def unlimited(plan: dict[str, Any], results: str) -> None:
    """With every limit raised that can be, and what hides folders taken away where it can be."""
    for folder in plan["hidden"]:
        subprocess.run(["umount", "--lazy", folder], check=True)
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY,) * 2)
    attempts(plan, "unlimited", results)


def main() -> None:
    plan, results = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]
    attempts(plan, "rank", results)
    child(plan, results)
    orphan(plan, results)
    unlimited(plan, results)


if __name__ == "__main__":
    main()
