"""Operations of the threads of a warp or block together, as cuts: barriers, votes, shuffles.

This module reads their forms; warp.c and block.c compute them. The numbers are those of kernel.h.
PTX ISA, chapters 9.7.9 and 9.7.13.
"""

from __future__ import annotations

from rankfold.proxy.ptx.model import Instr, Int, Operand, Pair, Sink

from .ops import Unsupported

Described = tuple[str, int, list[Operand], list[Operand]]  # kind, variant, operands, results
_BARRIER = {"popc": 1, "and": 2, "or": 3}  # enum soft_barrier
_SHUFFLE = {"up": 0, "down": 1, "bfly": 2, "idx": 3}  # enum soft_shfl
_VOTE = {"all": 0, "any": 1, "uni": 2, "ballot": 3}  # enum soft_vote
_MATCH = {"any": 0, "all": 1}  # enum soft_match
_REDUCE = {"add": 0, "and": 5, "or": 6, "xor": 7}  # enum soft_redux, as in the next line
_REDUCE_U32, _REDUCE_S32 = {"min": 1, "max": 2}, {"min": 3, "max": 4}


def is_loose(instr: Instr) -> bool:
    """Returns True for a form without a mask of members, as before .sync: for the lanes that arrive
    together."""
    return instr.op[0] == "meet" or (instr.op[0] in ("shfl", "vote") and "sync" not in instr.op)


def _words(instr: Instr) -> tuple[str, ...]:
    """Returns the modifiers except .sync, which may be anywhere: CUB writes vote.ballot.sync."""
    if "sync" not in instr.op and not is_loose(instr):
        raise Unsupported
    return tuple(word for word in instr.op[1:] if word != "sync")


def _members(instr: Instr, place: int) -> Operand:
    """Returns the mask of the participating lanes; 0 for a form without one."""
    return Int(0) if is_loose(instr) else instr.args[place]


def _pair(operand: Operand) -> list[Operand]:
    return [operand.first, operand.second] if isinstance(operand, Pair) else [operand, Sink()]


def shuffle(instr: Instr) -> Described:
    """shfl.mode d[|p], a, lane, clamp, members"""
    code = _SHUFFLE[_words(instr)[0]]
    operands = [*instr.args[1:4], _members(instr, 4)]
    return "shfl", code, operands, _pair(instr.args[0])


def vote(instr: Instr) -> Described:
    """vote.mode d, a, members"""
    code = _VOTE[_words(instr)[0]]
    operands = [instr.args[1], Int(0), Int(0), _members(instr, 2)]
    return "vote", code, operands, _pair(instr.args[0])


def match(instr: Instr) -> Described:
    """match.mode d[|p], a, members"""
    code = _MATCH[_words(instr)[0]]
    a, members = instr.args[1:3]
    return "match", code, [a, a, Int(0), members], _pair(instr.args[0])


def reduce(instr: Instr) -> Described:
    """redux.op.type d, a, members"""
    name, *_, kind = _words(instr)
    if kind not in ("u32", "s32", "b32"):
        raise Unsupported
    code = (_REDUCE | (_REDUCE_S32 if kind == "s32" else _REDUCE_U32))[name]
    a, members = instr.args[1:3]
    return "redux", code, [a, Int(0), Int(0), members], _pair(instr.args[0])


def elect(instr: Instr) -> Described:
    """elect d|p, members"""
    _words(instr)
    return "elect", 0, [Int(0), Int(0), Int(0), instr.args[1]], _pair(instr.args[0])


def active(instr: Instr) -> Described:
    """activemask d"""
    return "active", 0, [], [instr.args[0]]


def turn(instr: Instr) -> Described:
    """yield and regroup, our own instructions: other threads run first."""
    return instr.op[0], 0, [], []


def meet(instr: Instr) -> Described:
    """meet, our own instruction: as bar.warp.sync of the lanes that arrive together."""
    return "sync", 0, [Int(0)] * 4, []


def barrier(instr: Instr) -> Described:
    """bar[.cta].{sync,arrive} a[, count]; bar.warp.sync members; bar.red.op p, a[, count], c"""
    args = list(instr.args)
    words = tuple(word for word in instr.op[1:] if word not in ("cta", "aligned"))
    if words[0] == "warp":
        return "sync", 0, [Int(0), Int(0), Int(0), args[0]], []
    if words[0] == "sync":
        return "barrier", 0, [args[0], args[1] if len(args) > 1 else Int(0), Int(0)], []
    if words[0] == "arrive":
        return "arrive", 0, [args[0], args[1]], []
    if words[0] == "red":
        count = args[2] if len(args) > 3 else Int(0)
        return "barrier", _BARRIER[words[1]], [args[1], count, args[-1]], [args[0]]
    raise Unsupported
