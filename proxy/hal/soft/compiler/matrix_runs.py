"""Runs of matrix operations: those that follow one another become one cut.

A kernel of FlashAttention multiplies some dozens of tiles in a row. Each as a cut of its own would
need a segment that only moves registers between slots, which takes most of the compilation.
Operations of a run are executed in program order. Arithmetic between them that depends on
none of them is moved before the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rankfold.proxy.ptx.model import Instr, Mem, Operand, Reg, Special, Vec, registers_of

from . import matrix
from .instructions import Effect, defs_of, row_of, uses_of

WORDS_MAX = 512  # of a thread's frame


@dataclass
class _Open:
    """A run that may become longer. `before`: what is moved before it."""

    before: list[Instr] = field(default_factory=list)
    steps: list[Instr] = field(default_factory=list)
    words: set[object] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def takes(self, instr: Instr) -> bool:
        """Decides whether an operation can be the next step, and adds it. Addresses are computed
        before the run."""
        pointers = {n for a in instr.args if isinstance(a, Mem) for n in registers_of(a)}
        if instr.pred or pointers & self.written:
            return False
        words = matrix.frame_words(instr)
        if not words or (self.steps and len(self.words | words) > WORDS_MAX):
            return False
        self.steps.append(instr)
        self.words |= words
        self.read.update(uses_of(instr))
        self.written.update(defs_of(instr))
        return True

    def moves(self, instr: Instr) -> bool:
        """Decides whether an instruction can be moved before the run, and moves it."""
        defined = set(defs_of(instr))
        movable = (
            bool(self.steps)
            and row_of(instr).effect in (Effect.CHEAP, Effect.COMPUTES)
            and not instr.pred
            and not any(_is_clock(a) for a in instr.args)
            and not defined & (self.read | self.written)
            and not self.written.intersection(uses_of(instr))
        )
        if movable:
            self.before.append(instr)
        return movable

    def instrs(self) -> Iterator[Instr]:
        yield from self.before
        yield from self.steps if len(self.steps) < 2 else [_joined(self.steps)]


def in_runs(instrs: list[Instr]) -> list[Instr]:
    """Returns the instructions with runs of matrix operations as one instruction each."""
    out: list[Instr] = []
    run = _Open()
    for instr in instrs:
        tile = row_of(instr).tile is not None
        if run.takes(instr) if tile else run.moves(instr):
            continue
        out += run.instrs()
        run = _Open()
        if not (tile and run.takes(instr)):
            out.append(instr)
    return [*out, *run.instrs()]


def _joined(steps: list[Instr]) -> matrix.Run:
    """Returns the steps as one instruction."""
    written: dict[Operand, None] = {}
    read: dict[Operand, None] = {}
    for step in steps:
        gives = row_of(step).gives and not isinstance(step.args[0], Mem)
        for operand in _items(step.args[1 if gives else 0 :]):
            if not (isinstance(operand, Reg) and operand in written):
                read[operand] = None
        written.update(dict.fromkeys(_items(step.args[:1] if gives else ())))
    return matrix.Run(("matrices",), (Vec(tuple(written)), *read), steps=tuple(steps))


def _items(operands: tuple[Operand, ...]) -> Iterator[Operand]:
    for operand in operands:
        yield from operand.items if isinstance(operand, Vec) else (operand,)


def _is_clock(operand: Operand) -> bool:
    return isinstance(operand, Special) and operand.name.startswith(("clock", "globaltimer"))
