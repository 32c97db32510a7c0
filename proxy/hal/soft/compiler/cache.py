"""Compiled kernels on disk.

A file is ``sha256 of the rest | u32 header bytes | header (JSON) | object``. It is written under
another name, synced and renamed, and verified at every read: a damaged file counts as missing, and
its kernel is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from pathlib import Path

from .objects import Compiled


def path_of(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.rfobj"


def load(folder: Path, key: str) -> Compiled | None:
    try:
        return decode(path_of(folder, key).read_bytes())
    except OSError:
        return None


def decode(data: bytes) -> Compiled | None:
    """Decodes the output of `encode`; None if it is damaged."""
    try:
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            return None
        (length,) = struct.unpack_from("<I", data, 32)
        header = json.loads(data[36 : 36 + length])
        return Compiled.of(header, data[36 + length :])
    except (ValueError, TypeError, struct.error):
        return None


def encode(compiled: Compiled) -> bytes:
    """Returns the bytes of a file."""
    header = json.dumps(compiled.header()).encode()
    body = struct.pack("<I", len(header)) + header + compiled.code
    return hashlib.sha256(body).digest() + body


def store(folder: Path, key: str, compiled: Compiled) -> None:
    """Stores a kernel. Raises OSError; the folder is then unchanged."""
    target = path_of(folder, key)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(encode(compiled))
            file.flush()
            os.fsync(file.fileno())
            os.rename(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
