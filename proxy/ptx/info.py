"""What a proxy reports of modules and kernels, whatever the kind of its device."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import layout
from .model import Module
from .module import parse_module


@dataclass(frozen=True)
class Global:
    """A variable of a module: where it lies in the module's globals area, in bytes."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class ModuleInfo:
    """A module. Its globals area has `globals_bytes` and begins as `globals_image`."""

    hash: str
    functions: tuple[str, ...]
    globals: tuple[Global, ...]
    globals_bytes: int
    globals_image: bytes
    ptx: Module = field(repr=False, compare=False)


@dataclass(frozen=True)
class FunctionInfo:
    """A kernel. `address` is that of its struct hal_function, valid while the loader lives.
    Sizes and offsets in bytes."""

    name: str
    address: int
    params: tuple[tuple[int, int], ...]
    param_bytes: int
    static_shared: int
    max_threads: int
    registers: int
    local_bytes: int
    const_bytes: int
    ptx_version: int


def module_info(text: str, digest: str) -> ModuleInfo:
    """What a module has, and its globals laid out as for every device. Raises ModuleError."""
    module = parse_module(text)
    laid_out = layout.globals_layout(module)
    sizes = {v.name: v.size for v in module.variables.values()}
    sizes[layout.SETUP] = laid_out.bytes - laid_out.offsets.get(layout.SETUP, 0)
    found = tuple(Global(n, offset, sizes[n]) for n, offset in laid_out.offsets.items())
    functions = tuple(
        f.name for f in module.functions.values() if f.entry and f.body_text is not None
    )
    image = layout.globals_image(module)
    return ModuleInfo(digest, functions, found, laid_out.bytes, image, module)
