"""What of a rank is known to be beyond CRIU, found before anything is tried.

Each is named with its process and what to do. What only CRIU sees it refuses itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from rankfold.interpose.launcher.criu import named

_GONE = " (deleted)"
_NAMESPACES = ("user", "pid", "mnt", "net", "uts", "ipc", "cgroup")
# What a descriptor, or the file of a mapping, is called.
_FILES = (
    (r"^anon_inode:\[?io_uring", "io_uring", "USE_LIBUV=0 keeps PyTorch from it"),
    (r"^anon_inode:\[?userfaultfd", "userfaultfd", "it must close it"),
    (r"^anon_inode:\[?perf_event", "a performance counter", "it must close it"),
    (r"^/secretmem", "secret memory (memfd_secret)", "it must close it"),
    (r"^/dev/(nvidia|dri/|kfd)", "a real device", "it must use the GPU through rankfold alone"),
)


def find(rank: int, pids: set[int]) -> list[str]:
    """All of it, in words. `pids`: the processes of the namespace but for our own."""
    parents = {pid: parent for pid in pids if (parent := _parent(pid)) is not None}
    found = []
    for pid in sorted(parents):
        if not _is_below(pid, rank, parents):
            found.append(
                f"process {named(pid)} is no longer below the rank's first process {rank}: that "
                "must not end before, and daemons must not cut themselves loose"
            )
        found += [f"process {named(pid)} {what}" for what in _of(pid, rank)]
    return found


def _of(pid: int, rank: int) -> list[str]:
    found = []
    for name in _NAMESPACES:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/{rank}/ns/{name}"):
                found.append(
                    f"has a {name} namespace of its own: run it without its sandbox or container"
                )
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        tracer = re.search(r"^TracerPid:\s*(\d+)", status, re.MULTILINE)
        if tracer and tracer[1] != "0":
            found.append(f"is traced by process {tracer[1]}: detach the debugger")
    links = _links(f"/proc/{pid}/fd") | _links(f"/proc/{pid}/map_files")
    for pattern, what, remedy in _FILES:
        if any(re.match(pattern, link) for link in links):
            found.append(f"uses {what}, which cannot be saved: {remedy}")
    renamed = sorted(link for link, names in links.items() if link.endswith(_GONE) and names)
    if renamed:  # CRIU saves it under a name of its own, which is not there any more later
        found.append(
            f"uses {renamed[0].removesuffix(_GONE)}, which cannot be saved: it has lost the name "
            "by which it was opened, and has another one. Named semaphores are so, as Python's "
            "multiprocessing makes them unless it forks"
        )
    return found


def _links(folder: str) -> dict[str, int]:
    """What descriptors or mappings are of, and how many names that has."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                path = f"{folder}/{name}"
                found[os.readlink(path)] = os.stat(path).st_nlink
    return found


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(stat[stat.rindex(")") + 1 :].split()[1])
    return None


def _is_below(pid: int, rank: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != rank:
        pid = parents[pid]
    return pid == rank
