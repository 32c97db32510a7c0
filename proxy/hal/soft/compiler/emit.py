"""Writes LLVM IR as text: values, constants, and the LLVM types of PTX types."""

from __future__ import annotations

import struct
from typing import NamedTuple

from rankfold.proxy.ptx.model import TYPE_BYTES


class Value(NamedTuple):
    type: str
    ref: str


_LLVM = {"pred": "i1", "f32": "float", "f64": "double"}
BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "i128": 128,
    "half": 16,
    "float": 32,
    "double": 64,
}


def llvm_type(kind: str) -> str:
    """Returns the type of a register of a PTX type. 16-bit floats are kept as their bits."""
    return _LLVM.get(kind) or f"i{8 * TYPE_BYTES[kind]}"


def is_signed(kind: str) -> bool:
    return kind[0] == "s"


def is_float(kind: str) -> bool:
    return kind in ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")


def const(type_: str, value: int | float) -> Value:
    if type_ in ("float", "double"):
        return float_const(type_, float(value))
    if type_ == "i1":
        return Value("i1", "true" if value else "false")
    bits = BITS[type_]
    number = int(value) & ((1 << bits) - 1)
    return Value(type_, str(number - (1 << bits) if number >> (bits - 1) else number))


def float_const(type_: str, value: float) -> Value:
    """Returns a constant given by its bits, so that no decimal conversion is involved."""
    if type_ == "float":
        (bits,) = struct.unpack("<i", struct.pack("<f", value))
        return Value("float", f"bitcast (i32 {bits} to float)")
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return Value("double", f"bitcast (i64 {bits} to double)")


def float_bits(bits: int) -> Value:
    signed = bits - (1 << 32) if bits >> 31 else bits
    return Value("float", f"bitcast (i32 {signed} to float)")


class Emitter:
    """A growing list of lines. Lines in `head` go to the function's entry block."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.head: list[str] = []
        self.declared: set[str] = set()
        self.helpers: set[str] = set()
        self._count = 0
        self._labels = 0

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def label(self) -> str:
        self._labels += 1
        return f"x{self._labels}"

    def op(self, type_: str, text: str) -> Value:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return Value(type_, name)

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def at(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def in_head(self, type_: str, text: str) -> Value:
        name = self.name()
        self.head.append(f"  {name} = {text}")
        return Value(type_, name)

    # ---- arithmetic

    def bin(self, op: str, a: Value, b: Value) -> Value:
        return self.op(a.type, f"{op} {a.type} {a.ref}, {b.ref}")

    def cmp(self, op: str, a: Value, b: Value) -> Value:
        """Compares; `op` is "icmp slt", "fcmp olt" …"""
        return self.op("i1", f"{op} {a.type} {a.ref}, {b.ref}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.op(a.type, f"select i1 {condition.ref}, {a.type} {a.ref}, {b.type} {b.ref}")

    def neg(self, a: Value) -> Value:
        return self.op(a.type, f"fneg {a.type} {a.ref}")

    def neg_int(self, a: Value) -> Value:
        return self.bin("sub", const(a.type, 0), a)

    def not_(self, a: Value) -> Value:
        return self.bin("xor", a, const(a.type, -1 if a.type != "i1" else 1))

    def call(self, type_: str, function: str, *args: Value) -> Value:
        """Calls a function of LLVM or of mathlib.py; it is declared at its first use."""
        if function.startswith("llvm."):
            kinds = ", ".join(a.type for a in args)
            self.declared.add(f"declare {type_} @{function}({kinds})")
        else:
            self.helpers.add(function)
        operands = ", ".join(f"{a.type} {a.ref}" for a in args)
        return self.op(type_, f"call {type_} @{function}({operands})")

    def intrinsic(self, name: str, *args: Value) -> Value:
        """Calls an LLVM intrinsic that is overloaded on its first argument's type."""
        first = args[0].type
        suffix = {"float": "f32", "double": "f64"}.get(first, first)
        return self.call(first, f"llvm.{name}.{suffix}", *args)

    # ---- conversions

    def bitcast(self, value: Value, type_: str) -> Value:
        if value.type == type_:
            return value
        return self.op(type_, f"bitcast {value.type} {value.ref} to {type_}")

    def resize(self, value: Value, type_: str, signed: bool = False) -> Value:
        """Truncates or extends an integer."""
        have, want = BITS[value.type], BITS[type_]
        if have == want:
            return value
        op = "trunc" if have > want else "sext" if signed else "zext"
        return self.op(type_, f"{op} {value.type} {value.ref} to {type_}")

    def cast(self, op: str, value: Value, type_: str) -> Value:
        return self.op(type_, f"{op} {value.type} {value.ref} to {type_}")

    def coerce(self, value: Value, type_: str, signed: bool = False) -> Value:
        """Reinterprets bits as another type; integers are extended or truncated."""
        if value.type == type_:
            return value
        if BITS[value.type] == BITS[type_]:
            return self.bitcast(value, type_)
        whole = self.bitcast(value, f"i{BITS[value.type]}")
        return self.bitcast(self.resize(whole, f"i{BITS[type_]}", signed), type_)
