"""Finds NVIDIA's libraries among Python packages: `pip install torch` brings them. This needs the
standard library alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def library_folders(sites: Iterable[str | Path]) -> list[Path]:
    """The folders of libraries below folders of packages, such as those of `sys.path`."""
    return [folder for site in sites for folder in sorted(Path(site).glob("nvidia/*/lib"))]
