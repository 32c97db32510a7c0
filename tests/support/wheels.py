"""Libraries of wheels from PyPI, under the names that programs look for."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def nvrtc(folder: Path) -> str:
    """A folder with the NVRTC of the PyPI wheel under the names that programs look for."""
    files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
    libraries = [Path(str(file.locate())) for file in files if file.name.startswith("libnvrtc")]
    (real,) = [path for path in libraries if path.name.startswith("libnvrtc.so.")]
    folder.mkdir()
    for library in libraries:
        (folder / library.name).symlink_to(library)
    (folder / "libnvrtc.so").symlink_to(real)
    return str(folder)
