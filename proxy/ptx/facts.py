"""Derives facts about compared values from a predicate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .model import TYPE_BYTES
from .steps import Op, Sign
from .values import INTEGERS, Kind, Value

COMPARED = {  # the fact if the comparison holds, and if it does not
    "lt": (Op.BELOW, Op.AT_LEAST),
    "le": (Op.AT_MOST, Op.ABOVE),
    "gt": (Op.ABOVE, Op.AT_MOST),
    "ge": (Op.AT_LEAST, Op.BELOW),
    "eq": (Op.EQUAL, Op.OTHER),
    "ne": (Op.OTHER, Op.EQUAL),
    "lo": (Op.BELOW, Op.AT_LEAST),
    "ls": (Op.AT_MOST, Op.ABOVE),
    "hi": (Op.ABOVE, Op.AT_MOST),
    "hs": (Op.AT_LEAST, Op.BELOW),
}
EXCHANGED = {
    "lt": "gt",
    "le": "ge",
    "gt": "lt",
    "ge": "le",
    "eq": "eq",
    "ne": "ne",
    "lo": "hi",
    "ls": "hs",
    "hi": "lo",
    "hs": "ls",
}
UNSIGNED = ("lo", "ls", "hi", "hs")


@dataclass(frozen=True, slots=True)
class Fact:
    """`op` holds between the value and `other`, with their bits read as `sign` and `bits`."""

    value: Value
    op: Op
    sign: Sign
    bits: int
    other: Value


def facts_of(predicate: Value, holds: bool) -> list[Fact]:
    """The facts that follow if a predicate holds, or if it does not."""
    if predicate.kind is not Kind.COMPUTED:
        return []
    op, args = predicate.op, predicate.args
    if op == ("not", "pred"):
        return facts_of(args[0], not holds)
    if op in (("and", "pred"), ("or", "pred")):
        if holds != (op[0] == "and"):
            return []
        return facts_of(args[0], holds) + facts_of(args[1], holds)
    if op[0] != "setp" or op[-1] not in INTEGERS or op[1] not in COMPARED:
        return []
    more: list[Fact] = []
    if len(op) == 4 and len(args) == 3:
        if op[2] not in ("and", "or") or holds != (op[2] == "and"):
            return []
        more = facts_of(args[2], holds)
    elif len(op) != 3 or len(args) != 2:
        return []
    facts = list(_compared(op[1], op[-1], args[0], args[1], holds))
    for value, zero in (args[:2], args[1::-1]):
        if zero.kind is Kind.NUMBER and zero.about == 0 and op[1] in ("eq", "ne"):
            facts += _zero(value, zero, (op[1] == "eq") == holds)
    return [*facts, *more]


def _zero(value: Value, zero: Value, it_is: bool) -> list[Fact]:
    """The facts that follow if an integer is zero, or if it is not: compilers combine conditions
    as integers, too."""
    if value.kind is not Kind.COMPUTED:
        return []
    match value.op:
        case ("or", _) if it_is:
            return [fact for each in value.args for fact in _zero(each, zero, True)]
        case ("selp", _):
            yes, no, predicate = value.args
            if yes.kind is no.kind is Kind.NUMBER and (yes.about == 0) != (no.about == 0):
                return facts_of(predicate, (yes.about == 0) == it_is)
        case ("cvt", "u32", "u64") if _bits(value.args[0]) <= 32:
            return _zero(value.args[0], zero, it_is)
        case ("shr", "u64" | "u32" as kind) if _bits(value) == 1:
            operand, bits = value.args[0], 8 * TYPE_BYTES[kind]
            if operand.bits == bits:
                op = Op.AT_LEAST if it_is else Op.BELOW
                return [Fact(operand, op, Sign.SIGNED, bits, zero)]
    return []


def _bits(value: Value) -> int:
    """The number of the lowest bits beyond which an integer has none, as far as it is seen."""
    if value.kind is Kind.COMPUTED and value.op in (("shr", "u64"), ("shr", "u32")):
        by = value.args[1]
        if by.kind is Kind.NUMBER and isinstance(by.about, int) and 0 <= by.about < value.bits:
            return value.bits - by.about
    return value.bits


def _compared(how: str, kind: str, a: Value, b: Value, holds: bool) -> Iterator[Fact]:
    sign = Sign.UNSIGNED if kind[0] == "u" or how in UNSIGNED else Sign.SIGNED
    bits = 8 * TYPE_BYTES[kind]
    for value, other, as_ in ((a, b, how), (b, a, EXCHANGED[how])):
        if value.kind is not Kind.NUMBER and value.bits == bits:
            yield Fact(value, COMPARED[as_][0 if holds else 1], sign, bits, other)
