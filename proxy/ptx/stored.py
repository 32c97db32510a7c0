"""Files of a cache that several processes share: each is written whole or not at all, and those
that have not been used for longest are removed when the cache is full."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

_KEPT_OF_LIMIT = 0.8  # what is left of a cache that was full
WRITTEN_S = 3600.0  # a file that is being written, or a lock that is held, is not older


def write(path: Path, data: bytes) -> None:
    """Write a file under another name, sync it and rename it. Raises OSError; the folder is then
    unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.rename(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def used(path: Path) -> None:
    """Note that a file is used now."""
    with contextlib.suppress(OSError):  # it was removed meanwhile, or the disk is read-only
        os.utime(path)


def shrink(folder: Path, most: int) -> int:
    """Remove the files that have not been used for longest, if all of `folder` have more than
    `most` bytes, until they have four fifths of that. Returns how many were removed.

    Files that a process has open or mapped stay readable for it.
    """
    files: list[tuple[float, int, str]] = []
    now = time.time()
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                info = os.stat(path := os.path.join(place, name))
                if not name.startswith(".") or info.st_mtime < now - WRITTEN_S:
                    files.append((info.st_mtime, info.st_size, path))
    total, removed = sum(size for _, size, _ in files), 0
    if total <= most:
        return 0
    for _, size, path in sorted(files):
        if total <= _KEPT_OF_LIMIT * most:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            removed += 1
        total -= size
    return removed
