"""Runs CRIU on one rank: the command lines, and reasons for failures from its logs.

CRIU runs in the rank's pid namespace and enters its mounts, so that neither is part of the images;
the IPC namespace is. rankfold/criu.py finds the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from rankfold import criu
from rankfold.interpose.launcher.criu import descriptors
from rankfold.interpose.launcher.rank import sandbox
from rankfold.interpose.launcher.rank.sandbox import libc

_SILENT = ("RLIMIT_NOFILE", "Dumping FAILED", "Restoring FAILED", "cgroupd: recv", "empty-image")
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}  # no LD_PRELOAD
_SEIZE_S = 60  # for CRIU to stop all threads

# CRIU runs this script when everything is restored and nothing has run yet: CRIU leaves the rank's
# cgroup, which is frozen then. The rank's processes stop before they return from the kernel for the
# first time. CRIU would continue if the script failed, so on failure it kills the whole namespace.
HOLD = b"""#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" = pre-resume ] || exit 0
{
	echo 0 >"$RANK_PARENT/cgroup.procs" &&
	echo "$PPID" >"$RANK_PARENT/cgroup.procs" &&
	echo 1 >"$RANK_CGROUP/cgroup.freeze"
} || kill -9 -1
"""

# Refusals of CRIU, and what the job's owner can do.
_REMEDIES = (
    (r"MPTCP|proto 262|[Uu]nsupported proto", "GODEBUG=multipathtcp=0 keeps Go from MPTCP"),
    (
        r"External socket|unix: .*peer",
        "a Unix socket connects to a process outside of the rank: the rank must close it",
    ),
    (r"[Nn]ested|namespace", "a rank cannot have namespaces (sandboxes) of its own"),
    (r"has bad size|Can't open file|No such file", "the rank's files must be unchanged"),
    (r"[Bb]uild-?[Ii][Dd]", "a program or library that it runs was replaced"),
    (r"[Ii]n-flight", "a connection is waiting to be accepted: the rank can be saved after that"),
    (r"packetized mode", "it must not open a pipe with O_DIRECT"),
    (r"Unknown clock type", "it must use CLOCK_MONOTONIC for its timerfd"),
    (r"Can't dump file .* of that type", "it must close that descriptor"),
    (r"Address already in use", "another process has a port of the rank: end that process"),
    (
        r"Can't connect inet.*Cannot assign",
        "a connection that it had before has not ended yet: the rank can be restored after that",
    ),
    (
        r"Cannot assign requested address",
        "a socket of the rank has an address that this machine does not have: restore it on the "
        "machine that has the address, or add it to this one",
    ),
)
# A connection that waits to be accepted; passes once the rank accepts it.
_PASSING = re.compile(r"[Ii]n-flight")
# CRIU's code in the rank, or the rank, was stopped by a signal that is not a crash of its own.
_STOPPED = re.compile(r"si_code=[45] si_pid=\d+ si_status=(?!(?:4|5|7|8|11|31)$)(\d+)")


class Refused(Exception):
    """CRIU refused; the message has its reason. Nothing has changed."""


class Passing(Refused):
    """CRIU refused for a temporary reason."""


class Killed(Exception):
    """CRIU was killed in the middle; the processes that it worked on cannot be trusted."""


def dump(pid: int, images: Path, cgroup: str) -> subprocess.Popen[bytes]:
    """Start to dump the processes below `pid`, which are and stay frozen in `cgroup`, and the
    features of this processor.

    We enter the rank's mounts before the start, not the child: then Python starts the child by
    vfork, which copies no page tables. If we are killed, the launcher ends CRIU with the rank.
    Raises criu.Missing, OSError.
    """
    folder = os.open(images, os.O_RDONLY | os.O_DIRECTORY)
    nothing = os.open(os.devnull, os.O_RDWR)
    argv = [
        criu.command(),
        "dump",
        "-t",
        str(pid),
        "-D",
        f"/proc/self/fd/{folder}",
        "-o",
        "dump.log",
        "-v2",
        "--timeout",
        str(_SEIZE_S),
        "--leave-running",
        "--freeze-cgroup",
        cgroup,
        "--manage-cgroups=ignore",
        "--network-lock",
        "skip",
        "--tcp-established",
        "--file-locks",
        "--link-remap",
        "--ghost-limit",
        "64G",
        "--cpu-cap=cpu",  # writes cpuinfo.img
    ]
    try:
        with sandbox.mounts_of(pid):
            return subprocess.Popen(
                argv,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                pass_fds=(folder,),
                env=_ENV,
            )
    finally:
        os.close(folder)
        os.close(nothing)


def finish(dumping: subprocess.Popen[bytes], images: Path) -> None:
    """Wait until the dump exits. The launcher kills it if it makes no progress (rank/progress.py).
    Raises Refused, Killed."""
    status = dumping.wait()
    if status < 0:
        raise Killed(f"CRIU was killed by signal {-status} while it examined the rank")
    if status != 0:
        why = reason(images / "dump.log")
        raise (Passing if _PASSING.search(why) else Refused)(why)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(images / "stats-dump")  # timings: they would differ in each checkpoint


def restore(
    images: int,
    hold: str,
    cgroup: str,
    parent: str,
    semaphores: Iterable[descriptors.Semaphore],
    personality: int,
) -> None:
    """Execute CRIU, which restores the images of the folder `images` as our siblings, in `cgroup`,
    which we are in, and leaves them frozen. `hold` is a file with the script `HOLD`. The restored
    processes inherit our personality. Raises criu.Missing, OSError."""
    libc.personality(ctypes.c_ulong(personality))
    os.set_inheritable(images, True)
    argv = [
        criu.command(),
        "restore",
        "-D",
        f"/proc/self/fd/{images}",
        "-o",
        "restore.log",
        "-v2",
        "--restore-sibling",
        "--restore-detached",
        "--manage-cgroups=ignore",
        "--tcp-established",
        "--file-locks",
        "--action-script",
        hold,
    ]
    for inherited in descriptors.opened(semaphores):
        argv += ["--inherit-fd", inherited]
    os.execve(argv[0], argv, _ENV | {"RANK_CGROUP": cgroup, "RANK_PARENT": parent})


def compare_cpu(images: Path) -> None:
    """Check that this processor has all features of the rank's. Raises Refused if not;
    criu.Missing, OSError."""
    done = subprocess.run(
        [criu.command(), "cpuinfo", "check", "-D", str(images), "-o", "cpuinfo-check.log"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_ENV,
        check=False,
    )
    if done.returncode != 0:
        raise Refused("the rank ran on a processor with features that this one lacks")


def reason(log: Path, alive: bool = True) -> str:
    """CRIU's first error: its process, its text, and what to do, where known.

    `alive`: pids in the log are those of the running rank.
    """
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"it wrote no log: {error}"
    errors = [line for line in lines if "Error (" in line and not any(s in line for s in _SILENT)]
    if not errors:
        return f"its log does not say why ({log})"
    text = re.sub(r"^.*?Error \([^)]*\): ", "", errors[0])
    if stopped := _STOPPED.search(text):
        text = f"signal {stopped[1]} from outside reached it while CRIU controlled it"
    for line in errors:
        if match := re.search(r"(?:\(pid: |si_pid=)(\d+)|^(?:\(\S+\))?\s*(\d+): Error", line):
            pid = int(match[1] or match[2])
            text = f"process {named(pid) if alive else pid}: {text}"
            break
    remedies = [remedy for pattern, remedy in _REMEDIES if re.search(pattern, " ".join(errors))]
    return f"{text}; {remedies[0]}" if remedies else text


def named(pid: int) -> str:
    """A pid with its name: ``1000 (train)``."""
    with contextlib.suppress(OSError):
        return f"{pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    return str(pid)
