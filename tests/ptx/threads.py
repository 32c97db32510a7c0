"""Executes the integer part of PTX in Python, thread by thread, and records every access."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rankfold.proxy.ptx.model import (
    TYPE_BYTES,
    Instr,
    Int,
    Mem,
    Not,
    Operand,
    Reg,
    Special,
    Sym,
    Vec,
)
from rankfold.proxy.ptx.parameters import Flat

STEPS_MAX = 600


def signed(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "min": min,
    "max": max,
    "div": lambda a, b: quotient(a, b) if b else -1,
    "rem": lambda a, b: a - b * quotient(a, b) if b else a,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
}


@dataclass(frozen=True)
class Accessed:
    address: int
    bytes: int
    written: bool


PARAMS_AT = 1 << 20  # the address of the parameters


@dataclass
class Thread:
    """`params`: the bytes of the launch's; `places`: where each parameter is in them. Memory
    holds what `found` gives, whatever was stored. Another thread has the same numbers. `read`: the
    bytes of the parameters that it has read, by their offsets."""

    flat: Flat
    params: bytes
    places: dict[str, int]
    special: dict[str, int]
    found: Callable[[], int]
    registers: dict[str, int] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)

    def run(self) -> Iterator[Accessed]:
        labels = {i.target: at for at, i in enumerate(self.flat.instrs) if i.op == ("label",)}
        at = 0
        for _ in range(STEPS_MAX):
            instr = self.flat.instrs[at]
            at += 1
            if instr.pred and bool(self.registers.get(instr.pred.name)) == instr.negated:
                continue
            if instr.op[0] in ("ret", "exit"):
                return
            if instr.op[0] == "bra":
                at = labels[instr.target]
            elif instr.op[0] in ("ld", "st") and "param" not in instr.op:
                yield from self.memory(instr)
            elif instr.op == ("mov", "b64") and any(isinstance(a, Vec) for a in instr.args):
                self.halves(*instr.args)
            elif instr.op[0] != "label":
                to = instr.args[0]
                assert isinstance(to, Reg)
                self.registers[to.name] = self.value(instr) & (1 << self.bits(to)) - 1

    def bits(self, register: Reg) -> int:
        kind = self.flat.registers[register.name]
        return 1 if kind == "pred" else 8 * TYPE_BYTES[kind]

    def of(self, operand: Operand, bits: int = 64, sign: bool = False) -> int:
        match operand:
            case Reg(name):
                value = self.registers.get(name, 0)
            case Int(number):
                value = number
            case Special(name):
                value = self.special[name]
            case Sym(name, offset):
                return PARAMS_AT + self.places[name] + offset
            case Not(inner):
                return 1 - self.of(inner, 1)
            case _:
                raise ValueError(operand)
        return signed(value, bits) if sign else value & (1 << bits) - 1

    def memory(self, instr: Instr) -> Iterator[Accessed]:
        written = instr.op[0] == "st"
        where, what = instr.args[:2] if written else instr.args[1::-1]
        assert isinstance(where, Mem)
        items = what.items if isinstance(what, Vec) else (what,)
        size = TYPE_BYTES[instr.op[-1]]
        if "shared" not in instr.op:
            address = self.of(where.base) + where.offset & (1 << 64) - 1
            yield Accessed(address, size * len(items), written)
        for item in items:
            if not written and isinstance(item, Reg):
                value = self.found() & (1 << 8 * size) - 1
                if instr.op[-1][0] == "s":
                    value = signed(value, 8 * size)
                self.registers[item.name] = value & (1 << self.bits(item)) - 1

    def value(self, instr: Instr) -> int:
        name, *words = instr.op
        kind = words[-1]
        bits = 1 if kind == "pred" else 8 * TYPE_BYTES[kind]
        sign = kind[0] == "s"
        if name == "ld":
            where = instr.args[1]
            assert isinstance(where, Mem)
            at = (self.of(where.base) + where.offset - PARAMS_AT) % (1 << 64)
            self.read |= set(range(at, at + bits // 8)) & set(range(len(self.params)))
            return int.from_bytes(self.params[at : at + bits // 8], "little", signed=sign)
        if name == "setp":
            a, b = (
                self.of(x, bits, sign and words[0] not in ("lo", "ls", "hi", "hs"))
                for x in instr.args[1:3]
            )
            holds = COMPARE[words[0]](a, b)
            if len(words) == 3:
                other = bool(self.of(instr.args[3], 1))
                holds = {"and": holds and other, "or": holds or other}[words[1]]
            return int(holds)
        if name == "selp":
            return self.of(instr.args[1 if self.of(instr.args[3], 1) else 2], bits)
        if name == "cvt":
            value = self.of(instr.args[1], bits, sign)
            to = 8 * TYPE_BYTES[words[0]]
            return signed(value, to) if words[0][0] == "s" else value & (1 << to) - 1
        args = [self.of(x, bits, sign) for x in instr.args[1:]]
        return self.computed(name, words, bits, args, instr)

    def halves(self, to: Operand, what: Operand) -> None:
        """mov.b64 from or to two registers."""
        if isinstance(to, Vec):
            for item, by in zip(to.items, (0, 32), strict=True):
                assert isinstance(item, Reg)
                self.registers[item.name] = self.of(what) >> by & (1 << 32) - 1
        else:
            assert isinstance(to, Reg) and isinstance(what, Vec)
            low, high = (self.of(item, 32) for item in what.items)
            self.registers[to.name] = low | high << 32

    def computed(
        self, name: str, words: list[str], bits: int, args: list[int], instr: Instr
    ) -> int:
        if name in ("mov", "cvta", "shfl"):
            return args[0]
        if name in BINARY:
            return BINARY[name](*args)
        if name in ("neg", "abs", "not"):
            return {"neg": -args[0], "abs": abs(args[0]), "not": ~args[0]}[name]
        if name in ("shl", "shr"):
            by = min(self.of(instr.args[2], 32), 64)
            return args[0] << by if name == "shl" else args[0] >> by
        product = args[0] * args[1]
        if name == "mul":
            return product >> bits if "hi" in words else product
        assert name == "mad", name
        return product + self.of(instr.args[3], 64 if "wide" in words else bits)
