"""Finds addresses that are a base plus a small offset, so that the check applies to the base only.

A global address is checked to be in the window, and the check hides from LLVM that neighbouring
threads use neighbouring addresses. If an address is the sum of any value and an offset that cannot
exceed 2^36 in magnitude (a 32-bit index times a small constant), checking the first part is enough,
because the window is surrounded by 2^38 unmapped bytes on both sides (SOFT_GUARD_BYTES). The base
itself may be 2^37 bytes outside, for programs that subtract first and add afterwards.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from rankfold.proxy.ptx.model import Instr, Int, Operand, Reg

from .instructions import defs_of

MAGNITUDE_MAX = 1 << 36  # a 32-bit index times 16
_INTEGERS = frozenset(("s16", "u16", "b16", "s32", "u32", "b32", "s64", "u64", "b64"))


def single_definitions(instrs: list[Instr]) -> dict[str, Instr]:
    """Returns the registers with one unconditional definition."""
    count = Counter(name for instr in instrs for name in defs_of(instr))
    return {
        name: instr
        for instr in instrs
        for name in defs_of(instr)
        if count[name] == 1 and instr.pred is None and len(defs_of(instr)) == 1
    }


def _magnitude(operand: Operand, single: dict[str, Instr]) -> int | None:
    """Returns a bound of a 64-bit value's magnitude for any register contents, if it is small."""
    if not isinstance(operand, Reg) or operand.name not in single:
        return None
    instr = single[operand.name]
    largest = None
    if instr.op[:2] == ("mul", "wide") and instr.op[-1] in ("s32", "u32"):
        scales = [a.value for a in instr.args[1:] if isinstance(a, Int) and a.value > 0]
        largest = scales[0] << 32 if scales else None
    elif instr.op[0] == "cvt":
        narrow = instr.op[-1] in ("s32", "u32", "s16", "u16") and instr.op[-2] in ("s64", "u64")
        largest = 1 << 32 if narrow else None
    elif instr.op[0] in ("shl", "mul") and "hi" not in instr.op and isinstance(instr.args[2], Int):
        inner, factor = _magnitude(instr.args[1], single), instr.args[2].value
        scale = 1 << min(factor, 63) if instr.op[0] == "shl" else factor
        largest = inner * scale if inner is not None and scale > 0 else None
    return largest if largest is not None and largest <= MAGNITUDE_MAX else None


MULTIPLE_MAX = 256  # more than any access needs


def _multiple(operand: Operand, single: dict[str, Instr], depth: int = 8) -> int:
    """Returns a power of two that divides an integer, for any register contents."""
    if isinstance(operand, Int):
        return min(operand.value & -operand.value or MULTIPLE_MAX, MULTIPLE_MAX)
    if not isinstance(operand, Reg) or operand.name not in single or not depth:
        return 1
    instr = single[operand.name]
    inner = [_multiple(a, single, depth - 1) for a in instr.args[1:]]
    multiple = 1
    if instr.op[0] == "mul" and "hi" not in instr.op and instr.op[-1][0] in "su":
        multiple = inner[0] * inner[1]
    elif instr.op[0] == "mad" and instr.op[1] in ("lo", "wide") and instr.op[-1][0] in "su":
        multiple = min(inner[0] * inner[1], inner[2])
    elif instr.op[0] == "shl" and isinstance(instr.args[2], Int):
        multiple = inner[0] << min(instr.args[2].value & 0xFFFFFFFF, 8)
    elif instr.op[0] in ("cvt", "mov") and instr.op[-1] in _INTEGERS and "sat" not in instr.op:
        multiple = inner[0]
    elif instr.op[0] in ("add", "or") and len(instr.op) == 2:
        multiple = min(inner)
    return min(multiple, MULTIPLE_MAX)


class Split(NamedTuple):
    """How the two parts of a register, a base and a small offset whose sum it is, are computed.
    With (base, offset): from these two. With (source, None): from the parts of `source`, shifted
    left by `shift`, plus `base` for the base. The offset is a multiple of `multiple`."""

    base: Operand | None
    offset: Operand | None
    source: str = ""
    shift: int = 0
    multiple: int = 1


def splits(instrs: list[Instr]) -> dict[str, Split]:
    """Returns the registers that are such sums, in the order of `instrs`."""
    single = single_definitions(instrs)
    result: dict[str, Split] = {}
    magnitude: dict[str, int] = {}
    for instr in instrs:
        name = instr.args[0].name if instr.args and isinstance(instr.args[0], Reg) else ""
        if single.get(name) is not instr:
            continue
        if instr.op == ("shl", "b64") and isinstance(instr.args[2], Int):
            source, shift = instr.args[1], instr.args[2].value
            if isinstance(source, Reg) and source.name in result and 0 <= shift < 64:
                _shift(result, magnitude, name, source.name, shift)
        elif instr.op[0] == "add" and instr.op[-1] in ("s64", "u64") and len(instr.op) == 2:
            _add(result, magnitude, name, instr.args[1:3], single)
    return result


def _shift(
    splits_: dict[str, Split], magnitude: dict[str, int], name: str, source: str, shift: int
) -> None:
    if magnitude[source] << shift <= MAGNITUDE_MAX:
        multiple = min(splits_[source].multiple << min(shift, 8), MULTIPLE_MAX)
        splits_[name] = Split(None, None, source, shift, multiple)
        magnitude[name] = magnitude[source] << shift


def _add(
    splits_: dict[str, Split],
    magnitude: dict[str, int],
    name: str,
    operands: tuple[Operand, ...],
    single: dict[str, Instr],
) -> None:
    left, right = operands
    if any(isinstance(x, Reg) and x.name == name for x in operands):
        return
    for base, offset in ((left, right), (right, left)):
        small = None if isinstance(base, Int) else _magnitude(offset, single)
        if small is not None:
            splits_[name] = Split(base, offset, multiple=_multiple(offset, single))
            magnitude[name] = small
            return
    for base, part in ((left, right), (right, left)):
        if isinstance(part, Reg) and part.name in splits_:
            splits_[name] = Split(base, None, part.name, multiple=splits_[part.name].multiple)
            magnitude[name] = magnitude[part.name]
            return


def constants(instrs: list[Instr]) -> dict[str, Int]:
    """Returns the registers that are set by a single mov of an integer."""
    return {
        name: instr.args[1]
        for name, instr in single_definitions(instrs).items()
        if instr.op[0] == "mov" and isinstance(instr.args[1], Int)
    }
