"""Lowers a kernel to an LLVM module: one function per segment, and the tables of kernel.h.

segment.py writes the functions: one for threads that have diverged, and, in a kernel with loops in
which threads regroup, one for a block in lockstep.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from rankfold import plural
from rankfold.proxy.ptx.layout import function_addresses, globals_layout
from rankfold.proxy.ptx.model import (
    TYPE_BYTES,
    Function,
    Instr,
    Int,
    Module,
    Operand,
    Reg,
    Sink,
    Special,
    symbols_of,
)
from rankfold.proxy.ptx.module import find

from . import addressing, divergence, flow, mathlib, matrix, memory, threads
from .emit import is_float
from .errors import unsupported, unsupported_instruction
from .instructions import Effect, defs_of, row_of, uses_of
from .objects import ABI
from .ops import Unsupported
from .predicate_range import RangedSegment
from .values import RESERVED_SHARED
from .warp import Described, is_loose

NO_SLOT = 0xFFFFFFFF
ORDERED, WIDE = 1, 2  # SOFT_ORDERED, SOFT_WIDE
FLAT, LOCKSTEP_FLAT, LOOSE = 1, 2, 4  # SOFT_FLAT, SOFT_LOCKSTEP_FLAT, SOFT_LOOSE
SHARED_BYTES_MAX = 256 << 10
REGISTERS = 65536  # per multiprocessor
_CUT_KINDS = {
    "none": 0,
    "barrier": 1,
    "arrive": 2,
    "yield": 3,
    "sync": 4,
    "shfl": 5,
    "vote": 6,
    "match": 7,
    "redux": 8,
    "active": 9,
    "elect": 10,
    "regroup": 11,
    "matrix": 12,
}


@dataclass(frozen=True)
class Lowered:
    """LLVM IR of a kernel and the properties that callers need. Sizes in bytes.

    `segments`: the functions of each cut. Only `tables` and those of the same cut refer to them.
    """

    head: str
    segments: tuple[str, ...]
    tables: str
    tail: str
    symbol: str
    static_shared: int
    local_bytes: int
    registers: int

    @property
    def ir(self) -> str:
        return "\n".join([self.head, *self.segments, self.tables, self.tail])


class Kernel:
    """One kernel while it is lowered to IR."""

    def __init__(self, module: Module, function: Function, symbol: str):
        self.module, self.function, self.symbol = module, function, symbol
        self.graph = flow.build(module, function, divergence.worth_regrouping)
        self.places = threads.places(self.graph)
        self.slopes = divergence.slopes(self.graph, self.places)
        self.registers = {**self.graph.flat.registers, "%cc": "pred"}
        self.addresses: dict[str, tuple[str, int]] = {}
        layout = globals_layout(module)
        for name, offset in layout.offsets.items():
            self.addresses[name] = ("global", offset)
        for param in function.params:
            self.addresses[param.name] = ("param", param.offset)
        for name, address in function_addresses(module).items():
            self.addresses[name] = ("function", address)
        self.static_shared = self._place("shared")
        self.local_bytes = self._place("local")
        self.local_stride = _power_of_two(self.local_bytes)
        self.generic = {
            memory.SPACES[instr.op[1]]
            for instr in graph_instrs(self.graph)
            if instr.op[0] == "cvta" and memory.SPACES.get(instr.op[1]) in memory.TAGS
        }
        if any(_is_envreg(a) for i in graph_instrs(self.graph) for a in i.args):
            self.generic.add("grid")
        self.splits = addressing.splits(self.graph.flat.instrs)
        self.constants = addressing.constants(self.graph.flat.instrs)
        self.in_grid = threads.in_grid(self.graph.flat.instrs)
        self.steps = {c.number for c in self.graph.cuts.values() if self._lockstep_pays(c)}
        self.runs: dict[int, str] = {}  # a cut's functions and flags, as written in its table row
        self.helpers: set[str] = set()
        self.declared: set[str] = {"declare void @rankfold_soft_trap(i32)"}

    def _place(self, space: str) -> int:
        """Assigns offsets to the variables that the kernel uses; dynamic shared memory is last."""
        used = {
            name for instr in graph_instrs(self.graph) for a in instr.args for name in symbols_of(a)
        }
        own = self.graph.flat.variables
        variables = [*self.module.variables.values(), *own.values()]
        end = RESERVED_SHARED if space == "shared" and self._uses_reserved() else 0
        chosen = [v for v in variables if v.space == space and (v.name in used or v.name in own)]
        for variable in sorted(chosen, key=lambda v: v.extern and v.size == 0):
            end = (end + variable.align - 1) // variable.align * variable.align
            self.addresses[variable.name] = (space, end)
            end += variable.size
        if space == "shared" and end > SHARED_BYTES_MAX:
            raise unsupported(f"{plural.count(end, 'byte')} of shared memory", self.function.name)
        return end

    def _uses_reserved(self) -> bool:
        operands = (a for instr in graph_instrs(self.graph) for a in instr.args)
        return any(isinstance(a, Special) and a.name.startswith("reserved_smem") for a in operands)

    def row_registers(self, cut: flow.Cut) -> tuple[str, ...]:
        """Returns the registers that a block in lockstep stores once for a row of threads at a cut:
        the other threads' values follow from the first one's (struct soft_row_value). Only where
        such a block has its own segment."""
        if cut.number not in self.steps:
            return ()
        return tuple(name for name in cut.saved if self.slopes.get(name) is not None)

    def lower(self) -> Lowered:
        segments = tuple("\n".join(self._functions(cut)) for cut in self.graph.cuts.values())
        helpers, declared = mathlib.definitions(self.helpers)
        head = [
            'target triple = "x86_64-unknown-linux-gnu"',
            *sorted(self.declared | declared),
            *helpers,
        ]
        tail = [
            "attributes #0 = { nounwind }",
            "!0 = distinct !{}",
            '!1 = !{!"llvm.loop.parallel_accesses", !0}',
            *(f"!{n + 10} = distinct !{{!{n + 10}, !1}}" for n in self.graph.cuts),
            "!9 = !{}",
        ]
        return Lowered(
            "\n".join(head),
            segments,
            "\n".join(self._tables()),
            "\n".join(tail),
            self.symbol,
            self.static_shared,
            self.local_bytes,
            self._register_count(),
        )

    def _functions(self, cut: flow.Cut) -> list[str]:
        """Writes the segment after a cut, for threads that have diverged and for a block in
        lockstep."""
        divergent = lockstep = RangedSegment(self, cut, False)
        text = divergent.write_all()
        if cut.number in self.steps:
            lockstep = RangedSegment(self, cut, True)
            text += lockstep.write_all()
        for segment in (divergent, lockstep):
            self.helpers |= segment.e.helpers
            self.declared |= segment.e.declared
        flags = FLAT * (not divergent.uses_coordinates)
        flags |= LOCKSTEP_FLAT * (not lockstep.uses_coordinates)
        flags |= LOOSE * (cut.instr is not None and is_loose(cut.instr))
        names = f"ptr {divergent.name}, ptr {lockstep.name}"
        self.runs[cut.number] = f"{names}, i16 {{}}, i16 {flags}"
        return text

    def _lockstep_pays(self, cut: flow.Cut) -> bool:
        """Decides whether the segment gets a lockstep version: in kernels with loops to regroup in,
        if it has such a loop, or a branch that can be decided for many threads at once.
        Elsewhere it would only cost compile time."""
        if not any(each.soft for each in self.graph.cuts.values()):
            return False
        blocks = self.graph.segment(cut, True)
        return (
            cut.soft
            or any(block.cut and self.graph.cuts[block.cut].soft for block in blocks)
            or any(block.pred and self.slopes.get(block.pred.name) == 0 for block in blocks)
            or threads.find_predicate_range(self.graph, cut, True, self.slopes, self.places)
            is not None
        )

    def describe(self, instr: Instr | None) -> Described:
        """Describes a cut; registers that only ever hold one constant count as that constant. For
        matrix operations, use tiles."""
        kind, code, operands, results = describe(instr, self.function.name)
        operands = [self.constants.get(o.name, o) if isinstance(o, Reg) else o for o in operands]
        return kind, code, operands, results

    def tiles(self, instr: Instr) -> matrix.Tiles:
        with refusing(instr, self.function.name):
            return matrix.tiles(instr)

    def _register_count(self) -> int:
        """Returns cudaFuncAttributes.numRegs: the 32-bit words of the declared registers, limited
        as on a device, which allocates registers by eights so that blocks of full size fit."""
        words = sum((TYPE_BYTES[kind] + 3) // 4 for kind in self.graph.flat.registers.values())
        threads = -(-min(self.function.max_threads, 1024) // 32) * 32
        most = REGISTERS // (threads * max(self.function.min_blocks, 1)) // 8 * 8
        return max(1, min(words, most, 255))

    def _tables(self) -> list[str]:
        cut_type = CUT_TYPE
        rows = [_cut_row("ptr null, ptr null, i16 {}, i16 0", "none", 0, [], [], _NO_ROW_VALUES)]
        row_values: list[str] = []
        steps: list[int] = []
        for cut in self.graph.cuts.values():
            values = self._row_values(cut)
            first = f"getelementptr ({ROW_VALUE_TYPE}, ptr @row_values, i32 {len(row_values)})"
            row_values += values
            if cut.instr and row_of(cut.instr).tile:
                tiles = self.tiles(cut.instr)
                at = f"getelementptr (i32, ptr @steps, i32 {len(steps)})"
                steps += tiles.steps
                after, runs = _after(first, len(values), at), self.runs[cut.number]
                rows.append(_cut_row(runs, "matrix", tiles.count, _ALL_LANES, [], after))
                continue
            count = _after(first, len(values))
            kind, code, operands, results = self.describe(cut.instr)
            where = []
            for index, operand in enumerate(operands):
                if isinstance(operand, Int):
                    where.append((NO_SLOT, operand.value & 0xFFFFFFFF))
                else:
                    where.append((4 * index, 0))
            outs = [
                NO_SLOT if isinstance(result, Sink) else 4 * (4 + index)
                for index, result in enumerate(results)
            ]
            rows.append(_cut_row(self.runs[cut.number], kind, code, where, outs, count))
        name = self.function.name.encode() + b"\0"
        escaped = "".join(f"\\{byte:02X}" for byte in name)
        ordered = _ordered(graph_instrs(self.graph))
        wide = threads.is_wide(self.graph, self.static_shared, self.local_bytes)
        numbers = [
            ABI,
            len(rows),
            self.function.param_bytes,
            self.static_shared,
            self.local_stride,
            self.graph.frame_bytes,
            min(self.function.max_threads, 1024),
            ordered * ORDERED | wide * WIDE,
        ]
        fields = ", ".join(f"i32 {n}" for n in numbers)
        return [
            f'@name = private constant [{len(name)} x i8] c"{escaped}"',
            f"@row_values = internal constant [{len(row_values)} x {ROW_VALUE_TYPE}] "
            f"[{', '.join(row_values)}]",
            f"@steps = internal constant [{len(steps)} x i32] "
            f"[{', '.join(f'i32 {_i32(step)}' for step in steps)}]",
            f"@cuts = internal constant [{len(rows)} x {cut_type}] [{', '.join(rows)}]",
            f"@{self.symbol} = constant {{ptr, ptr, [8 x i32]}} "
            f"{{ptr @name, ptr @cuts, [8 x i32] [{fields}]}}",
        ]

    def _row_values(self, cut: flow.Cut) -> list[str]:
        rows = []
        for name in self.row_registers(cut):
            slope, size = self.slopes[name] or 0, TYPE_BYTES[self.registers[name]]
            signed = (slope & (1 << 64) - 1) - (1 << 64 if slope >> 63 & 1 else 0)
            slot = self.graph.slots[name]
            rows.append(f"{ROW_VALUE_TYPE} {{i32 {slot}, i32 {size}, i64 {signed}}}")
        return rows


_COMMUTE = frozenset(("add", "and", "or", "xor", "min", "max"))


def _ordered(instrs: list[Instr]) -> bool:
    """Decides whether the order of the blocks may change what the kernel computes (SOFT_ORDERED).
    An atomic on memory of all blocks does not if it is of integers, commutes, and its result is
    unused; other accesses of a correct program never race."""
    used = {name for instr in instrs for name in uses_of(instr)}

    def order_matters(instr: Instr) -> bool:
        words = set(instr.op)
        if any(isinstance(a, Special) and "clock" in a.name for a in instr.args):
            return True
        if words & {"shared", "shared_cta", "local"}:
            return False
        if instr.op[0] in ("atom", "red"):
            return (
                not words & _COMMUTE
                or is_float(instr.op[-1])
                or any(name in used for name in defs_of(instr))
            )
        strong = words & {"volatile", "relaxed", "acquire", "release"}
        row = row_of(instr)
        return row.ordered or (row.effect in (Effect.LOADS, Effect.STORES) and bool(strong))

    return any(order_matters(instr) for instr in instrs)


ROW_VALUE_TYPE = "{i32, i32, i64}"
CUT_TYPE = "{ptr, ptr, i16, i16, i32, [4 x {i32, i32}], [2 x i32], ptr, ptr, i32, i32}"
_ALL_LANES = [(NO_SLOT, 0), (NO_SLOT, 0), (NO_SLOT, 0), (NO_SLOT, 0xFFFFFFFF)]


def _after(row_values: str, count: int, steps: str = "null") -> str:
    """Returns the fields of a row after `out`."""
    return f"ptr {row_values if count else 'null'}, ptr {steps}, i32 {count}, i32 0"


_NO_ROW_VALUES = _after("null", 0)


def _cut_row(
    runs: str,
    kind: str,
    code: int,
    operands: list[tuple[int, int]],
    outs: list[int],
    row_values: str,
) -> str:
    operands = operands + [(NO_SLOT, 0)] * (4 - len(operands))
    outs = outs + [NO_SLOT] * (2 - len(outs))
    ins = ", ".join(f"{{i32, i32}} {{i32 {_i32(s)}, i32 {_i32(v)}}}" for s, v in operands)
    out = ", ".join(f"i32 {_i32(o)}" for o in outs)
    return (
        f"{CUT_TYPE} {{{runs.format(_CUT_KINDS[kind])}, i32 {code}, "
        f"[4 x {{i32, i32}}] [{ins}], [2 x i32] [{out}], {row_values}}}"
    )


def _i32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _power_of_two(value: int) -> int:
    return 0 if value == 0 else max(16, 1 << (value - 1).bit_length())


def _is_envreg(operand: Operand) -> bool:
    return isinstance(operand, Special) and operand.name.startswith("envreg")


def graph_instrs(graph: flow.Graph) -> list[Instr]:
    return graph.flat.instrs


# ---- cuts ---------------------------------------------------------------------------------------


def describe(instr: Instr | None, kernel: str) -> Described:
    """Returns a cut's kind, variant, operands and results, as kernel.h defines them."""
    if instr is None:
        return "none", 0, [], []
    with refusing(instr, kernel):
        meet = row_of(instr).meet
        if meet is None:
            raise Unsupported
        return meet(instr)


@contextlib.contextmanager
def refusing(instr: Instr, kernel: str) -> Iterator[None]:
    """Turns an unknown form into an error that names the instruction."""
    try:
        yield
    except (Unsupported, KeyError, IndexError, ValueError) as error:
        raise unsupported_instruction(instr.text, instr.op[0], kernel) from error


def lower(module: Module, name: str, symbol: str) -> Lowered:
    """Returns the LLVM IR of kernel `name`, which defines `symbol`. Raises ModuleError."""
    return Kernel(module, find(module, name), symbol).lower()
