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

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from rankfold.proxy.ptx.model import Instr, Mem

from .instructions import is_cut

MEETS_MAX = 256  # in a kernel: of those that have more only volatile memory counts
_MEET = Instr(("meet",))
_ELSEWHERE = frozenset(("global", "const", "param", "local"))  # not in shared memory
_ENDS = frozenset(("bra", "brx", "ret", "exit", "trap"))  # of a basic block
_ALONE = frozenset(("yield", "activemask"))  # cuts at which nobody waits for others


class _Access(NamedTuple):
    how: str  # ld, st, or atom: both, at once
    volatile: bool
    place: str


def in_step(instrs: list[Instr]) -> list[Instr]:
    """With `meet` wherever it is needed."""
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
    ways = _ways(instrs)
    before = _accesses_before(instrs, accesses, ways, bits)
    out: list[Instr] = []
    for way, seen in zip(ways, before, strict=True):
        for n in range(way.first, way.end):
            if access := accesses[n]:
                if seen & bits.clash(access):
                    out.append(_MEET)
                    seen = 0
                seen |= bits.of[access]
            elif _meets(instrs[n]):
                seen = 0
            out.append(instrs[n])
    return out


def _accesses_before(
    instrs: list[Instr], accesses: list[_Access | None], ways: list[_Way], bits: _Bits
) -> list[int]:
    """Of each block the accesses on some way to it since threads have met on that way."""
    own, through = [], []  # what a block adds; whether what was before it counts behind it
    for way in ways:
        seen, keeps = 0, True
        for n in range(way.first, way.end):
            if access := accesses[n]:
                seen |= bits.of[access]
            elif _meets(instrs[n]):
                seen, keeps = 0, False
        own.append(seen)
        through.append(keeps)
    before = [0] * len(ways)
    todo = list(range(len(ways)))
    while todo:
        n = todo.pop()
        behind = own[n] | (before[n] if through[n] else 0)
        for to in ways[n].to:
            if behind & ~before[to]:
                before[to] |= behind
                todo.append(to)
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


class _Way(NamedTuple):
    """A basic block: instructions [first, end), and where it goes on."""

    first: int
    end: int
    to: tuple[int, ...]


def _joins(instrs: list[Instr]) -> set[int]:
    """Instructions at which branches join that part threads some of which meet on their way; but
    for those at which threads meet already."""
    if _MEET not in instrs:
        return set()
    ways = _ways(instrs)
    meeting = {n for n, way in enumerate(ways) if _MEET in instrs[way.first : way.end]}
    behind = _post_dominators(ways)
    joins = set()
    for n, way in enumerate(ways):
        join = behind[n]
        if len(way.to) < 2 or join is None:
            continue
        first = next(
            index for index in range(ways[join].first, len(instrs))
            if instrs[index].op[0] != "label" or index + 1 == ways[join].end
        )  # fmt: skip
        if not _meets(instrs[first]) and _leads_through(ways, n, join, meeting):
            joins.add(ways[join].first)
    return joins


def _ways(instrs: list[Instr]) -> list[_Way]:
    starts = [0]
    for n, instr in enumerate(instrs):
        if instr.op[0] == "label" and n != starts[-1]:
            starts.append(n)
        elif instr.op[0] in _ENDS and n + 1 < len(instrs) and n + 1 != starts[-1]:
            starts.append(n + 1)
    ends = [*starts[1:], len(instrs)]
    labels = {instrs[first].target: n for n, first in enumerate(starts)
              if instrs[first].op[0] == "label"}  # fmt: skip
    ways = []
    for n, (first, end) in enumerate(zip(starts, ends, strict=True)):
        last = instrs[end - 1]
        to: tuple[int, ...] = ()
        if last.op[0] in ("bra", "brx"):
            to = tuple(labels[each] for each in last.targets or (last.target,) if each in labels)
        if last.op[0] not in _ENDS or (last.op[0] == "bra" and last.pred):
            to += (n + 1,) if n + 1 < len(starts) else ()
        ways.append(_Way(first, end, tuple(dict.fromkeys(to))))
    return ways


def _post_dominators(ways: list[_Way]) -> list[int | None]:
    """Of each block the first that all ways from it to the end lead through; None: there is none.
    (Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph.)"""
    end = len(ways)  # behind every last one
    to = [way.to or (end,) for way in ways]
    comes = defaultdict[int, list[int]](list)
    for n, each in enumerate(to):
        for other in each:
            comes[other].append(n)
    order, seen, todo = list[int](), {end}, [(end, iter(comes[end]))]
    while todo:
        node, left = todo[-1]
        found = next((each for each in left if each not in seen), None)
        if found is None:
            order.append(node)
            todo.pop()
        else:
            seen.add(found)
            todo.append((found, iter(comes[found])))
    place = {node: n for n, node in enumerate(order)}
    nearest = {end: end}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [each for each in to[node] if each in nearest]
            common = known[0]
            for other in known[1:]:
                while common != other:
                    if place[common] < place[other]:
                        common = nearest[common]
                    else:
                        other = nearest[other]
            if nearest.get(node) != common:
                nearest[node], changed = common, True
    return [None if nearest.get(n, end) == end else nearest[n] for n in range(end)]


def _leads_through(ways: list[_Way], start: int, end: int, some: set[int]) -> bool:
    """Is one of these blocks on a way from one to another, before that?"""
    seen = {end}
    todo = [start]
    while todo:
        for each in ways[todo.pop()].to:
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
