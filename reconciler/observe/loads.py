"""Reads the loads of services from files, in a thread: a file system that hangs delays nothing
else."""

from __future__ import annotations

import math
import os
import stat
import threading
from collections.abc import Iterable

from msgspec import Struct

from rankfold.legible import legible

EVERY_S = 0.1  # between two readings of a file
BYTES_MAX = 64
LOAD_MAX = 1e15


class Load(Struct, frozen=True):
    """A load, or why it cannot be read. None and no problem: it has not been read yet."""

    value: float | None = None
    problem: str = ""


class Loads:
    """The loads in some files, as they were read last."""

    def __init__(self) -> None:
        self._files: frozenset[str] = frozenset()
        self._found: dict[str, Load] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def of(self, files: Iterable[str]) -> dict[str, Load]:
        """The loads in these files, which are read from now on."""
        self._files = frozenset(files)
        if self._files and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="loads", daemon=True)
            self._thread.start()
        found = self._found
        return {file: found.get(file, Load()) for file in self._files}

    def close(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        failed: dict[str, Load] = {}
        while not self._stopped.wait(EVERY_S):
            found = {}
            for file in self._files:
                load = read(file)
                # A file that is being written may be empty: a problem counts when it lasts.
                lasts = not load.problem or failed.get(file) == load
                found[file] = load if lasts else self._found.get(file, Load())
                failed[file] = load
            self._found = found


def read(file: str) -> Load:
    """The load in a file."""
    try:
        return Load(_number(_content(file)))
    except OSError as error:
        return Load(problem=f"{legible(file)} cannot be read: {error.strerror}")
    except ValueError as error:
        return Load(problem=f"{legible(file)} {error}")


def _content(file: str) -> bytes:
    """Raises OSError, ValueError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is not a plain file")
        return os.read(descriptor, BYTES_MAX + 1)
    finally:
        os.close(descriptor)


def _number(content: bytes) -> float:
    """Raises ValueError."""
    wrong = f"must hold one number from 0 to {LOAD_MAX:g}"
    if len(content) > BYTES_MAX:
        raise ValueError(f"{wrong}, and has more than {BYTES_MAX} bytes")
    try:
        value = float(content.decode("ascii"))
    except ValueError:
        raise ValueError(f"{wrong}, not {legible(content.decode(errors='replace'))!r}") from None
    if not math.isfinite(value) or not 0 <= value <= LOAD_MAX:
        raise ValueError(f"{wrong}, not {value:g}")
    return value
