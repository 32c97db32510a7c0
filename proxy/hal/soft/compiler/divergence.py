"""Divergence analysis: finds which registers differ between the threads of a row, and by how much
per thread.

A register's *slope* is its increase from a thread to its neighbour in x: 0 if all threads of a row
hold the same value, 1 for %tid.x, 4 for the address of a thread's own word; it has no slope if
nothing is known. Slopes hold modulo the register's width, and only between threads that reached a
cut in lockstep, that is, passed the same cuts since the block began. If threads diverge in a
segment and reconverge in it, registers written in between and read afterwards have no slope.

Threads that pass the same real cuts may still differ in the number of iterations of a loop in which
they regroup (flow.regroup). A register that is kept at a real cut therefore has a slope only if it
also has one when such a loop is treated as part of its segment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from rankfold.proxy.ptx.blocks import post_dominators
from rankfold.proxy.ptx.model import TYPE_BYTES, Float, Instr, Int, Mem, Operand, Reg, Special, Sym

from .flow import Block, Cut, Graph, members
from .instructions import Effect, defs_of, row_of

Slopes = dict[str, int | None]  # None: no slope

_UNIFORM = ("tid.y", "tid.z", "ntid.", "nctaid.", "ctaid.")
_SHARED_SPACES = frozenset(("global", "shared", "const"))
_STRONG = frozenset(("volatile", "relaxed", "acquire", "mmio"))


class _Analysis:
    def __init__(self, graph: Graph, lockstep: bool, unwrapped: Callable[[str], bool]):
        self.graph, self.lockstep, self.unwrapped = graph, lockstep, unwrapped
        self.slopes: Slopes = {}
        self.divergent: dict[int, list[str]] = {}
        self.names = [*graph.flat.registers, "%cc"]
        for name in members(graph.blocks[0].live_in, self.names):
            self.join(name, 0)  # a register that is never written is 0

    def run(self, unknown: Iterable[str] = ()) -> Slopes:
        before: Slopes | None = None
        self.slopes.update(dict.fromkeys(unknown))
        while before != self.slopes:
            before = dict(self.slopes)
            for instr, written, read in self.graph.registers_of_instrs:
                for name in written:
                    if not self.is_pending(read):
                        self.join(name, self.result(instr, read))
            for cut in self.graph.cuts.values():
                for name in defs_of(cut.instr) if cut.instr else []:
                    self.join(name, None)
            self.mark_divergent()
        return self.slopes

    def join(self, name: str, slope: int | None) -> None:
        known = self.slopes.get(name, slope)
        self.slopes[name] = slope if known == slope else None

    def is_pending(self, read: list[str]) -> bool:
        """Returns True if an operand has not been analysed yet; then the result has to wait too."""
        return any(name not in self.slopes for name in read)

    # ---- one instruction

    def of(self, operand: Operand) -> int | None:
        match operand:
            case Reg(name):
                return self.slopes.get(name)
            case Int() | Float() | Sym():
                return 0
            case Special("tid.x"):
                return 1
            case Special(name):
                return 0 if name.startswith(_UNIFORM) else None
        return None

    def result(self, instr: Instr, read: list[str]) -> int | None:
        effect, words = row_of(instr).effect, set(instr.op)
        if effect is Effect.LOADS:
            return 0 if self.is_uniform_load(instr, words) else None
        if effect not in (Effect.CHEAP, Effect.COMPUTES):
            return None
        linear = isinstance(instr.args[0], Reg) and not words & {"cc", "sat", "u16x2", "s16x2"}
        slope = self.linear(instr) if linear else None
        return slope if slope is not None else 0 if self.is_uniform(instr, read) else None

    def is_uniform(self, instr: Instr, read: list[str]) -> bool:
        specials = [a for a in instr.args if isinstance(a, Special)]
        return all(self.slopes.get(name) == 0 for name in read) and all(
            self.of(special) == 0 for special in specials
        )

    def is_uniform_load(self, instr: Instr, words: set[str]) -> bool:
        """Threads that read one address between two cuts read one value, or the program races."""
        where = instr.args[1]
        if not isinstance(where, Mem) or words & _STRONG:
            return False
        if "param" in words:
            return isinstance(where.base, Sym)
        return bool(words & _SHARED_SPACES) and self.of(where.base) == 0

    def linear(self, instr: Instr) -> int | None:
        """Returns the slope of an integer that is a linear function of others."""
        kind, last, args = instr.op[0], instr.op[-1], instr.args[1:]
        if last[0] not in "bus":
            return None
        slopes = [self.of(arg) for arg in args]
        if kind == "mov" or (kind == "cvta" and "global" in instr.op):
            return slopes[0]
        if kind in ("add", "sub"):
            return _sum(slopes[0], slopes[1], -1 if kind == "sub" else 1)
        if kind == "shl" and isinstance(args[1], Int) and slopes[0] is not None:
            return slopes[0] << args[1].value if 0 <= args[1].value < 32 else None
        if kind == "cvt" and instr.op[-2][1:] == "64" and self.never_wraps(args[0]):
            return slopes[0]
        wide = "wide" in instr.op and any(self.never_wraps(arg) for arg in args[:2])
        if kind in ("mul", "mad") and ("lo" in instr.op or wide):
            product = _product(slopes, args)
            return product if kind == "mul" else _sum(product, slopes[2], 1)
        return None

    def never_wraps(self, operand: Operand) -> bool:
        """Returns True for a 32-bit integer that increases along a row without wrapping."""
        return isinstance(operand, Reg) and self.unwrapped(operand.name)

    # ---- control flow

    def mark_divergent(self) -> None:
        for block in self.graph.blocks:
            names = [block.pred.name] if block.pred else []
            names += [block.index.name] if isinstance(block.index, Reg) else []
            if any(self.slopes.get(name, 0) is None for name in names):
                if block.number not in self.divergent:
                    self.divergent[block.number] = self.divergent_registers(block)
                self.slopes.update(dict.fromkeys(self.divergent[block.number]))

    def divergent_registers(self, block: Block) -> list[str]:
        """Returns the registers that differ after threads leave `block` on different paths: those
        that are written before all paths reconverge, and are live there or where some paths join
        earlier."""
        blocks = self.graph.blocks
        end = self.post_dominators[block.number]
        paths = [self.reachable(number, {block.number, end}) for number in block.goto]
        joins = set.intersection(*paths) | ({end} if end >= 0 else set())
        live, written = 0, 0
        for number in joins:
            live |= blocks[number].live_in
        for number in set.union(*paths) - {end}:
            written |= blocks[number].defs
        return members(written & live, self.names)

    def reachable(self, number: int, stop: set[int]) -> set[int]:
        seen, todo = set(), [number]
        while todo:
            number = todo.pop()
            if number not in seen:
                seen.add(number)
                todo += () if number in stop else self.successors(number)
        return seen

    def successors(self, number: int) -> tuple[int, ...]:
        block = self.graph.blocks[number]
        return () if self.graph.ends_segment(block, self.lockstep) else block.goto

    @functools.cached_property
    def post_dominators(self) -> list[int]:
        """For each block its immediate post-dominator, or -1."""
        return post_dominators([self.successors(n) for n in range(len(self.graph.blocks))])


def _sum(a: int | None, b: int | None, sign: int) -> int | None:
    return None if a is None or b is None else a + sign * b


def _product(slopes: list[int | None], args: tuple[Operand, ...]) -> int | None:
    for one, other in ((0, 1), (1, 0)):
        slope, factor = slopes[one], args[other]
        if slope is not None and isinstance(factor, Int):
            return slope * factor.value
    return 0 if slopes[0] == slopes[1] == 0 else None


def slopes(graph: Graph, unwrapped: set[str]) -> Slopes:
    """Returns the slopes of all registers, at cuts and between them, for threads in lockstep.
    `unwrapped`: registers that are %tid.x or a thread's index in the grid, which do not wrap."""
    at_real_cuts = _Analysis(graph, False, unwrapped.__contains__).run()
    saved = {name for cut in graph.cuts.values() if not cut.soft for name in cut.saved}
    unknown = [name for name in saved if at_real_cuts.get(name) is None]
    return _Analysis(graph, True, unwrapped.__contains__).run(unknown)


def worth_regrouping(graph: Graph, cuts: list[Cut]) -> list[Cut]:
    """Returns those of `cuts`, at the heads of loops, whose iterations can be vectorised: they read
    values that are the same for all threads or contiguous, and write contiguous ones; LLVM checks
    that no index wraps."""
    unordered = [cut for cut in cuts if _is_unordered(graph.blocks[cut.resume].instrs)]
    if not unordered:
        return []
    analysis = _Analysis(graph, True, lambda name: True)
    analysis.run()
    return [cut for cut in unordered if _is_contiguous(graph.blocks[cut.resume].instrs, analysis)]


def _accesses(instrs: list[Instr]) -> list[tuple[Instr, Effect]]:
    """Returns the loads and stores, except those of parameters."""
    effects = [(instr, row_of(instr).effect) for instr in instrs if "param" not in instr.op]
    return [each for each in effects if each[1] in (Effect.LOADS, Effect.STORES)]


def _is_unordered(instrs: list[Instr]) -> bool:
    """Returns True if a loop of these instructions accesses memory, and only such that threads may
    access in any order."""
    return bool(_accesses(instrs)) and not any(
        row_of(instr).effect is Effect.ACTS or "local" in instr.op or _STRONG & set(instr.op)
        for instr in instrs
    )


def _is_contiguous(instrs: list[Instr], analysis: _Analysis) -> bool:
    contiguous = 0
    for instr, effect in _accesses(instrs):
        where = instr.args[1 if effect is Effect.LOADS else 0]
        slope = analysis.of(where.base) if isinstance(where, Mem) else None
        if slope == TYPE_BYTES[instr.op[-1]]:
            contiguous += 1
        elif slope != 0 or effect is Effect.STORES:
            return False
    return contiguous > 0
