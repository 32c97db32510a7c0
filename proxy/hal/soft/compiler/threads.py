"""Properties of a kernel's threads that are known before it runs.

``in_grid``: registers that hold a thread's index in the grid. ``is_wide``: whether a thread uses
only its index in the grid. ``find_predicate_range``: a predicate range: a comparison of a value
that grows by 1 from thread to thread with one that all share, as in ``if (i < n)``. It is true up
to some thread and false after it (or the other way round), so a segment runs its threads in two
ranges (lower.py). In each range the comparison is a constant: the loops over them need no masks.
A predicate that is saved at a cut serves the same purpose if it turns out to be the same for all
threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rankfold.proxy.ptx.model import Instr, Int, Mem, Operand, Reg, Special, Vec

from .addressing import single_definitions
from .divergence import Slopes
from .flow import Block, Cut, Graph, is_arithmetic
from .instructions import defs_of, uses_of

STRAIGHT_MAX = 200  # instructions before the predicate
_MIRRORED = {
    "lt": "gt",
    "le": "ge",
    "gt": "lt",
    "ge": "le",
    "lo": "hi",
    "ls": "hs",
    "hi": "lo",
    "hs": "ls",
}
_NOTHING = Int(0)
_OF_X = ("tid.x", "ctaid.x", "laneid", "warpid", "lanemask_")


def _special(operand: Operand, single: dict[str, Instr]) -> str:
    """Returns the special register that an operand is or holds, or ""."""
    if isinstance(operand, Reg) and operand.name in single:
        instr = single[operand.name]
        if instr.op[0] == "mov" and isinstance(instr.args[1], Special):
            return instr.args[1].name
    return operand.name if isinstance(operand, Special) else ""


def in_grid(instrs: list[Instr]) -> dict[str, str]:
    """Returns the registers that are ctaid * ntid + tid of one dimension, with the dimension; their
    values always fit an int."""
    single = single_definitions(instrs)
    dimensions = {}
    for name, instr in single.items():
        if instr.op[:2] == ("mad", "lo") and instr.op[2:] in (("s32",), ("u32",)):
            a, b, c = (_special(x, single) for x in instr.args[1:4])
            dimension = c[-1:]
            if c == f"tid.{dimension}" and {a, b} == {f"ctaid.{dimension}", f"ntid.{dimension}"}:
                dimensions[name] = dimension
    return dimensions


def is_wide(graph: Graph, shared: int, local: int) -> bool:
    """Decides whether a thread meets no other thread and uses its x only as its index in the grid
    (SOFT_WIDE)."""
    if len(graph.cuts) > 1 or shared or local:  # regrouping in a loop gains more
        return False
    instrs = graph.flat.instrs
    places = {name for name, dimension in in_grid(instrs).items() if dimension == "x"}
    single = single_definitions(instrs)
    for instr in instrs:
        if "shared" in instr.op or "local" in instr.op:
            return False
        if instr.op[0] == "mov" and _copies(instr, single):
            continue  # uses of the copy are checked
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


def places(graph: Graph) -> set[str]:
    """Returns the registers that are %tid.x or an index in the grid: integers that grow by 1 from a
    thread to the next and do not wrap."""
    single = single_definitions(graph.flat.instrs)
    names = {name for name, dimension in in_grid(graph.flat.instrs).items() if dimension == "x"}
    return names | {name for name in single if _special(Reg(name), single) == "tid.x"}


@dataclass(frozen=True)
class PredicateRange:
    """A predicate range. `predicate` is: place `test` bound, of integers that are `signed` or not.
    `needed`: what the first thread has to compute to know both. `wraps`: the place may wrap.
    Without a test: the predicate was saved at the cut."""

    predicate: str
    test: str = ""
    place: Operand = _NOTHING
    bound: Operand = _NOTHING
    signed: bool = False
    needed: tuple[Instr, ...] = ()
    wraps: bool = False


def find_predicate_range(
    graph: Graph, cut: Cut, lockstep: bool, slopes: Slopes, unwrapped: set[str]
) -> PredicateRange | None:
    """Finds the first one on which a branch of the segment depends. `unwrapped`: places() of the
    graph."""
    blocks = graph.segment(cut, lockstep)
    read, written = graph.reads_and_writes(cut, blocks)
    recomputed = graph.recomputation_of([name for name in cut.recomputed if name in read])
    known = slopes if lockstep else {name: slopes.get(name) for name in graph.rematerialise}
    saved = set(cut.saved) if lockstep else set()
    for block, before in _single_path_blocks(graph, blocks, cut, lockstep):
        if block.pred is None:
            continue
        name = block.pred.name
        if name in saved and name not in written and known.get(name) is None:
            return PredicateRange(name)
        instrs = [*(graph.rematerialise[name] for name in recomputed), *before]
        once = sum(name in defs_of(instr) for each in blocks for instr in each.instrs) <= 1
        range_ = _comparison(instrs, name, known, unwrapped) if once else None
        if range_:
            needed = _slice(instrs, range_, saved)
            if needed is not None:
                return replace(range_, needed=needed)
    return None


def _single_path_blocks(
    graph: Graph, blocks: list[Block], cut: Cut, lockstep: bool
) -> Iterator[tuple[Block, list[Instr]]]:
    """Yields the blocks with a single path from the cut, and the instructions on it."""
    predecessors = Counter(
        number
        for block in blocks
        if not graph.ends_segment(block, lockstep)
        for number in set(block.goto)
    )
    todo: list[tuple[int, list[Instr]]] = [(cut.resume, [])]
    while todo:
        number, before = todo.pop()
        block = graph.blocks[number]
        if predecessors[number] > (0 if number == cut.resume else 1) or len(before) > STRAIGHT_MAX:
            continue
        instrs = [*before, *block.instrs]
        yield block, instrs
        if not graph.ends_segment(block, lockstep):
            todo += [(other, instrs) for other in reversed(block.goto)]


def _comparison(
    instrs: list[Instr], name: str, slopes: Slopes, unwrapped: set[str]
) -> PredicateRange | None:
    definitions = [instr for instr in instrs if name in defs_of(instr)]
    if len(definitions) != 1 or definitions[0].op[0] != "setp" or len(definitions[0].op) != 3:
        return None
    test, kind, (a, b) = definitions[0].op[1], definitions[0].op[2], definitions[0].args[1:3]

    def slope(operand: Operand) -> int | None:
        if isinstance(operand, Int):
            return 0
        return slopes.get(operand.name) if isinstance(operand, Reg) else None

    if slope(b) == 1:
        a, b, test = b, a, _MIRRORED.get(test, "")
    if slope(a) != 1 or slope(b) != 0 or test not in _MIRRORED or kind not in ("s32", "u32"):
        return None
    signed = kind == "s32" and test in ("lt", "le", "gt", "ge")
    wraps = isinstance(a, Reg) and a.name not in unwrapped
    return PredicateRange(name, test, a, b, signed, wraps=wraps)


def _slice(
    instrs: list[Instr], range_: PredicateRange, saved: set[str]
) -> tuple[Instr, ...] | None:
    """Returns the instructions that both operands depend on; None if these include more than
    arithmetic on `saved`."""
    wanted = {o.name for o in (range_.place, range_.bound) if isinstance(o, Reg)}
    index = next(i for i, instr in enumerate(instrs) if range_.predicate in defs_of(instr))
    needed: list[Instr] = []
    for instr in reversed(instrs[:index]):
        names = wanted.intersection(defs_of(instr))
        if names:
            if not is_arithmetic(instr):
                return None
            wanted = (wanted - names) | set(uses_of(instr))
            needed.insert(0, instr)
    return tuple(needed) if wanted <= saved else None
