"""The programs of build.mk: the proxy's own source, with sanitizers, and a harness around it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from rankfold.paths import REPOSITORY

FOLDER = REPOSITORY / "build/fuzz"
UNCHECKED = ("CHECKED=",)  # a core that does not check itself after each turn, as people run it


def built(name: str, options: tuple[str, ...] = (), within: str = "unchecked") -> Path:
    """A program, made anew where its source has changed: by one test at a time. Each set of
    `options` of make has a folder of its own, `within` the others'."""
    folder = FOLDER / within if options else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    target = (folder / name).relative_to(REPOSITORY)
    make = [
        "make",
        "--silent",
        f"--jobs={os.cpu_count()}",
        "-f",
        "tests/hostile/build.mk",
        f"BUILD={folder.relative_to(REPOSITORY)}",
        *options,
    ]
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([*make, str(target)], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / name
