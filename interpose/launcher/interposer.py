"""The libraries that a rank preloads: copies, named by their content.

A rank has them mapped for its whole life, which may outlast a build, and CRIU maps the very same
files again. So a folder keeps copies of all libraries that ranks of the fleet started with. The
rank's loader searches that folder first, so it has links as installers of drivers and toolkits make
them. A program that opens libcuda.so gets ours through the preloaded dlopen (client/api/lookup.c),
but some libraries are loaded so that they do not see that function (RTLD_DEEPBIND).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import blake3

_FOR_ALL = 0o755


class Unusable(Exception):
    """The libraries that the rank needs are missing; the message says which."""


def keep(libraries: tuple[str, ...], copies: str) -> Path:
    """Return a folder below `copies` with copies of the libraries; its name is their digest.

    Every user may read the folder, because the rank's processes may change their user. Raises
    OSError.
    """
    there = Path(copies, digest(libraries))
    if there.is_dir():
        there.chmod(_FOR_ALL)
        return there
    there.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=there.parent, prefix=".new-"))
    for library in libraries:
        Path(shutil.copy(library, fresh)).chmod(_FOR_ALL)
    for library in newest_first(libraries):
        name, link = os.path.basename(library), unversioned(library)
        if not (fresh / link).exists():
            (fresh / link).symlink_to(name)
    fresh.chmod(_FOR_ALL)
    try:
        fresh.rename(there)
    except OSError:  # another rank's launcher was first
        shutil.rmtree(fresh)
        if not there.is_dir():
            raise
    return there


def check(wanted: str, libraries: tuple[str, ...], copies: str) -> None:
    """Check that `find_or_make` will find or make the folder. Raises Unusable if not, OSError."""
    there = Path(copies, wanted)
    if not there.is_dir() and digest(libraries) != wanted:
        raise Unusable(
            f"the rank was started with other interposer libraries ({wanted}) than are built here "
            f"({digest(libraries)}): build those, or copy their folder to {there}"
        )


def find_or_make(wanted: str, libraries: tuple[str, ...], copies: str) -> Path:
    """Return the folder named `wanted` that `keep` made for the rank. Raises Unusable, OSError.

    `libraries`: the current ones, to make the folder again if it is missing.
    """
    check(wanted, libraries, copies)
    there = Path(copies, wanted)
    if not there.is_dir():
        return keep(libraries, copies)
    there.chmod(_FOR_ALL)
    return there


def unversioned(path: str) -> str:
    """A library's file name without its version: libcudart.so."""
    stem, so, _ = os.path.basename(path).partition(".so")
    return stem + so


def newest_first(libraries: Iterable[str]) -> list[str]:
    """Libraries by name; of those that differ in the version only, the newest first."""

    def order(path: str) -> tuple[str, list[int]]:
        stem = unversioned(path)
        version = os.path.basename(path).removeprefix(stem).split(".")
        return stem, [-int(part) for part in version if part.isdigit()]

    return sorted(libraries, key=order)


def digest(libraries: tuple[str, ...]) -> str:
    """A digest over the libraries' names, links and contents."""
    hasher = blake3.blake3()
    for library in sorted(libraries, key=os.path.basename):
        content = blake3.blake3(Path(library).read_bytes()).hexdigest()
        name = os.path.basename(library)
        hasher.update(f"{name} {unversioned(name)} {content}\n".encode())
    return str(hasher.hexdigest(length=8))
