"""A program that prints what it finds when it starts, and ends in one of several ways.

For tests of `warm`, which compare a fork of it with an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec.config

OF_STATUS = ("SigIgn", "SigBlk", "SigCgt", "Umask", "Uid", "Gid", "Groups", "Cap", "Threads")


def surroundings() -> dict[str, Any]:
    own = Path("/proc/self")
    status = [x for x in (own / "status").read_text().splitlines() if x.startswith(OF_STATUS)]
    files = {}
    for entry in os.listdir(own / "fd"):
        with contextlib.suppress(OSError):  # the listing's own
            files[int(entry)] = [os.readlink(own / "fd" / entry), os.get_inheritable(int(entry))]
    streams: list[Any] = [sys.stdin, sys.stdout, sys.stderr]
    return {
        "name": __name__,
        "main": sys.modules["__main__"].__dict__ is globals(),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "environment": dict(os.environ),
        "zone": time.tzname,
        "stores": fsspec.config.conf,
        "folder": os.getcwd(),
        "status": status,
        "files": files,
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "limits": [resource.getrlimit(number) for number in range(16)],
        "handlers": [
            str(signal.getsignal(number) or 0) for number in sorted(signal.valid_signals())
        ],
        "streams": [
            s and (s.fileno(), s.encoding, s.errors, s.line_buffering, s.write_through)
            for s in streams
        ],
        "faults": faulthandler.is_enabled(),
        "collects": gc.isenabled(),
        "cmdline": (own / "cmdline").read_text("latin-1").split("\0"),
        "environ": sorted((own / "environ").read_text("latin-1").split("\0")),
        "comm": (own / "comm").read_text(),
        "exe": os.readlink(own / "exe"),
    }


def later() -> None:
    """Output of a thread and of what is registered, after the main program has ended."""
    atexit.register(print, "at exit")
    threading.Timer(0.05, print, ["of a thread"]).start()


def another() -> None:
    """Whether a program of rankfold that this one starts is forked."""
    process = subprocess.Popen([sys.executable, "-m", "rankfold", "--version"])
    assert process.wait() == 0
    print(getattr(process, "_reply", None) is not None)


def raises() -> None:
    raise ValueError("as requested")


def full() -> None:
    """Output that cannot be written."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    print("nothing")


WAYS: dict[str, Callable[[], object]] = {
    "find": lambda: print(json.dumps(surroundings())),
    "status": lambda: sys.exit(7),
    "text": lambda: sys.exit("why it ends"),
    "nothing": lambda: sys.exit(None),
    "raise": raises,
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "later": later,
    "full": full,
    "wait": lambda: print(sys.stdin.read()),
    "another": another,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
