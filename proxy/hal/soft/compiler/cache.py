"""Compiled kernels on disk.

A file is ``sha256 of the rest | u32 header bytes | header (JSON) | objects``. It is verified at
every read: a damaged file counts as missing, and its kernel is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

from rankfold.proxy.ptx import stored

from .objects import Compiled


def path_of(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.rfobj"


def load(folder: Path, key: str) -> Compiled | None:
    path = path_of(folder, key)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    stored.used(path)
    return decode(data)


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
    body = struct.pack("<I", len(header)) + header + b"".join(compiled.objects)
    return hashlib.sha256(body).digest() + body


def store(folder: Path, key: str, compiled: Compiled) -> None:
    """Stores a kernel. Raises OSError; the folder is then unchanged."""
    stored.write(path_of(folder, key), encode(compiled))
