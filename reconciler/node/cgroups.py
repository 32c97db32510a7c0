"""Removes the empty cgroup that a launcher leaves if it is killed while its rank is frozen.

The cgroup is below the one that the launcher was in. The next launcher there that freezes its rank
would remove it, but there may be none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_ENDS_S = 1.0  # a killed process stays in its cgroup until the kernel has released its resources


def remove(doors: Iterable[Path]) -> None:
    """Remove the cgroups of dead launchers that listened at `doors`. A cgroup stays if no hierarchy
    with it is mounted here, or if we may not remove it."""
    for path in find({name(door) for door in doors}):
        with contextlib.suppress(OSError):
            _remove(path)


def find(names: set[str]) -> Iterator[str]:
    """Paths of the cgroups with these names."""
    for root in _mounted() if names else ():
        for folder, inside, _ in os.walk(root):
            for each in names.intersection(inside):
                yield f"{folder}/{each}"


def name(door: Path) -> str:
    """Name of the cgroup of the rank whose launcher listens at `door`."""
    return f"rankfold-{hashlib.sha256(os.fsencode(door)).hexdigest()[:16]}"


def _mounted() -> list[str]:
    """Mount points of cgroup v2."""
    with open("/proc/mounts") as mounts:
        lines = [line.split() for line in mounts]
    return [point for _, point, kind, *_ in lines if kind == "cgroup2"]


def _remove(path: str) -> None:
    until = time.monotonic() + _ENDS_S
    while True:
        try:
            return os.rmdir(path)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise
        time.sleep(0.001)
