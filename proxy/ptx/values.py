"""Determines the values of a kernel's registers, with a separate value for each assignment.

PTX assigns registers several times. Here each assignment makes a *value*. Where different values
meet, a MEET value has one operand for each incoming edge (static single assignment form: Cytron et
al., 1991). Instructions that compute the same from the same values make one value, wherever they
are. A result that does not depend on other values alone (read from memory, received from other
threads, computed by an unknown instruction) is a separate value for each assignment.

At any time, a value is what its last assignment made it. The values from which it is computed were
assigned before it and not since: so what a branch implies about one of them holds for it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .blocks import Block, Blocks, Way
from .model import (
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
    registers_of,
)
from .parameters import Flat

INTEGERS = frozenset(f"{sign}{bits}" for sign in "bsu" for bits in (8, 16, 32, 64))
# Instructions whose result depends on their operands alone.
PURE = frozenset(
    "add sub mul mad min max neg abs shl shr and or xor not div rem cvt selp setp".split()
)


class Kind(enum.Enum):
    NUMBER = "a constant: `about`"
    SPECIAL = "a special register: its name is `about`"
    PLACE = "the address of a variable or of a parameter: its Sym is `about`"
    COMPUTED = "the result of an instruction without memory: `op` of `args`"
    PARAMETER = "the content at an offset in the parameters: `op` loads it, `about` is the offset"
    EITHER = "args[1] if the predicate args[0] holds, else args[2]"
    MEET = "the value from one of the predecessors of a block, `about`: args in their order"
    UNKNOWN = "anything; `op` gives it"


LITERAL_BITS = 0  # bits of a constant that is not in a register yet


@dataclass(slots=True, eq=False)
class Value:
    """A value. `bits`: width of the register; 1: a predicate."""

    number: int
    kind: Kind
    bits: int
    op: tuple[str, ...] = ()
    args: tuple[Value, ...] = ()
    about: object = None


@dataclass(frozen=True, slots=True)
class Seen:
    """An instruction with memory operands.

    `at`: its number in the kernel. `bases`: the values of the bases of its addresses. `pred`: that
    of its predicate.
    """

    at: int
    block: int
    instr: Instr
    bases: tuple[Value, ...]
    pred: Value | None


class Values:
    """The values of a kernel.

    `seen`: its instructions with memory operands, in reachable blocks. Raises KeyError for branches
    without a target.
    """

    def __init__(self, flat: Flat, params: dict[str, int]):
        self.flat, self.params = flat, params
        self.blocks = Blocks(flat.instrs)
        self.seen: list[Seen] = []
        self._known: dict[object, Value] = {}
        self._count = 0
        self._meets: dict[int, dict[str, Value]] = {}
        self._last: dict[int, dict[str, Value]] = {}
        self._above: dict[tuple[int, str], Value] = {}
        self._place_meets()
        for number in self.blocks.order:
            self._read(self.blocks[number])
        for number, meets in self._meets.items():
            for name, value in meets.items():
                ways = self.blocks[number].ways
                value.args = tuple(self.at_end(way.source, name) for way in ways)

    def __iter__(self) -> Iterator[Value]:
        """Each value once, after those from which it is computed (a MEET value may come before)."""
        return iter(self._known.values())

    # ---- look-up

    def at_end(self, block: int, name: str) -> Value:
        """A register's value at the end of a block."""
        start = block
        while name not in self._last[block]:
            if name in self._meets.get(block, ()):
                return self._meets[block][name]
            if (block, name) in self._above:
                found = self._above[block, name]
                break
            above = self.blocks[block].above
            if above == block:
                found = self._make(Kind.UNKNOWN, self._bits(name), about=("unset", name))
                break
            block = above
        else:
            found = self._last[block][name]
        if start != block:
            self._above[start, name] = found
        return found

    def predicate(self, way: Way) -> tuple[Value, bool] | None:
        """The predicate that must hold for an edge to be taken, and its value."""
        if way.condition is None:
            return None
        return self.at_end(way.source, way.condition.register), way.condition.holds

    def _bits(self, name: str) -> int:
        kind = self.flat.registers.get(name, "b64")
        return 1 if kind == "pred" else 8 * TYPE_BYTES[kind]

    # ---- creation

    def _make(
        self,
        kind: Kind,
        bits: int,
        op: tuple[str, ...] = (),
        args: Iterable[Value] = (),
        about: object = None,
    ) -> Value:
        args = tuple(args)
        key = (kind, bits, op, tuple(a.number for a in args), about)
        if key not in self._known:
            self._known[key] = Value(self._count, kind, bits, op, args, about)
            self._count += 1
        return self._known[key]

    def _number(self, number: object, bits: int) -> Value:
        """A constant in a register, as a signed number."""
        assert isinstance(number, int)
        half = 1 << max(bits - 1, 0)
        return self._make(Kind.NUMBER, bits, about=(number + half) % (2 * half) - half)

    def _place_meets(self) -> None:
        where: dict[str, set[int]] = {}
        for number in self.blocks.order:
            for instr in self.blocks[number].instrs:
                for name in assigned(instr):
                    where.setdefault(name, set()).add(number)
        for name, blocks in where.items():
            for join in self.blocks.joins(blocks):
                bits = self._bits(name)
                value = self._make(Kind.MEET, bits, about=(join, name))
                self._meets.setdefault(join, {})[name] = value

    def _read(self, block: Block) -> None:
        last: dict[str, Value] = {}
        self._last[block.number] = last
        for at, instr in enumerate(block.instrs):
            pred = self._register(block.number, instr.pred.name) if instr.pred else None
            memory = [a for a in instr.args if isinstance(a, Mem)]
            if memory:
                bases = tuple(self._operand(block.number, mem.base) for mem in memory)
                self.seen.append(Seen(block.first + at, block.number, instr, bases, pred))
            given = list(self._given(block.number, instr, (block.number, at)))
            for name, value in given:
                if pred:
                    old = self._register(block.number, name)
                    pair = (old, value) if instr.negated else (value, old)
                    value = self._make(Kind.EITHER, self._bits(name), args=(pred, *pair))
                last[name] = value

    def _register(self, block: int, name: str) -> Value:
        return self.at_end(block, name)

    def _operand(self, block: int, operand: Operand) -> Value:
        if isinstance(operand, Reg):
            return self._register(block, operand.name)
        if isinstance(operand, Int):
            return self._make(Kind.NUMBER, LITERAL_BITS, about=operand.value)
        if isinstance(operand, Special):
            return self._make(Kind.SPECIAL, 32, about=operand.name)
        if isinstance(operand, Sym):
            return self._make(Kind.PLACE, 64, about=operand)
        if isinstance(operand, Not):
            return self._make(
                Kind.COMPUTED, 1, ("not", "pred"), [self._operand(block, operand.operand)]
            )
        raise ValueError(f"no value: {operand}")

    def _given(
        self, block: int, instr: Instr, where: tuple[int, int]
    ) -> Iterator[tuple[str, Value]]:
        """The registers that an instruction assigns, with their values."""
        names = assigned(instr)
        if not names:
            return
        values: Sequence[Value | None] = self._computed(block, instr) or [None] * len(names)
        for name, value in zip(names, values, strict=True):
            bits = self._bits(name)
            if value and value.kind is Kind.NUMBER and value.bits == LITERAL_BITS:
                value = self._number(value.about, bits)
            if value is None or (value.bits != bits and value.kind is not Kind.PLACE):
                value = self._make(Kind.UNKNOWN, bits, instr.op, about=(*where, name))
            yield name, value

    def _computed(self, block: int, instr: Instr) -> list[Value] | None:
        """The values of the results, if they can be determined."""
        op, to = instr.op, instr.args[0]
        if op[-1] not in INTEGERS | {"pred"}:
            return None
        if op[0] in ("ld", "ldu"):
            return self._parameters(block, instr)
        if not isinstance(to, Reg):
            return None
        try:
            args = [self._operand(block, operand) for operand in instr.args[1:]]
        except ValueError:
            return None
        if op[0] in ("mov", "pmov") or (op[0] == "cvta" and _same_address(op)):
            return args[:1]
        if op[0] not in PURE:
            return None
        if op[0] == "add" and args[0].kind is Kind.PLACE and args[1].kind is Kind.NUMBER:
            sym, by = args[0].about, args[1].about
            assert isinstance(sym, Sym) and isinstance(by, int)
            return [self._make(Kind.PLACE, 64, about=Sym(sym.name, sym.offset + by))]
        return [self._make(Kind.COMPUTED, self._bits(to.name), op, args)]

    def _parameters(self, block: int, instr: Instr) -> list[Value] | None:
        to, where = instr.args[:2]
        if not isinstance(where, Mem) or "param" not in instr.op[1:2]:
            return None
        base = self._operand(block, where.base)
        if not isinstance(base.about, Sym) or base.about.name not in self.params:
            return None
        at = self.params[base.about.name] + base.about.offset + where.offset
        kind = instr.op[-1]
        return [
            self._make(
                Kind.PARAMETER, self._bits(item.name), ("ld", kind), about=at + n * TYPE_BYTES[kind]
            )
            for n, item in enumerate(to.items if isinstance(to, Vec) else (to,))
            if isinstance(item, Reg)
        ]


def _same_address(op: tuple[str, ...]) -> bool:
    """True for cvta between generic addresses and those of device memory or parameters."""
    return "global" in op or "param" in op or "const" in op


def assigned(instr: Instr) -> list[str]:
    """The registers that the instruction may write.

    For some instructions that write no register it returns the first operand; that register then
    has an unknown value.
    """
    if not instr.args or isinstance(instr.args[0], Mem) or instr.op[0] in ("bra", "brx", "st"):
        return []
    return registers_of(instr.args[0])
