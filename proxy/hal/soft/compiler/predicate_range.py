"""Divides a segment by a predicate range (threads.py): one part for the threads for which the
predicate is true, another one for the rest. In each part the predicate is a constant, so its loop
needs no masks, and often all threads end at the same cut."""

from __future__ import annotations

from rankfold.proxy.ptx.model import Reg

from . import threads
from .emit import Value, const, llvm_type
from .instructions import uses_of
from .segment import ROW, SEGMENT_PARAMS, Segment


class RangedSegment(Segment):
    """Writes the function of a segment, divided by a predicate range if one is found."""

    def write_all(self) -> list[str]:
        kernel = self.kernel
        range_ = threads.find_predicate_range(
            kernel.graph, self.cut, self.lockstep, kernel.slopes, kernel.places
        )
        if range_ is None:
            return super().write_all()
        parts = [Segment(self.kernel, self.cut, self.lockstep, range_, h) for h in (True, False)]
        text = [line for part in parts for line in part.write_all()]
        for part in parts:
            self.uses_coordinates |= part.uses_coordinates
            self.e.declared |= part.e.declared
            self.e.helpers |= part.e.helpers
        if range_.wraps and not self.lockstep:
            whole = Segment(self.kernel, self.cut, False)
            whole.name = f"@whole{self.cut.number}"
            text += whole.write_all()
        return text + (self._in_two_ranges if range_.test else self._if_unanimous)(range_, *parts)

    def _in_two_ranges(
        self, range_: threads.PredicateRange, holds: Segment, fails: Segment
    ) -> list[str]:
        """Writes the segment as one part for the threads before the one at which the predicate
        changes, and another part for the remaining threads."""
        e = self.e
        self._at_first_thread(range_)
        place, bound = self.read(range_.place, "u32"), self.read(range_.bound, "u32")
        place, bound = e.resize(place, "i64", range_.signed), e.resize(bound, "i64", range_.signed)
        start, end = (e.op("i64", f"zext i32 {t} to i64") for t in ("%t0", "%t1"))
        last = e.bin("add", place, e.bin("sub", end, start))
        if range_.test in ("le", "ls", "gt", "hi"):
            bound = e.bin("add", bound, const("i64", 1))
        change = e.bin("add", start, e.bin("sub", bound, place))
        change = e.intrinsic("smin", e.intrinsic("smax", change, start), end)
        middle = e.cast("trunc", change, "i32").ref
        if range_.wraps:
            limit = const("i64", 1 << (31 if range_.signed else 32))
            self._or_divergent(e.cmp("icmp sle", last, limit))
        before, after = holds, fails
        if range_.test not in ("lt", "le", "lo", "ls"):
            before, after = fails, holds
        return self._wrapper(
            [
                f"  %before = {self._part_call(before, '%t0', middle)}",
                f"  %behind = {self._part_call(after, middle, '%t1')}",
                "  %or = or i64 %before, %behind",
                f"  %high = and i64 %or, {0xFFFFFFFF << 32}",
                "  %and = and i64 %before, %behind",
                f"  %low = and i64 %and, {0xFFFFFFFF}",
                "  %ends = or i64 %high, %low",
                "  %all = lshr i64 %or, 32",
                "  %same = icmp eq i64 %all, %low",
                "  br i1 %same, label %end, label %differ",
                "differ:",
                *self._record_ends(before, "%before", "%t0", middle),
                *self._record_ends(after, "%behind", middle, "%t1"),
                "  br label %end",
                "end:",
                "  ret i64 %ends",
            ]
        )

    def _record_ends(self, part: Segment, ends: str, start: str, end: str) -> list[str]:
        """Returns code for when the threads of a part end at another cut than those of the other
        part. (If they do not all end at the same one, the part itself has recorded that.)"""
        if not part.unanimous:
            return []
        function = "@rankfold_soft_diverge" if self.lockstep else "@rankfold_soft_end_at"
        self.e.declared.add(f"declare void {function}(ptr, i32, i32, i32)")
        at = self.e.name()
        return [
            f"  {at} = trunc i64 {ends} to i32",
            f"  call void {function}(ptr %block, i32 {at}, i32 {start}, i32 {end})",
        ]

    def _if_unanimous(
        self, range_: threads.PredicateRange, holds: Segment, fails: Segment
    ) -> list[str]:
        """Writes the segment as one of its parts if a saved predicate is the same for all
        threads."""
        e = self.e
        at = self._slot(self.kernel.graph.slots[range_.predicate], range_.predicate)
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
        self._or_divergent(e.cmp("icmp eq", Value("i8", "%differ.n"), const("i8", 0)))
        return self._wrapper(
            [
                "  %holds = trunc i8 %mine to i1",
                "  br i1 %holds, label %all, label %none",
                "all:",
                f"  %a = {self._part_call(holds, '%t0', '%t1')}",
                "  ret i64 %a",
                "none:",
                f"  %n = {self._part_call(fails, '%t0', '%t1')}",
                "  ret i64 %n",
            ]
        )

    def _at_first_thread(self, range_: threads.PredicateRange) -> None:
        wanted = {name for instr in range_.needed for name in uses_of(instr)}
        wanted |= {o.name for o in (range_.place, range_.bound) if isinstance(o, Reg)}
        for name in self.cut.saved:
            if name in wanted:
                self._set(name, self._load(name))
        for instr in range_.needed:
            self.instr(instr)

    def _or_divergent(self, condition: Value) -> None:
        """Continues if the condition is true, else as if the threads had diverged; if they have,
        without regard to the predicate."""
        self.e.do(f"br i1 {condition.ref}, label %parts, label %divergent")
        self.e.at("divergent")
        if self._row_registers():
            self.e.declared.add("declare void @rankfold_soft_diverge(ptr, i32, i32, i32)")
            range_ = f"i32 {self.cut.number}, i32 %t0, i32 %t1"
            self.e.do(f"call void @rankfold_soft_diverge(ptr %block, {range_})")
        other = "seg" if self.lockstep else "whole"
        call = f"call i64 @{other}{self.cut.number}(ptr %block, i32 %t0, i32 %t1, {ROW})"
        self.e.lines += [f"  %divergent.ends = {call}", "  ret i64 %divergent.ends"]
        self.e.at("parts")

    def _part_call(self, part: Segment, start: str, end: str) -> str:
        values = "".join(f", {v.type} {v.ref}" for v in map(self._load_row, self._row_registers()))
        return f"call i64 {part.name}(ptr %block, i32 {start}, i32 {end}, {ROW}{values})"

    def _wrapper(self, calls: list[str]) -> list[str]:
        entry = [
            f"  {p} = alloca {llvm_type(self.kernel.registers[n])}" for n, p in self.places.items()
        ]
        return [
            f"define internal i64 {self.name}({SEGMENT_PARAMS}) #0 {{",
            "entry:",
            *entry,
            *(f"  {part} = alloca i64" for part in sorted(self.parts)),
            *self._block_fields(),
            "  %t = add i32 %t0, 0",
            "  %t64 = zext i32 %t0 to i64",
            "  %tx = sub i32 %t0, %row",
            "  %row64 = zext i32 %row to i64",
            *self.e.head,
            *self.e.lines,
            *calls,
            "}",
        ]
