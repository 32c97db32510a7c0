"""Lowers a kernel to an LLVM module: one function per segment, and the tables kernel.h asks for.

A segment runs a range of threads in a loop. Registers are stack slots that LLVM's mem2reg turns
into values; what is the same for all threads (parameters, coordinates of the block) is read once,
before the loop. The loop is marked parallel: between two cuts the threads of a correct program do
not touch each other's data, except by atomics, which carry no mark.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from . import addressing, divergence, flow, mathlib, memory, threads
from .emit import Emitter, Value, const, float_bits, float_const, is_float, llvm_type
from .errors import INVALID_PTX, NOT_SUPPORTED, ModuleError, unsupported
from .instructions import OPS
from .ops import Unsupported
from .ptx import (
    TYPE_BYTES,
    Float,
    Function,
    Instr,
    Int,
    Mem,
    Module,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Sym,
    Vec,
)  # fmt: skip

ABI = 5  # SOFT_KERNEL_ABI
NO_SLOT = 0xFFFFFFFF
ORDERED, WIDE = 1, 2  # SOFT_ORDERED, SOFT_WIDE
FLAT, LOCKSTEP_FLAT = 1, 2  # SOFT_FLAT, SOFT_LOCKSTEP_FLAT
SHARED_BYTES_MAX = 256 << 10
RESERVED_SHARED = 1024
_BLOCK = {"base": 0, "shared": 8, "local": 16, "frame": 24, "params": 32, "globals": 40, "next": 48,
          "ntid.x": 56, "ntid.y": 60, "ntid.z": 64, "nctaid.x": 68, "nctaid.y": 72, "nctaid.z": 76,
          "ctaid.x": 80, "ctaid.y": 84, "ctaid.z": 88, "stride": 92,
          "dynamic_shared": 96, "grid": 104}  # fmt: skip
_POINTERS = ("base", "shared", "local", "frame", "params", "next", "grid")
ROW = "i32 %row, i32 %ty, i32 %tz"
SEGMENT_PARAMS = f"ptr noalias readonly %block, i32 %t0, i32 %t1, {ROW}"
NOBODY = 0xFFFFFFFF  # the ends of no thread: OR is zero, AND all ones
_CUT_KINDS = {"none": 0, "barrier": 1, "arrive": 2, "yield": 3, "sync": 4, "shfl": 5, "vote": 6,
              "match": 7, "redux": 8, "active": 9, "elect": 10, "regroup": 11}  # fmt: skip
_CONSTANT = {"nsmid": 1, "smid": 0, "gridid": 0, "nwarpid": 32,
             # each block is a cluster of its own
             "cluster_ctarank": 0, "cluster_nctarank": 1, "is_explicit_cluster": 0,
             **{f"cluster_ctaid.{d}": 0 for d in "xyz"},
             **{f"cluster_nctaid.{d}": 1 for d in "xyz"},
             # what cooperative groups keep in shared memory lies at its beginning
             "reserved_smem_offset_begin": 0, "reserved_smem_offset_0": 0,
             "reserved_smem_offset_1": 32, "reserved_smem_offset_end": RESERVED_SHARED,
             "reserved_smem_offset_cap": RESERVED_SHARED}  # fmt: skip
_CLOCKS = ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi")


SETUP = "__rankfold"  # RF_SETUP_NAME: what the client fills in before the first launch
_SETUP_HEADER = 16  # struct rf_setup: printed, count
FUNCTION_TAG, FUNCTION_STEP = 0x14 << 40, 16  # addresses of device functions: no memory


@dataclass(frozen=True)
class Layout:
    """Where a module's variables lie in its globals area. `pointers`: places in it that hold such
    an offset and become addresses when the client has chosen where the area lies."""

    offsets: dict[str, int]
    bytes: int
    pointers: tuple[int, ...]


@dataclass(frozen=True)
class Lowered:
    """LLVM IR of a kernel and what a caller must know about it. Sizes in bytes."""

    ir: str
    symbol: str
    static_shared: int
    local_bytes: int
    registers: int


def globals_layout(module: Module) -> Layout:
    offsets, end = {}, 0
    for variable in module.variables.values():
        if variable.space in ("global", "const"):
            align = max(variable.align, 16)
            end = (end + align - 1) // align * align
            offsets[variable.name] = end
            end += variable.size
    pointers = tuple(
        offsets[name] + place
        for name in offsets
        for place, to, _ in module.variables[name].pointers
        if to in offsets
    )
    if pointers or "vprintf" in module.functions:
        offsets[SETUP] = (end + 15) // 16 * 16
        end = offsets[SETUP] + _SETUP_HEADER + 8 * len(pointers)
    return Layout(offsets, end, pointers)


def function_addresses(module: Module) -> dict[str, int]:
    """What stands for the address of a device function: the same in every part of a module."""
    names = [f.name for f in module.functions.values() if not f.entry and f.body_text is not None]
    return {name: FUNCTION_TAG + FUNCTION_STEP * (i + 1) for i, name in enumerate(names)}


def globals_image(module: Module) -> bytes:
    """What the area begins as; pointers to its variables hold offsets until they are filled in.
    Raises ModuleError."""
    layout, functions = globals_layout(module), function_addresses(module)
    image = bytearray(layout.bytes)
    for name, offset in layout.offsets.items():
        if name == SETUP:
            count = len(layout.pointers)
            struct.pack_into(f"<QQ{count}Q", image, offset, 0, count, *layout.pointers)
            continue
        variable = module.variables[name]
        image[offset : offset + len(variable.initial)] = variable.initial
        for place, to, addend in variable.pointers:
            value = layout.offsets.get(to, functions.get(to))
            if value is None:
                raise ModuleError(NOT_SUPPORTED, f"variable {name} begins as the address of {to}")
            struct.pack_into("<Q", image, offset + place, value + addend)
    return bytes(image)


Described = tuple[str, int, list[Operand], list[Operand]]


class Kernel:
    """One kernel on its way to IR."""

    def __init__(self, module: Module, function: Function, symbol: str):
        self.module, self.function, self.symbol = module, function, symbol
        self.graph = flow.build(module, function, divergence.worth_regrouping)
        self.slopes = divergence.slopes(self.graph, threads.places(self.graph))
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
        self.runs: dict[int, str] = {}  # a cut's functions and flags, as they stand in its row
        self.helpers: set[str] = set()
        self.declared: set[str] = {"declare void @rankfold_soft_trap(i32)"}

    def _place(self, space: str) -> int:
        """Offsets of the variables that the kernel names; dynamic shared memory comes last."""
        used = {
            name for instr in graph_instrs(self.graph) for a in instr.args for name in _names(a)
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
            raise unsupported(f"{end} bytes of shared memory", self.function.name)
        return end

    def _uses_reserved(self) -> bool:
        operands = (a for instr in graph_instrs(self.graph) for a in instr.args)
        return any(isinstance(a, Special) and a.name.startswith("reserved_smem") for a in operands)

    def lower(self) -> Lowered:
        text = []
        for cut in self.graph.cuts.values():
            text += self._functions(cut)
        helpers, declared = mathlib.definitions(self.helpers)
        lines = [
            'target triple = "x86_64-unknown-linux-gnu"',
            *sorted(self.declared | declared), *helpers, *text, *self._tables(),
            "attributes #0 = { nounwind }",
            "!0 = distinct !{}", '!1 = !{!"llvm.loop.parallel_accesses", !0}',
            *(f"!{n + 10} = distinct !{{!{n + 10}, !1}}" for n in self.graph.cuts),
            "!9 = !{}",
        ]  # fmt: skip
        return Lowered("\n".join(lines), self.symbol, self.static_shared, self.local_bytes,
                       self._register_count())  # fmt: skip

    def _functions(self, cut: flow.Cut) -> list[str]:
        """The segment behind a cut, for threads that have parted, and for a block in lockstep."""
        apart = together = Segment(self, cut, False)
        text = apart.write_all()
        if self._lockstep_pays(cut):
            together = Segment(self, cut, True)
            text += together.write_all()
        for segment in (apart, together):
            self.helpers |= segment.e.helpers
            self.declared |= segment.e.declared
        flags = FLAT * (not apart.uses_coordinates)
        flags |= LOCKSTEP_FLAT * (not together.uses_coordinates)
        names = f"ptr {apart.name}, ptr {together.name}"
        self.runs[cut.number] = f"{names}, i16 {{}}, i16 {flags}"
        return text

    def _lockstep_pays(self, cut: flow.Cut) -> bool:
        """In kernels with loops to regroup in: where there is one, or a branch that can be decided
        for many threads at once. Elsewhere it would only be more to compile."""
        if not any(each.soft for each in self.graph.cuts.values()):
            return False
        blocks = self.graph.segment(cut, True)
        return (
            cut.soft
            or any(block.cut and self.graph.cuts[block.cut].soft for block in blocks)
            or any(block.pred and self.slopes.get(block.pred.name) == 0 for block in blocks)
            or threads.find_guard(self.graph, cut, True, self.slopes) is not None
        )

    def describe(self, instr: Instr | None) -> Described:
        """A cut; registers that only ever hold one constant count as that constant."""
        kind, code, operands, results = describe(instr, self.function.name)
        operands = [self.constants.get(o.name, o) if isinstance(o, Reg) else o for o in operands]
        return kind, code, operands, results

    def _register_count(self) -> int:
        """What cudaFuncAttributes.numRegs tells: the 32-bit words of the declared registers, as far
        as a device would have them."""
        words = sum((TYPE_BYTES[kind] + 3) // 4 for kind in self.graph.flat.registers.values())
        return max(1, min(words, 255))

    def _tables(self) -> list[str]:
        cut_type = CUT_TYPE
        rows = [_cut_row("ptr null, ptr null, i16 {}, i16 0", "none", 0, [], [])]
        for cut in self.graph.cuts.values():
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
            rows.append(_cut_row(self.runs[cut.number], kind, code, where, outs))
        name = self.function.name.encode() + b"\0"
        escaped = "".join(f"\\{byte:02X}" for byte in name)
        ordered = _ordered(graph_instrs(self.graph))
        wide = threads.is_wide(self.graph, self.static_shared, self.local_bytes)
        numbers = [ABI, len(rows), self.function.param_bytes, self.static_shared, self.local_stride,
                   self.graph.frame_bytes, min(self.function.max_threads, 1024),
                   ordered * ORDERED | wide * WIDE]  # fmt: skip
        fields = ", ".join(f"i32 {n}" for n in numbers)
        return [
            f'@name = private constant [{len(name)} x i8] c"{escaped}"',
            f"@cuts = internal constant [{len(rows)} x {cut_type}] [{', '.join(rows)}]",
            f"@{self.symbol} = constant {{ptr, ptr, [8 x i32]}} "
            f"{{ptr @name, ptr @cuts, [8 x i32] [{fields}]}}",
        ]


_COMMUTE = frozenset(("add", "and", "or", "xor", "min", "max"))


def _ordered(instrs: list[Instr]) -> bool:
    """May the order of the blocks change what the kernel computes? (SOFT_ORDERED) An atomic on
    memory of all blocks does not, if it is of integers, commutes, and nobody looks at its result;
    what a correct program does besides never races."""
    used = {name for instr in instrs for name in flow.uses_of(instr)}

    def matters(instr: Instr) -> bool:
        words = set(instr.op)
        if any(isinstance(a, Special) and "clock" in a.name for a in instr.args):
            return True
        if words & {"shared", "shared_cta", "local"}:
            return False
        if instr.op[0] in ("atom", "red"):
            return (
                not words & _COMMUTE
                or is_float(instr.op[-1])
                or any(name in used for name in flow.defs_of(instr))
            )
        strong = words & {"volatile", "relaxed", "acquire", "release"}
        return instr.op[0] == "vprintf" or (instr.op[0] in ("ld", "st") and bool(strong))

    return any(matters(instr) for instr in instrs)


CUT_TYPE = "{ptr, ptr, i16, i16, i32, [4 x {i32, i32}], [2 x i32]}"


def _cut_row(
    runs: str, kind: str, code: int, operands: list[tuple[int, int]], outs: list[int]
) -> str:
    operands = operands + [(NO_SLOT, 0)] * (4 - len(operands))
    outs = outs + [NO_SLOT] * (2 - len(outs))
    ins = ", ".join(f"{{i32, i32}} {{i32 {_i32(s)}, i32 {_i32(v)}}}" for s, v in operands)
    out = ", ".join(f"i32 {_i32(o)}" for o in outs)
    return (
        f"{CUT_TYPE} {{{runs.format(_CUT_KINDS[kind])}, i32 {code}, "
        f"[4 x {{i32, i32}}] [{ins}], [2 x i32] [{out}]}}"
    )


def _i32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _power_of_two(value: int) -> int:
    return 0 if value == 0 else max(16, 1 << (value - 1).bit_length())


def _is_envreg(operand: Operand) -> bool:
    return isinstance(operand, Special) and operand.name.startswith("envreg")


def graph_instrs(graph: flow.Graph) -> list[Instr]:
    return graph.flat.instrs


def _names(operand: Operand) -> list[str]:
    match operand:
        case Sym(name, _):
            return [name]
        case Mem(base, _):
            return _names(base)
        case Vec(items):
            return [name for item in items for name in _names(item)]
    return []


# ---- cuts ---------------------------------------------------------------------------------------


def describe(instr: Instr | None, kernel: str) -> Described:
    """A cut's kind, its variant, its operands and its results, as kernel.h wants them."""
    if instr is None:
        return "none", 0, [], []
    try:
        return _describe(instr)
    except (Unsupported, KeyError, IndexError) as error:
        raise unsupported(f"the instruction {instr.text!r}", kernel) from error


def _describe(instr: Instr) -> Described:
    name, words, args = instr.op[0], instr.op[1:], list(instr.args)
    if name == "activemask":
        return "active", 0, [], [args[0]]
    if name in ("yield", "regroup"):
        return name, 0, [], []
    if name in ("bar", "barrier"):
        return _describe_barrier(words, args)
    if "sync" not in words:
        raise Unsupported
    results = _pair(args[0])
    if name == "shfl":
        code = {"up": 0, "down": 1, "bfly": 2, "idx": 3}[words[1]]
        return "shfl", code, args[1:5], results
    if name == "vote":
        code = {"all": 0, "any": 1, "uni": 2, "ballot": 3}[words[1]]
        return "vote", code, [args[1], Int(0), Int(0), args[2]], results
    if name == "match":
        code = {"any": 0, "all": 1}[words[0]]
        return "match", code, [args[1], args[1], Int(0), args[2]], results
    if name == "redux" and words[-1] in ("u32", "s32", "b32"):
        minimum = {"min": 1, "max": 2}
        if words[1] in minimum:
            code = minimum[words[1]] + (2 if words[-1] == "s32" else 0)
        else:
            code = {"add": 0, "and": 5, "or": 6, "xor": 7}[words[1]]
        return "redux", code, [args[1], Int(0), Int(0), args[2]], results
    if name == "elect":
        return "elect", 0, [Int(0), Int(0), Int(0), args[1]], results
    raise Unsupported


def _describe_barrier(words: tuple[str, ...], args: list[Operand]) -> Described:
    words = tuple(w for w in words if w not in ("cta", "aligned"))
    if words[0] == "warp":
        return "sync", 0, [Int(0), Int(0), Int(0), args[0]], []
    if words[0] == "sync":
        return "barrier", 0, [args[0], args[1] if len(args) > 1 else Int(0), Int(0)], []
    if words[0] == "arrive":
        return "arrive", 0, [args[0], args[1]], []
    if words[0] == "red":
        code = {"popc": 1, "and": 2, "or": 3}[words[1]]
        count = args[2] if len(args) > 3 else Int(0)
        return "barrier", code, [args[1], count, args[-1]], [args[0]]
    raise Unsupported


def _pair(operand: Operand) -> list[Operand]:
    return [operand.first, operand.second] if isinstance(operand, Pair) else [operand, Sink()]


# ---- segments ---------------------------------------------------------------------------------


class Segment:
    """Writes the function of one segment; the context that instruction handlers work in. In
    `lockstep`, the threads of the block have always stood at the same cut."""

    def __init__(self, kernel: Kernel, cut: flow.Cut, lockstep: bool):
        self.kernel, self.cut, self.lockstep = kernel, cut, lockstep
        self.name = f"@{'step' if lockstep else 'seg'}{cut.number}"
        self.e = Emitter()
        self.generic = kernel.generic
        self.local_stride = kernel.local_stride
        self.param_bytes = kernel.function.param_bytes
        self.pointers = {name: f"%{name}" for name in ("base", "shared", "params", "grid")}
        self.pointers["local"] = "%mylocal"
        self.current = "loop"
        self.places: dict[str, str] = {}
        self.ends: list[tuple[int, str]] = []  # cut number, LLVM block
        self.params: dict[tuple[int, str], Value] = {}
        self.uses_coordinates = False
        self.used: set[str] = set()  # registers that are read in this segment
        self.changed: set[str] = set()  # and written
        self.parts: set[str] = set()  # stack slots of the parts of addresses
        self.guard: threads.Guard | None = None

    # ---- what handlers use

    def kind_of(self, operand: Operand) -> str:
        assert isinstance(operand, Reg)
        return self.kernel.registers[operand.name]

    def read(self, operand: Operand, kind: str) -> Value:
        type_ = llvm_type(kind)
        match operand:
            case Reg(name):
                have = llvm_type(self.kernel.registers[name])
                return self.e.coerce(self.e.op(have, f"load {have}, ptr {self.place(name)}"), type_)
            case Int(value):
                return const(type_, value)
            case Float(value, single):
                return _float_operand(value, single, type_)
            case Special(name):
                return self.e.coerce(self.special(name), type_)
            case Sym(name, offset):
                return self.e.coerce(self.address(name, offset), type_)
            case Not(inner):
                return self.e.not_(self.read(inner, kind))
        raise Unsupported

    def write(self, operand: Operand, value: Value, signed: bool = False) -> None:
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Reg):
            raise Unsupported
        type_ = llvm_type(self.kernel.registers[operand.name])
        value = self.e.coerce(value, type_, signed)
        self.e.do(f"store {type_} {value.ref}, ptr {self.place(operand.name)}")

    def place(self, name: str) -> str:
        """The stack slot of a register."""
        if name not in self.places:
            if name not in self.kernel.registers:
                raise ModuleError(
                    INVALID_PTX, f"kernel {self.kernel.function.name}: no register {name}"
                )
            self.places[name] = f"%r{len(self.places)}"
        return self.places[name]

    def address(self, name: str, offset: int) -> Value:
        if name == "WARP_SZ":
            return const("i64", 32 + offset)
        if name not in self.kernel.addresses:
            raise Unsupported
        space, at = self.kernel.addresses[name]
        if space != "global":
            return const("i64", at + offset)
        return self.e.bin("add", Value("i64", "%globals"), const("i64", at + offset))

    def variable_space(self, name: str) -> str:
        return self.kernel.addresses[name][0] if name in self.kernel.addresses else ""

    def param(self, offset: int, kind: str) -> Value:
        """A parameter, read before the loop."""
        key = (offset, llvm_type(kind))
        if key not in self.params:
            at = self.e.in_head("ptr", f"getelementptr i8, ptr %params, i64 {offset}")
            text = f"load {key[1]}, ptr {at.ref}, align {TYPE_BYTES[kind]}, !invariant.load !9"
            self.params[key] = self.e.in_head(key[1], text)
        return self.params[key]

    def branch_to(self, label: str) -> None:
        self.e.do(f"br label %{label}")

    def start(self, label: str) -> None:
        self.e.at(label)
        self.current = label

    def special(self, name: str) -> Value:
        e = self.e
        if name in ("tid.x", "tid.y", "tid.z"):
            self.uses_coordinates = True
            return Value("i32", {"x": "%tx", "y": "%ty", "z": "%tz"}[name[-1]])
        if name.startswith(("clusterid.", "nclusterid.")):
            name = name.replace("clusterid", "ctaid")
        if name in _BLOCK:
            return Value("i32", f"%{name}")
        lane = (
            e.bin("and", Value("i32", "%t"), const("i32", 31)) if "lane" in name else Value("", "")
        )
        if name == "laneid":
            return lane
        if name == "warpid":
            return e.bin("lshr", Value("i32", "%t"), const("i32", 5))
        if name.startswith("lanemask_"):
            return self._lanemask(name[9:], lane)
        if name in _CONSTANT:
            return const("i32", _CONSTANT[name])
        if name in _CLOCKS:
            self.e.declared.add("declare i64 @rankfold_soft_nanoseconds()")
            now = e.op("i64", "call i64 @rankfold_soft_nanoseconds()")
            return e.bin("lshr", now, const("i64", 32)) if name.endswith("_hi") else now
        if name == "dynamic_smem_size":
            return Value("i32", "%dynamic_shared")
        if name in ("total_smem_size", "aggr_smem_size"):
            size = const("i32", self.kernel.static_shared)
            return e.bin("add", Value("i32", "%dynamic_shared"), size)
        if name in ("envreg1", "envreg2"):
            return self._grid_workspace(high=name == "envreg1")
        raise Unsupported

    def constant_ranges(self) -> list[tuple[Value, int]]:
        variables = self.kernel.module.variables.values()
        return [(self.address(v.name, 0), v.size) for v in variables if v.space == "const"]

    def _grid_workspace(self, high: bool) -> Value:
        """Half of the address of a cooperative launch's workspace, which nvcc's code for
        grid.sync() finds in these registers; 0 in other launches."""
        e = self.e
        there = e.in_head("i1", "icmp ne ptr %grid, null")
        half = memory.TAGS["grid"] << 8 if high else 0
        return e.in_head("i32", f"select i1 {there.ref}, i32 {half}, i32 0")

    def _lanemask(self, which: str, lane: Value) -> Value:
        e = self.e
        bit = e.bin("shl", const("i32", 1), lane)
        below = e.bin("sub", bit, const("i32", 1))
        if which == "eq":
            return bit
        if which == "lt":
            return below
        if which == "le":
            return e.bin("or", below, bit)
        if which == "gt":
            return e.not_(e.bin("or", below, bit))
        if which == "ge":
            return e.not_(below)
        raise Unsupported

    # ---- the function

    def write_all(self) -> list[str]:
        graph = self.kernel.graph
        blocks = graph.segment(self.cut, self.lockstep)
        self.used, self.changed = graph.touched(self.cut, blocks)
        self.guard = threads.find_guard(graph, self.cut, self.lockstep, self.kernel.slopes)
        self._begin()
        self.branch_to(f"b{self.cut.resume}")
        for block in blocks:
            self.start(f"b{block.number}")
            for instr in block.instrs:
                self.instr(instr)
            self._end_block(block)
        if self.guard is None:
            return [
                f"define internal i64 {self.name}({SEGMENT_PARAMS}) #0 {{",
                *self._entry(), *self._loop(), "}",
            ]  # fmt: skip
        text = [
            f"define internal i64 {self.name}.part({SEGMENT_PARAMS}, i1 %guard) alwaysinline #0 {{",
            *self._entry(), *self._loop(), "}",
        ]  # fmt: skip
        first = Segment(self.kernel, self.cut, self.lockstep)
        if self.guard.test:
            text += first.in_two_ranges(self.guard)
        else:
            text += first.if_unanimous(self.guard)
        self.uses_coordinates |= first.uses_coordinates
        self.e.declared |= first.e.declared
        return text

    # ---- a segment with a guard

    def in_two_ranges(self, guard: threads.Guard) -> list[str]:
        """The segment, as its part for the threads before the one where the guard changes and its
        part for those from there on."""
        e = self.e
        self._at_first_thread(guard)
        place, bound = self.read(guard.place, "u32"), self.read(guard.bound, "u32")
        place, bound = e.resize(place, "i64", guard.signed), e.resize(bound, "i64", guard.signed)
        start, end = (e.op("i64", f"zext i32 {t} to i64") for t in ("%t0", "%t1"))
        last = e.bin("add", place, e.bin("sub", end, start))
        if guard.test in ("le", "ls", "gt", "hi"):
            bound = e.bin("add", bound, const("i64", 1))
        change = e.bin("add", start, e.bin("sub", bound, place))
        change = e.intrinsic("smin", e.intrinsic("smax", change, start), end)
        middle = e.cast("trunc", change, "i32").ref
        if guard.wraps:
            limit = const("i64", 1 << (31 if guard.signed else 32))
            self._or_apart(e.cmp("icmp sle", last, limit))
        below = guard.test in ("lt", "le", "lo", "ls")
        return self._wrapper([
            f"  %before = {self._part_call('%t0', middle, below)}",
            f"  %behind = {self._part_call(middle, '%t1', not below)}",
            "  %or = or i64 %before, %behind", f"  %high = and i64 %or, {0xFFFFFFFF << 32}",
            "  %and = and i64 %before, %behind", f"  %low = and i64 %and, {0xFFFFFFFF}",
            "  %ends = or i64 %high, %low", "  ret i64 %ends",
        ])  # fmt: skip

    def if_unanimous(self, guard: threads.Guard) -> list[str]:
        """The segment, as one of its parts if a predicate that was kept is the same for all."""
        e = self.e
        at = self._slot(self.kernel.graph.slots[guard.predicate], guard.predicate)
        e.do("br label %look")
        e.at("look")
        e.lines += [
            "  %i = phi i32 [ 0, %entry ], [ %i.n, %look ]",
            "  %differ = phi i8 [ 0, %entry ], [ %differ.n, %look ]",
            "  %i64 = zext i32 %i to i64",
            f"  %at.i = getelementptr i8, ptr {at.ref}, i64 %i64",
            "  %its = load i8, ptr %at.i",
            f"  %mine = load i8, ptr {at.ref}",
            "  %differs = xor i8 %its, %mine",
            "  %differ.n = or i8 %differ, %differs",
            "  %i.n = add nuw nsw i32 %i, 1",
            "  %there = add i32 %t0, %i.n",
            "  %on = icmp ult i32 %there, %t1",
            "  br i1 %on, label %look, label %seen",
        ]
        e.at("seen")
        self._or_apart(e.cmp("icmp eq", Value("i8", "%differ.n"), const("i8", 0)))
        return self._wrapper([
            "  %holds = trunc i8 %mine to i1",
            "  br i1 %holds, label %all, label %none",
            "all:", f"  %a = {self._part_call('%t0', '%t1', True)}", "  ret i64 %a",
            "none:", f"  %n = {self._part_call('%t0', '%t1', False)}", "  ret i64 %n",
        ])  # fmt: skip

    def _at_first_thread(self, guard: threads.Guard) -> None:
        wanted = {name for instr in guard.needed for name in flow.uses_of(instr)}
        wanted |= {o.name for o in (guard.place, guard.bound) if isinstance(o, Reg)}
        for name in self.cut.saved:
            if name in wanted:
                self._set(name, self._kept(name))
        for instr in guard.needed:
            self.instr(instr)

    def _or_apart(self, condition: Value) -> None:
        """Go on if the condition holds, else as if the threads had parted."""
        self.e.do(f"br i1 {condition.ref}, label %parts, label %apart")
        self.e.at("apart")
        call = f"call i64 @seg{self.cut.number}(ptr %block, i32 %t0, i32 %t1, {ROW})"
        self.e.lines += [f"  %apart.ends = {call}", "  ret i64 %apart.ends"]
        self.e.at("parts")

    def _part_call(self, start: str, end: str, guard: bool) -> str:
        arguments = f"ptr %block, i32 {start}, i32 {end}, {ROW}, i1 {str(guard).lower()}"
        return f"call i64 {self.name}.part({arguments})"

    def _wrapper(self, calls: list[str]) -> list[str]:
        entry = [f"  {p} = alloca {llvm_type(self.kernel.registers[n])}"
                 for n, p in self.places.items()]  # fmt: skip
        return [
            f"define internal i64 {self.name}({SEGMENT_PARAMS}) #0 {{", "entry:", *entry,
            *(f"  {part} = alloca i64" for part in sorted(self.parts)), *self._block_fields(),
            "  %t = add i32 %t0, 0", "  %t64 = zext i32 %t0 to i64", "  %tx = sub i32 %t0, %row",
            *self.e.head, *self.e.lines, *calls, "}",
        ]  # fmt: skip

    def instr(self, instr: Instr) -> None:
        handler = OPS.get(instr.op[0])
        try:
            if instr.op[0] == "trap":
                error = {"assert": 710, "stack": 714}.get(instr.op[-1], 719)
                self.e.do(f"call void @rankfold_soft_trap(i32 {error})")
            elif handler is None:
                raise Unsupported
            elif self.guard and _target(instr) == self.guard.predicate:
                self.write(instr.args[0], Value("i1", "%guard"))
            elif instr.op[0] == "mad" and _target(instr) in self.kernel.in_grid:
                self._grid_coordinate(instr)
            else:
                handler(self, instr)
                if _target(instr) in self.kernel.splits:
                    self._keep_split(instr)
        except (Unsupported, KeyError, IndexError, AssertionError) as error:
            raise unsupported(
                f"the instruction {instr.text!r}", self.kernel.function.name
            ) from error

    def _grid_coordinate(self, instr: Instr) -> None:
        """ctaid * ntid + tid, which kernel.c promises to fit an int."""
        a, b, c = (self.read(x, "u32") for x in instr.args[1:4])
        product = self.e.bin("mul nuw nsw", a, b)
        self.write(instr.args[0], self.e.bin("add nuw nsw", product, c))

    def _keep_split(self, instr: Instr) -> None:
        """Beside an address, the two parts it is the sum of: see addressing.py."""
        name = _target(instr)
        split = self.kernel.splits[name]
        if split.source:
            base, offset = self._parts(split.source)
            shift = const("i64", split.shift)
            base, offset = self.e.bin("shl", base, shift), self.e.bin("shl", offset, shift)
            if split.base is not None:
                base = self.e.bin("add", base, self.read(split.base, "u64"))
        else:
            assert split.base is not None and split.offset is not None
            base, offset = self.read(split.base, "u64"), self.read(split.offset, "u64")
        self._store_parts(name, base, offset)

    def _store_parts(self, name: str, base: Value, offset: Value) -> None:
        self.e.do(f"store i64 {base.ref}, ptr {self._part(name, 'b')}")
        self.e.do(f"store i64 {offset.ref}, ptr {self._part(name, 'o')}")

    def _parts(self, name: str) -> tuple[Value, Value]:
        base, offset = (self.e.op("i64", f"load i64, ptr {self._part(name, p)}") for p in "bo")
        return base, offset

    def _part(self, name: str, part: str) -> str:
        self.parts.add(f"{self.place(name)}.{part}")
        return f"{self.place(name)}.{part}"

    def split_address(self, name: str) -> tuple[Value, Value] | None:
        return self._parts(name) if name in self.kernel.splits else None

    def _begin(self) -> None:
        """Bring back what was kept at the cut, and what the cut itself gives."""
        kept = set(self.cut.saved)
        for name in self.cut.saved:
            if self.guard and not self.guard.test and name == self.guard.predicate:
                self._set(name, Value("i1", "%guard"))
            elif self.lockstep and self.kernel.slopes.get(name) is not None:
                self._set(name, self._kept_in_row(name))
            else:
                self._set(name, self._kept(name))
        kept.update(self.cut.recomputed)
        for name in self.kernel.graph.closure([n for n in self.cut.recomputed if n in self.used]):
            self.instr(self.kernel.graph.rematerialise[name])
        self._results()
        if self.cut.number == 1:
            self._undefined(kept)

    def _kept(self, name: str) -> Value:
        """A register's value from the frame."""
        at = self._slot(self.kernel.graph.slots[name], name)
        type_ = llvm_type(self.kernel.registers[name])
        memory_type = "i8" if type_ == "i1" else type_
        value = self.e.op(memory_type, f"load {memory_type}, ptr {at.ref}, !llvm.access.group !0")
        return self.e.cast("trunc", value, "i1") if type_ == "i1" else value

    def _kept_in_row(self, name: str) -> Value:
        """The same, read once, of a register whose slope along the row is known."""
        e, type_ = self.e, llvm_type(self.kernel.registers[name])
        self.uses_coordinates = True
        size, slope = TYPE_BYTES[self.kernel.registers[name]], self.kernel.slopes[name]
        row = e.in_head("i64", f"mul i64 %stride64, {self.kernel.graph.slots[name]}")
        base = e.in_head("ptr", f"getelementptr i8, ptr %frame, i64 {row.ref}")
        at = e.in_head("ptr", f"getelementptr i{8 * size}, ptr {base.ref}, i64 %first64")
        memory_type = "i8" if type_ == "i1" else type_
        value = e.in_head(memory_type, f"load {memory_type}, ptr {at.ref}")
        if type_ == "i1":
            return e.in_head("i1", f"trunc i8 {value.ref} to i1")
        if not slope:
            return value
        distance = e.resize(Value("i32", "%dt"), type_)
        return e.bin("add", value, e.bin("mul", distance, const(type_, slope)))

    def _results(self) -> None:
        if self.cut.instr is None:
            return
        results = self.kernel.describe(self.cut.instr)[3]
        for index, result in enumerate(results):
            if isinstance(result, Reg):
                at = self._operand_slot(4 + index)
                value = self.e.op("i32", f"load i32, ptr {at.ref}, !llvm.access.group !0")
                if self.kernel.registers[result.name] == "pred":
                    value = self.e.cmp("icmp ne", value, const("i32", 0))
                self.write(result, value)

    def _undefined(self, kept: set[str]) -> None:
        """Registers that may be read before they are written have one value: zero."""
        live = self.kernel.graph.blocks[self.cut.resume].live_in
        for index, name in enumerate([*self.kernel.graph.flat.registers, "%cc"]):
            if live >> index & 1 and name not in kept:
                self._set(name, Value(llvm_type(self.kernel.registers[name]), "zeroinitializer"))

    def _set(self, name: str, value: Value) -> None:
        """The value of a register at the segment's beginning."""
        self.e.do(f"store {value.type} {value.ref}, ptr {self.place(name)}")
        if name in self.kernel.splits:
            self._store_parts(name, value, const("i64", 0))

    def _slot(self, offset: int, name: str) -> Value:
        size = TYPE_BYTES[self.kernel.registers[name]]
        return self._frame(offset, size)

    def _operand_slot(self, index: int) -> Value:
        return self._frame(4 * index, 4)

    def _frame(self, offset: int, size: int) -> Value:
        row = self.e.in_head("i64", f"mul i64 %stride64, {offset}")
        base = self.e.in_head("ptr", f"getelementptr i8, ptr %frame, i64 {row.ref}")
        return self.e.op("ptr", f"getelementptr i{8 * size}, ptr {base.ref}, i64 %t64")

    def _end_block(self, block: flow.Block) -> None:
        goto = [f"label %b{n}" for n in block.goto]
        if self.kernel.graph.ends_segment(block, self.lockstep):
            self._leave(self.kernel.graph.cuts[block.cut])
        elif block.instrs and block.instrs[-1].op[0] == "trap":
            self.e.do("unreachable")
        elif not goto:
            self.ends.append((0, self.current))
            self.branch_to("latch")
        elif block.index is not None:
            index = self.read(block.index, "u32")
            cases = " ".join(f"i32 {i}, {label}" for i, label in enumerate(goto))
            self.e.do(f"switch i32 {index.ref}, {goto[-1]} [ {cases} ]")
        elif block.pred:
            taken, other = goto if not block.negated else goto[::-1]
            condition = self.read(block.pred, "pred")
            self.e.do(f"br i1 {condition.ref}, {taken}, {other}")
        else:
            self.e.do(f"br {goto[0]}")

    def _leave(self, cut: flow.Cut) -> None:
        """Keep the operands of a cut and what is live behind it."""
        operands = self.kernel.describe(cut.instr)[2]
        for index, operand in enumerate(operands):
            if isinstance(operand, Int):
                continue
            value = self._word(operand, cut.instr, index)
            at = self._operand_slot(index)
            self.e.do(f"store i32 {value.ref}, ptr {at.ref}, !llvm.access.group !0")
        for name in cut.saved:
            if name in self.cut.saved and name not in self.changed:
                continue  # its slot holds it already
            type_ = llvm_type(self.kernel.registers[name])
            value = self.e.op(type_, f"load {type_}, ptr {self.place(name)}")
            if type_ == "i1":
                value = self.e.resize(value, "i8")
            at = self._slot(self.kernel.graph.slots[name], name)
            self.e.do(f"store {value.type} {value.ref}, ptr {at.ref}, !llvm.access.group !0")
        self.ends.append((cut.number, self.current))
        self.branch_to("latch")

    def _word(self, operand: Operand, instr: Instr | None, index: int) -> Value:
        """A cut's operand as 32 bits; match's second one is the upper half of its value."""
        inner = operand.operand if isinstance(operand, Not) else operand
        if isinstance(inner, Reg) and self.kind_of(inner) == "pred":
            return self.e.resize(self.read(operand, "pred"), "i32")
        if instr and instr.op[0] == "match" and index < 2:
            wide = self.read(operand, "b64" if instr.op[-1] == "b64" else "b32")
            if index == 1:
                wide = self.e.resize(wide, "i64")
                wide = self.e.bin("lshr", wide, const("i64", 32))
            return self.e.resize(wide, "i32")
        return self.read(operand, "b32")

    def _entry(self) -> list[str]:
        """A part may have no threads: what is before the loop must not look at them, then."""
        return [
            "entry:",
            *(f"  {p} = alloca {llvm_type(self.kernel.registers[n])}"
              for n, p in self.places.items()),
            *(f"  {part} = alloca i64" for part in sorted(self.parts)),
            "  %some = icmp ult i32 %t0, %t1", "  br i1 %some, label %head, label %nobody",
            "nobody:", f"  ret i64 {NOBODY}",
            "head:", *self._block_fields(), "  %first64 = zext i32 %t0 to i64",
            *self.e.head, "  br label %loop",
        ]  # fmt: skip

    def _block_fields(self) -> list[str]:
        lines = []
        for name, offset in _BLOCK.items():
            type_ = "ptr" if name in _POINTERS else "i64" if name == "globals" else "i32"
            lines.append(f"  %at.{name} = getelementptr i8, ptr %block, i64 {offset}")
            lines.append(f"  %{name} = load {type_}, ptr %at.{name}, !invariant.load !9")
        return [*lines, "  %stride64 = zext i32 %stride to i64"]

    def _loop(self) -> list[str]:
        return ["loop:", *self._loop_head(), *self.e.lines, *self._latch()]

    def _loop_head(self) -> list[str]:
        lines = ["  %t = phi i32 [ %t0, %head ], [ %tn, %latch ]"]
        if self._several():
            lines.append("  %or = phi i32 [ 0, %head ], [ %or.n, %latch ]")
            lines.append("  %and = phi i32 [ -1, %head ], [ %and.n, %latch ]")
        return [
            *lines,
            "  %t64 = zext i32 %t to i64",
            "  %tx = sub nuw nsw i32 %t, %row",
            "  %dt = sub nuw nsw i32 %t, %t0",
            f"  %mylocal.at = mul i64 %t64, {self.local_stride}",
            "  %mylocal = getelementptr i8, ptr %local, i64 %mylocal.at",
        ]

    def _several(self) -> bool:
        return len({number for number, _ in self.ends}) > 1

    def _latch(self) -> list[str]:
        lines = ["latch:"]
        only = self.ends[0][0] if self.ends else 0
        result = str(only << 32 | only)
        if self._several():
            incoming = ", ".join(f"[ {number}, %{label} ]" for number, label in self.ends)
            lines += [
                f"  %end = phi i32 {incoming}",
                "  %end16 = trunc i32 %end to i16",
                "  %at.end = getelementptr i16, ptr %next, i64 %t64",
                "  store i16 %end16, ptr %at.end, !llvm.access.group !0",
                "  %or.n = or i32 %or, %end",
                "  %and.n = and i32 %and, %end",
            ]
            result = "%result"
        lines += [
            "  %tn = add nuw nsw i32 %t, 1",
            "  %more = icmp ult i32 %tn, %t1",
            f"  br i1 %more, label %loop, label %done, !llvm.loop !{self.cut.number + 10}",
            "done:",
        ]
        if result == "%result":
            lines += [
                "  %or.64 = zext i32 %or.n to i64",
                "  %high = shl i64 %or.64, 32",
                "  %low = zext i32 %and.n to i64",
                "  %result = or i64 %high, %low",
            ]
        return [*lines, f"  ret i64 {result}"]


def _target(instr: Instr) -> str:
    return instr.args[0].name if instr.args and isinstance(instr.args[0], Reg) else ""


def _float_operand(value: float, single: int | None, type_: str) -> Value:
    if type_ == "float":
        return float_bits(single) if single is not None else float_const("float", value)
    if type_ == "double":
        return float_const("double", value)
    if type_ == "i32" and single is not None:
        return const("i32", single)
    if type_ == "i64":
        return const("i64", struct.unpack("<q", struct.pack("<d", value))[0])
    raise Unsupported


def lower(module: Module, name: str, symbol: str) -> Lowered:
    """The LLVM IR of kernel `name`, which defines `symbol`. Raises ModuleError."""
    return Kernel(module, flow.find(module, name), symbol).lower()
