"""Disk space reserved in the state directory for one purpose: to record that jobs are cancelled
although the disk is full. The job to be cancelled may be the one that fills it.
"""

from __future__ import annotations

import contextlib
import os

from rankfold.reconciler.layout import Layout

BYTES = 512 << 10  # cancelling a job writes some hundred kilobytes to the journal's log
_FREE_BYTES_MIN = 4 * BYTES  # least free space with which the reserve is made


def keep(layout: Layout) -> None:
    """Make the reserve, unless it exists or too little space is free."""
    disk = os.statvfs(layout.state)
    with contextlib.suppress(FileNotFoundError):
        if layout.reserve.stat().st_size == BYTES:
            return
    if disk.f_bavail * disk.f_frsize < _FREE_BYTES_MIN:
        return
    fd = os.open(layout.reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, BYTES)
    finally:
        os.close(fd)


def give_up(layout: Layout) -> bool:
    """Free the reserved space; False: there is none."""
    try:
        layout.reserve.unlink()
    except OSError:
        return False
    return True
