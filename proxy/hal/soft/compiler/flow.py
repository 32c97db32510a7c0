"""From a kernel's instructions to blocks, cuts, and the registers live at each cut.

A *cut* is an instruction that involves other threads (barrier, shuffle, vote …). It ends its block;
what follows is compiled as a separate segment, entered by the scheduler. Device functions have
already been inlined (ptx/inline.py), so a cut may be anywhere in them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rankfold.proxy.ptx.blocks import NoLabel
from rankfold.proxy.ptx.errors import INVALID_PTX, ModuleError
from rankfold.proxy.ptx.inline import flatten
from rankfold.proxy.ptx.model import (
    TYPE_BYTES,
    Function,
    Instr,
    Mem,
    Module,
    Operand,
    Reg,
    Special,
    Sym,
    registers_of,
)
from rankfold.proxy.ptx.parameters import Flat

from . import matrix
from .instructions import Effect, defs_of, is_cut, row_of, uses_of
from .matrix_runs import in_runs
from .meeting import insert_meets

REMATERIALISED_MAX = 24


# ---- blocks and cuts --------------------------------------------------------------------------


@dataclass
class Block:
    """Straight-line instructions and their end: a branch to goto[0] (with `pred`: if it is true, or
    false when `negated`; else to goto[1]), a switch over `index`, a cut, or the exit."""

    number: int
    instrs: list[Instr] = field(default_factory=list)
    goto: tuple[int, ...] = ()
    pred: Reg | None = None
    negated: bool = False
    index: Operand | None = None
    cut: int = 0
    uses: int = 0
    defs: int = 0
    live_in: int = 0


@dataclass
class Cut:
    """A cut. Number 1 is the kernel's entry. `resume` is the block after the cut."""

    number: int
    instr: Instr | None
    resume: int
    saved: tuple[str, ...] = ()  # registers stored in the frame
    recomputed: tuple[str, ...] = ()

    @property
    def soft(self) -> bool:
        """True if only threads in lockstep stop here: see regroup()."""
        return self.instr is not None and self.instr.op[0] == "regroup"


@dataclass
class Graph:
    flat: Flat
    blocks: list[Block]
    cuts: dict[int, Cut]
    rematerialise: dict[str, Instr]
    slots: dict[str, int] = field(default_factory=dict)  # offset in the frame, in bytes per thread
    frame_bytes: int = 0

    @functools.cached_property
    def registers_of_instrs(self) -> list[tuple[Instr, list[str], list[str]]]:
        """The instructions of the kernel, each with the registers that it writes and reads."""
        return [(instr, defs_of(instr), uses_of(instr)) for instr in self.flat.instrs]

    def ends_segment(self, block: Block, lockstep: bool) -> bool:
        return bool(block.cut) and (lockstep or not self.cuts[block.cut].soft)

    def segment(self, cut: Cut, lockstep: bool) -> list[Block]:
        """Returns the blocks that a thread can reach from a cut before its next stop."""
        return self.reachable(
            cut, lambda block: () if self.ends_segment(block, lockstep) else block.goto
        )

    def reachable(self, cut: Cut, successors: Callable[[Block], Iterable[int]]) -> list[Block]:
        """Returns the blocks reachable from a cut; `successors` returns those of a block."""
        seen, todo = set(), [cut.resume]
        while todo:
            number = todo.pop()
            if number not in seen:
                seen.add(number)
                todo += successors(self.blocks[number])
        return [self.blocks[n] for n in sorted(seen)]

    def reads_and_writes(self, cut: Cut, blocks: list[Block]) -> tuple[set[str], set[str]]:
        """Returns the registers that a segment reads (also at its end), and those it writes."""
        read: set[str] = set()
        written = set(defs_of(cut.instr)) if cut.instr else set()
        for block in blocks:
            ends = self.cuts[block.cut].instr if block.cut else None
            for instr in [*block.instrs, *([ends] if ends else [])]:
                read.update(uses_of(instr))
            for instr in block.instrs:
                written.update(defs_of(instr))
            read.update([block.pred.name] if block.pred else [])
            read.update(registers_of(block.index) if block.index else [])
        return read, written

    def recomputation_of(self, names: list[str]) -> list[str]:
        """Adds the registers that the recomputation of `names` needs, in a valid order."""
        out: dict[str, None] = {}

        def add(name: str) -> None:
            if name not in out:
                for source in uses_of(self.rematerialise[name]):
                    add(source)
                out[name] = None

        for name in names:
            add(name)
        return list(out)


ChooseLoops = Callable[[Graph, list[Cut]], list[Cut]]


def build(module: Module, kernel: Function, choose_loops: ChooseLoops) -> Graph:
    """Builds the graph. `choose_loops` gets the cuts at the heads of loops and returns those of the
    loops whose threads regroup."""
    flat = flatten(module, kernel)
    instrs = _yield_in_spin_loops(_yield_in_waits(_normalise(flat.instrs)))
    with contextlib.suppress(NoLabel):  # _graph() reports the error
        instrs = insert_meets(dataclasses.replace(flat, instrs=instrs), kernel, module.variables)
    instrs = in_runs(instrs)
    loops = _small_loops(instrs)
    graph = _graph(flat, regroup(instrs, loops), kernel.name)
    heads = [
        cut for cut in graph.cuts.values() if cut.instr and cut.instr.op == ("regroup", "head")
    ]
    worthwhile = {
        cut.instr.target: loops[cut.instr.target] for cut in choose_loops(graph, heads) if cut.instr
    }
    return graph if worthwhile == loops else _graph(flat, regroup(instrs, worthwhile), kernel.name)


def _graph(flat: Flat, instrs: list[Instr], kernel: str) -> Graph:
    blocks, cuts = _blocks(instrs, kernel)
    graph = Graph(flat, blocks, cuts, _rematerialisable(flat))
    _liveness(graph)
    _frame(graph)
    return graph


def _small_loops(instrs: list[Instr]) -> dict[str, int]:
    """Finds loops of one block without a cut: the label at the head, the index of the branch."""
    loops = {}
    head = ""
    for index, instr in enumerate(instrs):
        if instr.op[0] == "label":
            head = instr.target
        elif row_of(instr).effect in (Effect.BRANCHES, Effect.MEETS):
            if instr.op[0] == "bra" and instr.pred and instr.target == head:
                loops[head] = index
            head = ""
    return loops


def regroup(instrs: list[Instr], loops: dict[str, int]) -> list[Instr]:
    """Adds a soft cut at the head of each of these loops and after it. While the threads of a block
    are in lockstep they run such a loop together, one iteration at a time: an iteration is a
    segment, which can be vectorised over the threads, unlike the whole loop. As soon as they
    diverge, each thread continues on its own to the next real cut."""
    branches = {index: label for label, index in loops.items()}
    out: list[Instr] = []
    for index, instr in enumerate(instrs):
        out.append(instr)
        if instr.op[0] == "label" and instr.target in loops:
            out.append(Instr(("regroup", "head"), target=instr.target))
        elif index in branches:
            out.append(Instr(("regroup", "exit"), target=branches[index]))
    return out


def _normalise(instrs: list[Instr]) -> list[Instr]:
    """Turns predicated instructions, except branches, into branches around them."""
    out: list[Instr] = []
    for index, instr in enumerate(instrs):
        if instr.pred is None or instr.op[0] == "bra":
            out.append(instr)
            continue
        over = f"over{index}"
        out.append(Instr(("bra",), pred=instr.pred, negated=not instr.negated, target=over))
        out.append(dataclasses.replace(instr, pred=None))
        out.append(Instr(("label",), target=over))
    return out


def _yield_in_waits(instrs: list[Instr]) -> list[Instr]:
    """Adds a yield before each test of an mbarrier, whatever the thread does if the test fails.
    (Yielding only after a failed test would be enough, but would split the following code into two
    segments.)"""
    out: list[Instr] = []
    for instr in instrs:
        out += [Instr(("yield",)), instr] if row_of(instr).waits else [instr]
    return out


_STRONG = frozenset(("volatile", "relaxed", "acquire", "mmio"))
_NOT_OWN = frozenset(("global", "shared", "const", "param"))  # memory that other threads can access


def _yield_in_spin_loops(instrs: list[Instr]) -> list[Instr]:
    """Adds a yield to each iteration of a loop whose end depends on writes by other threads:
    threads of a block run one after the other, so the loop would never end otherwise."""
    labels = {instr.target: index for index, instr in enumerate(instrs) if instr.op[0] == "label"}
    spins = set()
    for index, instr in enumerate(instrs):
        first = labels.get(instr.target, index) if instr.op[0] == "bra" else index
        if first < index and _spins(instrs[first : index + 1]):
            spins.add(index)
    out: list[Instr] = []
    for index, instr in enumerate(instrs):
        if index not in spins:
            out.append(instr)
            continue
        over = f"spin{index}"
        if instr.pred:
            out.append(dataclasses.replace(instr, negated=not instr.negated, target=over))
        out += [
            Instr(("yield",)),
            dataclasses.replace(instr, pred=None),
            Instr(("label",), target=over),
        ]
    return out


def _is_strong(instr: Instr) -> bool:
    return instr.op[0] == "atom" or (instr.op[0] == "ld" and not _STRONG.isdisjoint(instr.op))


def _spins(loop: list[Instr]) -> bool:
    """Decides whether a branch in the loop depends on a volatile load or an atomic in it, possibly
    through the thread's own memory, where functions store results and unoptimised code stores
    everything."""
    if any(is_cut(instr) for instr in loop) or not any(_is_strong(instr) for instr in loop):
        return False
    tainted: set[str] = set()
    stored = False  # a dependent value is in the thread's own memory
    for _ in range(2):  # twice: values pass from one iteration to the next
        for instr in loop:
            kind, words = instr.op[0], set(instr.op)
            own = not words & _NOT_OWN
            if (
                _is_strong(instr)
                or (stored and own and kind == "ld")
                or not tainted.isdisjoint(uses_of(instr))
            ):
                tainted.update(defs_of(instr))
            if kind == "st" and own and not tainted.isdisjoint(registers_of(instr.args[1])):
                stored = True
    return any(i.op[0] == "bra" and i.pred and i.pred.name in tainted for i in loop)


def _blocks(instrs: list[Instr], kernel: str) -> tuple[list[Block], dict[int, Cut]]:
    blocks = [Block(0)]
    cuts = {1: Cut(1, None, 0)}
    labels: dict[str, int] = {}
    pending: list[tuple[Block, tuple[str, ...]]] = []  # branches to be resolved
    falling_through: list[Block] = []  # blocks that fall through

    def new_block() -> Block:
        block = Block(len(blocks))
        blocks.append(block)
        return block

    block = blocks[0]
    for instr in instrs:
        kind = instr.op[0]
        if kind == "label":
            falling_through.append(block)
            block = new_block()
            labels[instr.target] = block.number
        elif kind == "bra":
            pending.append((block, (instr.target,)))
            if instr.pred:
                block.pred, block.negated = instr.pred, instr.negated
                falling_through.append(block)
            block = new_block()
        elif kind == "brx":
            block.index = instr.args[0]
            pending.append((block, instr.targets))
            block = new_block()
        elif kind in ("ret", "exit", "trap"):
            if kind == "trap":
                block.instrs.append(instr)
            block = new_block()
        elif is_cut(instr):
            number = len(cuts) + 1
            block.cut = number
            before = block
            block = new_block()
            before.goto = (block.number,)
            cuts[number] = Cut(number, instr, block.number)
        else:
            block.instrs.append(instr)
    _resolve(blocks, pending, falling_through, labels, kernel)
    return blocks, cuts


def _resolve(
    blocks: list[Block],
    pending: list[tuple[Block, tuple[str, ...]]],
    falling_through: list[Block],
    labels: dict[str, int],
    kernel: str,
) -> None:
    for block, targets in pending:
        missing = [t for t in targets if t not in labels]
        if missing or not targets:
            names = ", ".join(missing)
            raise ModuleError(INVALID_PTX, f"kernel {kernel}: no label {names}", names)
        block.goto = tuple(labels[t] for t in targets)
    for block in falling_through:
        block.goto = (*block.goto, block.number + 1)


def _rematerialisable(flat: Flat) -> dict[str, Instr]:
    """Finds registers that follow from the thread's coordinates and the parameters by cheap
    arithmetic: they are computed again after a cut instead of stored, which also makes them visible
    to the compiler."""
    defined: dict[str, Instr | None] = {}
    for instr in flat.instrs:
        for name in defs_of(instr):
            defined[name] = None if name in defined or instr.pred else instr
    definitions: dict[str, Instr] = {}
    cost: dict[str, int] = {}
    for instr in flat.instrs:
        names = defs_of(instr)
        if len(names) != 1 or defined[names[0]] is not instr or not is_arithmetic(instr):
            continue
        sources = uses_of(instr)
        if all(source in definitions for source in sources):
            total = 1 + sum(cost[source] for source in sources)
            if total <= REMATERIALISED_MAX:
                definitions[names[0]], cost[names[0]] = instr, total
    return definitions


def is_arithmetic(instr: Instr) -> bool:
    """Decides whether an instruction works on integers, coordinates and parameters, with one
    result: it is then cheap and always gives the same result."""
    kind, last = instr.op[0], instr.op[-1]
    if any(
        isinstance(a, Special) and a.name.startswith(("clock", "globaltimer")) for a in instr.args
    ):
        return False
    if not instr.args or not isinstance(instr.args[0], Reg) or "cc" in instr.op:
        return False
    if kind == "ld":
        where = instr.args[1]
        return instr.op[1] == "param" and isinstance(where, Mem) and isinstance(where.base, Sym)
    if kind == "cvt":
        return last[0] in "us" and instr.op[-2][0] in "us"
    cheap = row_of(instr).effect is Effect.CHEAP
    return cheap and (last[0] in "bus" or kind == "mov") and last != "pred"


def members(bits: int, names: list[str]) -> list[str]:
    """Returns the names whose bits are set. Sets are small, and kernels have thousands of names."""
    found = []
    while bits:
        low = bits & -bits
        found.append(names[low.bit_length() - 1])
        bits ^= low
    return found


def _liveness(graph: Graph) -> None:
    index = {name: i for i, name in enumerate([*graph.flat.registers, "%cc"])}
    names = list(index)

    def bits(registers: list[str]) -> int:
        value = 0
        for name in registers:
            if name not in index:
                raise ModuleError(INVALID_PTX, f"register {name} is not declared")
            value |= 1 << index[name]
        return value

    cut_defs = {}
    for block in graph.blocks:
        for instr in block.instrs:
            block.uses |= bits(uses_of(instr)) & ~block.defs
            block.defs |= bits(defs_of(instr))
        operation = graph.cuts[block.cut].instr if block.cut else None
        ends = uses_of(operation) if operation else []
        ends += [block.pred.name] if block.pred else []
        ends += registers_of(block.index) if block.index else []
        block.uses |= bits(ends) & ~block.defs
        if operation:
            cut_defs[block.cut] = bits(defs_of(operation))
    repeat = True
    while repeat:
        repeat = False
        for block in reversed(graph.blocks):
            out = 0
            for successor in block.goto:
                out |= graph.blocks[successor].live_in
            out &= ~cut_defs.get(block.cut, 0)
            live = block.uses | (out & ~block.defs)
            repeat |= live != block.live_in
            block.live_in = live
    for cut in graph.cuts.values():
        live = graph.blocks[cut.resume].live_in & ~cut_defs.get(cut.number, 0)
        alive = members(live, names)
        cut.recomputed = tuple(n for n in alive if n in graph.rematerialise)
        if cut.number > 1:  # at the entry no register has a value yet
            cut.saved = tuple(n for n in alive if n not in graph.rematerialise)


# Words at the frame's beginning: four operands and two results of a cut; or those of a matrix
# operation, whose results overwrite the operands.
OPERAND_SLOTS = 6


def _frame(graph: Graph) -> None:
    """Assigns a slot of the frame to each register that is saved at a cut; registers that are never
    live at the same cut share one."""
    at_cuts: dict[str, set[int]] = {}
    for cut in graph.cuts.values():
        for name in cut.saved:
            at_cuts.setdefault(name, set()).add(cut.number)
    slots: list[tuple[int, int, set[int]]] = []  # offset, bytes, cuts at which it is in use
    tiles = (c.instr for c in graph.cuts.values() if c.instr and row_of(c.instr).tile)
    words = max((len(matrix.frame_words(tile)) for tile in tiles), default=0)
    end = 4 * max(OPERAND_SLOTS, words)
    kinds = graph.flat.registers
    for name, cuts in sorted(at_cuts.items(), key=lambda item: (-_bytes(kinds, item[0]), item[0])):
        size = _bytes(kinds, name)
        for offset, bytes_, in_use in slots:
            if bytes_ == size and not in_use & cuts:
                graph.slots[name] = offset
                in_use |= cuts
                break
        else:
            slots.append((end, size, set(cuts)))
            graph.slots[name] = end
            end += size
    graph.frame_bytes = end if len(graph.cuts) > 1 else 0


def _bytes(kinds: dict[str, str], name: str) -> int:
    return 1 if name == "%cc" else TYPE_BYTES[kinds[name]]
