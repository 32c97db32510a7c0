"""The Python interface of the NVIDIA HAL for a proxy: modules and kernels, through the driver.

As on the software GPU, a program must contain PTX; the driver compiles it, and keeps its own cache.
The variables of a module have the same layout as on the software GPU, so a rank may move between
both.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi

from rankfold import paths
from rankfold.proxy.ptx.calls import called
from rankfold.proxy.ptx.errors import NOT_SUPPORTED, ModuleError
from rankfold.proxy.ptx.fatbin import ptx_of
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo, digest_of, function_info, module_info
from rankfold.proxy.ptx.module import find
from rankfold.proxy.ptx.sets import sets_of

from .rewrite import Rewritten, rewrite

NO_GLOBALS = 0xFFFFFFFF
_TEXT_BYTES = 4096
_API = """
struct nvidia_function {
    uint64_t address;
    int32_t max_threads, shared_bytes, const_bytes, local_bytes, registers, ptx_version;
};
int rankfold_nvidia_module(const char *ptx, void **module, char *text, uint32_t text_bytes);
int rankfold_nvidia_function(void *module, const char *name, uint32_t param_bytes,
                             uint32_t globals_at, struct nvidia_function *out);
"""


@dataclass(frozen=True)
class _Loaded:
    handle: Any
    rewritten: Rewritten


def open_loader(_state: Path, cc: tuple[int, int]) -> Loader:
    """Returns the loader for a proxy and its device of compute capability `cc`."""
    return Loader(paths.native("lib/librankfold-proxy.so"), cc)


class Loader:
    """Loads modules and kernels into the device that this process has open."""

    def __init__(self, core_lib: Path, compute_capability: tuple[int, int]):
        self.compute_capability = compute_capability
        self._lock = threading.Lock()
        self._modules: dict[str, ModuleInfo] = {}
        self._loaded: dict[str, _Loaded] = {}
        self._functions: dict[tuple[str, str], FunctionInfo] = {}
        self._ffi = cffi.FFI()
        self._ffi.cdef(_API)
        self._lib = self._ffi.dlopen(str(core_lib))

    def close(self) -> None:
        """Does nothing: loaded modules stay until the device is closed."""

    def module(self, image: bytes, kind: int, cc: tuple[int, int] | None = None) -> ModuleInfo:
        """Reads a fatbin or PTX text and loads it with the driver. `cc`: the compute capability for
        which code is chosen; default: the device's. Raises ModuleError."""
        text = ptx_of(image, cc or self.compute_capability)
        digest = digest_of(text)
        with self._lock:
            if digest not in self._modules:
                info = module_info(text)
                self._loaded[digest] = self._load(rewrite(text, info.ptx))
                self._modules[digest] = info
            return self._modules[digest]

    def _load(self, rewritten: Rewritten) -> _Loaded:
        handle, text = self._ffi.new("void **"), self._ffi.new("char[]", _TEXT_BYTES)
        error = self._lib.rankfold_nvidia_module(rewritten.text.encode(), handle, text, _TEXT_BYTES)
        if error:
            raise ModuleError(error, self._ffi.string(text).decode(errors="replace"))
        return _Loaded(handle[0], rewritten)

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        """Returns a kernel. Raises ModuleError."""
        with self._lock:
            known = self._functions.get((module.hash, name))
            if not known:
                known = self._functions[module.hash, name] = self._function(module, name)
            return known

    def _function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        kernel = find(module.ptx, name)
        _refuse_allocation(module, name)
        loaded = self._loaded[module.hash]
        extra = name in loaded.rewritten.entries
        out = self._ffi.new("struct nvidia_function *")
        error = self._lib.rankfold_nvidia_function(
            loaded.handle,
            name.encode(),
            kernel.param_bytes,
            (kernel.param_bytes + 7) // 8 * 8 if extra else NO_GLOBALS,
            out,
        )
        if error:
            raise ModuleError(error, f"the driver has no kernel {name}")
        return function_info(
            module,
            kernel,
            sets_of(module.ptx, kernel, fixed_code=False),
            address=out.address,
            static_shared=out.shared_bytes,
            max_threads=out.max_threads,
            registers=out.registers,
            local_bytes=out.local_bytes,
            const_bytes=out.const_bytes,
            ptx_version=out.ptx_version,
        )


def _refuse_allocation(module: ModuleInfo, name: str) -> None:
    """Refuses kernels that allocate; raises ModuleError. A `free` that only a table of virtual
    functions refers to has nothing to free if nothing allocates."""
    if not {"malloc", "free"} & module.ptx.functions.keys():
        return
    direct = called(module.ptx, name, by_address=False) & {"malloc", "free"}
    if direct or "malloc" in called(module.ptx, name, by_address=True):
        raise ModuleError(
            NOT_SUPPORTED,
            f"kernel {name}: malloc and free in kernels are not supported on nvidia devices, "
            "where all ranks would share the driver's heap, which cannot move",
        )
