"""A rank's channel while the rank stands still: what of it need not travel, where it comes back.

The layout is that of ``interpose/channel/channel.h``; nobody writes to a channel meanwhile.
"""

from __future__ import annotations

import contextlib
import os

from rankfold import records
from rankfold.interpose.launcher.files import sparse

_CHANNEL = records.channel()
RING, RING_BYTES, RECORD_MAX, BULK, BULK_COUNT, BULK_BYTES = (
    _CHANNEL.constants[f"RF_{name}"]
    for name in ("OFF_RING", "RING_BYTES", "RECORD_MAX", "OFF_BULK", "BULK_COUNT", "BULK_BYTES")
)
_SAYS_WRITING = 10  # the first RF_MINOR whose clients do
_HEADER = _CHANNEL.structs["rf_header"]


def punch(fd: int) -> None:
    """Make holes of what has been consumed: of the ring, and bulk slots that nobody claims. Where
    it is a part of a page, the kernel writes zeros.

    The record that a thread may be writing just now, behind the ring's head, stays. Raises OSError.
    """
    header = _CHANNEL.unpack(_HEADER, os.pread(fd, _HEADER.size, 0))
    head, tail, busy = header["head"], header["tail"], header["bulk_busy"]
    if header["minor"] >= _SAYS_WRITING:
        written = max(head, header["writing"])
    else:
        written = head + 2 * RECORD_MAX  # with what is skipped at the ring's end
    used = min(written - tail, RING_BYTES)
    first, last = tail + used, tail + RING_BYTES
    if last > first:
        begin, end = first % RING_BYTES, last % RING_BYTES
        parts = [(begin, end)] if begin < end else [(begin, RING_BYTES), (0, end)]
        for begin, end in parts:
            sparse.punch(fd, RING + begin, end - begin)
    for slot in range(BULK_COUNT):
        if not busy >> slot & 1:
            sparse.punch(fd, BULK + slot * BULK_BYTES, BULK_BYTES)


def mapped_by(pid: int, fd: int) -> str | None:
    """Where that process has the channel mapped: a name in its map_files; None: nowhere."""
    wanted = os.fstat(fd)
    folder = f"/proc/{pid}/map_files"
    for name in sorted(os.listdir(folder)):
        with contextlib.suppress(OSError):
            found = os.stat(f"{folder}/{name}")
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return name
    return None


def opened(pid: int, mapping: str) -> int:
    """The file behind a mapping of that process. Raises OSError."""
    return os.open(f"/proc/{pid}/map_files/{mapping}", os.O_RDWR | os.O_CLOEXEC)
