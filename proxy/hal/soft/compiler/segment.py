"""Writes the function of one segment: a loop over its threads, with the PTX as LLVM IR.

Registers are stack slots that LLVM's mem2reg turns into values; values that are the same for all
threads (parameters, coordinates of the block) are read once, before the loop. The loop is marked
parallel: between two cuts, threads of a correct program do not access each other's data, except by
atomics, which carry no mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rankfold.proxy.ptx.model import (
    TYPE_BYTES,
    Instr,
    Int,
    Not,
    Operand,
    Reg,
)

from . import flow, matrix, threads
from .emit import Value, const, llvm_type
from .errors import unsupported_instruction
from .instructions import row_of
from .ops import Unsupported
from .values import BLOCK, POINTERS, Values

if TYPE_CHECKING:
    from .lower import Kernel

ROW = "i32 %row, i32 %ty, i32 %tz"
SEGMENT_PARAMS = f"ptr noalias readonly %block, i32 %t0, i32 %t1, {ROW}"
NO_THREAD = 0xFFFFFFFF  # result for no threads: OR is zero, AND all ones


class Segment(Values):
    """Writes the function of one segment; the context that instruction handlers work in. In
    `lockstep`, the threads of the block have always been at the same cut. With a `range_` (a
    predicate range), it writes the part for the contiguous threads of a row for which the predicate
    `holds`, or does not."""

    def __init__(
        self,
        kernel: Kernel,
        cut: flow.Cut,
        lockstep: bool,
        range_: threads.PredicateRange | None = None,
        holds: bool = False,
    ):
        super().__init__(kernel)
        self.cut, self.lockstep = cut, lockstep
        self.range_, self.holds = range_, holds
        self.name = f"@{'step' if lockstep else 'seg'}{cut.number}"
        if range_:
            self.name += ".holds" if holds else ".fails"
        self.ends: list[tuple[int, str]] = []  # cut number, LLVM block
        self.unanimous = False  # all threads of a row end at the same cut
        self.read_here: set[str] = set()  # registers that are read in this segment
        self.written_here: set[str] = set()  # registers that are written in it
        self.row_slots: dict[str, str] = {}  # of registers stored once for a row: on the stack
        self.row_slots_at: dict[int, list[str]] = {}  # names of those registers, by cut

    # ---- the function

    def write_all(self) -> list[str]:
        blocks = self.kernel.graph.reachable(self.cut, self._successors)
        self.read_here, self.written_here = self.kernel.graph.reads_and_writes(self.cut, blocks)
        self.unanimous = self._is_unanimous(blocks)
        self._begin()
        self.branch_to(f"b{self.cut.resume}")
        for block in blocks:
            self.start(f"b{block.number}")
            for instr in block.instrs:
                self.instr(instr)
            self._end_block(block)
        loop = self._loop()
        inline = " alwaysinline" if self.range_ else ""
        return [
            f"define internal i64 {self.name}({self._parameters()}){inline} #0 {{",
            *self._entry(),
            *loop,
            "}",
        ]

    def _successors(self, block: flow.Block) -> tuple[int, ...]:
        """Returns the successors of a block in this segment."""
        if self.kernel.graph.ends_segment(block, self.lockstep):
            return ()
        if self.range_ and block.pred and block.pred.name == self.range_.predicate:
            # The predicate's value from before it is computed here must not be used.
            before = {*self.cut.saved, *self.cut.recomputed} if self.range_.test else ()
            if block.pred.name not in before:
                return (block.goto[self.holds == block.negated],)
        return block.goto

    def _is_unanimous(self, blocks: list[flow.Block]) -> bool:
        """Decides whether all threads of a row end at the same cut: they do if each divergent
        branch leads to one cut only."""
        ends: dict[int, set[int]] = {block.number: self._own_end(block) for block in blocks}
        repeat = True
        while repeat:
            repeat = False
            for block in reversed(blocks):
                ends_after = ends[block.number].union(*(ends[n] for n in self._successors(block)))
                repeat |= ends_after != ends[block.number]
                ends[block.number] = ends_after
        return all(len(ends[block.number]) <= 1 for block in blocks if self._may_diverge(block))

    def _own_end(self, block: flow.Block) -> set[int]:
        """Returns the cut that a block itself leads to."""
        if self.kernel.graph.ends_segment(block, self.lockstep):
            return {block.cut}
        return set() if block.goto or _traps(block) else {0}

    def _may_diverge(self, block: flow.Block) -> bool:
        condition = block.pred or block.index
        is_uniform = isinstance(condition, Reg) and self.kernel.slopes.get(condition.name) == 0
        return len(set(self._successors(block))) > 1 and not (self.lockstep and is_uniform)

    def _parameters(self) -> str:
        """Returns the function's parameters. Parts receive values that are stored once for a row as
        parameters, because one part may overwrite what the other needs."""
        kinds = self.kernel.registers
        values = [
            f", {llvm_type(kinds[n])} %row_value{i}" for i, n in enumerate(self._row_registers())
        ]
        return SEGMENT_PARAMS + "".join(values if self.range_ else ())

    def _row_registers(self) -> tuple[str, ...]:
        """Returns the registers that are stored once for a row at this segment's first cut."""
        return self.kernel.row_registers(self.cut) if self.lockstep else ()

    def instr(self, instr: Instr) -> None:
        write = row_of(instr).write
        try:
            if write is None:
                raise Unsupported
            if self.range_ and _target(instr) == self.range_.predicate:
                self.write(instr.args[0], const("i1", self.holds))
            elif instr.op[0] == "mad" and _target(instr) in self.kernel.in_grid:
                self._grid_coordinate(instr)
            else:
                write(self, instr)
                if _target(instr) in self.kernel.splits:
                    self._store_split(instr)
        except (Unsupported, KeyError, IndexError, AssertionError) as error:
            raise unsupported_instruction(
                instr.text, instr.op[0], self.kernel.function.name
            ) from error

    def _grid_coordinate(self, instr: Instr) -> None:
        """Writes ctaid * ntid + tid; kernel.c ensures that it fits an int."""
        a, b, c = (self.read(x, "u32") for x in instr.args[1:4])
        product = self.e.bin("mul nuw nsw", a, b)
        self.write(instr.args[0], self.e.bin("add nuw nsw", product, c))

    def _store_split(self, instr: Instr) -> None:
        """Stores, next to an address, the two addends of that address: see addressing.py."""
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

    def _begin(self) -> None:
        """Loads the values that were saved at the cut, and reads the cut's results."""
        defined = set(self.cut.saved)
        for name in self.cut.saved:
            if not (self.lockstep or name in self.read_here or name in self.written_here):
                continue  # it stays in its slot
            if self.range_ and not self.range_.test and name == self.range_.predicate:
                self._set(name, const("i1", self.holds))
            elif name in self._row_registers():
                self._set(name, self._from_row(name))
            else:
                self._set(name, self._load(name))
        defined.update(self.cut.recomputed)
        for name in self.kernel.graph.recomputation_of(
            [n for n in self.cut.recomputed if n in self.read_here]
        ):
            self.instr(self.kernel.graph.rematerialise[name])
        self._results()
        if self.cut.number == 1:
            self._undefined(defined)

    def _load(self, name: str) -> Value:
        """Reads a register's value from the frame."""
        slot = self._slot(self.kernel.graph.slots[name], name)
        type_ = llvm_type(self.kernel.registers[name])
        memory_type = "i8" if type_ == "i1" else type_
        value = self.e.op(memory_type, f"load {memory_type}, ptr {slot.ref}, !llvm.access.group !0")
        return self.e.cast("trunc", value, "i1") if type_ == "i1" else value

    def _from_row(self, name: str) -> Value:
        """Computes a register that is stored once for the row from the value of the row's first
        thread."""
        self.uses_coordinates = True
        if self.range_:
            type_ = llvm_type(self.kernel.registers[name])
            value = Value(type_, f"%row_value{self._row_registers().index(name)}")
        else:
            value = self._load_row(name)
        slope = self.kernel.slopes[name]
        if not slope:
            return value
        distance = self.e.resize(Value("i32", "%tx"), value.type)
        return self.e.bin("add", value, self.e.bin("mul", distance, const(value.type, slope)))

    def _load_row(self, name: str) -> Value:
        """Loads the value of the row's first thread."""
        e, type_ = self.e, llvm_type(self.kernel.registers[name])
        self.uses_coordinates = True
        slot = self._row_slot(name, "%row64")
        memory_type = "i8" if type_ == "i1" else type_
        value = e.in_head(memory_type, f"load {memory_type}, ptr {slot.ref}")
        return e.in_head("i1", f"trunc i8 {value.ref} to i1") if type_ == "i1" else value

    def _row_slot(self, name: str, thread: str) -> Value:
        size = TYPE_BYTES[self.kernel.registers[name]]
        slots = self._slots(self.kernel.graph.slots[name])
        return self.e.in_head("ptr", f"getelementptr i{8 * size}, ptr {slots.ref}, i64 {thread}")

    def _results(self) -> None:
        if self.cut.instr is None:
            return
        if row_of(self.cut.instr).tile:
            made = self.kernel.tiles(self.cut.instr).made
            matrix.write(self, made.values(), [self._result(slot // 4) for slot in made])
            return
        results = self.kernel.describe(self.cut.instr)[3]
        for index, result in enumerate(results):
            if isinstance(result, Reg):
                value = self._result(4 + index)
                if self.kernel.registers[result.name] == "pred":
                    value = self.e.cmp("icmp ne", value, const("i32", 0))
                self.write(result, value)

    def _result(self, index: int) -> Value:
        slot = self._operand_slot(index)
        return self.e.op("i32", f"load i32, ptr {slot.ref}, !llvm.access.group !0")

    def _undefined(self, defined: set[str]) -> None:
        """Sets registers that may be read before they are written to one value: zero."""
        live = self.kernel.graph.blocks[self.cut.resume].live_in
        for index, name in enumerate([*self.kernel.graph.flat.registers, "%cc"]):
            if live >> index & 1 and name not in defined:
                self._set(name, Value(llvm_type(self.kernel.registers[name]), "zeroinitializer"))

    def _set(self, name: str, value: Value) -> None:
        """Sets the value of a register at the segment's beginning."""
        self.e.do(f"store {value.type} {value.ref}, ptr {self.place(name)}")
        if name in self.kernel.splits:
            self._store_parts(name, value, const("i64", 0))

    def _slot(self, offset: int, name: str) -> Value:
        size = TYPE_BYTES[self.kernel.registers[name]]
        return self._frame(offset, size)

    def _operand_slot(self, index: int) -> Value:
        return self._frame(4 * index, 4)

    def _frame(self, offset: int, size: int) -> Value:
        slots = self._slots(offset)
        return self.e.op("ptr", f"getelementptr i{8 * size}, ptr {slots.ref}, i64 %t64")

    def _slots(self, offset: int) -> Value:
        """Returns the address at which the slots of all threads begin."""
        start = self.e.in_head("i64", f"mul i64 %stride64, {offset}")
        return self.e.in_head("ptr", f"getelementptr i8, ptr %frame, i64 {start.ref}")

    def _end_block(self, block: flow.Block) -> None:
        goto = [f"label %b{n}" for n in self._successors(block)]
        if self.kernel.graph.ends_segment(block, self.lockstep):
            self._leave(self.kernel.graph.cuts[block.cut])
        elif _traps(block):
            self.e.do("unreachable")
        elif not goto:
            self.ends.append((0, self.current))
            self.branch_to("latch")
        elif block.index is not None:
            index = self.read(block.index, "u32")
            cases = " ".join(f"i32 {i}, {label}" for i, label in enumerate(goto))
            self.e.do(f"switch i32 {index.ref}, {goto[-1]} [ {cases} ]")
        elif len(goto) > 1:
            assert block.pred
            taken, other = goto if not block.negated else goto[::-1]
            condition = self.read(block.pred, "pred")
            self.e.do(f"br i1 {condition.ref}, {taken}, {other}")
        else:
            self.e.do(f"br {goto[0]}")

    def _leave(self, cut: flow.Cut) -> None:
        """Stores the operands of a cut and the registers that are live after it."""
        for index, value in self._operands(cut):
            at = self._operand_slot(index)
            self.e.do(f"store i32 {value.ref}, ptr {at.ref}, !llvm.access.group !0")
        here, there = self._row_registers(), self.kernel.row_registers(cut) if self.lockstep else ()
        for name in cut.saved:
            in_row = name in there and self.unanimous
            unchanged = name in self.cut.saved and name not in self.written_here
            if unchanged and (not self.range_ if in_row else name not in here):
                continue  # its slot has the value already
            type_ = llvm_type(self.kernel.registers[name])
            value = self.e.op(type_, f"load {type_}, ptr {self.place(name)}")
            if in_row:
                slot = self.row_slots.setdefault(name, f"%once{len(self.row_slots)}")
                self.row_slots_at.setdefault(cut.number, []).append(name)
                self.e.do(f"store {type_} {value.ref}, ptr {slot}")
                continue
            if type_ == "i1":
                value = self.e.resize(value, "i8")
            at = self._slot(self.kernel.graph.slots[name], name)
            self.e.do(f"store {value.type} {value.ref}, ptr {at.ref}, !llvm.access.group !0")
        self.ends.append((cut.number, self.current))
        self.branch_to("latch")

    def _operands(self, cut: flow.Cut) -> Iterator[tuple[int, Value]]:
        """Yields the words that a cut's operation reads, with their indices."""
        if cut.instr and row_of(cut.instr).tile:
            for slot, word in self.kernel.tiles(cut.instr).given.items():
                yield slot // 4, matrix.read(self, word)
            return
        for index, operand in enumerate(self.kernel.describe(cut.instr)[2]):
            if not isinstance(operand, Int):
                yield index, self._word(operand, cut.instr, index)

    def _word(self, operand: Operand, instr: Instr | None, index: int) -> Value:
        """Returns a cut's operand as 32 bits; match's second one is the upper half of its value."""
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
        """Returns the entry block. A part may have no threads, so code before the loop must not
        access them."""
        return [
            "entry:",
            *(
                f"  {p} = alloca {llvm_type(self.kernel.registers[n])}"
                for n, p in self.places.items()
            ),
            *(f"  {part} = alloca i64" for part in sorted(self.parts)),
            *(
                f"  {slot} = alloca {llvm_type(self.kernel.registers[n])}"
                for n, slot in self.row_slots.items()
            ),
            "  %some = icmp ult i32 %t0, %t1",
            "  br i1 %some, label %head, label %none",
            "none:",
            f"  ret i64 {NO_THREAD}",
            "head:",
            *self._block_fields(),
            "  %first64 = zext i32 %t0 to i64",
            "  %row64 = zext i32 %row to i64",
            *self.e.head,
            "  br label %loop",
        ]

    def _block_fields(self) -> list[str]:
        lines = []
        for name, offset in BLOCK.items():
            type_ = "ptr" if name in POINTERS else "i64" if name == "globals" else "i32"
            lines.append(f"  %at.{name} = getelementptr i8, ptr %block, i64 {offset}")
            lines.append(f"  %{name} = load {type_}, ptr %at.{name}, !invariant.load !9")
        return [*lines, "  %stride64 = zext i32 %stride to i64"]

    def _loop(self) -> list[str]:
        return ["loop:", *self._loop_head(), *self.e.lines, *self._latch()]

    def _loop_head(self) -> list[str]:
        lines = ["  %t = phi i32 [ %t0, %head ], [ %tn, %latch ]"]
        if not self.unanimous:
            lines.append("  %or = phi i32 [ 0, %head ], [ %or.n, %latch ]")
            lines.append("  %and = phi i32 [ -1, %head ], [ %and.n, %latch ]")
        return [
            *lines,
            "  %t64 = zext i32 %t to i64",
            "  %tx = sub nuw nsw i32 %t, %row",
            f"  %mylocal.at = mul i64 %t64, {self.local_stride}",
            "  %mylocal = getelementptr i8, ptr %local, i64 %mylocal.at",
        ]

    def _has_several_ends(self) -> bool:
        return len({number for number, _ in self.ends}) > 1

    def _after_loop(self) -> list[str]:
        """Stores values once for a row, at the cut where all its threads have ended: computes the
        first thread's value from the last one's."""
        e = self.e
        lines, e.lines = e.lines, []
        if self.row_slots:
            self.uses_coordinates = True
            e.lines += ["  %last = sub i32 %t1, 1", "  %distance = sub i32 %last, %t0"]
        for number, names in self.row_slots_at.items():
            after = e.label()
            if self._has_several_ends():
                here = e.label()
                ended = e.cmp("icmp eq", Value("i32", "%end"), const("i32", number))
                e.do(f"br i1 {ended.ref}, label %{here}, label %{after}")
                e.at(here)
            for name in dict.fromkeys(names):
                self._store_row(name)
            if self._has_several_ends():
                self.branch_to(after)
                e.at(after)
        lines, e.lines = e.lines, lines
        return lines

    def _store_row(self, name: str) -> None:
        e, type_ = self.e, llvm_type(self.kernel.registers[name])
        value = e.op(type_, f"load {type_}, ptr {self.row_slots[name]}")
        if slope := self.kernel.slopes[name]:
            distance = e.resize(Value("i32", "%distance"), type_)
            value = e.bin("sub", value, e.bin("mul", distance, const(type_, slope)))
        if type_ == "i1":
            value = e.resize(value, "i8")
        e.do(f"store {value.type} {value.ref}, ptr {self._row_slot(name, '%first64').ref}")

    def _latch(self) -> list[str]:
        lines = ["latch:"]
        several = self._has_several_ends()
        if several:
            incoming = ", ".join(f"[ {number}, %{label} ]" for number, label in self.ends)
            lines.append(f"  %end = phi i32 {incoming}")
        if not self.unanimous:
            lines += [
                "  %end16 = trunc i32 %end to i16",
                "  %at.end = getelementptr i16, ptr %next, i64 %t64",
                "  store i16 %end16, ptr %at.end, !llvm.access.group !0",
                "  %or.n = or i32 %or, %end",
                "  %and.n = and i32 %and, %end",
            ]
        lines += [
            "  %tn = add nuw nsw i32 %t, 1",
            "  %more = icmp ult i32 %tn, %t1",
            f"  br i1 %more, label %loop, label %done, !llvm.loop !{self.cut.number + 10}",
            "done:",
            *self._after_loop(),
        ]
        if not several:
            only = self.ends[0][0] if self.ends else 0
            return [*lines, f"  ret i64 {only << 32 | only}"]
        some, all_ = ("%end", "%end") if self.unanimous else ("%or.n", "%and.n")
        return [
            *lines,
            f"  %or.64 = zext i32 {some} to i64",
            "  %high = shl i64 %or.64, 32",
            f"  %low = zext i32 {all_} to i64",
            "  %result = or i64 %high, %low",
            "  ret i64 %result",
        ]


def _traps(block: flow.Block) -> bool:
    return bool(block.instrs) and block.instrs[-1].op[0] == "trap"


def _target(instr: Instr) -> str:
    return instr.args[0].name if instr.args and isinstance(instr.args[0], Reg) else ""
