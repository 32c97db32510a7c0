"""Gives each value (values.py) of a kernel's registers a register of its own.

Compilers use a register again for something else: for a parameter, and then for what it points to.
An analysis that ignores the order of instructions would take each for the other. Where values meet,
and where a predicate decides whether an instruction is executed, moves that are not in the kernel
give the new register each value that it can have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .flows import Flow, flow_of
from .model import Instr, Int, Mem, Not, Operand, Pair, Part, Reg, Vec
from .parameters import Flat
from .values import Kind, Line, Value, Values, assigned

# The first operand of these may be a register that they only read, or leave as it is.
_KEEPING = (Flow.NOTHING, Flow.DISCARD, Flow.COPY, Flow.BARRIER, Flow.STORE, Flow.STORE_TILE)


class Single:
    """A kernel with a register for each value: its reachable instructions, and added moves.

    `flat`: the instructions, in no useful order. By the id of an instruction in `flat`: `original`
    has that of the kernel, `fetched` the values that it loads from an address among the parameters,
    each with the number of its register among those of the instruction.
    """

    def __init__(self, values: Values):
        self.original: dict[int, Instr] = {}
        self.fetched: dict[int, dict[int, Value]] = {}
        self._kinds = values.flat.registers
        self._registers: dict[int, Reg] = {}  # by the number of a value
        self._needed: list[Value] = []  # the values where others meet, as far as they are used
        self.flat = Flat(variables=values.flat.variables)
        for line in values.lines:
            self._add(line)
        for value in self._needed:  # grows meanwhile
            assert isinstance(value.about, tuple)
            self._move(value, value.args, value.about[1])

    def _register(self, value: Value, old: str) -> Reg:
        """The register of a value that a register of the kernel has."""
        register = self._registers.get(value.number)
        if not register:
            register = self._registers[value.number] = Reg(f"%{value.number}")
            self.flat.registers[register.name] = self._kinds.get(old, "b64")
            if value.kind is Kind.PHI:
                self._needed.append(value)
        return register

    def _move(self, to: Value, sources: tuple[Value, ...], old: str) -> None:
        op = ("mov", self._kinds.get(old, "b64"))
        for source in dict.fromkeys(sources):
            if source is not to and source.kind is not Kind.NUMBER:
                registers = (self._register(to, old), self._register(source, old))
                self.flat.instrs.append(Instr(op, registers))

    def _add(self, line: Line) -> None:
        instr, made = line.instr, {}
        names = set(assigned(instr))
        for name, after in line.after.items():
            value = after
            if after.kind is Kind.SELECT and instr.pred:
                value = after.args[2 if instr.negated else 1]
                self._move(after, after.args[1:], name)
            if flow_of(instr.op) in _KEEPING:
                self._move(value, (line.before[name],), name)
            made[name] = value

        def used(name: str) -> Operand:
            return _constant(line.before[name]) or self._register(line.before[name], name)

        def assigns(name: str) -> Operand:
            return self._register(made[name], name)

        args = tuple(
            _with(operand, assigns if names and index == 0 else used)
            for index, operand in enumerate(instr.args)
        )
        renamed = replace(instr, args=args)
        self.flat.instrs.append(renamed)
        self.original[id(renamed)] = instr
        if any(value.kind is Kind.FETCHED for value in made.values()):
            items = instr.args[0].items if isinstance(instr.args[0], Vec) else instr.args[:1]
            self.fetched[id(renamed)] = {
                n: made[item.name] for n, item in enumerate(items) if isinstance(item, Reg)
            }


def _constant(value: Value) -> Int | None:
    if value.kind is not Kind.NUMBER:
        return None
    assert isinstance(value.about, int)
    return Int(value.about)


def _with(operand: Operand, register: Callable[[str], Operand]) -> Operand:
    """The operand with other registers."""
    match operand:
        case Reg(name):
            return register(name)
        case Mem(base, offset):
            replaced = _with(base, register)
            assert isinstance(replaced, type(base) | Int)
            return Mem(replaced, offset)
        case Vec(items):
            return Vec(tuple(_with(item, register) for item in items))
        case Pair(first, second):
            return Pair(_with(first, register), _with(second, register))
        case Not(inner):
            return Not(_with(inner, register))
        case Part(inner, selector, negated):
            replaced = _with(inner, register)
            return Part(replaced, selector, negated) if isinstance(replaced, Reg) else replaced
    return operand
