"""Finds NVIDIA's libraries among Python packages: `pip install torch` brings them. This needs the
standard library alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path


def library_folders(sites: Iterable[str | Path]) -> list[Path]:
    """The folders of libraries below folders of packages, such as those of `sys.path`."""
    return [folder for site in sites for folder in sorted(Path(site).glob("nvidia/*/lib"))]


def use_own() -> None:
    """Make a proxy use the libraries that this Python's packages have, unless RANKFOLD_LIBRARIES
    names other folders (proxy/hal/nvidia/libraries.c reads it)."""
    folders = map(str, library_folders(sys.path))
    os.environ["RANKFOLD_LIBRARIES"] = os.environ.get("RANKFOLD_LIBRARIES") or ":".join(folders)
