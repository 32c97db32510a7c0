"""From PTX to a relocatable object: parsing, lowering and LLVM, for one kernel at a time.

LLVM is never allowed to change a floating-point result: no fast-math flags, no contraction.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm

from rankfold.proxy.ptx.errors import INVALID_PTX, ModuleError
from rankfold.proxy.ptx.module import find, parse_module
from rankfold.proxy.ptx.sets import sets_of

from . import listing, lower
from .objects import Compiled, key_of, target_machine

Keep = Callable[[str, str], None]  # of a stage and its text
STAGES = ("ptx", "flat", "llvm", "optimised", "asm")


def compile_kernel(source: str, name: str, keep: Keep | None = None) -> Compiled:
    """Compiles one kernel. Raises ModuleError. May take seconds, and may crash like any compiler:
    see server.py. `keep` is called for each of STAGES as soon as it is complete."""
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
        # from a copy: emitting assembly changes the module, and the object must be the same without
        # it
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
