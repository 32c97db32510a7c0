"""Libraries of wheels from PyPI, under the names that programs look for."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def nvrtc(folder: Path) -> str:
    """A folder with the NVRTC of the PyPI wheel under the names that programs look for."""
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None and spec.submodule_search_locations is not None
    roots = [Path(place) for place in spec.submodule_search_locations]
    (real,) = [path for root in roots for path in root.glob("*/lib/libnvrtc.so.*")]
    folder.mkdir()
    for library in real.parent.glob("libnvrtc*"):
        (folder / library.name).symlink_to(library)
    (folder / "libnvrtc.so").symlink_to(real)
    return str(folder)
