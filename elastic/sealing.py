"""Digests of the files of saved state, so that a damaged one is not loaded."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

DIGESTS = "digests.json"


class Damaged(Exception):
    """A file of saved state is not as it was written."""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _synchronize(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal(folder: Path) -> None:
    """Writes the digests of all files, and everything to disk."""
    files = sorted(folder.iterdir())
    (folder / DIGESTS).write_text(json.dumps({path.name: _digest(path) for path in files}))
    for path in (*files, folder / DIGESTS, folder):
        _synchronize(path)


def check(folder: Path) -> None:
    """Raises Damaged if a file of a sealed folder is missing or has changed."""
    digests = {}
    if (folder / DIGESTS).exists():
        try:
            digests = json.loads((folder / DIGESTS).read_text())
        except ValueError:
            raise Damaged(f"{folder / DIGESTS} is missing or damaged: it is no JSON") from None
    for name, digest in digests.items():
        path = folder / name
        if not path.exists() or _digest(path) != digest:
            raise Damaged(f"{path} is missing or damaged: the run cannot continue from {folder}")
