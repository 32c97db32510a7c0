"""Uniformity analysis: finds values and branches that are the same for all threads of a block, in
any execution order.

A value is *uniform* if it is computed from constants, parameters and the launch's shape alone. A
phi is uniform if each of its operands is and all threads arrive on the same path: its block must be
neither between a divergent branch and the branch's immediate post-dominator, nor that
post-dominator itself (a loop that some threads leave earlier ends in such a branch). Every thread
that has not exited therefore executes the same sequence of assignments to uniform values. This is
true for threads that run at any pace, not only for those that are at the same cut (divergence.py).

A path on which a thread only exits does not count, because nothing happens after it.
"""

from __future__ import annotations

import functools

from rankfold.proxy.ptx.blocks import Block, post_dominators
from rankfold.proxy.ptx.model import Instr, Int, Reg
from rankfold.proxy.ptx.values import Kind, Value, Values

_SHAPE = ("ntid.", "ctaid.", "nctaid.")  # special registers that a block's threads share
_FULL_WARP = (Int(0xFFFFFFFF), Int(-1))


class Uniformity:
    """The uniform values and branches of a kernel."""

    def __init__(self, values: Values):
        self.values, self.blocks = values, values.blocks
        exiting = _exiting(self.blocks.all)
        self._successors = [self._successors_of(block, exiting) for block in self.blocks.all]
        self._post_dominators = post_dominators(self._successors)
        self._divergent = set[int]()  # blocks that end in a divergent branch
        self._in_divergence = set[int]()  # blocks between such a branch and its post-dominator
        self._joins = set[int]()
        self._varying = set[Value]()
        while self._propagate():
            pass

    def is_uniform(self, value: Value) -> bool:
        return value not in self._varying

    def branch_is_uniform(self, block: int) -> bool:
        """Returns True if all threads that reach the end of a block continue with the same
        successor."""
        return block not in self._divergent

    def joins_each_iteration(self, block: int) -> bool:
        """Returns True if all threads wait for each other before any of them executes a block
        again."""
        return block not in self.reached_from(self._successors[block], self._barriers)

    def reached_from(self, start: list[int], excluded: frozenset[int]) -> set[int]:
        """Returns the blocks reachable from `start` on paths without the blocks `excluded`."""
        seen = set[int]()
        todo = [number for number in start if number not in excluded]
        while todo:
            number = todo.pop()
            if number not in seen:
                seen.add(number)
                todo += [each for each in self._successors[number] if each not in excluded]
        return seen

    @functools.cached_property
    def _barriers(self) -> frozenset[int]:
        """Blocks that all threads execute, and in which all threads of a warp wait for each
        other."""
        return frozenset(
            number
            for number in self.blocks.order
            if number not in self._in_divergence
            and any(map(_waits_for_all, self.blocks[number].instrs))
        )

    def _successors_of(self, block: Block, exiting: set[int]) -> list[int]:
        """Returns the successors of a block, without those of exiting threads if other threads
        continue from there. (After a kernel's last loop they are kept, because otherwise there
        would be no successor.)"""
        position = self.blocks.position
        here = position.get(block.number, 0)
        others = [n for n in block.successors if n not in exiting]
        return others if any(position.get(n, 0) > here for n in others) else block.successors

    def _propagate(self) -> bool:
        """Finds values and branches that are not uniform because of those already found; returns
        whether there were any. (Until then, values are assumed to be uniform; the remaining
        assumptions are consistent.)"""
        before = len(self._varying), len(self._divergent)
        for value in self.values:
            if value not in self._varying and self._may_vary(value):
                self._varying.add(value)
        for number in self.blocks.order:
            if number not in self._divergent and self._may_diverge(self.blocks[number]):
                self._divergent.add(number)
                join = self._post_dominators[number]
                self._in_divergence |= self.reached_from(
                    self._successors[number], frozenset((join,))
                )
                self._joins.add(join)
        return before != (len(self._varying), len(self._divergent))

    def _may_vary(self, value: Value) -> bool:
        match value.kind:
            case Kind.NUMBER | Kind.PLACE | Kind.PARAMETER:
                return False
            case Kind.SPECIAL:
                return not str(value.about).startswith(_SHAPE)
            case Kind.UNKNOWN | Kind.RECEIVED:
                return True
            case Kind.PHI:
                assert isinstance(value.about, tuple)
                if value.about[0] in self._in_divergence or value.about[0] in self._joins:
                    return True
        return any(each in self._varying for each in value.args)

    def _may_diverge(self, block: Block) -> bool:
        if len(self._successors[block.number]) < 2:
            return False
        last = block.instrs[-1]
        condition = last.args[0] if last.op[0] == "brx" else last.pred
        if not isinstance(condition, Reg):
            return True
        return not self.is_uniform(self.values.at_end(block.number, condition.name))


def _exiting(blocks: list[Block]) -> set[int]:
    """Returns the blocks from which a thread only exits."""
    exiting = set[int]()
    for block in reversed(blocks):  # a block mostly precedes its branch targets
        last = block.instrs[-1] if block.instrs else None
        if last and last.op[0] in ("ret", "exit", "bra") and not last.pred:
            only = all(instr.op[0] == "label" for instr in block.instrs[:-1])
            if only and all(number in exiting for number in block.successors):
                exiting.add(block.number)
    return exiting


def _waits_for_all(instr: Instr) -> bool:
    """Returns True for a barrier without a number of threads, or of a full warp."""
    words = set(instr.op)
    if instr.op[0] not in ("bar", "barrier") or "sync" not in words or "cluster" in words:
        return False
    return instr.args[0] in _FULL_WARP if "warp" in words else len(instr.args) == 1
