"""The NVIDIA GPUs of this machine, as the driver shows them, for commands that make devices."""

from __future__ import annotations

import ctypes
import os

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


def missing() -> str:
    """Why there can be no device of type nvidia here; empty: a driver is installed."""
    try:
        _driver()
    except OSError as error:
        return f"no NVIDIA driver: {error}; install it, or use --device soft"
    return ""


def compute_capability(count: int) -> str | None:
    """The least compute capability, such as "9.0", of the first `count` GPUs. None if the driver
    does not tell; a device's proxy says why."""
    try:
        driver = _driver()
    except OSError:
        return None
    shown = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(shown)):
        return None
    found = [_capability_of(driver, index) for index in range(min(count, shown.value))]
    known = [each for each in found if each]
    return "{}.{}".format(*min(known)) if known else None


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ.get("RANKFOLD_CUDA_DRIVER", "libcuda.so.1"))


def _capability_of(driver: ctypes.CDLL, index: int) -> tuple[int, int] | None:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    )
    return None if failed else (major.value, minor.value)
