"""Finds values and branches that are the same for all threads of a block, in any execution order.

A value *agrees* if it is computed from constants, parameters and the launch's shape alone. Where
several assignments merge, it agrees if each of them does and all threads arrive on the same path:
the place must be neither between a branch at which threads may diverge and the block where its
paths join, nor that block itself (a loop that some threads leave earlier is such a branch). Every
thread that has not exited therefore executes the same sequence of assignments to values that agree.
This is true for threads that run at any pace, not only for those that are at the same cut
(divergence.py).

A path on which a thread only exits does not count, because nothing happens after it.
"""

from __future__ import annotations

import functools

from rankfold.proxy.ptx.blocks import Block, post_dominators
from rankfold.proxy.ptx.model import Instr, Int, Reg
from rankfold.proxy.ptx.values import Kind, Value, Values

_SHAPE = ("ntid.", "ctaid.", "nctaid.")  # special registers that a block's threads share
_FULL_WARP = (Int(0xFFFFFFFF), Int(-1))


class Agreement:
    """The agreement of a kernel's values and branches."""

    def __init__(self, values: Values):
        self.values, self.blocks = values, values.blocks
        leaving = _leaving(self.blocks.all)
        self._after = [self._staying(block, leaving) for block in self.blocks.all]
        self._behind = post_dominators(self._after)
        self._parting = set[int]()  # blocks at whose branch threads may diverge
        self._parted = set[int]()  # blocks between such a branch and its join
        self._joins = set[int]()
        self._differ = set[Value]()
        while self._look():
            pass

    def agrees(self, value: Value) -> bool:
        return value not in self._differ

    def branch_agrees(self, block: int) -> bool:
        """Returns True if all threads that reach the end of a block take the same branch there."""
        return block not in self._parting

    def crossed(self, block: int) -> bool:
        """Returns True if all threads wait for each other before any executes a block again."""
        return block not in self.reached_from(self._after[block], self._barriers)

    def reached_from(self, start: list[int], stop: frozenset[int]) -> set[int]:
        """Returns the blocks that can be reached without passing one of `stop`, excluding those."""
        seen = set[int]()
        todo = [number for number in start if number not in stop]
        while todo:
            number = todo.pop()
            if number not in seen:
                seen.add(number)
                todo += [each for each in self._after[number] if each not in stop]
        return seen

    @functools.cached_property
    def _barriers(self) -> frozenset[int]:
        """Blocks that all threads execute, and in which all threads of a warp wait for each
        other."""
        return frozenset(
            number
            for number in self.blocks.order
            if number not in self._parted and any(map(_waits_for_all, self.blocks[number].instrs))
        )

    def _staying(self, block: Block, leaving: set[int]) -> list[int]:
        """Returns the successors of a block, without those of exiting threads if other threads
        continue from there. (After a kernel's last loop they are kept, because otherwise there
        would be no successor.)"""
        place = self.blocks.place
        here = place.get(block.number, 0)
        stay = [n for n in block.after if n not in leaving]
        return stay if any(place.get(n, 0) > here for n in stay) else block.after

    def _look(self) -> bool:
        """Finds values that differ because of values already known to differ; returns whether there
        were any. (Until then, values are assumed to agree; the remaining assumptions are
        consistent.)"""
        before = len(self._differ), len(self._parting)
        for value in self.values:
            if value not in self._differ and self._may_differ(value):
                self._differ.add(value)
        for number in self.blocks.order:
            if number not in self._parting and self._may_part(self.blocks[number]):
                self._parting.add(number)
                join = self._behind[number]
                self._parted |= self.reached_from(self._after[number], frozenset((join,)))
                self._joins.add(join)
        return before != (len(self._differ), len(self._parting))

    def _may_differ(self, value: Value) -> bool:
        match value.kind:
            case Kind.NUMBER | Kind.PLACE | Kind.PARAMETER:
                return False
            case Kind.SPECIAL:
                return not str(value.about).startswith(_SHAPE)
            case Kind.UNKNOWN | Kind.RECEIVED:
                return True
            case Kind.MEET:
                assert isinstance(value.about, tuple)
                if value.about[0] in self._parted | self._joins:
                    return True
        return any(each in self._differ for each in value.args)

    def _may_part(self, block: Block) -> bool:
        if len(self._after[block.number]) < 2:
            return False
        last = block.instrs[-1]
        decides = last.args[0] if last.op[0] == "brx" else last.pred
        if not isinstance(decides, Reg):
            return True
        return not self.agrees(self.values.at_end(block.number, decides.name))


def _leaving(blocks: list[Block]) -> set[int]:
    """Returns the blocks from which a thread only exits."""
    found = set[int]()
    for block in reversed(blocks):  # a block mostly precedes its branch targets
        last = block.instrs[-1] if block.instrs else None
        if last and last.op[0] in ("ret", "exit", "bra") and not last.pred:
            only = all(instr.op[0] == "label" for instr in block.instrs[:-1])
            if only and all(number in found for number in block.after):
                found.add(block.number)
    return found


def _waits_for_all(instr: Instr) -> bool:
    """Returns True for a barrier without a number of threads, or of a full warp."""
    words = set(instr.op)
    if instr.op[0] not in ("bar", "barrier") or "sync" not in words or "cluster" in words:
        return False
    return instr.args[0] in _FULL_WARP if "warp" in words else len(instr.args) == 1
