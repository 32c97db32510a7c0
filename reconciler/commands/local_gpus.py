"""The NVIDIA GPUs of this machine, as the driver shows them, for commands that make devices."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

from rankfold import nvidia_packages
from rankfold.job_limits import DEVICES_MAX


class NoGpu(Exception):
    """There can be no device of type nvidia here; the message says why."""


def number() -> int:
    """How many devices of type nvidia there can be here: one for each GPU that the driver shows, or
    with RANKFOLD_NVIDIA_SHARE=1 any number. Raises NoGpu if there can be none."""
    try:
        driver = ctypes.CDLL(os.environ.get("RANKFOLD_CUDA_DRIVER", "libcuda.so.1"))
    except OSError as error:
        raise NoGpu(f"no NVIDIA driver: {error}; install it, or use --device soft") from None
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code or not count.value:
        raise NoGpu(f"the driver shows no GPU (error {code}); use --device soft")
    return DEVICES_MAX if os.environ.get("RANKFOLD_NVIDIA_SHARE") == "1" else count.value


def library_folders(program: str) -> list[Path]:
    """The folders of NVIDIA's libraries in the packages of a program's own Python (`pip install
    torch` brings them), and in those of this one."""
    found = shutil.which(program)
    prefix = [Path(found).parent.parent] if found else []
    sites = [site for each in prefix for site in sorted(each.glob("lib/python3*/site-packages"))]
    return nvidia_packages.library_folders([*sites, *sys.path])
