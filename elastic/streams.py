"""Standard output and standard error of each logical worker, in files of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TextIO

from . import current

NAMES = ("out", "err")


class PerWorker:
    """Writes to the stream of the calling thread's worker, elsewhere to the process's own."""

    def __init__(self, own: TextIO, files: dict[int, TextIO]) -> None:
        self._own = own
        self._files = files

    def _stream(self) -> TextIO:
        worker = current.worker()
        return self._own if worker is None else self._files[worker.rank]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)


def open_files(folder: Path, ranks: list[int]) -> dict[str, dict[int, TextIO]]:
    """Empties and opens `rank-<r>.out` and `rank-<r>.err`."""
    return {
        name: {rank: (folder / f"rank-{rank}.{name}").open("w", buffering=1) for rank in ranks}
        for name in NAMES
    }


def redirect(files: dict[str, dict[int, TextIO]]) -> None:
    sys.stdout = PerWorker(sys.stdout, files["out"])  # type: ignore[assignment]
    sys.stderr = PerWorker(sys.stderr, files["err"])  # type: ignore[assignment]
