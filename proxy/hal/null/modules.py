"""Modules and kernels for the null device: it knows them, and runs none."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rankfold.proxy.ptx.errors import NOT_FOUND, ModuleError
from rankfold.proxy.ptx.fatbin import ptx_of
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo, module_info, variables_of
from rankfold.proxy.ptx.sets import sets_of

MAX_THREADS = 1024


def open_loader(_state: Path, cc: tuple[int, int]) -> Loader:
    """Returns the loader for a proxy and its device of compute capability `cc`."""
    return Loader(cc)


class Loader:
    """Reads modules, so that parameters and variables have their layout."""

    def __init__(self, compute_capability: tuple[int, int]):
        self.compute_capability = compute_capability

    def close(self) -> None:
        """Does nothing: nothing was loaded."""

    def module(self, image: bytes, kind: int, cc: tuple[int, int] | None = None) -> ModuleInfo:
        """Reads a fatbin or PTX text. Raises ModuleError."""
        text = ptx_of(image, cc or self.compute_capability)
        return module_info(text, hashlib.sha256(text.encode()).hexdigest())

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        """Returns a kernel. Raises ModuleError."""
        kernel = module.ptx.functions.get(name)
        if kernel is None or not kernel.entry:
            raise ModuleError(NOT_FOUND, f"no kernel {name} in the module")
        sets = sets_of(module.ptx, kernel, fixed_code=False)
        return FunctionInfo(
            name=name,
            address=1,  # the device looks at no kernel; 0 would be none
            params=tuple((p.offset, p.bytes) for p in kernel.params),
            param_bytes=kernel.param_bytes,
            static_shared=0,
            max_threads=MAX_THREADS,
            registers=0,
            local_bytes=0,
            const_bytes=0,
            ptx_version=0,
            sets=sets,
            variables=variables_of(module, sets),
        )
