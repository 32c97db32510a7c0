"""Modules of a program, prepared once for all proxies: decompressed, and divided into functions.

A file is ``sha256 of the rest | u32 header bytes | header (JSON) | outline | bodies``; the outline
and each body (outline.py) are zstd frames. A proxy maps the file and reads only the bodies of the
kernels that are launched. A file is verified when it is opened: a damaged one counts as missing,
and its module is prepared again.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import itertools
import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import zstandard

from . import stored
from .errors import INVALID_IMAGE, ModuleError
from .fatbin import ptx_of
from .info import ModuleInfo, info_of
from .module import parse_outline
from .outline import outline

_FORMAT = 1
_LEVEL = 1  # zstd: three times as fast as the default, and a tenth larger
_HEADER_AT = 36


class _Frames(Sequence[str]):
    """Texts in zstd frames, one after another from byte `at` of `data`; each is decompressed when
    it is read."""

    def __init__(self, data: mmap.mmap | bytes, at: int, sizes: list[int]):
        self._data = data
        self._ends = list(itertools.accumulate(sizes, initial=at))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        frame = self._data[self._ends[index] : self._ends[index + 1]]
        try:
            return zstandard.ZstdDecompressor().decompress(frame).decode()
        except (zstandard.ZstdError, UnicodeDecodeError) as error:
            raise ModuleError(INVALID_IMAGE, f"a prepared module is damaged: {error}") from error


@functools.cache
def _version() -> bytes:
    """A digest of the code that decides what a file contains."""
    here = Path(__file__).parent
    names = ("fatbin.py", "outline.py", "model.py", "module.py", "prepared.py")
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in names)).digest()


@dataclass(frozen=True)
class Prepared:
    """The prepared modules in `folder`, which several proxies and fleets may share."""

    folder: Path

    def module(self, image: bytes, cc: tuple[int, int]) -> tuple[ModuleInfo, str]:
        """The module of a fatbin or PTX text for a compute capability, and why it could not be
        stored, or "". Raises ModuleError."""
        digest = hashlib.sha256(_version() + struct.pack("<II", *cc))
        digest.update(image)
        path = self.folder / digest.hexdigest()[:2] / f"{digest.hexdigest()}.rfmod"
        if found := _open(path):
            return found, ""
        try:
            with _locked(path.parent):  # one proxy prepares it, and the others wait
                if found := _open(path):
                    return found, ""
                data = _pack(ptx_of(image, cc))
                stored.write(path, data)
        except OSError as error:
            why = f"modules cannot be stored in {self.folder}: {error.strerror or error}"
            return _read(_pack(ptx_of(image, cc))), why
        return _open(path) or _read(data), ""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _pack(text: str) -> bytes:
    """The bytes of a file for PTX. Raises ModuleError."""
    scope, bodies = outline(text)
    module = parse_outline(scope, bodies)
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    frames = [compressor.compress(each.encode()) for each in (scope, *bodies)]
    header = {
        "format": _FORMAT,
        "hash": hashlib.sha256(text.encode()).hexdigest(),
        "held": module.held_by_kernels,
        "frames": [len(frame) for frame in frames],
    }
    head = json.dumps(header).encode()
    rest = b"".join([struct.pack("<I", len(head)), head, *frames])
    return hashlib.sha256(rest).digest() + rest


def _read(data: mmap.mmap | bytes) -> ModuleInfo:
    """The module in the bytes of a file. Raises ValueError if they are damaged, ModuleError."""
    with memoryview(data) as view:
        if len(view) < _HEADER_AT or hashlib.sha256(view[32:]).digest() != view[:32]:
            raise ValueError("damaged")
        (length,) = struct.unpack_from("<I", view, 32)
        header = json.loads(bytes(view[_HEADER_AT : _HEADER_AT + length]))
    frames = _Frames(data, _HEADER_AT + length, header["frames"])
    bodies = _Frames(data, _HEADER_AT + length + header["frames"][0], header["frames"][1:])
    module = parse_outline(frames[0], bodies)
    module.known_held = header["held"]
    return info_of(module, header["hash"])


def _open(path: Path) -> ModuleInfo | None:
    """The module in a file; None if the file is missing or damaged."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            stored.used(path)
        return _read(data)
    except (OSError, ValueError):
        return None
