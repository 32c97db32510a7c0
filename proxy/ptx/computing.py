"""Translates what an instruction computes into steps (steps.py) on the ranges of its operands."""

from __future__ import annotations

from collections.abc import Callable

from .steps import Op, Sign, Steps
from .values import INTEGERS


def as_signed(number: int, bits: int = 64) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


Write = Callable[[Steps, tuple[str, ...], int, int, list[int]], int]


def _simple(op: Op) -> Write:
    return lambda steps, _, bits, sign, args: steps.add(op, bits, sign, args[0], args[1])


def _product(steps: Steps, op: tuple[str, ...], bits: int, sign: int, args: list[int]) -> int:
    if "lo" in op or bits > 32 or not {"wide", "hi"} & set(op):
        return steps.add(Op.MULTIPLY if "lo" in op else Op.ANY, bits, a=args[0], b=args[1])
    a, b = (steps.add(Op.AS, bits, sign, each) for each in args[:2])
    if "wide" in op:
        return steps.add(Op.MULTIPLY, 2 * bits, a=a, b=b)
    whole = steps.add(Op.MULTIPLY, 64, a=a, b=b)
    by = steps.add(Op.NUMBER, number=bits)
    return steps.add(Op.SHIFT_DOWN, 64, Sign.SIGNED, whole, by)


def _product_and_sum(
    steps: Steps, op: tuple[str, ...], bits: int, sign: int, args: list[int]
) -> int:
    whole = 2 * bits if "wide" in op else bits
    return steps.add(Op.ADD, whole, a=_product(steps, op, bits, sign, args), b=args[2])


def _from(number: int) -> Write:
    """Subtracts the operand from a number."""
    return lambda steps, _, bits, _sign, args: steps.add(
        Op.SUBTRACT, bits, a=steps.add(Op.NUMBER, number=number), b=args[0]
    )


def _magnitude(steps: Steps, _: tuple[str, ...], bits: int, _sign: int, args: list[int]) -> int:
    value = steps.add(Op.AS, bits, Sign.SIGNED, args[0])
    below = steps.add(Op.SUBTRACT, bits, a=steps.add(Op.NUMBER, number=0), b=value)
    return steps.add(Op.MOST, bits, Sign.SIGNED, value, below)


ARITHMETIC: dict[str, Write] = {
    "add": _simple(Op.ADD),
    "sub": _simple(Op.SUBTRACT),
    "mul": _product,
    "mad": _product_and_sum,
    "shl": _simple(Op.SHIFT_UP),
    "shr": _simple(Op.SHIFT_DOWN),
    "and": _simple(Op.AND),
    "or": _simple(Op.OR),
    "xor": _simple(Op.XOR),
    "div": _simple(Op.DIVIDE),
    "rem": _simple(Op.REST),
    "min": _simple(Op.LEAST),
    "max": _simple(Op.MOST),
    "neg": _from(0),
    "not": _from(-1),
    "abs": _magnitude,
    "cvt": _simple(Op.AS),
    "selp": _simple(Op.JOIN),  # the caller handles these two by name
}
MODIFIERS = {
    "add": frozenset(["cc"]),
    "sub": frozenset(["cc"]),
    "mul": frozenset(["lo", "wide", "hi"]),
    "mad": frozenset(["lo", "wide"]),
    "cvt": INTEGERS,
}
