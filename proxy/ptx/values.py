"""Determines the values of a kernel's registers, with a separate value for each assignment.

PTX assigns registers several times. Here each assignment makes a *value*. Where different values
reach a block, a phi has one operand for each incoming edge (static single assignment form: Cytron
et al., 1991). Instructions that compute the same from the same values make one value, wherever they
are. A result that does not depend on other values alone (read from memory, received from other
threads, computed by an unknown instruction) is a separate value for each assignment.

At any time, a value is what its last assignment made it. The values from which it is computed were
assigned before it and not since: so what a branch implies about one of them holds for it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .blocks import Block, Blocks, Edge
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
# Instructions that replace all of the register that is their first operand.
REPLACING = PURE | frozenset("mov cvta ld ldu fma mul24 mad24 set ex2 lg2 rcp sqrt rsqrt".split())


class Kind(enum.Enum):
    NUMBER = "a constant: `about`"
    SPECIAL = "a special register: its name is `about`"
    PLACE = "the address of a variable or of a parameter: its Sym is `about`"
    COMPUTED = "the result of an instruction without memory: `op` of `args`"
    PARAMETER = "the content at an offset in the parameters: `op` loads it, `about` is the offset"
    FETCHED = "the content of the parameters at an address, args[0] + `about`: `op` loads it"
    RECEIVED = "args[0] of a thread that executes the same instruction: `about` says where"
    SELECT = "args[1] if the predicate args[0] holds, else args[2]"
    PHI = "a phi: the value from one of the predecessors of a block, `about`: args in their order"
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
class MemoryInstr:
    """An instruction with memory operands.

    `at`: its number in the kernel. `bases`: the values of the bases of its addresses. `pred`: that
    of its predicate.
    """

    at: int
    block: int
    instr: Instr
    bases: tuple[Value, ...]
    pred: Value | None


@dataclass(frozen=True, slots=True)
class Line:
    """An instruction: the values before it of the registers that it names, and those that it
    assigns."""

    instr: Instr
    before: dict[str, Value]
    after: dict[str, Value]


class Values:
    """The values of a kernel.

    `lines`: its instructions in reachable blocks; `memory_instrs`: those with memory operands.
    Raises KeyError for branches without a target.
    """

    def __init__(self, flat: Flat, params: dict[str, int]):
        self.flat, self.params = flat, params
        self.blocks = Blocks(flat.instrs)
        self.memory_instrs: list[MemoryInstr] = []
        self.lines: list[Line] = []
        self._numbered: dict[object, Value] = {}
        self._count = 0
        self._phis: dict[int, dict[str, Value]] = {}
        self._last: dict[int, dict[str, Value]] = {}
        self._inherited: dict[tuple[int, str], Value] = {}
        self._place_phis()
        for number in self.blocks.order:
            self._read_block(self.blocks[number])
        for number, phis in self._phis.items():
            for name, value in phis.items():
                edges_in = self.blocks[number].edges_in
                value.args = tuple(self.at_end(edge.source, name) for edge in edges_in)

    def __iter__(self) -> Iterator[Value]:
        """Each value once, after those from which it is computed (a phi may come before)."""
        return iter(self._numbered.values())

    # ---- look-up

    def at_end(self, block: int, name: str) -> Value:
        """A register's value at the end of a block."""
        start = block
        while name not in self._last[block]:
            if name in self._phis.get(block, ()):
                return self._phis[block][name]
            if (block, name) in self._inherited:
                value = self._inherited[block, name]
                break
            dominator = self.blocks[block].dominator
            if dominator == block:
                value = self._make(Kind.UNKNOWN, self._bits(name), about=("unset", name))
                break
            block = dominator
        else:
            value = self._last[block][name]
        if start != block:
            self._inherited[start, name] = value
        return value

    def predicate(self, edge: Edge) -> tuple[Value, bool] | None:
        """The predicate that must hold for an edge to be taken, and its value."""
        if edge.condition is None:
            return None
        return self.at_end(edge.source, edge.condition.register), edge.condition.holds

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
        if key not in self._numbered:
            self._numbered[key] = Value(self._count, kind, bits, op, args, about)
            self._count += 1
        return self._numbered[key]

    def _number(self, number: object, bits: int) -> Value:
        """A constant in a register, as a signed number."""
        assert isinstance(number, int)
        half = 1 << max(bits - 1, 0)
        return self._make(Kind.NUMBER, bits, about=(number + half) % (2 * half) - half)

    def _place_phis(self) -> None:
        """Only for registers that some block reads before it assigns them: values of others do not
        pass from one block to another."""
        where: dict[str, set[int]] = {}
        passed: set[str] = set()
        for number in self.blocks.order:
            own: set[str] = set()  # assigned in this block
            for instr in self.blocks[number].instrs:
                passed.update(name for name in _read(instr) if name not in own)
                names = assigned(instr)
                own.update(names)
                for name in names:
                    where.setdefault(name, set()).add(number)
        for name in (name for name in where if name in passed):
            for block in self.blocks.iterated_frontier(where[name]):
                bits = self._bits(name)
                value = self._make(Kind.PHI, bits, about=(block, name))
                self._phis.setdefault(block, {})[name] = value

    def _read_block(self, block: Block) -> None:
        last: dict[str, Value] = {}
        self._last[block.number] = last
        for index, instr in enumerate(block.instrs):
            pred = self._register(block.number, instr.pred.name) if instr.pred else None
            memory = [a for a in instr.args if isinstance(a, Mem)]
            if memory:
                bases = tuple(self._operand(block.number, mem.base) for mem in memory)
                self.memory_instrs.append(
                    MemoryInstr(block.first + index, block.number, instr, bases, pred)
                )
            names = {name for a in instr.args for name in registers_of(a)}
            before = {name: self._register(block.number, name) for name in names}
            assignments = list(self._assignments(block.number, instr, (block.number, index)))
            after = dict[str, Value]()
            for name, value in assignments:
                if pred:
                    old = self._register(block.number, name)
                    pair = (old, value) if instr.negated else (value, old)
                    value = self._make(Kind.SELECT, self._bits(name), args=(pred, *pair))
                last[name] = after[name] = value
            self.lines.append(Line(instr, before, after))

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

    def _assignments(
        self, block: int, instr: Instr, where: tuple[int, int]
    ) -> Iterator[tuple[str, Value]]:
        """The registers that an instruction assigns, with their values."""
        names = assigned(instr)
        if not names:
            return
        values: Sequence[Value | None] = self._computed(where, instr) or [None] * len(names)
        for name, value in zip(names, values, strict=True):
            bits = self._bits(name)
            if value and value.kind is Kind.NUMBER and value.bits == LITERAL_BITS:
                value = self._number(value.about, bits)
            if value is None or (value.bits != bits and value.kind is not Kind.PLACE):
                value = self._make(Kind.UNKNOWN, bits, instr.op, about=(*where, name))
            yield name, value

    def _computed(self, where: tuple[int, int], instr: Instr) -> Sequence[Value | None] | None:
        """The values of the results, if they can be determined."""
        op, to, block = instr.op, instr.args[0], where[0]
        if op[0] in ("ld", "ldu"):
            return self._parameters(block, instr) if TYPE_BYTES.get(op[-1], 16) <= 8 else None
        if op[-1] not in INTEGERS | {"pred"}:
            return None
        if op[0] == "shfl":
            return self._received(where, instr)
        if op == ("mov", "b64") and (isinstance(to, Vec) or isinstance(instr.args[1], Vec)):
            return self._halves(block, to, instr.args[1])
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
        if op[0] == "or" and _apart(*args):
            op = ("add", f"u{op[-1][1:]}")
        return [self._make(Kind.COMPUTED, self._bits(to.name), op, args)]

    def _parameters(self, block: int, instr: Instr) -> Sequence[Value | None] | None:
        to, where = instr.args[:2]
        if not isinstance(where, Mem) or "param" not in instr.op[1:2]:
            return None
        base, kind = self._operand(block, where.base), instr.op[-1]
        sym = base.about if isinstance(base.about, Sym) else None
        if sym and sym.name not in self.params:
            return None
        values = list[Value]()
        for n, item in enumerate(to.items if isinstance(to, Vec) else (to,)):
            offset = where.offset + n * TYPE_BYTES[kind]
            if not isinstance(item, Reg):
                continue
            bits, op = self._bits(item.name), ("ld", kind)
            if sym:
                offset += self.params[sym.name] + sym.offset
                values.append(self._make(Kind.PARAMETER, bits, op, about=offset))
            else:
                values.append(self._make(Kind.FETCHED, bits, op, [base], about=offset))
        return values

    def _received(self, where: tuple[int, int], instr: Instr) -> Sequence[Value | None] | None:
        names, what = registers_of(instr.args[0]), instr.args[1]
        if not names or not isinstance(what, Reg):
            return None
        source = self._register(where[0], what.name)
        by = tuple(self._operand(where[0], each) for each in instr.args[2:])
        bits, rest = self._bits(names[0]), [None] * (len(names) - 1)
        return [self._make(Kind.RECEIVED, bits, instr.op, [source], (*where, by)), *rest]

    def _halves(self, block: int, to: Operand, what: Operand) -> Sequence[Value] | None:
        """The two halves of a 64-bit value; or that value, of its two halves."""
        if isinstance(to, Vec):
            if len(to.items) != 2 or not all(isinstance(item, Reg) for item in to.items):
                return None
            if not isinstance(what, Reg):
                return None
            whole = self._register(block, what.name)
            return [self._make(Kind.COMPUTED, 32, (half, "b64"), [whole]) for half in HALVES]
        assert isinstance(what, Vec)
        if len(what.items) != 2 or not all(isinstance(item, Reg) for item in what.items):
            return None
        low, high = (self._operand(block, item) for item in what.items)
        if whole_of := _whole(low, high):
            return [whole_of]
        if low.kind is high.kind is Kind.RECEIVED and low.op == high.op:
            assert isinstance(low.about, tuple) and isinstance(high.about, tuple)
            source = _whole(low.args[0], high.args[0])
            if source and (low.about[0], low.about[2]) == (high.about[0], high.about[2]):
                return [self._make(Kind.RECEIVED, 64, low.op, [source], low.about)]
        return None


HALVES = ("low", "high")


def _apart(a: Value, b: Value) -> bool:
    """True if one is a number of bits that the other one does not have: `or` adds them."""
    value, number = (b, a) if a.kind is Kind.NUMBER else (a, b)
    about = number.about
    if number.kind is not Kind.NUMBER or not isinstance(about, int) or about < 0:
        return False
    by = value.args[1].about if len(value.args) == 2 else None
    shifted = value.op == ("shl", f"b{value.bits}") and value.args[1].kind is Kind.NUMBER
    return shifted and isinstance(by, int) and 0 <= by < value.bits and about < 1 << by


def _whole(low: Value, high: Value) -> Value | None:
    """The 64-bit value that has these halves."""
    if (low.op, high.op) != tuple((half, "b64") for half in HALVES) or low.args != high.args:
        return None
    return low.args[0] if low.args[0].bits == 64 else None


def _same_address(op: tuple[str, ...]) -> bool:
    """True for cvta between generic addresses and those of device memory or parameters."""
    return "global" in op or "param" in op or "const" in op


def _read(instr: Instr) -> list[str]:
    """The registers whose values before the instruction may matter: not those that it replaces."""
    replaces = instr.op[0] in REPLACING and not instr.pred
    replaces = replaces and bool(instr.args) and isinstance(instr.args[0], Reg | Vec)
    names = [name for a in instr.args[1 if replaces else 0 :] for name in registers_of(a)]
    return [*names, instr.pred.name] if instr.pred else names


def assigned(instr: Instr) -> list[str]:
    """The registers that the instruction may write.

    For some instructions that write no register it returns the first operand; that register then
    has an unknown value.
    """
    if not instr.args or isinstance(instr.args[0], Mem) or instr.op[0] in ("bra", "brx", "st"):
        return []
    return registers_of(instr.args[0])
