"""The NVIDIA GPUs of this machine, as the driver shows them, for commands that make devices."""

from __future__ import annotations

import ctypes
import os


def missing() -> str:
    """Why there can be no device of type nvidia here; empty: a driver is installed."""
    try:
        ctypes.CDLL(os.environ.get("RANKFOLD_CUDA_DRIVER", "libcuda.so.1"))
    except OSError as error:
        return f"no NVIDIA driver: {error}; install it, or use --device soft"
    return ""
