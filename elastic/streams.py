"""Standard output and standard error of each logical worker, in files of its own.

Text that the script prints goes to the stream of the calling thread's worker. Descriptors 1 and 2
refer to the files of the worker that runs, so that output of libraries and of programs that the
script starts is there, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from . import current

NAMES = ("out", "err")


class PerWorker:
    """Writes to the stream of the calling thread's worker, elsewhere to the process's own."""

    def __init__(self, own: TextIO, files: Mapping[int, TextIO], nothing: TextIO) -> None:
        self._own = own
        self._files = files
        self._nothing = nothing

    def _stream(self) -> TextIO:
        worker = current.worker()
        if worker is None:
            return self._own
        return self._nothing if worker.quiet else self._files[worker.rank]

    def close(self) -> None:
        worker = current.worker()
        (self._own if worker is None else self._files[worker.rank]).close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)


def paths(folder: Path, rank: int) -> list[Path]:
    return [folder / f"rank-{rank}.{name}" for name in NAMES]


class _Log:
    """A file for what a worker writes. Its descriptor stays when the script closes the stream."""

    def __init__(self, path: Path, empty: bool, like: TextIO) -> None:
        """Each write is at the end of the file, whoever writes. `like`: the process's stream."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if empty else 0)
        self.descriptor = os.open(path, flags, 0o666)
        copy = os.dup(self.descriptor)
        self.stream = open(  # noqa: SIM115  (as long as the process)
            copy, "w", buffering=1, encoding=like.encoding, errors=like.errors
        )

    def flush(self) -> None:
        if not self.stream.closed:
            self.stream.flush()


class Streams:
    """Those of the logical workers of a process."""

    def __init__(self, folder: Path, ranks: list[int], empty: bool) -> None:
        """Opens `rank-<r>.out` and `rank-<r>.err`. `empty`: without what they have."""
        self._files = {
            rank: [
                _Log(path, empty, own)
                for path, own in zip(paths(folder, rank), (sys.stdout, sys.stderr), strict=True)
            ]
            for rank in ranks
        }
        # As long as the process. It takes any text: another process has written that.
        self._nothing = open(os.devnull, "w", errors="backslashreplace")  # noqa: SIM115

    def redirect(self) -> None:
        """The process keeps its own streams, which write to copies of descriptors 1 and 2."""

        def own(number: int) -> PerWorker:
            files = {rank: each[number].stream for rank, each in self._files.items()}
            copy = open(os.dup(number + 1), "w", buffering=1)  # noqa: SIM115  (as above)
            return PerWorker(copy, files, self._nothing)

        sys.stdout, sys.stderr = own(0), own(1)

    def descriptors(self, rank: int, quiet: bool) -> tuple[int, int]:
        """Files to which descriptors 1 and 2 refer while the worker runs."""
        if quiet:
            return self._nothing.fileno(), self._nothing.fileno()
        out, err = self._files[rank]
        return out.descriptor, err.descriptor

    def flush(self) -> None:
        for files in self._files.values():
            for each in files:
                each.flush()
