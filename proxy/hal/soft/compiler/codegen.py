"""From PTX to a relocatable object: parsing, lowering and LLVM, for one kernel at a time.

The CPU is pinned so that objects may move between machines, and nothing lets LLVM change a
floating-point result: no fast-math flags, no contraction.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from rankfold.proxy import ptx
from rankfold.proxy.ptx.errors import INVALID_PTX, ModuleError
from rankfold.proxy.ptx.model import Module
from rankfold.proxy.ptx.module import find, parse_module
from rankfold.proxy.ptx.sets import Sets, sets_of

from . import listing, lower

CPU = "x86-64-v3"
TRIPLE = "x86_64-unknown-linux-gnu"


@dataclass(frozen=True)
class Compiled:
    """An object and what a caller must know about its kernel. Sizes in bytes."""

    symbol: str
    static_shared: int
    local_bytes: int
    registers: int
    sets: Sets
    code: bytes

    def header(self) -> dict[str, object]:
        """All but the code, as JSON has it."""
        fields = {name: value for name, value in vars(self).items() if name != "code"}
        return fields | {"sets": self.sets.plain()}

    @classmethod
    def of(cls, header: dict[str, Any], code: bytes) -> Compiled:
        """Raises KeyError, TypeError, ValueError."""
        return cls(**(header | {"sets": Sets.of_plain(header["sets"])}), code=code)


@functools.cache
def version() -> str:
    """Changes with anything that can change an object: these sources, LLVM, the CPU."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for folder, pattern in (
        (Path(ptx.__file__).parent, "*.py"), (here, "*.py"), (here.parent, "kernel.h"),
    ):  # fmt: skip
        for path in sorted(folder.glob(pattern)):
            digest.update(f"{folder.name}/{path.name}\n".encode() + path.read_bytes())
    build = (llvmlite.__version__, llvm.llvm_version_info, CPU, lower.ABI)
    digest.update(json.dumps(build).encode())
    return digest.hexdigest()


def kernel_source(module: Module, name: str) -> str:
    """The part of a module that one kernel can depend on, as PTX."""
    kernel = find(module, name)
    parts = [f".version {module.version}", f".target sm_{module.target}", ".address_size 64"]
    parts.append(module.declarations)
    for function in module.functions.values():
        if function is not kernel and not function.entry:
            parts.append(function.text)
    if held := module.held_by_kernels:  # behind the others: their order is their addresses
        moves = "".join(f" mov.u64 %held, {other};" for other in held)
        parts.append(f".func __rankfold_held() {{ .reg .b64 %held;{moves} ret; }}")
    return "\n".join([*parts, kernel.text])


def key_of(source: str, name: str) -> str:
    """What the object of this kernel is stored under."""
    return hashlib.sha256(f"{version()}\n{name}\n{source}".encode()).hexdigest()


def target_machine() -> llvm.TargetMachine:
    """A new one: whoever is given it owns it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # mathlib.py's directed roundings
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=CPU, features="", opt=3, reloc="pic", codemodel="small")


Keep = Callable[[str, str], None]  # a stage, its text
STAGES = ("ptx", "flat", "llvm", "optimised", "asm")


def compile_kernel(source: str, name: str, keep: Keep | None = None) -> Compiled:
    """Raises ModuleError. May take seconds, and may crash as any compiler: see server.py. `keep`
    is given each of STAGES as soon as there is one."""
    if keep:
        keep("ptx", source)
    symbol = "rf_" + key_of(source, name)[:32]
    module = parse_module(source)
    made = lower.Kernel(module, find(module, name), symbol)
    if keep:
        keep("flat", listing.flat(made.graph))
    lowered = made.lower()
    if keep:
        keep("llvm", lowered.ir)
    machine = target_machine()
    optimised = _optimised(lowered.ir, name, machine)
    if keep:
        keep("optimised", str(optimised))
        # of a copy: to write it out changes it, and the object must be the same with and without
        keep("asm", target_machine().emit_assembly(optimised.clone()))
    return Compiled(
        symbol,
        lowered.static_shared,
        lowered.local_bytes,
        lowered.registers,
        sets_of(module, find(module, name), fixed_code=True),
        machine.emit_object(optimised),
    )


def _optimised(ir: str, name: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(ir)
        module.verify()
    except RuntimeError as error:
        line = str(error).strip().splitlines()[0]
        raise ModuleError(INVALID_PTX, f"kernel {name}: not valid PTX: {line}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module
