"""Finds addresses that are a base plus a small offset, so that the check need not stand between.

A global address is checked to lie in the window, and the check hides from LLVM that neighbouring
threads use neighbouring addresses. Where an address is the sum of any value and an offset that
cannot exceed 2^36 in magnitude (a 32-bit index times a small constant), checking the first part is
enough: the window lies amid unmapped addresses, 2^38 bytes on both sides (SOFT_GUARD_BYTES). The
base itself may lie 2^37 bytes outside, as where a program subtracts first and adds then.
"""

from __future__ import annotations

from collections import Counter

from .flow import defs_of
from .ptx import Instr, Int, Operand, Reg

SCALE_MAX = 16  # 2^32 * 16 = 2^36
IMMEDIATE_MAX = 1 << 35


def single_definitions(instrs: list[Instr]) -> dict[str, Instr]:
    """Registers with one unconditional definition."""
    count = Counter(name for instr in instrs for name in defs_of(instr))
    return {
        name: instr
        for instr in instrs
        for name in defs_of(instr)
        if count[name] == 1 and instr.pred is None and len(defs_of(instr)) == 1
    }


def _bounded(operand: Operand, single: dict[str, Instr]) -> bool:
    """Is it a 64-bit value below 2^37 in magnitude, whatever the registers hold?"""
    if not isinstance(operand, Reg) or operand.name not in single:
        return False
    instr = single[operand.name]
    if instr.op[:2] == ("mul", "wide") and instr.op[-1] in ("s32", "u32"):
        return any(isinstance(a, Int) and 0 < a.value <= SCALE_MAX for a in instr.args[1:])
    if instr.op[0] == "cvt":
        return instr.op[-1] in ("s32", "u32", "s16", "u16") and instr.op[-2] in ("s64", "u64")
    if instr.op[0] in ("shl", "mul") and len(instr.args) == 3 and isinstance(instr.args[2], Int):
        scale = 1 << min(instr.args[2].value, 63) if instr.op[0] == "shl" else instr.args[2].value
        inner = instr.args[1]
        if not isinstance(inner, Reg) or not 0 < scale <= SCALE_MAX or "hi" in instr.op:
            return False
        widened = single.get(inner.name)
        return widened is not None and widened.op[0] == "cvt" and _bounded(inner, single)
    return False


def splits(instrs: list[Instr], registers: dict[str, str]) -> dict[str, tuple[Operand, Operand]]:
    """For each such register: base and offset, as operands of the addition that makes it."""
    single = single_definitions(instrs)
    found: dict[str, tuple[Operand, Operand]] = {}
    for name, instr in single.items():
        if instr.op[0] != "add" or instr.op[-1] not in ("s64", "u64") or len(instr.op) != 2:
            continue
        left, right = instr.args[1:3]
        if any(
            isinstance(x, Int) or (isinstance(x, Reg) and x.name == name) for x in (left, right)
        ):
            continue
        if _bounded(right, single):
            found[name] = (left, right)
        elif _bounded(left, single):
            found[name] = (right, left)
    return found


def constants(instrs: list[Instr]) -> dict[str, Int]:
    """Registers that one mov of an integer sets."""
    return {
        name: instr.args[1]
        for name, instr in single_definitions(instrs).items()
        if instr.op[0] == "mov" and isinstance(instr.args[1], Int)
    }
