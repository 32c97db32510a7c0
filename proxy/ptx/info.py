"""The properties of modules and kernels that a proxy reports, for any kind of device."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from . import layout
from .arithmetic import Use
from .model import Function, Module
from .module import parse_module
from .sets import Sets


@dataclass(frozen=True)
class Global:
    """A variable of a module: its offset in the module's globals area, and its size, in bytes."""

    name: str
    offset: int
    bytes: int
    managed: bool = False  # the host accesses it too


@dataclass(frozen=True)
class ModuleInfo:
    """A module. Its globals area has `globals_bytes`, initially `globals_image`. `ptx`: empty for
    machine code."""

    hash: str
    functions: tuple[str, ...]
    globals: tuple[Global, ...]
    globals_bytes: int
    globals_image: bytes
    ptx: Module = field(repr=False, compare=False)


@dataclass(frozen=True)
class Access:
    """A place that a kernel uses in this way, in bytes.

    It is an address among the kernel's parameters, or a variable in its module's globals area.
    """

    at: int
    bytes: int
    use: Use
    bounded: int  # the uses (Use.READ, Use.WRITTEN) whose range is known


@dataclass(frozen=True)
class FunctionInfo:
    """A kernel. `address` refers to its struct hal_function, valid while the loader lives.

    Sizes and offsets are in bytes. `sets`: what it reads and writes; `variables`: the places of the
    variables in `sets`.
    """

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
    sets: Sets
    variables: tuple[Access, ...]


def digest_of(code: str | bytes) -> str:
    """The name of a module: the hash of its PTX or machine code, whatever fatbin it came in."""
    return hashlib.sha256(code.encode() if isinstance(code, str) else code).hexdigest()


def module_info(text: str) -> ModuleInfo:
    """Parse a module, and lay out its globals as on every device. Raises ModuleError."""
    return info_of(parse_module(text), digest_of(text))


def info_of(module: Module, digest: str) -> ModuleInfo:
    """As `module_info`, of a parsed module."""
    laid_out = layout.globals_layout(module)
    sizes = {v.name: v.size for v in module.variables.values()}
    sizes[layout.SETUP] = laid_out.bytes - laid_out.offsets.get(layout.SETUP, 0)
    managed = {v.name for v in module.variables.values() if v.managed}
    variables = tuple(
        Global(n, offset, sizes[n], n in managed) for n, offset in laid_out.offsets.items()
    )
    functions = tuple(f.name for f in module.functions.values() if f.entry and f.defined)
    image = layout.globals_image(module)
    return ModuleInfo(digest, functions, variables, laid_out.bytes, image, module)


def function_info(
    module: ModuleInfo,
    kernel: Function,
    sets: Sets,
    *,
    address: int,
    max_threads: int,
    static_shared: int = 0,
    registers: int = 0,
    local_bytes: int = 0,
    const_bytes: int = 0,
    ptx_version: int = 0,
) -> FunctionInfo:
    """A kernel of the module: its parameters and variables are the same on every device."""
    return FunctionInfo(
        name=kernel.name,
        address=address,
        params=tuple((p.offset, p.bytes) for p in kernel.params),
        param_bytes=kernel.param_bytes,
        static_shared=static_shared,
        max_threads=max_threads,
        registers=registers,
        local_bytes=local_bytes,
        const_bytes=const_bytes,
        ptx_version=ptx_version,
        sets=sets,
        variables=_variables_of(module, sets),
    )


def _variables_of(module: ModuleInfo, sets: Sets) -> tuple[Access, ...]:
    """The variables that a kernel of the module uses, as places in the globals area."""
    placed = {g.name: g for g in module.globals}
    inside = dict.fromkeys(sets.bounds.inside, Use.READ | Use.WRITTEN)
    return tuple(
        Access(placed[name].offset, placed[name].bytes, use, inside.get(name, 0))
        for name, use in sets.variables
    )
