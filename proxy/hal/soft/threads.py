"""What can be said of a kernel's threads before it runs.

``in_grid``: registers that hold a thread's place in the grid. ``is_wide``: whether a thread's place
in the grid is all it asks for. ``guards``: comparisons of a thread's place with a value that all
threads share, as in ``if (i < n)``. Such a comparison holds up to some thread and not behind it
(or the other way round), so a segment runs its threads in two ranges, and in each of them the
comparison is a constant (lower.py): the loops over them need no masks.
"""

from __future__ import annotations

from dataclasses import dataclass

from .addressing import single_definitions
from .flow import Block, Graph, uses_of
from .ptx import Instr, Int, Mem, Operand, Reg, Special, Vec

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "lo": "hi", "ls": "hs",
             "hi": "lo", "hs": "ls"}  # fmt: skip
_SHARED = ("ntid.", "nctaid.", "ctaid.")
_OF_X = ("tid.x", "ctaid.x", "laneid", "warpid", "lanemask_")


def _special(operand: Operand, single: dict[str, Instr]) -> str:
    """The special register that an operand is or holds, or ""."""
    if isinstance(operand, Reg) and operand.name in single:
        instr = single[operand.name]
        if instr.op[0] == "mov" and isinstance(instr.args[1], Special):
            return instr.args[1].name
    return operand.name if isinstance(operand, Special) else ""


def in_grid(instrs: list[Instr]) -> dict[str, str]:
    """Registers that are ctaid * ntid + tid of one dimension, and which: never more than an int
    holds."""
    single = single_definitions(instrs)
    found = {}
    for name, instr in single.items():
        if instr.op[:2] == ("mad", "lo") and instr.op[2:] in (("s32",), ("u32",)):
            a, b, c = (_special(x, single) for x in instr.args[1:4])
            dimension = c[-1:]
            if c == f"tid.{dimension}" and {a, b} == {f"ctaid.{dimension}", f"ntid.{dimension}"}:
                found[name] = dimension
    return found


def is_wide(graph: Graph, shared: int, local: int) -> bool:
    """Does a thread meet no other one and know no more of its x than its place in the grid?
    (SOFT_WIDE)"""
    if len(graph.cuts) > 1 or shared or local:
        return False
    instrs = graph.flat.instrs
    places = {name for name, dimension in in_grid(instrs).items() if dimension == "x"}
    single = single_definitions(instrs)
    for instr in instrs:
        if "shared" in instr.op or "local" in instr.op:
            return False
        if instr.op[0] == "mov" and _copies(instr, single):
            continue  # what is done with the copy counts
        if instr.args and isinstance(instr.args[0], Reg) and instr.args[0].name in places:
            continue
        operands = [*instr.args, *(Reg(name) for name in uses_of(instr))]
        if any(_special(each, single).startswith(_OF_X) for each in _flat(operands)):
            return False
    return True


def _copies(instr: Instr, single: dict[str, Instr]) -> bool:
    target = instr.args[0]
    return (
        isinstance(target, Reg)
        and single.get(target.name) is instr
        and isinstance(instr.args[1], Special)
    )


def _flat(operands: list[Operand]) -> list[Operand]:
    found: list[Operand] = []
    for operand in operands:
        match operand:
            case Vec(items):
                found += _flat(list(items))
            case Mem(base, _):
                found.append(base)
            case _:
                found.append(operand)
    return found


@dataclass(frozen=True)
class Guard:
    """`predicate` is: place `test` bound, of integers that are `signed` or not."""

    predicate: str
    place: Operand
    bound: Operand
    test: str
    signed: bool


def guard(graph: Graph, blocks: list[Block]) -> Guard | None:
    """The first comparison of this kind that a branch in these blocks depends on."""
    places = in_grid(graph.flat.instrs)
    single = single_definitions(graph.flat.instrs)

    def is_place(operand: Operand) -> bool:
        named = isinstance(operand, Reg) and places.get(operand.name) == "x"
        return named or _special(operand, single) == "tid.x"

    def is_shared(operand: Operand) -> bool:
        if isinstance(operand, Int):
            return True
        if not isinstance(operand, Reg) or operand.name not in graph.rematerialise:
            return False
        needed = [graph.rematerialise[name] for name in graph.closure([operand.name])]
        specials = [a.name for instr in needed for a in instr.args if isinstance(a, Special)]
        return all(name.startswith(_SHARED) for name in specials)

    for block in blocks:
        instr = graph.rematerialise.get(block.pred.name) if block.pred else None
        if instr is None or block.pred is None or instr.op[0] != "setp" or len(instr.op) != 3:
            continue
        test, (a, b) = instr.op[1], instr.args[1:3]
        if is_place(b):
            a, b, test = b, a, _MIRRORED.get(test, "")
        if is_place(a) and is_shared(b) and test in _MIRRORED and instr.op[2] in ("s32", "u32"):
            signed = instr.op[2] == "s32" and test in ("lt", "le", "gt", "ge")
            return Guard(block.pred.name, a, b, test, signed)
    return None
