"""Where the threads of a warp meet though the program does not say so.

Devices run the threads of a warp in step as long as they go the same way. Programs of before Volta
count on that and pass values through shared memory with nothing between, and many of them are still
used, since most of the time it still holds. Here a thread runs until it has to meet others; so an
instruction of ours, `meet`, stands between two accesses to shared memory of which the second may
need what other threads have done by the first, or may spoil it for them; except where the two are
proved to be apart (apart.py). And where a branch has parted them, some of which meet before its
ways join again, all do where these join: else some would be a round of a loop ahead. Not where all
threads take the same way at the branch (agreement.py). (CUDA C++ Programming Guide, "Independent
Thread Scheduling".)
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

MEETS_MAX = 256  # in a kernel: of those that have more only volatile memory counts
_MEET = Instr(("meet",))
_ELSEWHERE = frozenset(("global", "const", "param", "local"))  # not in shared memory
_ALONE = frozenset(("yield", "activemask"))  # cuts at which nobody waits for others


class _Access(NamedTuple):
    at: int  # the number of the instruction
    how: str  # ld, st, or atom: both, at once
    volatile: bool
    place: str


class _Seen(NamedTuple):
    """Accesses since threads have met last, as bits: those in this round of all loops around the
    place, and those before a loop began again."""

    now: int = 0
    earlier: int = 0


def in_step(flat: Flat, kernel: Function, variables: Mapping[str, Variable]) -> list[Instr]:
    """The instructions, with `meet` wherever it is needed. `variables`: the module's. Raises
    NoLabel."""
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
    """What is found out about a kernel when it is first needed."""

    def __init__(self, flat: Flat, kernel: Function, variables: Mapping[str, Variable]):
        self.flat, self.kernel, self.variables = flat, kernel, variables

    @functools.cached_property
    def _apart(self) -> Apart | None:
        if len(self.flat.instrs) > INSTRS_MAX:
            return None
        params = {p.name: p.offset for p in self.kernel.params}
        return Apart(self.flat, params, {**self.variables, **self.flat.variables})

    def apart(self, one: _Access, other: _Access, same_round: bool) -> bool:
        """Are these never of the same bytes?"""
        if one.volatile or other.volatile or "atom" in (one.how, other.how) or not self._apart:
            return False
        return self._apart.apart(one.at, other.at, same_round)

    @functools.cached_property
    def agreed(self) -> set[int]:
        """The ids of branches at which all threads take the same way."""
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
    """Does an access that threads have made since they met last clash with this one?"""
    clash = bits.clash(access)
    return any(
        not known.apart(each, access, same_round)
        for some, same_round in ((seen.earlier & clash, False), (seen.now & clash, True))
        for each in bits.accesses(some)
    )


def _accesses_before(blocks: Blocks, accesses: list[_Access | None], bits: _Bits) -> list[_Seen]:
    """Of each block the accesses on some way to it since threads have met on that way."""
    own, through = [], []  # what a block adds; whether what was before it counts behind it
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
            if place.get(following, 0) <= place.get(n, 0):  # each loop has such a way
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
        self.loads: dict[str, int] = {}  # that are not volatile, by place
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


def _joins(instrs: list[Instr], known: _Known) -> set[int]:
    """Instructions at which branches join that may part threads some of which meet on their way;
    except those at which threads meet already."""
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


def _access(at: int, instr: Instr) -> _Access | None:
    kind, words = instr.op[0], set(instr.op)
    volatile = "volatile" in words
    shared = bool(words & {"shared", "shared_cta"}) or (volatile and not words & _ELSEWHERE)
    if kind not in ("ld", "st", "atom", "red") or not shared:
        return None
    places = [str(operand) for operand in instr.args if isinstance(operand, Mem)]
    how = "atom" if kind == "red" else kind
    return _Access(at, how, volatile, places[0] if places else "")
