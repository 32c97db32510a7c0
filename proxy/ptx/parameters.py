"""Turns the parameters of inlined calls into registers or local memory."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

from .model import TYPE_BYTES, Instr, Mem, Reg, Sym, Variable, Vec, symbols_of


@dataclass
class Flat:
    """A kernel with its callees inlined; `variables` include the parameters of calls."""

    instrs: list[Instr] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)


def promote(flat: Flat) -> set[str]:
    """Turn the parameters of calls into registers; returns the names of those in local memory.

    A parameter that is not used like registers is put into local memory.
    """
    accesses: dict[str, set[tuple[int, int]]] = {
        v.name: set() for v in flat.variables.values() if v.space == "param"
    }
    if not accesses:
        return set()
    memory: set[str] = set()
    for instr in flat.instrs:
        place = _parameter(instr, accesses)
        if place:
            accesses[place[0]].update(place[1])
        elif instr.op[0] != "call":
            memory.update(n for a in instr.args for n in symbols_of(a) if n in accesses)
    for name, places in accesses.items():
        ends = sorted(places)
        if any(a[0] + a[1] > b[0] for a, b in itertools.pairwise(ends)):
            memory.add(name)
    for name, places in accesses.items():
        variable = flat.variables[name]
        if name in memory:
            flat.variables[name] = dataclasses.replace(variable, space="local")
            continue
        del flat.variables[name]
        for offset, size in places:
            flat.registers[f"{name}@{offset}"] = f"b{8 * size}"
    promoted = set(accesses) - memory
    flat.instrs = [new for instr in flat.instrs for new in _without(instr, promoted, memory)]
    return memory


def _parameter(
    instr: Instr, known: dict[str, set[tuple[int, int]]]
) -> tuple[str, list[tuple[int, int]]] | None:
    """The variable and the (offset, bytes) that an ld.param or st.param accesses."""
    if instr.op[:2] not in (("ld", "param"), ("st", "param")):
        return None
    where = instr.args[1 if instr.op[0] == "ld" else 0]
    if (
        not isinstance(where, Mem)
        or not isinstance(where.base, Sym)
        or where.base.name not in known
    ):
        return None
    size = TYPE_BYTES[instr.op[-1]]
    value = instr.args[0 if instr.op[0] == "ld" else 1]
    count = len(value.items) if isinstance(value, Vec) else 1
    first = where.base.offset + where.offset
    return where.base.name, [(first + i * size, size) for i in range(count)]


def _without(instr: Instr, promoted: set[str], memory: set[str]) -> list[Instr]:
    place = _parameter(instr, {name: set() for name in promoted | memory})
    if not place:
        return [instr]
    name, places = place
    if name in memory:
        return [dataclasses.replace(instr, op=(instr.op[0], "local", *instr.op[2:]))]
    value = instr.args[0 if instr.op[0] == "ld" else 1]
    items = value.items if isinstance(value, Vec) else (value,)
    out = []
    for item, (offset, _size) in zip(items, places, strict=True):
        register = Reg(f"{name}@{offset}")
        args = (item, register) if instr.op[0] == "ld" else (register, item)
        out.append(Instr(("pmov", instr.op[-1]), args, instr.pred, instr.negated, text=instr.text))
    return out
