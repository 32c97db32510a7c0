"""A kernel as text for people: its blocks after the cuts, with every call resolved."""

from __future__ import annotations

from rankfold.proxy.ptx.model import (
    Float,
    Instr,
    Int,
    Mem,
    Not,
    Operand,
    Pair,
    Part,
    Reg,
    Sink,
    Special,
    Sym,
    Vec,
)

from .flow import Block, Graph


def flat(graph: Graph) -> str:
    """Lists blocks in order: their instructions, their successors, and what each cut keeps."""
    resumed = {cut.resume: cut for cut in graph.cuts.values()}
    lines: list[str] = []
    for block in graph.blocks:
        if cut := resumed.get(block.number):
            kept = ", ".join(cut.saved) or "nothing"
            again = f"; computes again {', '.join(cut.recomputed)}" if cut.recomputed else ""
            origin = "the kernel's beginning" if cut.instr is None else _instr(cut.instr)
            lines.append(f"cut {cut.number}: {origin}; keeps {kept}{again}")
        lines.append(f"b{block.number}:")
        lines += [f"    {_instr(instr)}" for instr in block.instrs]
        lines.append(f"    {_end(block)}")
    return "\n".join(lines) + "\n"


def _end(block: Block) -> str:
    where = ", ".join(f"b{number}" for number in block.goto)
    if block.cut:
        return f"-> cut {block.cut}"
    if block.index is not None:
        return f"-> {where} by {_operand(block.index)}"
    if block.pred:
        then, other = block.goto
        return f"-> b{then} if {'!' * block.negated}{block.pred.name}, else b{other}"
    return f"-> {where}" if where else "-> end"


def _instr(instr: Instr) -> str:
    operands = ", ".join(_operand(operand) for operand in instr.args)
    return f"{'.'.join(instr.op)} {operands}".rstrip()


def _operand(operand: Operand) -> str:
    match operand:
        case Reg(name):
            return name
        case Special(name):
            return f"%{name}"
        case Int(value):
            return str(value)
        case Float(value, single):
            return repr(value) if single is None else f"0f{single:08X}"
        case Sym(name, offset):
            return f"{name}{_plus(offset)}"
        case Mem(base, offset):
            return f"[{_operand(base)}{_plus(offset)}]"
        case Vec(items):
            return "{" + ", ".join(map(_operand, items)) + "}"
        case Pair(first, second):
            return f"{_operand(first)}|{_operand(second)}"
        case Not(inner):
            return f"!{_operand(inner)}"
        case Sink():
            return "_"
        case Part(register, selector, negated):
            return "-" * negated + register.name + (f".{selector}" if selector else "")


def _plus(offset: int) -> str:
    return f"{offset:+d}" if offset else ""
