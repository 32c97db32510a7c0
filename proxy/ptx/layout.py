"""Lays out a module's variables in a rank's globals area: equally on every kind of device.

So a rank may move between them. interpose/channel/channel.h: struct rf_setup.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .errors import NOT_SUPPORTED, ModuleError
from .model import Module

SETUP = "__rankfold"  # RF_SETUP_NAME: the client fills it in before the first launch
_SETUP_HEADER = 24  # struct rf_setup: print, heap, count
ALLOCATING = ("malloc", "free")  # CUDA's allocation functions
FUNCTION_TAG, FUNCTION_STEP = 0x14 << 40, 16  # addresses of device functions: not in any memory


@dataclass(frozen=True)
class Layout:
    """The offsets of a module's variables in its globals area.

    `pointers`: places in the area that contain such an offset; they become addresses when the
    client has chosen the area's address.
    """

    offsets: dict[str, int]
    bytes: int
    pointers: tuple[int, ...]


def globals_layout(module: Module) -> Layout:
    offsets, end = {}, 0
    for variable in module.variables.values():
        if variable.space in ("global", "const"):
            align = max(variable.align, 16)
            end = (end + align - 1) // align * align
            offsets[variable.name] = end
            end += variable.size
    pointers = tuple(
        offsets[name] + place
        for name in offsets
        for place, to, _ in module.variables[name].pointers
        if to in offsets
    )
    if pointers or "vprintf" in module.functions or allocates(module):
        offsets[SETUP] = (end + 15) // 16 * 16
        end = offsets[SETUP] + _SETUP_HEADER + 8 * len(pointers)
    return Layout(offsets, end, pointers)


def allocates(module: Module) -> bool:
    """True if the module's kernels may call CUDA's malloc or free."""
    functions = (module.functions.get(name) for name in ALLOCATING)
    return any(function is not None and not function.defined for function in functions)


def function_addresses(module: Module) -> dict[str, int]:
    """The numbers used as addresses of device functions: equal in every part of a module."""
    names = [f.name for f in module.functions.values() if not f.entry and f.defined]
    return {name: FUNCTION_TAG + FUNCTION_STEP * (i + 1) for i, name in enumerate(names)}


def globals_image(module: Module) -> bytes:
    """The initial content of the area. Raises ModuleError.

    Pointers to its variables contain offsets until the client fills them in.
    """
    layout, functions = globals_layout(module), function_addresses(module)
    image = bytearray(layout.bytes)
    for name, offset in layout.offsets.items():
        if name == SETUP:
            count = len(layout.pointers)
            words = (0, int(allocates(module)), count, *layout.pointers)
            struct.pack_into(f"<{len(words)}Q", image, offset, *words)
            continue
        variable = module.variables[name]
        image[offset : offset + len(variable.initial)] = variable.initial
        for place, to, addend in variable.pointers:
            value = layout.offsets.get(to, functions.get(to))
            if value is None:
                raise ModuleError(NOT_SUPPORTED, f"variable {name} begins as the address of {to}")
            struct.pack_into("<Q", image, offset + place, value + addend)
    return bytes(image)
