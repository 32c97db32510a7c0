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
    model: str
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


def _count(driver: Any) -> int:
    count = ctypes.c_int()
    _check("cuInit", driver.cuInit(0))
    _check("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count)))
    return count.value


def find(index: int) -> Gpu:
    """GPU `index` of those that the driver shows; modulo their number with
    RANKFOLD_NVIDIA_SHARE=1, as for proxies (hal/nvidia/device.c). Raises NoGpu."""
    driver = _driver()
    count = _count(driver)
    if count and os.environ.get("RANKFOLD_NVIDIA_SHARE") == "1":
        index %= count
    if index >= count:
        raise NoGpu(f"there is no GPU {index}: the driver shows {count} (CUDA_VISIBLE_DEVICES?)")
    return _facts(driver, index)


def all_gpus() -> tuple[tuple[int, int], list[Gpu]]:
    """The version of CUDA that the driver is for, such as (13, 0), and its GPUs. Raises NoGpu."""
    driver, version = _driver(), ctypes.c_int()
    found = [_facts(driver, index) for index in range(_count(driver))]
    _check("cuDriverGetVersion", driver.cuDriverGetVersion(ctypes.byref(version)))
    major, minor = divmod(version.value // 10, 100)
    return (major, minor), found


def _facts(driver: Any, index: int) -> Gpu:
    device, model = ctypes.c_int(), ctypes.create_string_buffer(100)
    _check("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), index))
    identity, memory = ctypes.create_string_buffer(16), ctypes.c_size_t()
    _check("cuDeviceGetUuid", driver.cuDeviceGetUuid_v2(identity, device))
    _check("cuDeviceTotalMem", driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    _check("cuDeviceGetName", driver.cuDeviceGetName(model, len(model), device))
    numbers = []
    for attribute in (MAJOR, MINOR):
        number = ctypes.c_int()
        error = driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        _check("cuDeviceGetAttribute", error)
        numbers.append(number.value)
    cc = "{}.{}".format(*numbers)
    name = f"GPU-{uuid.UUID(bytes=identity.raw)}"
    return Gpu(name, model.value.decode(errors="replace"), cc, memory.value)
