"""The Python interface of the NVIDIA HAL for a proxy: modules and kernels, through the driver.

PTX is preferred where a program has it: what a kernel of PTX reads and writes is known, and a
module's variables have the same layout as on the software GPU, so a rank may move between both. The
driver compiles it, and keeps its own cache. Otherwise machine code for this GPU is loaded as it is
(cubin.py): its kernels may read and write anything, its variables are copied into and out of the
driver's around each launch (variables.c), and a rank moves only to devices on which the same code
is chosen.

A module may also be one of NVIDIA's libraries, whose functions this process calls for its ranks
(calls.c).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi

from rankfold import nvidia_packages, paths
from rankfold.proxy.ptx.calls import called
from rankfold.proxy.ptx.errors import NO_BINARY_FOR_GPU, NOT_SUPPORTED, ModuleError
from rankfold.proxy.ptx.fatbin import IMAGE_LIBRARY, cubin_of, ptx_of
from rankfold.proxy.ptx.info import (
    FunctionInfo,
    Global,
    ModuleInfo,
    digest_of,
    function_info,
    info_of,
)
from rankfold.proxy.ptx.model import Module
from rankfold.proxy.ptx.module import find, parse_module
from rankfold.proxy.ptx.sets import Reason, Sets, sets_of

from .cubin import Cubin
from .rewrite import rewrite

NO_GLOBALS = 0xFFFFFFFF
_TEXT_BYTES = 4096
_FACTS_MAX = 16
_API = """
struct nvidia_function {
    uint64_t address;
    int32_t max_threads, shared_bytes, const_bytes, local_bytes, registers, ptx_version;
};
struct nvidia_variable_place {
    const char *name;
    uint64_t offset, bytes;
    int32_t constant, section;
};
int rankfold_nvidia_capability(void);
uint32_t rankfold_nvidia_facts(const char **names, int32_t *values, uint32_t most);
int rankfold_nvidia_module(const char *code, void **module, char *text, uint32_t text_bytes);
int rankfold_nvidia_variables(void *module, const struct nvidia_variable_place *places,
                              uint32_t count, void **variables, uint32_t *failed);
int rankfold_nvidia_function(void *module, const char *name, uint32_t param_bytes,
                             uint32_t globals_at, void *variables, struct nvidia_function *out);
int rankfold_nvidia_library(const char *name, char *text, uint32_t text_bytes);
int rankfold_nvidia_call(const char *library, const char *name, uint64_t *address,
                         uint32_t *param_bytes);
"""
LIBRARY_TEXT = b"rankfold library "  # RF_LIBRARY_TEXT
WHY_OPEN = Reason("is machine code", "nothing describes what it reads and writes")
WHY_LIBRARY = Reason("is NVIDIA's library's", "nothing describes what it reads and writes")


@dataclass(frozen=True)
class _Loaded:
    """A module in the driver. `entries`: kernels of PTX that take the address of their variables as
    a last parameter; `cubin`, `variables`: of machine code; `library`: its name, if it is one."""

    handle: Any
    entries: frozenset[str] = frozenset()
    cubin: Cubin | None = None
    variables: Any = None
    library: str = ""


def open_loader(_state: Path, cc: tuple[int, int]) -> Loader:
    """Returns the loader for a proxy and its device of compute capability `cc`; 0.0: the GPU's."""
    nvidia_packages.use_own()
    return Loader(paths.native("lib/librankfold-proxy.so"), cc)


class Loader:
    """Loads modules and kernels into the device that this process has open."""

    def __init__(self, core_lib: Path, compute_capability: tuple[int, int]):
        self._lock = threading.Lock()
        self._modules: dict[str, ModuleInfo] = {}
        self._loaded: dict[str, _Loaded] = {}
        self._functions: dict[tuple[str, str], FunctionInfo] = {}
        self._ffi = cffi.FFI()
        self._ffi.cdef(_API)
        self._lib = self._ffi.dlopen(str(core_lib))
        own = divmod(int(self._lib.rankfold_nvidia_capability()), 10)
        self.compute_capability = own if compute_capability == (0, 0) else compute_capability

    def close(self) -> None:
        """Does nothing: loaded modules stay until the device is closed."""

    def facts(self) -> dict[str, int]:
        """The GPU's numbers that ranks see, by their names in struct rf_device."""
        names = self._ffi.new("const char *[]", _FACTS_MAX)
        values = self._ffi.new("int32_t[]", _FACTS_MAX)
        count = self._lib.rankfold_nvidia_facts(names, values, _FACTS_MAX)
        return {self._ffi.string(names[i]).decode(): values[i] for i in range(count)}

    def module(self, image: bytes, kind: int, cc: tuple[int, int] | None = None) -> ModuleInfo:
        """Reads a fatbin, PTX text or machine code, and loads it with the driver. `cc`: the compute
        capability for which PTX is chosen; default: the device's. Machine code is chosen for the
        GPU. Raises ModuleError."""
        if kind == IMAGE_LIBRARY:
            return self._kept(image, self._load_library)
        code = self._code_of(image, cc or self.compute_capability)
        return self._kept(code, self._load_ptx if isinstance(code, str) else self._load_cubin)

    def _kept(
        self, code: Any, load: Callable[[Any, str], tuple[ModuleInfo, _Loaded]]
    ) -> ModuleInfo:
        digest = digest_of(code)
        with self._lock:
            if digest not in self._modules:
                self._modules[digest], self._loaded[digest] = load(code, digest)
            return self._modules[digest]

    def _code_of(self, image: bytes, cc: tuple[int, int]) -> str | bytes:
        try:
            return ptx_of(image, cc)
        except ModuleError as error:
            if error.code != NO_BINARY_FOR_GPU:
                raise
            gpu = int(self._lib.rankfold_nvidia_capability())
            code = cubin_of(image, gpu)
            if code is None:
                why = f"{error.message} (this GPU has compute capability {gpu // 10}.{gpu % 10})"
                raise ModuleError(error.code, why) from error
            return code

    def _load_ptx(self, text: str, digest: str) -> tuple[ModuleInfo, _Loaded]:
        info = info_of(parse_module(text), digest)
        rewritten = rewrite(text, info.ptx)
        return info, _Loaded(self._load(rewritten.text.encode() + b"\0"), rewritten.entries)

    def _load_cubin(self, code: bytes, digest: str) -> tuple[ModuleInfo, _Loaded]:
        cubin = Cubin(code)
        info = _info_of(cubin, digest)
        handle = self._load(code)
        return info, _Loaded(handle, cubin=cubin, variables=self._variables(handle, cubin))

    def _load_library(self, image: bytes, digest: str) -> tuple[ModuleInfo, _Loaded]:
        name = image.removeprefix(LIBRARY_TEXT).decode(errors="replace").replace("\0", "?")
        text = self._ffi.new("char[]", _TEXT_BYTES)
        error = self._lib.rankfold_nvidia_library(name.encode(), text, _TEXT_BYTES)
        if error:
            raise ModuleError(error, self._ffi.string(text).decode(errors="replace"))
        return ModuleInfo(digest, (), (), 0, b"", Module("", 0, {}, {}, "")), _Loaded(
            None, library=name
        )

    def _load(self, code: bytes) -> Any:
        """`code`: machine code, or PTX with a zero byte at its end."""
        handle, text = self._ffi.new("void **"), self._ffi.new("char[]", _TEXT_BYTES)
        error = self._lib.rankfold_nvidia_module(
            self._ffi.from_buffer(code), handle, text, _TEXT_BYTES
        )
        if error:
            raise ModuleError(error, self._ffi.string(text).decode(errors="replace"))
        return handle[0]

    def _variables(self, handle: Any, cubin: Cubin) -> Any:
        """The variables that the HAL copies around each launch of the module's kernels."""
        places = sorted(cubin.variables, key=lambda v: v.offset)
        names = [self._ffi.new("char[]", v.name.encode()) for v in places]
        given = self._ffi.new(
            "struct nvidia_variable_place[]",
            [
                (name, v.offset, v.bytes, v.constant, v.section)
                for name, v in zip(names, places, strict=True)
            ],
        )
        out, failed = self._ffi.new("void **"), self._ffi.new("uint32_t *")
        error = self._lib.rankfold_nvidia_variables(handle, given, len(names), out, failed)
        if error:
            named = [f"variable {v.name}" for v in places[failed[0] : failed[0] + 1]]
            what = named[0] if named else "its variables"
            raise ModuleError(error, f"the driver does not have {what} of the machine code")
        return out[0]

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        """Returns a kernel. Raises ModuleError."""
        with self._lock:
            known = self._functions.get((module.hash, name))
            if not known:
                known = self._functions[module.hash, name] = self._function(module, name)
            return known

    def _function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        loaded = self._loaded[module.hash]
        if loaded.library:
            return self._function_of_library(loaded.library, name)
        if loaded.cubin:
            return self._function_of_cubin(loaded, loaded.cubin, name)
        kernel = find(module.ptx, name)
        _refuse_allocation(module, name)
        globals_at = (kernel.param_bytes + 7) // 8 * 8 if name in loaded.entries else NO_GLOBALS
        attributes = self._take(loaded, name, kernel.param_bytes, globals_at)
        return function_info(
            module, kernel, sets_of(module.ptx, kernel, fixed_code=False), **attributes
        )

    def _function_of_cubin(self, loaded: _Loaded, cubin: Cubin, name: str) -> FunctionInfo:
        kernel = cubin.kernel(name)
        if cubin.allocates:
            raise ModuleError(
                NOT_SUPPORTED, f"kernel {name}, or another one of its module: {_NO_ALLOCATION}"
            )
        attributes = self._take(loaded, name, kernel.param_bytes, NO_GLOBALS)
        return FunctionInfo(
            name=name,
            params=kernel.params,
            param_bytes=kernel.param_bytes,
            sets=Sets(reasons=(WHY_OPEN,)),
            variables=(),
            **attributes,
        )

    def _function_of_library(self, library: str, name: str) -> FunctionInfo:
        address, size = self._ffi.new("uint64_t *"), self._ffi.new("uint32_t *")
        error = self._lib.rankfold_nvidia_call(library.encode(), name.encode(), address, size)
        if error:
            raise ModuleError(
                error, f"{name} is not among the functions of {library} that are served"
            )
        return FunctionInfo(
            name=name,
            address=address[0],
            params=((0, size[0]),),
            param_bytes=size[0],
            static_shared=0,
            max_threads=1,
            registers=0,
            local_bytes=0,
            const_bytes=0,
            ptx_version=0,
            sets=Sets(reasons=(WHY_LIBRARY,)),
            variables=(),
        )

    def _take(
        self, loaded: _Loaded, name: str, param_bytes: int, globals_at: int
    ) -> dict[str, int]:
        """The kernel's handle and what the driver says of it, as FunctionInfo has it."""
        out = self._ffi.new("struct nvidia_function *")
        error = self._lib.rankfold_nvidia_function(
            loaded.handle,
            name.encode(),
            param_bytes,
            globals_at,
            loaded.variables or self._ffi.NULL,
            out,
        )
        if error:
            raise ModuleError(error, f"the driver has no kernel {name}")
        return {
            "address": out.address,
            "static_shared": out.shared_bytes,
            "max_threads": out.max_threads,
            "registers": out.registers,
            "local_bytes": out.local_bytes,
            "const_bytes": out.const_bytes,
            "ptx_version": out.ptx_version,
        }


_NO_ALLOCATION = (
    "malloc and free in kernels are not supported on nvidia devices, where all ranks would share "
    "the driver's heap, which cannot move"
)


def _info_of(cubin: Cubin, digest: str) -> ModuleInfo:
    """The module's kernels and variables."""
    return ModuleInfo(
        hash=digest,
        functions=cubin.kernels,
        globals=tuple(Global(v.name, v.offset, v.bytes) for v in cubin.variables),
        globals_bytes=len(cubin.globals_image),
        globals_image=cubin.globals_image,
        ptx=Module("", cubin.arch, {}, {}, ""),
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
            f"kernel {name}: {_NO_ALLOCATION}",
        )
