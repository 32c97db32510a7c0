"""From PTX to relocatable objects: parsing, lowering and LLVM, for one kernel at a time.

LLVM is never allowed to change a floating-point result: no fast-math flags, no contraction.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import llvmlite.binding as llvm

from rankfold.proxy.ptx.errors import UNKNOWN, ModuleError
from rankfold.proxy.ptx.module import find, parse_module
from rankfold.proxy.ptx.sets import Sets, sets_of

from . import listing, lower, parts
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
    function = find(module, name)
    made = lower.Kernel(module, function, symbol)
    if keep:
        keep("flat", listing.flat(made.graph))
    lowered = made.lower()
    if keep:
        keep("llvm", lowered.ir)
    divided = parts.split(lowered)

    def sets() -> Sets:
        return sets_of(module, function, fixed_code=True, flat=made.graph.flat)

    modules = [part.ir for part in divided]
    if keep:  # the objects are the same
        compiled = [_optimised(ir, name, target_machine()) for ir in modules]
        keep("optimised", "".join(str(module) for module in compiled))
        # from a copy: emitting assembly changes the module, and the object must be the same without
        # it
        copies = [module.clone() for module in compiled]
        keep("asm", "".join(target_machine().emit_assembly(module) for module in copies))
        made_objects = [target_machine().emit_object(module) for module in compiled]
        found = sets()
    elif len(modules) == 1:
        made_objects, found = [_object(lowered.ir, name)], sets()
    else:
        tasks = [functools.partial(_object, ir, name) for ir in modules]
        plain, *made_objects = parts.in_children([lambda: _encoded(sets()), *tasks])
        found = Sets.of_plain(json.loads(plain))
    return Compiled(
        symbol,
        lowered.static_shared,
        lowered.local_bytes,
        lowered.registers,
        found,
        tuple(part.exported for part in divided),
        tuple(made_objects),
    )


def _encoded(sets: Sets) -> bytes:
    return json.dumps(sets.plain()).encode()


def _object(ir: str, name: str) -> bytes:
    machine = target_machine()
    return bytes(machine.emit_object(_optimised(ir, name, machine)))


def _optimised(ir: str, name: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(ir)
        module.verify()
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ModuleError(UNKNOWN, f"kernel {name}: LLVM refused its IR: {reason}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module
