"""Where the threads of a warp meet though the program does not say so.

Devices run the threads of a warp in step as long as they go the same way. Programs of before Volta
count on that and pass values through shared memory with nothing between, and many of them are still
used, since most of the time it still holds. Here a thread runs until it has to meet others; so an
instruction of ours, `meet`, stands between two accesses to shared memory of which the second may
need what other threads have done by the first, or may spoil it for them. And where a branch has
parted them, some of which meet before its ways join again, all do where these join: else some would
be a round of a loop ahead. (CUDA C++ Programming Guide, "Independent Thread Scheduling".)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rankfold.proxy.ptx.blocks import Block, Blocks, post_dominators
from rankfold.proxy.ptx.model import Instr, Mem

from .instructions import is_cut

MEETS_MAX = 256  # in a kernel: of those that have more only volatile memory counts
_MEET = Instr(("meet",))
_ELSEWHERE = frozenset(("global", "const", "param", "local"))  # not in shared memory
_ALONE = frozenset(("yield", "activemask"))  # cuts at which nobody waits for others


class _Access(NamedTuple):
    how: str  # ld, st, or atom: both, at once
    volatile: bool
    place: str


def in_step(instrs: list[Instr]) -> list[Instr]:
    """With `meet` wherever it is needed. Raises NoLabel."""
    accesses = [_access(instr) for instr in instrs]
    if not any(access and access.how != "ld" for access in accesses):
        return instrs
    out = _with_meets(instrs, accesses)
    if sum(instr is _MEET for instr in out) > MEETS_MAX:
        out = _with_meets(instrs, [a if a and a.volatile else None for a in accesses])
    while joins := _joins(out):
        out = [each for n, instr in enumerate(out) for each in _behind(instr, n in joins)]
    return out


def _behind(instr: Instr, meets: bool) -> tuple[Instr, ...]:
    if not meets:
        return (instr,)
    return (instr, _MEET) if instr.op[0] == "label" else (_MEET, instr)


def _with_meets(instrs: list[Instr], accesses: list[_Access | None]) -> list[Instr]:
    bits = _Bits(accesses)
    blocks = Blocks(instrs).all
    out: list[Instr] = []
    for block, seen in zip(blocks, _accesses_before(blocks, accesses, bits), strict=True):
        for n, instr in enumerate(block.instrs, block.first):
            if access := accesses[n]:
                if seen & bits.clash(access):
                    out.append(_MEET)
                    seen = 0
                seen |= bits.of[access]
            elif _meets(instr):
                seen = 0
            out.append(instr)
    return out


def _accesses_before(blocks: list[Block], accesses: list[_Access | None], bits: _Bits) -> list[int]:
    """Of each block the accesses on some way to it since threads have met on that way."""
    own, through = [], []  # what a block adds; whether what was before it counts behind it
    for block in blocks:
        seen, keeps = 0, True
        for n, instr in enumerate(block.instrs, block.first):
            if access := accesses[n]:
                seen |= bits.of[access]
            elif _meets(instr):
                seen, keeps = 0, False
        own.append(seen)
        through.append(keeps)
    before = [0] * len(blocks)
    todo = list(range(len(blocks)))
    while todo:
        n = todo.pop()
        behind = own[n] | (before[n] if through[n] else 0)
        for following in blocks[n].after:
            if behind & ~before[following]:
                before[following] |= behind
                todo.append(following)
    return before


class _Bits:
    """Sets of accesses as bits of a number."""

    def __init__(self, accesses: list[_Access | None]):
        each = dict.fromkeys(access for access in accesses if access)
        self.of = {access: 1 << n for n, access in enumerate(each)}
        self.volatile = self._all(lambda access: access.volatile)
        self.how = {
            how: self._all(lambda access: access.how == how)  # noqa: B023
            for how in ("ld", "st", "atom")
        }
        self.loads: dict[str, int] = {}  # that are not volatile, by place
        for access in each:
            if access.how == "ld" and not access.volatile:
                self.loads[access.place] = self.of[access]

    def _all(self, which: Callable[[_Access], bool]) -> int:
        return sum(bit for access, bit in self.of.items() if which(access))

    def clash(self, access: _Access) -> int:
        """Those that may be of one place with this, in different threads. A word that is written
        behind a load of what reads as the same address is a thread's own; if it is volatile, or
        there are atomic operations, the program means others."""
        loads, stores, atomics = (self.how[how] for how in ("ld", "st", "atom"))
        if access.how == "ld":
            return stores | atomics
        if access.how == "atom":
            return loads | stores
        if access.volatile:
            return loads | stores | atomics
        return atomics | (self.volatile & stores) | (loads & ~self.loads.get(access.place, 0))


# ---- where ways join ----------------------------------------------------------------------------


def _joins(instrs: list[Instr]) -> set[int]:
    """Instructions at which branches join that part threads some of which meet on their way; but
    for those at which threads meet already."""
    if _MEET not in instrs:
        return set()
    blocks = Blocks(instrs).all
    meeting = {block.number for block in blocks if _MEET in block.instrs}
    behind = post_dominators([block.after for block in blocks])
    joins = set()
    for block in blocks:
        if len(block.after) < 2 or behind[block.number] < 0:
            continue
        join = blocks[behind[block.number]]
        labels = 1 if join.instrs[0].op[0] == "label" and len(join.instrs) > 1 else 0
        if not _meets(join.instrs[labels]) and _leads_through(
            blocks, block.number, join.number, meeting
        ):
            joins.add(join.first)
    return joins


def _leads_through(blocks: list[Block], start: int, end: int, some: set[int]) -> bool:
    """Is one of these blocks on a way from one to another, before that?"""
    seen = {end}
    todo = [start]
    while todo:
        for each in blocks[todo.pop()].after:
            if each in some and each != end:
                return True
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return False


# ---- instructions -------------------------------------------------------------------------------


def _meets(instr: Instr) -> bool:
    return is_cut(instr) and instr.op[0] not in _ALONE and "arrive" not in instr.op


def _access(instr: Instr) -> _Access | None:
    kind, words = instr.op[0], set(instr.op)
    volatile = "volatile" in words
    shared = bool(words & {"shared", "shared_cta"}) or (volatile and not words & _ELSEWHERE)
    if kind not in ("ld", "st", "atom", "red") or not shared:
        return None
    places = [str(operand) for operand in instr.args if isinstance(operand, Mem)]
    how = "atom" if kind == "red" else kind
    return _Access(how, volatile, places[0] if places else "")
