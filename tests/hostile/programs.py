"""The programs of build.mk: the proxy's own source, with sanitizers, and a harness around it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from rankfold.paths import REPOSITORY

FOLDER = REPOSITORY / "build/fuzz"


def built(name: str) -> Path:
    """A program, made anew where its source has changed: by one test at a time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    make = ["make", "--silent", f"--jobs={os.cpu_count()}", "-f", "tests/hostile/build.mk"]
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [*make, f"build/fuzz/{name}"], cwd=REPOSITORY, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    return FOLDER / name
