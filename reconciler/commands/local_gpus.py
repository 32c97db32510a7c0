"""The NVIDIA GPUs of this machine, as the driver shows them, for commands that make devices."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

from rankfold import nvidia_packages


def missing() -> str:
    """Why there can be no device of type nvidia here; empty: a driver is installed."""
    try:
        ctypes.CDLL(os.environ.get("RANKFOLD_CUDA_DRIVER", "libcuda.so.1"))
    except OSError as error:
        return f"no NVIDIA driver: {error}; install it, or use --device soft"
    return ""


def library_folders(program: str) -> list[Path]:
    """The folders of NVIDIA's libraries in the packages of a program's own Python (`pip install
    torch` brings them), and in those of this one."""
    found = shutil.which(program)
    prefix = [Path(found).parent.parent] if found else []
    sites = [site for each in prefix for site in sorted(each.glob("lib/python3*/site-packages"))]
    return nvidia_packages.library_folders([*sites, *sys.path])
