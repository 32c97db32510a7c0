"""Shared by the handlers of instructions: the segment that they write to, and floats.

A handler raises Unsupported for a form that it does not implement; nothing is approximated
silently. instructions.py assigns handlers to instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rankfold.proxy.ptx.model import Instr, Operand

from .emit import Emitter, Value, const


class Unsupported(Exception):
    """This form of the instruction is not implemented."""


class Context(Protocol):
    """The interface of the segment being written, as handlers use it."""

    e: Emitter

    def read(self, operand: Operand, kind: str) -> Value: ...
    def write(self, operand: Operand, value: Value, signed: bool = False) -> None: ...
    def kind_of(self, operand: Operand) -> str: ...


Handler = Callable[[Context, Instr], None]
ROUNDINGS = frozenset(("rn", "rz", "rm", "rp"))


def allow(instr: Instr, *known: str) -> set[str]:
    """Returns the modifiers between name and type; one that is not in `known` is unsupported."""
    words = set(instr.op[1:-1])
    if words - set(known):
        raise Unsupported
    return words


# ---- floating-point values ------------------------------------------------------------------


def read_float(c: Context, operand: Operand, kind: str) -> Value:
    """Reads a float to compute with: 16-bit floats are converted to float, exactly."""
    value = c.read(operand, kind)
    if kind == "f16":
        return c.e.cast("fpext", c.e.bitcast(value, "half"), "float")
    if kind == "bf16":
        return c.e.bitcast(c.e.bin("shl", c.e.resize(value, "i32"), const("i32", 16)), "float")
    return value


def pack_float(c: Context, value: Value, kind: str) -> Value:
    """Rounds a computed value to the type, in the form that a register keeps."""
    if kind == "f16":
        return c.e.bitcast(c.e.cast("fptrunc", value, "half"), "i16")
    if kind == "bf16":
        return c.e.call("i16", "rf_to_bf16", value)
    return value


def halves(c: Context, operand: Operand, kind: str) -> tuple[Value, Value]:
    whole = c.read(operand, "b32")
    parts = []
    for shift in (0, 16):
        bits = c.e.cast("trunc", c.e.bin("lshr", whole, const("i32", shift)), "i16")
        if kind == "f16x2":
            parts.append(c.e.cast("fpext", c.e.bitcast(bits, "half"), "float"))
        else:
            wide = c.e.bin("shl", c.e.resize(bits, "i32"), const("i32", 16))
            parts.append(c.e.bitcast(wide, "float"))
    return parts[0], parts[1]


def join(c: Context, low: Value, high: Value) -> Value:
    wide = c.e.bin("shl", c.e.resize(high, "i32"), const("i32", 16))
    return c.e.bin("or", wide, c.e.resize(low, "i32"))


def relu(c: Context, value: Value) -> Value:
    """Returns 0 for values not above 0; NaN remains."""
    above = c.e.cmp("fcmp ugt", value, const(value.type, 0))
    return c.e.select(above, value, const(value.type, 0))


def flush(c: Context, value: Value, words: set[str] | tuple[str, ...]) -> Value:
    return (
        c.e.call("float", "rf_flush", value) if "ftz" in words and value.type == "float" else value
    )


def saturate(c: Context, value: Value) -> Value:
    """Clamps to [0, 1]; NaN becomes 0."""
    zero, one = const(value.type, 0), const(value.type, 1)
    low = c.e.select(c.e.cmp("fcmp ogt", value, zero), value, zero)
    return c.e.select(c.e.cmp("fcmp olt", low, one), low, one)


def float_op(c: Context, instr: Instr, words: set[str], compute: Callable[..., Value]) -> None:
    """Writes d = compute(sources) for a float type or its packed pair; with ftz, sat and relu."""
    kind = instr.op[-1]
    half = kind in ("f16", "f16x2")

    def one(values: list[Value]) -> Value:
        if "ftz" in words and half:
            values = [c.e.call("float", "rf_flush_half", value) for value in values]
            result = compute(*values)
            rounded = c.e.cast("fpext", c.e.cast("fptrunc", result, "half"), "float")
            result = c.e.call("float", "rf_flush_half", rounded)
        else:
            result = flush(c, compute(*[flush(c, value, words) for value in values]), words)
        if "sat" in words:
            result = saturate(c, result)
        if "relu" in words:
            result = relu(c, result)
        return result

    if kind.endswith("x2"):
        pairs = [halves(c, operand, kind) for operand in instr.args[1:]]
        single = kind[:-2]
        low = pack_float(c, one([pair[0] for pair in pairs]), single)
        high = pack_float(c, one([pair[1] for pair in pairs]), single)
        c.write(instr.args[0], join(c, low, high))
    else:
        values = [read_float(c, operand, kind) for operand in instr.args[1:]]
        c.write(instr.args[0], pack_float(c, one(values), kind))


def rounding(words: set[str]) -> str:
    modes = words & ROUNDINGS
    return modes.pop() if modes else "rn"
