"""The facts of a GPU that the server of a device needs which does not use it itself: no context is
created, so the GPU's memory stays as it is."""

from __future__ import annotations

import ctypes
import os
import uuid
from typing import Any, NamedTuple

MAJOR, MINOR = 75, 76  # CUdevice_attribute: of the compute capability


class NoGpu(Exception):
    """There is no such GPU; the message says why."""


class Gpu(NamedTuple):
    """name: as CUDA_VISIBLE_DEVICES takes it. memory: bytes, all of it."""

    name: str
    cc: str
    memory: int


def _driver() -> Any:
    name = os.environ.get("RANKFOLD_CUDA_DRIVER", "libcuda.so.1")
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise NoGpu(f"there is no NVIDIA driver: {error}") from None


def _check(call: str, error: int) -> None:
    if error:
        raise NoGpu(f"{call} gives error {error}")


def find(index: int) -> Gpu:
    """GPU `index` of those that the driver shows; modulo their number with
    RANKFOLD_NVIDIA_SHARE=1, as for proxies (hal/nvidia/device.c). Raises NoGpu."""
    driver = _driver()
    _check("cuInit", driver.cuInit(0))
    count, device = ctypes.c_int(), ctypes.c_int()
    _check("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count)))
    if count.value and os.environ.get("RANKFOLD_NVIDIA_SHARE") == "1":
        index %= count.value
    if index >= count.value:
        raise NoGpu(
            f"there is no GPU {index}: the driver shows {count.value} (CUDA_VISIBLE_DEVICES?)"
        )
    _check("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), index))
    identity, memory = ctypes.create_string_buffer(16), ctypes.c_size_t()
    _check("cuDeviceGetUuid", driver.cuDeviceGetUuid_v2(identity, device))
    _check("cuDeviceTotalMem", driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    numbers = []
    for attribute in (MAJOR, MINOR):
        number = ctypes.c_int()
        error = driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        _check("cuDeviceGetAttribute", error)
        numbers.append(number.value)
    cc = "{}.{}".format(*numbers)
    return Gpu(f"GPU-{uuid.UUID(bytes=identity.raw)}", cc, memory.value)
