"""Defines what each instruction does with addresses: how it passes them on, and how it uses them.

The table has every instruction that a kernel with known sets may contain, by its first word. Any
other instruction makes a kernel's sets unknown (sets.py): none is ignored silently.
"""

from __future__ import annotations

import enum
import functools


class Flow(enum.Enum):
    """The effect of an instruction on the origins (origins.py) of its operands."""

    MOVE = "the result is an operand, or one of several"
    MOVE_FIRST = "the result is the first operand; the others say when or where"
    CHOOSE = "the result is one of the first two operands; the third decides"
    ADD = "the result is a sum or a difference"
    EXTREME = "the result is one of the operands, or far from an address if that is a float"
    MULTIPLY = "the result is a product"
    MULTIPLY_ADD = "the result is a product and a sum"
    SHIFT_UP = "the result is a product with a power of two"
    SHIFT_DOWN = "the result is a quotient of a power of two"
    DIVIDE = "the result is a quotient or a remainder"
    AND = "the result is some bits of the first operand"
    OR = "the result is the operands' bits together, as a sum is that does not carry"
    BITS = "the result has other bits at the same places"
    CONVERT = "the result is the operand with more or fewer bits"
    INSERT = "the result is bits of two operands, as of two halves"
    MIX = "the result may be anything that can be made of the operands"
    COMPARE = "the result is a condition"
    SMALL = "the result is a count, a mask or a condition: no address"
    LOAD = "the result is the content at the address"
    STORE = "the content at the address becomes the second operand"
    ATOMIC = "the content at the address is changed; the result is the old content"
    COPY = "moves memory"
    BARRIER = "works on a counter in memory"
    LOAD_TILE = "the result is the content at the address, each thread's part"
    STORE_TILE = "the content at the address becomes the second operand, each thread's part"
    DISCARD = "the content at the address is not needed any more"
    NOTHING = "makes no value of addresses and uses none"
    OPEN = "does what sets cannot describe"


_FLOWS = {
    Flow.MOVE: "mov pmov cvta",
    Flow.MOVE_FIRST: "shfl mapa",
    Flow.CHOOSE: "selp slct",
    Flow.ADD: "add sub addc subc",
    Flow.EXTREME: "min max neg abs",
    Flow.MULTIPLY: "mul mul24",
    Flow.MULTIPLY_ADD: "mad madc mad24",
    Flow.SHIFT_UP: "shl",
    Flow.SHIFT_DOWN: "shr",
    Flow.DIVIDE: "div rem",
    Flow.AND: "and",
    Flow.OR: "or",
    Flow.BITS: "xor not",
    Flow.CONVERT: "cvt",
    Flow.MIX: """fma sad dp4a dp2a rcp sqrt rsqrt ex2 lg2 sin cos tanh copysign lop3 shf brev bfe
        prmt szext redux mma wmma movmatrix
        vadd vsub vabsdiff vmin vmax vset vshl vshr vmad
        vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vset2
        vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4""",
    Flow.INSERT: "bfi",
    Flow.COMPARE: "setp set",
    Flow.SMALL: """testp cnot popc clz bfind bmsk fns isspacep getctarank createpolicy
        vote match activemask elect mbarrier.pending_count""",
    Flow.LOAD: "ld ldu",
    Flow.STORE: "st",
    Flow.ATOMIC: "atom red",
    Flow.COPY: "cp",
    Flow.BARRIER: "mbarrier",
    Flow.LOAD_TILE: "wmma.load ldmatrix",
    Flow.STORE_TILE: "wmma.store stmatrix",
    Flow.DISCARD: "discard",
    Flow.NOTHING: """label bra brx ret exit trap bar barrier membar fence yield regroup meet
        nanosleep setmaxnreg pmevent brkpt prefetch prefetchu applypriority griddepcontrol
        assertfail""",
    Flow.OPEN: "vprintf malloc free call alloca stacksave stackrestore matrices",
}
FLOWS = {name: flow for flow, names in _FLOWS.items() for name in names.split()}
_SECOND = frozenset(name for name in FLOWS if "." in name)

WHY_OPEN = {
    "vprintf": "prints",
    "malloc": "allocates on the device's heap",
    "free": "allocates on the device's heap",
}
# Special registers whose values follow from the launch alone. Any other one makes a kernel open.
STEADY = frozenset(
    f"{name}.{axis}"
    for name in (
        "tid",
        "ntid",
        "ctaid",
        "nctaid",
        "clusterid",
        "nclusterid",
        "cluster_ctaid",
        "cluster_nctaid",
    )
    for axis in "xyz"
) | {
    "laneid",
    "lanemask_eq",
    "lanemask_le",
    "lanemask_lt",
    "lanemask_ge",
    "lanemask_gt",
    "total_smem_size",
    "dynamic_smem_size",
    "aggr_smem_size",
    "cluster_ctarank",
    "cluster_nctarank",
    "is_explicit_cluster",
}
GRID = ("envreg1", "envreg2")  # the workspace in which a cooperative launch's blocks synchronise


@functools.cache
def flow_of(op: tuple[str, ...]) -> Flow | None:
    """The flow of an instruction; None: unknown instruction."""
    for word in op[1:]:
        if f"{op[0]}.{word}" in _SECOND:
            return FLOWS[f"{op[0]}.{word}"]
    return FLOWS.get(op[0])
