"""Writes the function of one segment: its threads in a loop, and in it the PTX as LLVM IR.

Registers are stack slots that LLVM's mem2reg turns into values; what is the same for all threads
(parameters, coordinates of the block) is read once, before the loop. The loop is marked parallel:
between two cuts the threads of a correct program do not touch each other's data, except by atomics,
which carry no mark.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from . import flow, memory, threads
from .emit import Emitter, Value, const, float_bits, float_const, llvm_type
from .errors import INVALID_PTX, ModuleError, unsupported
from .instructions import OPS
from .ops import Unsupported
from .ptx import (
    TYPE_BYTES,
    Float,
    Instr,
    Int,
    Not,
    Operand,
    Reg,
    Sink,
    Special,
    Sym,
)  # fmt: skip

if TYPE_CHECKING:
    from .lower import Kernel

RESERVED_SHARED = 1024
_BLOCK = {"base": 0, "shared": 8, "local": 16, "frame": 24, "params": 32, "globals": 40, "next": 48,
          "ntid.x": 56, "ntid.y": 60, "ntid.z": 64, "nctaid.x": 68, "nctaid.y": 72, "nctaid.z": 76,
          "ctaid.x": 80, "ctaid.y": 84, "ctaid.z": 88, "stride": 92,
          "dynamic_shared": 96, "grid": 104}  # fmt: skip
_POINTERS = ("base", "shared", "local", "frame", "params", "next", "grid")
ROW = "i32 %row, i32 %ty, i32 %tz"
SEGMENT_PARAMS = f"ptr noalias readonly %block, i32 %t0, i32 %t1, {ROW}"
NOBODY = 0xFFFFFFFF  # the ends of no thread: OR is zero, AND all ones
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
