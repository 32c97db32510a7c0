"""Files of desired state in a directory or a commit: which names count, and their content."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rankfold import legible

BYTES_MAX = 16 << 20  # of one file


@dataclass(frozen=True)
class Found:
    """A file of desired state. `name`: for people, on one line; `problem`: why `data` is missing.
    `folder`: its folder in the file system with links resolved, and `root`: the place below which
    it was found, which may be a link; None: they do not exist."""

    name: str
    data: bytes = b""
    problem: str = ""
    folder: str | None = None
    root: str | None = None
    path: str = ""  # its name in the origins of accepted objects
    saved_at: float | None = None  # wall clock
    is_utf8: bool = True  # whether its path is


def counts(name: str) -> bool:
    """Whether a file of this name, without its folder, is one of desired state."""
    return name.endswith((".yaml", ".yml")) and not name.startswith(".")


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder on `path`, is hidden."""
    return any(part.startswith(".") for part in path.split("/"))


def with_links(place: Path) -> Path:
    """An absolute path with its links kept, because they may lead elsewhere later."""
    absolute = place.absolute()
    return absolute.resolve() if ".." in absolute.parts else absolute


def read(file: Path, place: Path) -> Found:
    """Read a file at or below `place`. Raises OSError."""
    with file.open("rb") as stream:
        data, saved_at = stream.read(BYTES_MAX + 1), os.fstat(stream.fileno()).st_mtime
    return Found(
        legible.name(file),
        data,
        "",
        str(file.resolve().parent),
        str(with_links(place if place != file else place.parent)),
        legible.name(with_links(file)),
        saved_at,
        legible.is_utf8(f"{with_links(file)}{file.resolve()}"),
    )
