"""Modules and kernels for the null device: it knows them, and runs none."""

from __future__ import annotations

from pathlib import Path

from rankfold.proxy.ptx.fatbin import ptx_of
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo, function_info, module_info
from rankfold.proxy.ptx.module import find
from rankfold.proxy.ptx.sets import sets_of


def open_loader(_state: Path, cc: tuple[int, int]) -> Loader:
    """Returns the loader for a proxy and its device of compute capability `cc`."""
    return Loader(cc)


class Loader:
    """Reads modules, so that parameters and variables have their layout."""

    def __init__(self, compute_capability: tuple[int, int]):
        self.compute_capability = compute_capability

    def close(self) -> None:
        """Does nothing: nothing was loaded."""

    def facts(self) -> dict[str, int]:
        """None: ranks see the usual numbers."""
        return {}

    def module(self, image: bytes, kind: int, cc: tuple[int, int] | None = None) -> ModuleInfo:
        """Reads a fatbin or PTX text. Raises ModuleError."""
        return module_info(ptx_of(image, cc or self.compute_capability))

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        """Returns a kernel. Raises ModuleError."""
        kernel = find(module.ptx, name)
        sets = sets_of(module.ptx, kernel, fixed_code=False)
        # The device reads no kernel at this address; 0 would be none.
        return function_info(module, kernel, sets, address=1, max_threads=1024)
