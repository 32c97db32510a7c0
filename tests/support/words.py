"""Single words of shared memory, read and written as C would: whole, and in order.

Not with `struct`: it clears before it packs, and reads byte by byte.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import tempfile
from pathlib import Path

from . import native


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(native.build(Path(folder), [Path(__file__).with_suffix(".c")])))
    library.load64.restype = ctypes.c_uint64
    return library


def _call(function: str, memory: mmap.mmap, offset: int, value: int = 0) -> int:
    word = ctypes.c_char.from_buffer(memory, offset)
    address = ctypes.c_uint64(ctypes.addressof(word))
    answer = getattr(_library(), function)(address, ctypes.c_uint64(value))
    del word  # the map cannot be closed while it is exported
    return int(answer)


def load32(memory: mmap.mmap, offset: int) -> int:
    return _call("load32", memory, offset) & 0xFFFFFFFF


def load64(memory: mmap.mmap, offset: int) -> int:
    return _call("load64", memory, offset)


def store32(memory: mmap.mmap, offset: int, value: int) -> None:
    _call("store32", memory, offset, value)


def store64(memory: mmap.mmap, offset: int, value: int) -> None:
    _call("store64", memory, offset, value)


def and64(memory: mmap.mmap, offset: int, mask: int) -> None:
    _call("and64", memory, offset, mask)


def add32_and_wake(memory: mmap.mmap, offset: int, value: int) -> None:
    """Adds, and wakes all that sleep on the word."""
    _call("add32_and_wake", memory, offset, value)


def set32_and_wake(memory: mmap.mmap, offset: int, value: int) -> None:
    """Stores, and wakes all that sleep on the word."""
    _call("set32_and_wake", memory, offset, value)
