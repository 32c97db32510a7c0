"""A pytest plugin (-p gpu.recorder) that keeps what kernels of the in-process software GPU did.

Of each kernel the first `TIMES` launches that ended well go to the folder that RECORDED_LAUNCHES
names, one file each, as `Launch`. Not of kernels with variables: a GPU has them elsewhere.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from softgpu import harness

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.fatbin import ptx_of
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo

TIMES = 3
MOST_BYTES = 4 << 20  # of memory: a kernel that does the same with more shows nothing new


@dataclass
class Launch:
    """`before` and `after`: bytes of the memory from `harness.DEV_BASE + harness.CHUNK` on."""

    test: str
    ptx: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    params: bytes
    before: bytes
    after: bytes

    def save(self, path: Path) -> None:
        path.write_bytes(zlib.compress(pickle.dumps(vars(self)), 1))

    @classmethod
    def load(cls, path: Path) -> Launch:
        return cls(**pickle.loads(zlib.decompress(path.read_bytes())))


_texts: dict[str, str] = {}  # by a module's hash
_kernels: dict[int, tuple[str, str]] = {}  # by a function's address: PTX and name
_seen: Counter[tuple[str, str]] = Counter()
_module, _function, _launch = Loader.module, Loader.function, harness.Space.launch


def module(self: Loader, image: bytes, kind: int, cc: tuple[int, int] | None = None) -> ModuleInfo:
    info = _module(self, image, kind, cc)
    _texts[info.hash] = ptx_of(image, cc or self.compute_capability)
    return info


def function(self: Loader, of: ModuleInfo, name: str) -> FunctionInfo:
    info = _function(self, of, name)
    if of.hash in _texts:
        _kernels[info.address] = (_texts[of.hash], name)
    return info


def memory(space: harness.Space) -> bytes:
    base = harness.DEV_BASE + harness.CHUNK
    return bytes(space.read(base, space.next - base, np.uint8))


def launch(
    self: harness.Space, f: FunctionInfo, grid: Any, block: Any, *args: Any, **options: Any
) -> None:
    kernel = _kernels.get(f.address)
    size = self.next - harness.DEV_BASE - harness.CHUNK
    if not kernel or options.get("globals_addr") or _seen[kernel] == TIMES or size > MOST_BYTES:
        _launch(self, f, grid, block, *args, **options)
        return
    before = memory(self)
    work, params = self.kernel_work(f, grid, block, *args, **options)
    self.device.run(work)
    if self.error()[0]:
        return
    _seen[kernel] += 1
    kept = Launch(
        test=os.environ["PYTEST_CURRENT_TEST"],
        ptx=kernel[0],
        name=kernel[1],
        grid=tuple(work.kernel.grid),
        block=tuple(work.kernel.block),
        shared=options.get("shared", 0),
        params=bytes(harness.ffi.buffer(params)) if f.param_bytes else b"",
        before=before,
        after=memory(self),
    )
    kept.save(Path(os.environ["RECORDED_LAUNCHES"]) / f"{os.getpid()}-{sum(_seen.values()):05}")


def pytest_configure() -> None:
    for owner, instead in ((Loader, module), (Loader, function), (harness.Space, launch)):
        setattr(owner, instead.__name__, instead)
