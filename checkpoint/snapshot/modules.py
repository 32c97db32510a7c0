"""Images of the modules that ranks have loaded. Saved states name them by hash, and proxies find
them in their state directory as HASH.KIND (proxy/images.py). In a checkpoint they are blobs of the
job, each stored once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from rankfold.checkpoint.snapshot.errors import Unfit
from rankfold.checkpoint.store import Checkpoint, Save

_PREFIX = "modules/"
_FILE = re.compile(r"[0-9a-f]{64}\.[0-9]+\Z")


def find(hashes: Iterable[str], folder: Path) -> list[Path]:
    """The files of these modules. Raises Unfit if one is missing."""
    found_files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        if _FILE.match(path.name):
            found_files.setdefault(path.stem, []).append(path)
    paths = []
    for each in sorted(hashes):
        if each not in found_files:
            raise Unfit(folder, f"lacks module {each}, which a rank has loaded")
        paths += found_files[each]
    return paths


def add_to(save: Save, files: Iterable[Path]) -> None:
    """Add the files to a save, as blobs of the job. Raises StoreError."""
    for path in files:
        save.blob(None, _PREFIX + path.name, [path.read_bytes()])


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint's modules into a proxy's folder; existing files stay. Raises StoreError,
    OSError."""
    for part in checkpoint.parts:
        name = part.name.removeprefix(_PREFIX)
        path = folder / name
        if part.rank is not None or name == part.name or not _FILE.match(name) or path.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{name}.{os.getpid()}.part"
        try:
            with unfinished.open("wb") as file:
                file.write(checkpoint.content(part))
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
