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
    return [*_compared(op[1], op[-1], args[0], args[1], holds), *more]


def _compared(how: str, kind: str, a: Value, b: Value, holds: bool) -> Iterator[Fact]:
    sign = Sign.UNSIGNED if kind[0] == "u" or how in UNSIGNED else Sign.SIGNED
    bits = 8 * TYPE_BYTES[kind]
    for value, other, as_ in ((a, b, how), (b, a, EXCHANGED[how])):
        if value.kind not in (Kind.NUMBER, Kind.PARAMETER) and value.bits == bits:
            yield Fact(value, COMPARED[as_][0 if holds else 1], sign, bits, other)
