"""A rank that asks NVML and CUDA the same questions; prints both's answers as a line of JSON.

A user's program: nvidia-ml-py finds its library as it always does, and so does ctypes.
It allocates some memory, reports, waits until the FIFO that is its argument was written, allocates
more, and reports again.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

RUNTIME = ctypes.CDLL("libcudart.so.13")
DRIVER = ctypes.CDLL("libcuda.so.1")
MiB = 1 << 20
CLOCK, BUS_WIDTH, MEMORY_CLOCK, MAJOR, MINOR = 13, 37, 36, 75, 76  # cudaDeviceAttr


def checked(error: int) -> None:
    if error:
        raise SystemExit(f"CUDA says {error}")


def allocate(size: int) -> None:
    checked(RUNTIME.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size)))


def attribute(number: int, device: int) -> int:
    value = ctypes.c_int()
    checked(RUNTIME.cudaDeviceGetAttribute(ctypes.byref(value), number, device))
    return value.value


def text(function: Any, device: int) -> str:
    buffer = ctypes.create_string_buffer(256)
    checked(function(buffer, len(buffer), device))
    return buffer.value.decode()


def cuda_answers(device: int) -> dict[str, Any]:
    count, version = ctypes.c_int(), ctypes.c_int()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    identity = (ctypes.c_ubyte * 16)()
    checked(RUNTIME.cudaGetDeviceCount(ctypes.byref(count)))
    checked(RUNTIME.cudaDriverGetVersion(ctypes.byref(version)))
    checked(RUNTIME.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
    checked(DRIVER.cuDeviceGetUuid(identity, device))
    return {
        "count": count.value,
        "version": version.value,
        "name": text(DRIVER.cuDeviceGetName, device),
        "uuid": f"GPU-{uuid.UUID(bytes=bytes(identity))}",
        "bus": text(RUNTIME.cudaDeviceGetPCIBusId, device),
        "capability": [attribute(MAJOR, device), attribute(MINOR, device)],
        "clocks": [attribute(CLOCK, device) // 1000, attribute(MEMORY_CLOCK, device) // 1000],
        "bus_width": attribute(BUS_WIDTH, device),
        "memory": [total.value, free.value, total.value - free.value],
        "processes": [[os.getpid(), total.value - free.value]],
        "index": device,
        "partition": 0,
    }


def nvml_answers(device: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(device)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    later = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert [memory.total, memory.free, memory.used] == [later.total, later.free, later.used]
    pci, name = pynvml.nvmlDeviceGetPciInfo(handle), pynvml.nvmlDeviceGetName(handle)
    assert pci.busId == f"0000{pci.busIdLegacy}"
    identity = pynvml.nvmlDeviceGetUUID(handle)
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(identity)
    by_bus = pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId)
    assert pynvml.nvmlDeviceGetIndex(by_uuid) == pynvml.nvmlDeviceGetIndex(by_bus)
    return {
        "count": pynvml.nvmlDeviceGetCount(),
        "version": pynvml.nvmlSystemGetCudaDriverVersion(),
        "name": name,
        "uuid": identity,
        "bus": pci.busIdLegacy,
        "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "clocks": [
            pynvml.nvmlDeviceGetClockInfo(handle, clock)
            for clock in (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
        ],
        "bus_width": pynvml.nvmlDeviceGetMemoryBusWidth(handle),
        "memory": [memory.total, memory.free, memory.used],
        "processes": [
            [process.pid, process.usedGpuMemory]
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ],
        "index": pynvml.nvmlDeviceGetIndex(by_uuid),
        "partition": pynvml.nvmlDeviceIsMigDeviceHandle(handle).value,
    }


def refusals(device: int) -> list[str]:
    """NVML's answers to wrong questions, and to those that a virtual device has no answer to."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(device)
    questions: dict[str, Callable[[], Any]] = {
        "utilization": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "link": lambda: pynvml.nvmlDeviceGetNvLinkState(handle, 0),
        "no index": lambda: pynvml.nvmlDeviceGetHandleByIndex(99),
        "no uuid": lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-0"),
        "no bus": lambda: pynvml.nvmlDeviceGetHandleByPciBusId("0000:77:00.0"),
        "not covered": lambda: pynvml.nvmlDeviceSetPersistenceMode(handle, 1),
    }
    said = []
    for name, ask in questions.items():
        try:
            said.append(f"{name}: {ask()}")
        except pynvml.NVMLError as error:
            said.append(f"{name}: {error}")
    return said


def report(device: int, **more: Any) -> None:
    answers = {"cuda": cuda_answers(device), "nvml": nvml_answers(device), **more}
    print(json.dumps(answers), flush=True)


def main() -> None:
    device = int(os.environ["LOCAL_RANK"])
    pynvml.nvmlInit()
    before = nvml_answers(device)  # before the program touches CUDA at all
    checked(RUNTIME.cudaSetDevice(device))
    allocate(3 * MiB)
    report(device, before=before, refusals=refusals(device))
    Path(sys.argv[1]).read_text()
    allocate(5 * MiB)
    report(device)
    pynvml.nvmlShutdown()
    try:
        pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        print(json.dumps(str(error)), flush=True)


if __name__ == "__main__":
    main()
