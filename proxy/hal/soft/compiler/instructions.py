"""The table of instructions: everything that the compiler knows about each, except its operands.

It contains the instructions of PTX (ISA, chapter 9.7) and our own, which the compiler generates
from calls. A row is found by the first word; a name of two words is for the forms that also contain
the second word, and precedes the row of the first word alone. docs/adding-an-instruction.md
describes how to add one.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass

from rankfold.proxy.ptx.model import Instr, Mem, registers_of

from . import arithmetic as ar
from . import async_copy, bits, compare, convert, matrix, mbarrier, memory, system, video, warp
from .ops import Handler


class Effect(enum.Enum):
    """The effect of an instruction in addition to its result, or instead of one."""

    CHEAP = "its result follows from its operands; to compute it again costs less than to keep it"
    COMPUTES = "its result follows from its operands"
    LOADS = "its result is content of memory"
    STORES = "writes memory"
    ACTS = "on what other threads or the program see: one thread after the other"
    BRANCHES = "decides where the thread continues"
    MEETS = "stops until other threads are there: a cut"
    NOTHING = "a hint: the kernel computes the same without it"
    UNKNOWN = "not a supported instruction"


@dataclass(frozen=True)
class Row:
    """One instruction.

    `form`: its operands as the PTX ISA writes them. Results (d, p, q) come first; %cc is named
    where it is read; `[, b]` is optional; `…` stands for what the second word decides. Exactly one
    of these gives its translation: `write` its LLVM IR, `meet` the cut, `tile` the cut of a matrix
    operation; none for instructions that ptx/inline.py and flow.py resolve. `waits`: in a loop, for
    what other threads do. `ordered`: what the program observes depends on the order of the blocks.
    `ours`: not part of PTX.
    """

    name: str
    form: str
    effect: Effect
    write: Handler | None = None
    meet: Callable[[Instr], warp.Described] | None = None
    tile: Callable[[Instr], matrix.Described] | None = None
    waits: bool = False
    ordered: bool = False
    ours: bool = False

    @property
    def gives(self) -> bool:
        """True if the first operand is a result."""
        return self.form[:1] in ("d", "p")


_CHEAP, _COMPUTES, _LOADS, _STORES = Effect.CHEAP, Effect.COMPUTES, Effect.LOADS, Effect.STORES
_ACTS, _BRANCHES, _MEETS = Effect.ACTS, Effect.BRANCHES, Effect.MEETS


def _rows(names: str, form: str, effect: Effect, write: Handler | None = None) -> list[Row]:
    return [Row(name, form, effect, write) for name in names.split()]


_PTX = [
    # integers and floats
    *_rows("add sub mul", "d, a, b", _CHEAP, ar.add_sub_mul),
    *_rows("addc subc", "d, a, b, %cc", _COMPUTES, ar.carry_chain),
    *_rows("mad", "d, a, b, c", _CHEAP, ar.mad),
    *_rows("madc", "d, a, b, c, %cc", _COMPUTES, ar.mad),
    *_rows("mul24", "d, a, b", _CHEAP, ar.mul24),
    *_rows("mad24", "d, a, b, c", _COMPUTES, ar.mul24),
    *_rows("fma", "d, a, b, c", _COMPUTES, ar.fma),
    *_rows("sad", "d, a, b, c", _COMPUTES, ar.sad),
    *_rows("dp4a dp2a", "d, a, b, c", _COMPUTES, ar.dot),
    *_rows("div rem", "d, a, b", _COMPUTES, ar.division),
    *_rows("rcp sqrt rsqrt", "d, a", _COMPUTES, ar.roots),
    *_rows("ex2 lg2 sin cos tanh", "d, a", _COMPUTES, ar.approximate),
    *_rows("neg abs", "d, a", _CHEAP, ar.sign),
    *_rows("min max", "d, a, b[, c]", _CHEAP, ar.extreme),
    *_rows("copysign", "d, a, b", _COMPUTES, ar.copysign),
    *_rows("testp", "p, a", _COMPUTES, ar.testp),
    # bits
    *_rows("and or xor", "d, a, b", _CHEAP, bits.logic),
    *_rows("not", "d, a", _CHEAP, bits.complement),
    *_rows("cnot", "d, a", _COMPUTES, bits.logical_not),
    *_rows("lop3", "d[|p], a, b, c, n[, q]", _COMPUTES, bits.lop3),
    *_rows("shl shr", "d, a, b", _CHEAP, bits.shift),
    *_rows("shf", "d, a, b, c", _COMPUTES, bits.funnel_shift),
    *_rows("popc clz brev", "d, a", _COMPUTES, bits.count),
    *_rows("bfind", "d, a", _COMPUTES, bits.bfind),
    *_rows("bfe", "d, a, b, c", _CHEAP, bits.bfe),
    *_rows("bfi", "d, a, b, c, e", _CHEAP, bits.bfi),
    *_rows("prmt", "d, a, b, c", _COMPUTES, bits.prmt),
    *_rows("bmsk", "d, a, b", _COMPUTES, bits.bmsk),
    *_rows("szext", "d, a, b", _COMPUTES, bits.szext),
    *_rows("fns", "d, a, b, c", _COMPUTES, bits.fns),
    # comparison, selection, conversion
    *_rows("setp", "p[|q], a, b[, c]", _CHEAP, compare.setp),
    *_rows("set", "d, a, b[, c]", _COMPUTES, compare.set_value),
    *_rows("selp", "d, a, b, c", _COMPUTES, compare.selp),
    *_rows("slct", "d, a, b, c", _COMPUTES, compare.slct),
    *_rows("mov", "d, a", _CHEAP, convert.mov),
    *_rows("cvt", "d, a[, b][, c]", _COMPUTES, convert.cvt),
    # video
    *_rows("vadd vsub vabsdiff vmin vmax", "d, a, b[, c]", _COMPUTES, video.scalar),
    *_rows("vset", "d, a, b[, c]", _COMPUTES, video.scalar_set),
    *_rows("vshl vshr", "d, a, b[, c]", _COMPUTES, video.scalar_shift),
    *_rows("vmad", "d, a, b, c", _COMPUTES, video.multiply_add),
    *_rows("vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2", "d, a, b, c", _COMPUTES, video.packed),
    *_rows("vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4", "d, a, b, c", _COMPUTES, video.packed),
    *_rows("vset2 vset4", "d, a, b, c", _COMPUTES, video.packed_set),
    # memory
    *_rows("cvta", "d, a", _CHEAP, memory.cvta),
    *_rows("isspacep", "p, a", _COMPUTES, memory.isspacep),
    *_rows("mapa", "d, a, b", _COMPUTES, memory.mapa),
    *_rows("getctarank", "d, a", _COMPUTES, memory.cluster_rank),
    *_rows("createpolicy", "d[, a][, b][, c]", _COMPUTES, memory.policy),
    *_rows("ld ldu", "d, [a][, b]", _LOADS, memory.load),
    *_rows("st", "[a], b[, c]", _STORES, memory.store),
    *_rows("atom", "d, [a], b[, c][, e]", _ACTS, memory.atomic),
    *_rows("red", "[a], b[, c]", _ACTS, memory.atomic),
    *_rows("cp", "[a], …", _ACTS, async_copy.copy),
    *_rows("membar fence", "", _ACTS, system.fence),
    *_rows("mbarrier.init", "[a], b", _ACTS, mbarrier.init),
    *_rows("mbarrier.inval", "[a]", _ACTS, mbarrier.invalidate),
    *_rows("mbarrier.arrive mbarrier.arrive_drop", "d, [a][, b]", _ACTS, mbarrier.arrive),
    *_rows("mbarrier.expect_tx mbarrier.complete_tx", "[a], b", _ACTS, mbarrier.transfer),
    Row("mbarrier.test_wait", "p, [a], b", _ACTS, mbarrier.wait, waits=True),
    Row("mbarrier.try_wait", "p, [a], b[, c]", _ACTS, mbarrier.wait, waits=True),
    *_rows("mbarrier.pending_count", "d, a", _COMPUTES, mbarrier.pending_count),
    # together with other threads
    Row("bar.red", "p, a[, b], c", _MEETS, meet=warp.barrier),
    Row("bar", "a[, b]", _MEETS, meet=warp.barrier),
    Row("barrier.red", "p, a[, b], c", _MEETS, meet=warp.barrier),
    Row("barrier", "a[, b]", _MEETS, meet=warp.barrier),
    Row("shfl", "d[|p], a, b, c[, e]", _MEETS, meet=warp.shuffle),
    Row("vote", "d, a[, b]", _MEETS, meet=warp.vote),
    Row("match", "d[|p], a, b", _MEETS, meet=warp.match),
    Row("redux", "d, a, b", _MEETS, meet=warp.reduce),
    Row("activemask", "d", _MEETS, meet=warp.active),
    Row("elect", "d|p, a", _MEETS, meet=warp.elect),
    Row("mma", "d, a, b, c", _MEETS, tile=matrix.describe),
    Row("wmma.store", "[a], b[, c]", _MEETS, tile=matrix.describe),
    Row("wmma.load", "d, [a][, b]", _MEETS, tile=matrix.describe),
    Row("wmma", "d, a, b, c", _MEETS, tile=matrix.describe),
    Row("ldmatrix", "d, [a]", _MEETS, tile=matrix.describe),
    Row("stmatrix", "[a], b", _MEETS, tile=matrix.describe),
    Row("movmatrix", "d, a", _MEETS, tile=matrix.describe),
    # control flow, and the thread's stack
    *_rows("ret exit", "", _BRANCHES),
    *_rows("trap", "", _BRANCHES, system.trap),
    *_rows("bra", "", _BRANCHES),  # labels and callees are not operands of the model
    *_rows("brx", "a", _BRANCHES),
    *_rows("call", "(d), (a)[, b]", _BRANCHES),
    *_rows("alloca", "d, a[, b]", _BRANCHES),
    *_rows("stacksave", "d", _BRANCHES),
    *_rows("stackrestore", "a", _BRANCHES),
    # hints
    *_rows("nanosleep setmaxnreg pmevent", "a", Effect.NOTHING, system.nothing),
    *_rows("prefetch prefetchu", "[a]", Effect.NOTHING, system.nothing),
    *_rows("discard applypriority", "[a], b", Effect.NOTHING, system.nothing),
    *_rows("griddepcontrol", "", Effect.NOTHING, system.nothing),
]
_OURS = [
    Row("pmov", "d, a", _COMPUTES, convert.parameter_move, ours=True),
    Row("vprintf", "d, a, b", _ACTS, system.vprintf, ordered=True, ours=True),
    Row("assertfail", "a, b, c, e", _ACTS, system.assertfail, ours=True),
    Row("malloc", "d, a", _ACTS, system.allocation, ordered=True, ours=True),
    Row("free", "d, a", _ACTS, system.allocation, ordered=True, ours=True),
    Row("yield", "", _MEETS, meet=warp.turn, ours=True),
    Row("regroup", "", _MEETS, meet=warp.turn, ours=True),
    Row("meet", "", _MEETS, meet=warp.meet, ours=True),
    Row("matrices", "d, …", _MEETS, tile=matrix.describe, ours=True),  # matrix.Run
    Row("label", "", _BRANCHES, ours=True),
]
ROWS = {row.name: row for row in (*_PTX, *_OURS)}
UNKNOWN = Row("", "d, …", Effect.UNKNOWN)


@functools.cache
def _row(op: tuple[str, ...]) -> Row:
    for name, row in ROWS.items():
        first, _, second = name.partition(".")
        if op[0] == first and (not second or second in op):
            return row
    return UNKNOWN


def row_of(instr: Instr) -> Row:
    """Returns the row of an instruction; UNKNOWN if it has none."""
    return _row(instr.op)


def known() -> dict[str, str]:
    """Returns for each instruction of PTX "translated", or "no effect" for hints."""
    return {
        row.name.partition(".")[0]: "no effect" if row.effect is Effect.NOTHING else "translated"
        for row in _PTX
    }


def is_cut(instr: Instr) -> bool:
    return row_of(instr).effect is Effect.MEETS


def defs_of(instr: Instr) -> list[str]:
    """Returns the registers that an instruction writes."""
    if not instr.args or not row_of(instr).gives or isinstance(instr.args[0], Mem):
        return []
    names = registers_of(instr.args[0])
    return [*names, "%cc"] if "cc" in instr.op else names


def uses_of(instr: Instr) -> list[str]:
    """Returns the registers that an instruction reads."""
    row = row_of(instr)
    first = 1 if row.gives and not (instr.args and isinstance(instr.args[0], Mem)) else 0
    names = [name for operand in instr.args[first:] for name in registers_of(operand)]
    names += [instr.pred.name] if instr.pred else []
    return [*names, "%cc"] if "%cc" in row.form else names
