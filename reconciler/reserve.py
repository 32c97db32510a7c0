"""Room on the state directory's disk that is kept free for one purpose: to record that jobs are
cancelled though the disk is full. A job to be cancelled may be the one that fills it.
"""

from __future__ import annotations

import contextlib
import os

from rankfold.reconciler.layout import Layout

BYTES = 512 << 10  # cancelling a job takes some hundred kilobytes of the journal's log
_ROOM = 4 * BYTES  # what has to be free for it to be kept


def keep(layout: Layout) -> None:
    """Reserve the room, unless it is reserved or too little is left."""
    disk = os.statvfs(layout.state)
    with contextlib.suppress(FileNotFoundError):
        if layout.reserve.stat().st_size == BYTES:
            return
    if disk.f_bavail * disk.f_frsize < _ROOM:
        return
    fd = os.open(layout.reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, BYTES)
    finally:
        os.close(fd)


def give_up(layout: Layout) -> bool:
    """Make the room free; False: there is none."""
    try:
        layout.reserve.unlink()
    except OSError:
        return False
    return True
