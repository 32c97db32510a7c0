"""A frozen rank's channel: which parts need not be saved, and where it is mapped after a restore.

The layout is that of ``interpose/channel/channel.h``. No process writes to the channel meanwhile.
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
_SAYS_WRITING = 10  # the first RF_MINOR whose clients set `writing` in the header
_HEADER = _CHANNEL.structs["rf_header"]


def punch(fd: int) -> None:
    """Punch holes where content has been consumed: in the ring, and in bulk slots that are not
    claimed. Where a hole covers part of a page, the kernel writes zeros.

    The record behind the ring's head, which a thread may be writing now, stays. Raises OSError.
    """
    header = _CHANNEL.unpack(_HEADER, os.pread(fd, _HEADER.size, 0))
    head, tail, busy = header["head"], header["tail"], header["bulk_busy"]
    if header["minor"] >= _SAYS_WRITING:
        written = max(head, header["writing"])
    else:
        written = head + 2 * RECORD_MAX  # plus what is skipped at the ring's end
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
    """Return the name in the process's map_files under which it has the channel mapped, or None."""
    wanted = os.fstat(fd)
    folder = f"/proc/{pid}/map_files"
    for name in sorted(os.listdir(folder)):
        with contextlib.suppress(OSError):
            status = os.stat(f"{folder}/{name}")
            if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                return name
    return None


def opened(pid: int, mapping: str) -> int:
    """Open the file behind a mapping of the process. Raises OSError."""
    return os.open(f"/proc/{pid}/map_files/{mapping}", os.O_RDWR | os.O_CLOEXEC)
