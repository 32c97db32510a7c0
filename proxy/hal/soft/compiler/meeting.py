"""Decides where the threads of a warp meet although the program does not request it.

Devices run the threads of a warp in lockstep while they take the same path. Programs from before
Volta rely on that and pass values through shared memory without synchronisation; many of them are
still in use, because it is still true most of the time. Here, a thread runs until it has to meet
others. An instruction of our own, `meet`, is therefore inserted between two accesses to shared
memory if the second may need the results of the first in other threads, or may overwrite what
they need, except where the two are proved not to overlap (apart.py). If threads have diverged at a
branch and some of them meet before the paths join again, all meet where the paths join; otherwise
some would be an iteration of a loop ahead. This does not apply if all threads take the same path at
the branch (agreement.py). (CUDA C++ Programming Guide, "Independent Thread Scheduling".)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from rankfold.proxy.ptx.blocks import Block, Blocks, post_dominators
from rankfold.proxy.ptx.model import Function, Instr, Mem, Variable
from rankfold.proxy.ptx.parameters import Flat

from .apart import INSTRS_MAX, Apart
from .instructions import is_cut

MEETS_MAX = 256  # per kernel: with more, only volatile accesses count
_MEET = Instr(("meet",))
_ELSEWHERE = frozenset(("global", "const", "param", "local"))  # not shared memory
_ALONE = frozenset(("yield", "activemask"))  # cuts at which no thread waits for others


class _Access(NamedTuple):
    at: int  # index of the instruction
    how: str  # ld, st, or atom: both at once
    volatile: bool
    place: str


class _Seen(NamedTuple):
    """Accesses since threads last met, as bits: those in this iteration of all surrounding
    loops, and those from before a loop began a new iteration."""

    now: int = 0
    earlier: int = 0


def in_step(flat: Flat, kernel: Function, variables: Mapping[str, Variable]) -> list[Instr]:
    """Returns the instructions, with `meet` inserted where needed. `variables`: the module's.
    Raises NoLabel."""
    instrs = flat.instrs
    accesses = [_access(at, instr) for at, instr in enumerate(instrs)]
    if not any(access and access.how != "ld" for access in accesses):
        return instrs
    known = _Known(flat, kernel, variables)
    out = _with_meets(instrs, accesses, known)
    if sum(instr is _MEET for instr in out) > MEETS_MAX:
        out = _with_meets(instrs, [a if a and a.volatile else None for a in accesses], known)
    while joins := _joins(out, known):
        out = [each for n, instr in enumerate(out) for each in _behind(instr, n in joins)]
    return out


class _Known:
    """Facts about a kernel, computed when first needed."""

    def __init__(self, flat: Flat, kernel: Function, variables: Mapping[str, Variable]):
        self.flat, self.kernel, self.variables = flat, kernel, variables

    @functools.cached_property
    def _apart(self) -> Apart | None:
        if len(self.flat.instrs) > INSTRS_MAX:
            return None
        params = {p.name: p.offset for p in self.kernel.params}
        return Apart(self.flat, params, {**self.variables, **self.flat.variables})

    def apart(self, one: _Access, other: _Access, same_round: bool) -> bool:
        """Returns True if these accesses never overlap."""
        if one.volatile or other.volatile or "atom" in (one.how, other.how) or not self._apart:
            return False
        return self._apart.apart(one.at, other.at, same_round)

    @functools.cached_property
    def agreed(self) -> set[int]:
        """The ids of branches at which all threads take the same path."""
        if not self._apart:
            return set()
        agreement = self._apart.agreement
        found: dict[bool, set[int]] = {True: set(), False: set()}
        for block in agreement.blocks.all[1:]:
            found[agreement.branch_agrees(block.number)].add(id(block.instrs[-1]))
        return found[True] - found[False]


def _behind(instr: Instr, meets: bool) -> tuple[Instr, ...]:
    if not meets:
        return (instr,)
    return (instr, _MEET) if instr.op[0] == "label" else (_MEET, instr)


def _with_meets(instrs: list[Instr], accesses: list[_Access | None], known: _Known) -> list[Instr]:
    bits = _Bits(accesses)
    blocks = Blocks(instrs)
    out: list[Instr] = []
    for block, seen in zip(blocks.all, _accesses_before(blocks, accesses, bits), strict=True):
        for n, instr in enumerate(block.instrs, block.first):
            if access := accesses[n]:
                if _must_meet(access, seen, bits, known):
                    out.append(_MEET)
                    seen = _Seen()
                seen = seen._replace(now=seen.now | bits.of[access])
            elif _meets(instr):
                seen = _Seen()
            out.append(instr)
    return out


def _must_meet(access: _Access, seen: _Seen, bits: _Bits, known: _Known) -> bool:
    """Returns True if an access since threads last met conflicts with this one."""
    clash = bits.clash(access)
    return any(
        not known.apart(each, access, same_round)
        for some, same_round in ((seen.earlier & clash, False), (seen.now & clash, True))
        for each in bits.accesses(some)
    )


def _accesses_before(blocks: Blocks, accesses: list[_Access | None], bits: _Bits) -> list[_Seen]:
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
    before = [_Seen() for _ in blocks.all]
    todo = list(range(len(blocks.all)))
    place = blocks.place
    while todo:
        n = todo.pop()
        now, earlier = before[n] if through[n] else _Seen()
        now |= own[n]
        for following in blocks[n].after:
            if place.get(following, 0) <= place.get(n, 0):  # each loop has such an edge
                new = _Seen(0, now | earlier)
            else:
                new = _Seen(now, earlier)
            old = before[following]
            before[following] = _Seen(old.now | new.now, old.earlier | new.earlier)
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

    def accesses(self, some: int) -> Iterator[_Access]:
        while some:
            lowest = some & -some
            yield self._each[lowest.bit_length() - 1]
            some -= lowest

    def clash(self, access: _Access) -> int:
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


def _joins(instrs: list[Instr], known: _Known) -> set[int]:
    """Returns the instructions at which paths join after a branch where threads may diverge and
    some of them meet; except those at which threads already meet."""
    if _MEET not in instrs:
        return set()
    blocks = Blocks(instrs).all
    meeting = {block.number for block in blocks if _MEET in block.instrs}
    behind = post_dominators([block.after for block in blocks])
    joins = set()
    for block in blocks:
        if len(block.after) < 2 or behind[block.number] < 0:
            continue
        if id(block.instrs[-1]) in known.agreed:
            continue
        join = blocks[behind[block.number]]
        labels = 1 if join.instrs[0].op[0] == "label" and len(join.instrs) > 1 else 0
        if not _meets(join.instrs[labels]) and _leads_through(
            blocks, block.number, join.number, meeting
        ):
            joins.add(join.first)
    return joins


def _leads_through(blocks: list[Block], start: int, end: int, some: set[int]) -> bool:
    """Returns True if one of the blocks `some` is on a path from `start`, before `end`."""
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


def _access(at: int, instr: Instr) -> _Access | None:
    kind, words = instr.op[0], set(instr.op)
    volatile = "volatile" in words
    shared = bool(words & {"shared", "shared_cta"}) or (volatile and not words & _ELSEWHERE)
    if kind not in ("ld", "st", "atom", "red") or not shared:
        return None
    places = [str(operand) for operand in instr.args if isinstance(operand, Mem)]
    how = "atom" if kind == "red" else kind
    return _Access(at, how, volatile, places[0] if places else "")
