"""Inserts instructions at which the threads of a warp wait for each other, although the program
does not contain them.

Devices run the threads of a warp in lockstep while they take the same path. Programs from before
Volta rely on that and pass values through shared memory without synchronisation; many of them are
still in use, because it is still true most of the time. Here, a thread runs until it has to wait
for others. An instruction of our own, `meet`, is therefore inserted between two accesses to shared
memory if the second may need the results of the first in other threads, or may overwrite what they
need, except where the two are proved not to overlap (disjoint.py). If threads have diverged at a
branch and some of them meet before the branch's immediate post-dominator, all meet there;
otherwise some would be an iteration of a loop ahead. This does not apply to uniform branches
(uniformity.py). (CUDA C++ Programming Guide, "Independent Thread Scheduling".)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from rankfold.proxy.ptx.blocks import Block, Blocks, post_dominators
from rankfold.proxy.ptx.model import Function, Instr, Mem, Variable
from rankfold.proxy.ptx.parameters import Flat

from .disjoint import INSTRS_MAX, Disjointness
from .instructions import is_cut

MEETS_MAX = 256  # per kernel: with more, only volatile accesses count
_MEET = Instr(("meet",))
_ELSEWHERE = frozenset(("global", "const", "param", "local"))  # not shared memory
_WITHOUT_WAITING = frozenset(("yield", "activemask"))  # cuts at which no thread waits for others


class _Access(NamedTuple):
    at: int  # index of the instruction
    how: str  # ld, st, or atom: both at once
    volatile: bool
    place: str


class _Pending(NamedTuple):
    """The accesses since threads last met, as bits: those in this iteration of all surrounding
    loops, and those from before a loop began a new iteration."""

    now: int = 0
    earlier: int = 0


def insert_meets(flat: Flat, kernel: Function, variables: Mapping[str, Variable]) -> list[Instr]:
    """Returns the instructions, with `meet` inserted where needed. `variables`: the module's.
    Raises NoLabel."""
    instrs = flat.instrs
    accesses = [_access(index, instr) for index, instr in enumerate(instrs)]
    if not any(access and access.how != "ld" for access in accesses):
        return instrs
    analyses = _Analyses(flat, kernel, variables)
    out = _with_meets(instrs, accesses, analyses)
    if sum(instr is _MEET for instr in out) > MEETS_MAX:
        out = _with_meets(instrs, [a if a and a.volatile else None for a in accesses], analyses)
    while joins := _joins(out, analyses):
        out = [each for n, instr in enumerate(out) for each in _with_meet(instr, n in joins)]
    return out


class _Analyses:
    """The analyses of a kernel, made when they are first needed."""

    def __init__(self, flat: Flat, kernel: Function, variables: Mapping[str, Variable]):
        self.flat, self.kernel, self.variables = flat, kernel, variables

    @functools.cached_property
    def _disjointness(self) -> Disjointness | None:
        if len(self.flat.instrs) > INSTRS_MAX:
            return None
        params = {p.name: p.offset for p in self.kernel.params}
        return Disjointness(self.flat, params, {**self.variables, **self.flat.variables})

    def are_disjoint(self, one: _Access, other: _Access, same_iteration: bool) -> bool:
        """Returns True if these accesses never overlap."""
        if (
            one.volatile
            or other.volatile
            or "atom" in (one.how, other.how)
            or not self._disjointness
        ):
            return False
        return self._disjointness.are_disjoint(one.at, other.at, same_iteration)

    @functools.cached_property
    def uniform_branches(self) -> set[int]:
        """The ids of uniform branches: all threads take the same path there."""
        if not self._disjointness:
            return set()
        uniformity = self._disjointness.uniformity
        branches: dict[bool, set[int]] = {True: set(), False: set()}
        for block in uniformity.blocks.all[1:]:
            branches[uniformity.branch_is_uniform(block.number)].add(id(block.instrs[-1]))
        return branches[True] - branches[False]


def _with_meet(instr: Instr, meets: bool) -> tuple[Instr, ...]:
    if not meets:
        return (instr,)
    return (instr, _MEET) if instr.op[0] == "label" else (_MEET, instr)


def _with_meets(
    instrs: list[Instr], accesses: list[_Access | None], analyses: _Analyses
) -> list[Instr]:
    bits = _Bits(accesses)
    blocks = Blocks(instrs)
    out: list[Instr] = []
    for block, pending in zip(blocks.all, _pending_at_entry(blocks, accesses, bits), strict=True):
        for n, instr in enumerate(block.instrs, block.first):
            if access := accesses[n]:
                if _must_meet(access, pending, bits, analyses):
                    out.append(_MEET)
                    pending = _Pending()
                pending = pending._replace(now=pending.now | bits.of[access])
            elif _meets(instr):
                pending = _Pending()
            out.append(instr)
    return out


def _must_meet(access: _Access, pending: _Pending, bits: _Bits, analyses: _Analyses) -> bool:
    """Returns True if an access since threads last met conflicts with this one."""
    conflicts = bits.conflicts(access)
    return any(
        not analyses.are_disjoint(each, access, same_iteration)
        for some, same_iteration in (
            (pending.earlier & conflicts, False),
            (pending.now & conflicts, True),
        )
        for each in bits.accesses(some)
    )


def _pending_at_entry(
    blocks: Blocks, accesses: list[_Access | None], bits: _Bits
) -> list[_Pending]:
    """Returns for each block the accesses on any path to it since threads met on that path."""
    own, through = [], []  # accesses that a block adds; whether earlier ones remain after it
    for block in blocks.all:
        added, keeps = 0, True
        for n, instr in enumerate(block.instrs, block.first):
            if access := accesses[n]:
                added |= bits.of[access]
            elif _meets(instr):
                added, keeps = 0, False
        own.append(added)
        through.append(keeps)
    before = [_Pending() for _ in blocks.all]
    todo = list(range(len(blocks.all)))
    position = blocks.position
    while todo:
        n = todo.pop()
        now, earlier = before[n] if through[n] else _Pending()
        now |= own[n]
        for following in blocks[n].successors:
            if position.get(following, 0) <= position.get(n, 0):  # each loop has such an edge
                new = _Pending(0, now | earlier)
            else:
                new = _Pending(now, earlier)
            old = before[following]
            before[following] = _Pending(old.now | new.now, old.earlier | new.earlier)
            if before[following] != old:
                todo.append(following)
    return before


class _Bits:
    """Sets of accesses as bits of a number."""

    def __init__(self, accesses: list[_Access | None]):
        self._each = [access for access in accesses if access]
        self.of = {access: 1 << n for n, access in enumerate(self._each)}
        self.volatile = self._all(lambda access: access.volatile)
        self.how = {
            how: self._all(lambda access: access.how == how)  # noqa: B023
            for how in ("ld", "st", "atom")
        }
        self.loads: dict[str, int] = {}  # loads that are not volatile, by place
        for access in self._each:
            if access.how == "ld" and not access.volatile:
                self.loads[access.place] = self.loads.get(access.place, 0) | self.of[access]

    def _all(self, which: Callable[[_Access], bool]) -> int:
        return sum(bit for access, bit in self.of.items() if which(access))

    def accesses(self, mask: int) -> Iterator[_Access]:
        while mask:
            lowest = mask & -mask
            yield self._each[lowest.bit_length() - 1]
            mask -= lowest

    def conflicts(self, access: _Access) -> int:
        """Returns the accesses that may overlap with this one, in different threads. A word that is
        written after a load from the same address expression belongs to the thread itself; if it is
        volatile, or there are atomic operations, the program means other threads."""
        loads, stores, atomics = (self.how[how] for how in ("ld", "st", "atom"))
        if access.how == "ld":
            return stores | atomics
        if access.how == "atom":
            return loads | stores
        if access.volatile:
            return loads | stores | atomics
        return atomics | (self.volatile & stores) | (loads & ~self.loads.get(access.place, 0))


# ---- where paths join ---------------------------------------------------------------------------


def _joins(instrs: list[Instr], analyses: _Analyses) -> set[int]:
    """Returns the instructions at which paths join after a branch where threads may diverge and
    some of them meet; except those at which threads already meet."""
    if _MEET not in instrs:
        return set()
    blocks = Blocks(instrs).all
    meeting = {block.number for block in blocks if _MEET in block.instrs}
    ipdom = post_dominators([block.successors for block in blocks])
    joins = set()
    for block in blocks:
        if len(block.successors) < 2 or ipdom[block.number] < 0:
            continue
        if id(block.instrs[-1]) in analyses.uniform_branches:
            continue
        join = blocks[ipdom[block.number]]
        labels = 1 if join.instrs[0].op[0] == "label" and len(join.instrs) > 1 else 0
        if not _meets(join.instrs[labels]) and _passes(blocks, block.number, join.number, meeting):
            joins.add(join.first)
    return joins


def _passes(blocks: list[Block], start: int, end: int, some: set[int]) -> bool:
    """Returns True if one of the blocks `some` is on a path from `start`, before `end`."""
    seen = {end}
    todo = [start]
    while todo:
        for each in blocks[todo.pop()].successors:
            if each in some and each != end:
                return True
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return False


# ---- instructions -------------------------------------------------------------------------------


def _meets(instr: Instr) -> bool:
    return is_cut(instr) and instr.op[0] not in _WITHOUT_WAITING and "arrive" not in instr.op


def _access(index: int, instr: Instr) -> _Access | None:
    kind, words = instr.op[0], set(instr.op)
    volatile = "volatile" in words
    shared = bool(words & {"shared", "shared_cta"}) or (volatile and not words & _ELSEWHERE)
    if kind not in ("ld", "st", "atom", "red") or not shared:
        return None
    places = [str(operand) for operand in instr.args if isinstance(operand, Mem)]
    how = "atom" if kind == "red" else kind
    return _Access(index, how, volatile, places[0] if places else "")
