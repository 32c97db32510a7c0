"""The end of each file of saved state: a checksum of the rest, so that a damaged one is not loaded.

It is computed while the file is written: a second pass would read all of it again. PyTorch ignores
bytes behind the end of its format.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

MARK = b"rankfold"
LENGTH = len(MARK) + 4  # of the end: then the checksum, least significant byte first
SHARED, THREADS = "shared.pt", "threads"  # files: see state.py
BLOCK = 1 << 20  # bytes that are read at a time; the processor's cache has them


class Damaged(Exception):
    """A file of saved state is not as it was written."""


class _Summed:
    """A file that is written, as far as torch.save needs one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.checksum = 0

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def own(rank: int) -> str:
    return f"rank-{rank}.pt"


def gradients(rank: int) -> str:
    return f"gradients-{rank}.pt"


@contextmanager
def written(path: Path) -> Iterator[_Summed]:
    """A new file, which gets its end when the caller has written the rest. It is buffered, so it
    writes all of what it gets, or raises OSError."""
    with path.open("wb") as file:
        yield (summed := _Summed(file))
        file.write(MARK + summed.checksum.to_bytes(4, "little"))


def _damaged(path: Path, reason: str) -> Damaged:
    return Damaged(f"{path} is missing or damaged: {reason}")


def _check(path: Path) -> None:
    checksum = 0
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size - LENGTH
            while left > 0:
                block = file.read(min(left, BLOCK))
                checksum, left = zlib.crc32(block, checksum), left - len(block)
            end = file.read(LENGTH)
    except OSError as error:
        raise _damaged(path, str(error)) from None
    if not end.startswith(MARK):
        raise _damaged(path, "it has no checksum (it was cut, or an earlier version wrote it)")
    if end[len(MARK) :] != checksum.to_bytes(4, "little"):
        raise _damaged(path, "it differs from its checksum")


def content(path: Path) -> bytes:
    """That of a small file. Raises Damaged."""
    _check(path)
    return path.read_bytes()[:-LENGTH]


def check(folder: Path, world: int) -> None:
    """Raises Damaged if a file of saved state has changed, or if one that `world` ranks have is
    missing."""
    needed = [SHARED, THREADS, *map(own, range(world))]
    for path in dict.fromkeys([folder / each for each in needed] + sorted(folder.iterdir())):
        _check(path)


def _synchronize(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synchronize(folder: Path) -> None:
    """Writes all files to disk."""
    for path in (*folder.iterdir(), folder):
        _synchronize(path)
