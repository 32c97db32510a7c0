"""Compiled kernels on disk.

A file is ``sha256 of the rest | u32 header bytes | header (JSON) | object``. It is written under
another name, synced and renamed, and checked whenever it is read: one that is damaged counts as
not there and is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from pathlib import Path

from .codegen import Compiled


def path_of(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.rfobj"


def load(folder: Path, key: str) -> Compiled | None:
    try:
        data = path_of(folder, key).read_bytes()
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            return None
        (length,) = struct.unpack_from("<I", data, 32)
        header = json.loads(data[36 : 36 + length])
        return Compiled(code=data[36 + length :], **header)
    except (OSError, ValueError, TypeError, struct.error):
        return None


def store(folder: Path, key: str, compiled: Compiled) -> None:
    header = json.dumps(compiled.header()).encode()
    body = struct.pack("<I", len(header)) + header + compiled.code
    target = path_of(folder, key)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(hashlib.sha256(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
            os.rename(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
