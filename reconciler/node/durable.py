"""Makes files durable, and writes a list by which a later check finds missing or changed files.

The list has each file's length and a BLAKE3 of its content. Holes count as zeros, and zeros are not
hashed: a rank's image is a sparse file of gigabytes with little data. Files added to the folder
later, such as the log of a restore, are ignored.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from blake3 import blake3

from rankfold.plural import count

LIST = "whole.json"
CHANGES = "files.shared"  # notes that the ranks share; a restore changes them, too
_BLOCK = 1 << 20


class Damaged(ValueError):
    """A file on the disk is missing, or is not what was written."""


def sync_all(folder: Path, also: Iterable[Path] = (), above: int = 0) -> None:
    """Sync everything below `folder` and below `also`, which it depends on, and write the list into
    `folder`; then sync as many parent folders as `above`. Raises OSError."""
    for kept in (folder, *also):
        for path in (kept, *kept.rglob("*")) if kept.exists() else ():
            try:
                if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFDIR, stat.S_IFREG):
                    _sync(path)
            except FileNotFoundError:
                if kept == folder:
                    raise
                # A proxy has renamed a file that it was writing: it was not there when the snapshot
                # was made.
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if _counts(path))
    (folder / LIST).write_text(json.dumps({name: _entry(folder / name) for name in names}))
    for path in (folder / LIST, folder, *folder.parents[:above]):
        _sync(path)


def check(folder: Path) -> None:
    """Check that the settled files are unchanged. Raises Damaged, OSError."""
    try:
        listed = dict(json.loads((folder / LIST).read_text()))
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise Damaged(f"{folder} is incomplete: {error}") from error
    for name, then in listed.items():
        path = folder / name
        if not _counts(path):
            raise Damaged(f"{path} no longer exists")
        now = _entry(path)
        if now[0] != then[0]:
            raise Damaged(f"{path} has {count(int(now[0]), 'byte')}, not {then[0]}")
        if now != then:
            raise Damaged(f"{path} has content other than what was written")


def _counts(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(mode) and path.name not in (LIST, CHANGES)


def _entry(path: Path) -> list[int | str]:
    """The length in bytes, and a digest of all nonzero blocks with their offsets."""
    digest = blake3()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for offset, data in _blocks(file.fileno(), size):
            digest.update(struct.pack("<Q", offset))
            digest.update(data)
    return [size, digest.hexdigest()]


def _blocks(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Offset and content of the nonzero blocks. Blocks are whole because a copy may have other
    holes."""
    offset, zeros = 0, bytes(_BLOCK)
    while offset < size:
        try:
            offset = os.lseek(fd, offset, os.SEEK_DATA) // _BLOCK * _BLOCK
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes up to the end
                return
            raise
        data = os.pread(fd, _BLOCK, offset)
        if data != zeros[: len(data)]:
            yield offset, data
        offset += _BLOCK


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
