"""Modules of a program, prepared once for all proxies: decompressed, and divided into functions.

A file is ``sha256 of the next two | u32 bytes of the scope | scope | bodies``. The scope (msgpack)
is the parsed module without the bodies of its functions; each body is a zstd frame with a
checksum. A proxy maps the file, parses nothing, and reads only the bodies of the kernels that are
launched. A file with a damaged scope counts as missing, and its module is prepared again; a launch
whose body is damaged fails.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import itertools
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import msgspec
import zstandard

from . import stored
from .errors import INVALID_IMAGE, ModuleError
from .fatbin import ptx_of
from .info import ModuleInfo, digest_of, info_of
from .model import Function, Module, Param, Variable
from .module import parse_module

_LEVEL = 1  # zstd: three times as fast as the default, and a tenth larger
_SCOPE_AT = 36
_NO_BODY = -1


class _Function(msgspec.Struct, array_like=True):
    """A function (model.py) without its body, which is frame number `body`."""

    name: str
    entry: bool
    params: tuple[Param, ...]
    returns: tuple[Param, ...]
    header: str
    max_threads: int
    min_blocks: int
    body: int


class _Scope(msgspec.Struct, array_like=True):
    """A module without the bodies of its functions. `frames`: the bytes of each body."""

    hash: str
    version: str
    target: int
    declarations: str
    held: list[str]
    variables: list[Variable]
    functions: list[_Function]
    frames: list[int]


_decoder = msgspec.msgpack.Decoder(_Scope)


class _Frames(Sequence[str]):
    """Texts in zstd frames, one after another from byte `at` of `data`; each is decompressed when
    it is read."""

    def __init__(self, data: mmap.mmap | bytes, offset: int, sizes: list[int]):
        self._data = data
        self._ends = list(itertools.accumulate(sizes, initial=offset))

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
        if opened := _open(path):
            return opened, ""
        try:
            with _locked(path.parent):  # one proxy prepares it, and the others wait
                if opened := _open(path):
                    return opened, ""
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
    module = parse_module(text)
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    functions: list[_Function] = []
    frames: list[bytes] = []
    for f in module.functions.values():
        body = len(frames) if f.read else _NO_BODY
        functions.append(
            _Function(
                f.name, f.entry, f.params, f.returns, f.header, f.max_threads, f.min_blocks, body
            )
        )
        if f.read:
            frames.append(compressor.compress(f.read().encode()))
    scope = _Scope(
        digest_of(text),
        module.version,
        module.target,
        module.declarations,
        module.address_taken_in_kernels,
        list(module.variables.values()),
        functions,
        [len(frame) for frame in frames],
    )
    packed = msgspec.msgpack.encode(scope)
    checked = struct.pack("<I", len(packed)) + packed
    return b"".join([hashlib.sha256(checked).digest(), checked, *frames])


def _read(data: mmap.mmap | bytes) -> ModuleInfo:
    """The module in the bytes of a file. Raises ValueError if they are damaged, ModuleError."""
    with memoryview(data) as view:
        if len(view) < _SCOPE_AT:
            raise ValueError("damaged")
        (length,) = struct.unpack_from("<I", view, 32)
        end = _SCOPE_AT + length
        if hashlib.sha256(view[32:end]).digest() != view[:32]:
            raise ValueError("damaged")
        scope = _decoder.decode(bytes(view[_SCOPE_AT:end]))
        if len(view) != end + sum(scope.frames):
            raise ValueError("damaged")
    bodies = _Frames(data, end, scope.frames)
    functions = {f.name: _function(f, bodies) for f in scope.functions}
    variables = {variable.name: variable for variable in scope.variables}
    module = Module(
        scope.version, scope.target, variables, functions, scope.declarations, scope.held
    )
    return info_of(module, scope.hash)


def _function(f: _Function, bodies: _Frames) -> Function:
    read = None if f.body == _NO_BODY else functools.partial(bodies.__getitem__, f.body)
    return Function(
        f.name, f.entry, f.params, f.returns, f.header, read, f.max_threads, f.min_blocks
    )


def _open(path: Path) -> ModuleInfo | None:
    """The module in a file; None if the file is missing or damaged."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            stored.used(path)
        return _read(data)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
