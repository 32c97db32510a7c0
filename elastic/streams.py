"""Standard output and standard error of each logical worker, in files of its own.

Text that the script prints goes to the stream of the calling thread's worker. Descriptors 1 and 2
refer to the files of the worker that runs, so that output of libraries and of programs that the
script starts is there, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Any

from . import current

NAMES = ("out", "err")


class PerWorker:
    """Writes to the stream of the calling thread's worker, elsewhere to the process's own."""

    def __init__(self, own: IO[str], files: dict[int, IO[str]], nothing: IO[str]) -> None:
        self._own = own
        self._files = files
        self._nothing = nothing

    def _stream(self) -> IO[str]:
        worker = current.worker()
        if worker is None:
            return self._own
        return self._nothing if worker.quiet else self._files[worker.rank]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)


def paths(folder: Path, rank: int) -> list[Path]:
    return [folder / f"rank-{rank}.{name}" for name in NAMES]


def _opened(path: Path, empty: bool) -> IO[str]:
    """Each write is at the end of the file, whoever writes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if empty else 0)
    return open(os.open(path, flags, 0o666), "w", buffering=1)


class Streams:
    """Those of the logical workers of a process."""

    def __init__(self, folder: Path, ranks: list[int], empty: bool) -> None:
        """Opens `rank-<r>.out` and `rank-<r>.err`. `empty`: without what they have."""
        self._files = {
            rank: [_opened(path, empty) for path in paths(folder, rank)] for rank in ranks
        }
        self._nothing = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)

    def redirect(self) -> None:
        """The process keeps its own streams, which write to copies of descriptors 1 and 2."""

        def own(number: int) -> PerWorker:
            files = {rank: each[number] for rank, each in self._files.items()}
            copy = open(os.dup(number + 1), "w", buffering=1)  # noqa: SIM115  (as above)
            return PerWorker(copy, files, self._nothing)

        sys.stdout, sys.stderr = own(0), own(1)

    def descriptors(self, rank: int, quiet: bool) -> tuple[int, int]:
        """Files to which descriptors 1 and 2 refer while the worker runs."""
        out, err = 2 * [self._nothing] if quiet else self._files[rank]
        return out.fileno(), err.fileno()

    def flush(self) -> None:
        for files in self._files.values():
            for each in files:
                each.flush()
