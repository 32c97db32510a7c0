"""Launches of the software GPU (recorder.py) done again by a real one: every byte compared.

    python -m gpu.replay FOLDER     all in FOLDER; the exit status says whether nothing differed

The driver alone, no rankfold. Memory is at the software GPU's addresses, so that pointers in it
mean the same. A worker that hangs or whose context ends is replaced. `MAY_DIFFER` lists the
differences that are allowed, and why; elsewhere two NaN are the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from softgpu.harness import CHUNK, DEV_BASE

from gpu.recorder import Launch

ROOM = 32 << 20
PATIENCE_S = 25.0  # for one launch, with its compilation
WORKERS = 8
LOG_BYTES = 4096
CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES = 5, 6
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_…

MAY_DIFFER = {
    "test_approximate_functions": "the ISA gives an error bound",
    "test_softmax_and_layernorm": "ex2.approx, rsqrt.approx",
    "test_the_same_bits_with_one_and_with_two_workers": "ex2.approx",
    "test_adam": "sqrt.approx, div.full",
    "test_float_arithmetic": "mul and add without .rn: ptxas makes one fma of them",
    "test_products[floats": "tensor cores add in an order and a precision of their own",
    "test_tiles": "tensor cores, likewise",
    "test_each_warp_for_itself": "mma of a warp that is not whole is undefined",
    "test_many_threads_at_one_place": "who was first",
    "test_special_registers": "clocks, SMs",
    "test_bits[fields]": "fns with the offset -2^31",
    "test_video_instructions": "ptxas saturates to 32 bits for a part, gives 0 for d.h1, takes "
    "vmad's c as signed (docs/nvidia.md)",
    "test_an_address_of_eight_bytes": "two blocks write one word",
}
# Kernels that cannot run there: they rely on more stack, or on the unmapped first chunk.
FAULTS = (
    "test_recursion",
    "test_memory_from_the_stack",
    "test_the_first_bytes_of_the_window",
    "test_a_copy_of_more_than_shared_memory_holds",
)


# ---- a worker ---------------------------------------------------------------------------------


class Gpu:
    """The driver, and memory at the software GPU's addresses."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL(os.environ.get("RANKFOLD_CUDA_DRIVER", "libcuda.so.1"))
        context, at, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)
        reserved = (1 << 30, CHUNK, DEV_BASE, 0)
        self("cuMemAddressReserve", ctypes.byref(at), *map(ctypes.c_uint64, reserved))
        if at.value != DEV_BASE:
            raise SystemExit(f"the driver gives {at.value:#x} for {DEV_BASE:#x}")
        place = (ctypes.c_int * 8)(1, 0, 1, 0)  # CUmemAllocationProp: pinned, of device 0
        self("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(ROOM), place, ctypes.c_uint64(0))
        self.base = ctypes.c_uint64(DEV_BASE + CHUNK)
        self(
            "cuMemMap",
            self.base,
            ctypes.c_size_t(ROOM),
            ctypes.c_size_t(0),
            handle,
            ctypes.c_uint64(0),
        )
        access = (ctypes.c_int * 3)(1, 0, 3)  # CUmemAccessDesc: device 0 reads and writes
        self("cuMemSetAccess", self.base, ctypes.c_size_t(ROOM), access, ctypes.c_size_t(1))

    def __call__(self, name: str, *arguments: Any) -> None:
        if code := getattr(self.driver, name)(*arguments):
            raise RuntimeError(f"{name}: {code}")

    def load(self, ptx: str) -> ctypes.c_void_p:
        """Raises ValueError with what the compiler says."""
        log, module = ctypes.create_string_buffer(LOG_BYTES), ctypes.c_void_p()
        options = (ctypes.c_int * 2)(CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
        if code := self.driver.cuModuleLoadDataEx(
            ctypes.byref(module), ptx.encode(), 2, options, values
        ):
            raise ValueError(f"{code}: {log.value.decode(errors='replace')}")
        return module

    def run(self, launch: Launch) -> bytes:
        """Runs the launch and returns the memory's content afterwards."""
        function, module = ctypes.c_void_p(), self.load(launch.ptx)
        self("cuModuleGetFunction", ctypes.byref(function), module, launch.name.encode())
        if launch.shared > 48 << 10:
            self("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, launch.shared)
        size = ctypes.c_size_t(len(launch.before))
        self("cuMemcpyHtoD_v2", self.base, launch.before, size)
        params = ctypes.create_string_buffer(launch.params, max(len(launch.params), 1))
        length = ctypes.c_size_t(len(launch.params))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(params), 2, ctypes.addressof(length), 0)
        self(
            "cuLaunchKernel",
            function,
            *launch.grid,
            *launch.block,
            launch.shared,
            None,
            None,
            extra if launch.params else None,
        )
        self("cuCtxSynchronize")
        out = ctypes.create_string_buffer(len(launch.before))
        self("cuMemcpyDtoH_v2", out, self.base, size)
        self("cuModuleUnload", module)
        return out.raw


def work() -> None:
    """Paths come on stdin; for each an answer goes to stdout."""
    gpu = Gpu()
    for line in sys.stdin:
        launch = Launch.load(Path(line.strip()))
        try:
            answer: dict[str, Any] = {"differ": differences(launch, gpu.run(launch))}
        except ValueError as error:
            answer = {"refused": str(error)[:300]}
        except RuntimeError as error:  # the context may have ended
            print(json.dumps({"failed": str(error)}), flush=True)
            os._exit(1)
        print(json.dumps(answer), flush=True)


# ---- what counts --------------------------------------------------------------------------------


def differences(launch: Launch, got: bytes) -> list[int]:
    """Offsets of the words that differ and are not both NaN, in any of three widths."""
    both = np.stack(
        [np.frombuffer(launch.after[: len(got)], np.uint8), np.frombuffer(got, np.uint8)]
    )
    differ = both[0] != both[1]
    for width, exponent in ((8, 0x7FF << 52), (4, 0xFF << 23), (2, 0x1F << 10)):
        whole = len(got) // width * width
        bits = both[:, :whole].view(f"uint{8 * width}") & np.uint64((1 << 8 * width - 1) - 1)
        nan = (bits > exponent).all(axis=0)
        differ[:whole] &= ~np.repeat(nan, width)
    return sorted({int(at) // 4 * 4 for at in np.flatnonzero(differ)})


def verdict(launch: Launch, answer: dict[str, Any]) -> str:
    """Empty if it is as it must be."""
    test = launch.test.split("::")[-1]
    if "refused" in answer:
        return ""  # PTX that is newer than the driver, or a spelling that ptxas does not take
    if "failed" in answer:
        return "" if test.startswith(FAULTS) else f"{test}: {launch.name}: {answer['failed']}"
    if not answer["differ"] or test.startswith(tuple(MAY_DIFFER)):
        return ""
    return f"{test}: {launch.name}: words {answer['differ'][:8]} differ"


# ---- all of them --------------------------------------------------------------------------------


def answers(paths: list[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    worker: subprocess.Popen[str] | None = None
    for path in paths:
        worker = worker or subprocess.Popen(
            [sys.executable, "-m", "gpu.replay", "--work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdin and worker.stdout
        print(path, file=worker.stdin, flush=True)
        patience = threading.Timer(PATIENCE_S, worker.kill)
        patience.start()
        line = worker.stdout.readline()
        patience.cancel()
        answer = json.loads(line) if line else {"failed": "it hung, or its worker died"}
        yield path, answer
        if "failed" in answer:
            worker.kill()
            worker.wait()
            worker = None
    if worker:
        worker.communicate()


def replay(folder: Path) -> list[str]:
    """Replays all launches in a folder and returns the differences. Raises SystemExit if none
    ran."""
    paths = sorted(folder.iterdir())
    with ThreadPoolExecutor(WORKERS) as pool:
        parts = pool.map(
            lambda part: list(answers(part)), [paths[i::WORKERS] for i in range(WORKERS)]
        )
        found = [(Launch.load(path), answer) for part in parts for path, answer in part]
    ran = [answer for _, answer in found if "differ" in answer]
    print(
        f"{len(found)} launches, {len(ran)} done again, {sum(not a['differ'] for a in ran)} with "
        "the same bits"
    )
    if len(ran) < len(found) / 2 or not ran:
        raise SystemExit(f"most did not run: {[a for _, a in found if 'differ' not in a][:3]}")
    return sorted(filter(None, (verdict(launch, answer) for launch, answer in found)))


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    elif wrong := replay(Path(sys.argv[1])):
        sys.exit("\n".join(wrong))
