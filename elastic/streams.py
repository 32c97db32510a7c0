"""Standard output and standard error of each logical worker, in files of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Any

from . import current

NAMES = ("out", "err")


Files = dict[str, dict[int, IO[str]]]


class PerWorker:
    """Writes to the stream of the calling thread's worker, elsewhere to the process's own."""

    def __init__(self, own: IO[str], files: dict[int, IO[str]]) -> None:
        self._own = own
        self._files = files
        self._nothing = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)

    def _stream(self) -> IO[str]:
        worker = current.worker()
        if worker is None:
            return self._own
        return self._nothing if worker.quiet else self._files[worker.rank]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)


def paths(folder: Path, rank: int) -> list[Path]:
    return [folder / f"rank-{rank}.{name}" for name in NAMES]


def open_files(folder: Path, ranks: list[int], mode: str) -> Files:
    """Opens `rank-<r>.out` and `rank-<r>.err`, with mode "w" (as empty files) or "a"."""

    def opened(rank: int, name: str) -> IO[str]:
        return open(folder / f"rank-{rank}.{name}", mode, buffering=1)

    return {name: {rank: opened(rank, name) for rank in ranks} for name in NAMES}


def redirect(files: Files) -> None:
    sys.stdout = PerWorker(sys.stdout, files["out"])
    sys.stderr = PerWorker(sys.stderr, files["err"])


def flush(files: Files) -> None:
    for group in files.values():
        for each in group.values():
            each.flush()
