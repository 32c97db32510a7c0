"""Where the threads of a warp meet though the program does not say so.

Devices run the threads of a warp in step as long as they go the same way. Programs of before Volta
count on that and pass values through shared memory with nothing between, and many of them are still
used, since most of the time it still holds. Here a thread runs until it has to meet others; so an
instruction of ours, `meet`, stands between two accesses to shared memory of which the second may
need what other threads have done by the first, or may spoil it for them. (CUDA C++ Programming
Guide, "Independent Thread Scheduling".)
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from rankfold.proxy.ptx.model import Instr, Mem

from .instructions import is_cut

MEETS_MAX = 256  # in a kernel: of those that have more only volatile memory counts
_MEET = Instr(("meet",))
_ELSEWHERE = frozenset(("global", "const", "param", "local"))  # not in shared memory
_ALONE = frozenset(("yield", "activemask"))  # cuts at which nobody waits for others


class _Access(NamedTuple):
    writes: bool
    volatile: bool
    place: str


_Seen = set[_Access]  # since the threads have met last


def in_step(instrs: list[Instr]) -> list[Instr]:
    """With `meet` wherever it is needed."""
    accesses = [_access(instr) for instr in instrs]
    if not any(access and access.writes for access in accesses):
        return instrs
    out = _with_meets(instrs, accesses)
    if sum(instr is _MEET for instr in out) > MEETS_MAX:
        out = _with_meets(instrs, [a if a and a.volatile else None for a in accesses])
    return out


def _with_meets(instrs: list[Instr], accesses: list[_Access | None]) -> list[Instr]:
    comes = _round_loops(instrs, accesses)  # to a label, from elsewhere
    seen: _Seen = set()
    out: list[Instr] = []
    for instr, access in zip(instrs, accesses, strict=True):
        if instr.op[0] == "label":
            seen = seen | comes[instr.target]
        elif instr.op[0] in ("bra", "brx"):
            for target in instr.targets or (instr.target,):
                comes[target] |= seen
        elif _meets(instr):
            seen = set()
        elif access:
            if any(_clash(each, access) for each in seen):
                out.append(_MEET)
                seen = set()
            seen.add(access)
        out.append(instr)
    return out


def _round_loops(instrs: list[Instr], accesses: list[_Access | None]) -> defaultdict[str, _Seen]:
    """What a loop has done since its threads met last, at the label where it begins again."""
    labels = {instr.target: index for index, instr in enumerate(instrs) if instr.op[0] == "label"}
    found = defaultdict[str, _Seen](set)
    for end, instr in enumerate(instrs):
        first = labels.get(instr.target, end) if instr.op[0] == "bra" else end
        for index in range(end - 1, first, -1):
            if _meets(instrs[index]):
                break
            if access := accesses[index]:
                found[instr.target].add(access)
    return found


def _meets(instr: Instr) -> bool:
    return is_cut(instr) and instr.op[0] not in _ALONE and "arrive" not in instr.op


def _access(instr: Instr) -> _Access | None:
    kind, words = instr.op[0], set(instr.op)
    volatile = "volatile" in words
    shared = bool(words & {"shared", "shared_cta"}) or (volatile and not words & _ELSEWHERE)
    if kind not in ("ld", "st", "atom", "red") or not shared:
        return None
    places = [str(operand) for operand in instr.args if isinstance(operand, Mem)]
    return _Access(kind != "ld", volatile, places[0] if places else "")


def _clash(first: _Access, second: _Access) -> bool:
    """May they be of one place, in different threads? What is written and read at what reads as the
    same address is a thread's own; if it is volatile the program means others."""
    if first.volatile or second.volatile:
        return first.writes or second.writes
    return first.writes != second.writes and first.place != second.place
