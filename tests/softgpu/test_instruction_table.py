"""A row of instructions.py says of an instruction what its handler then does, and nothing else."""

from __future__ import annotations

import dataclasses
import re

import pytest

from rankfold.proxy.hal.soft.compiler import instructions, lower, segment
from rankfold.proxy.hal.soft.compiler.emit import Value
from rankfold.proxy.hal.soft.compiler.instructions import Effect, Row, defs_of, row_of, uses_of
from rankfold.proxy.hal.soft.compiler.ops import Context, Handler
from rankfold.proxy.ptx.flows import flow_of
from rankfold.proxy.ptx.inline import flatten
from rankfold.proxy.ptx.model import Instr, Mem, Operand, Reg, registers_of
from rankfold.proxy.ptx.module import parse_module
from softgpu import test_isa

pytestmark = pytest.mark.unit

OURS = """
.version 8.6
.target sm_90
.address_size 64
.extern .func __assertfail(
    .param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 arguments);
.extern .func (.param .b64 r) malloc(.param .b64 bytes);
.extern .func free(.param .b64 at);
.visible .entry ours(.param .u64 p) {
    .reg .b64 %a<3>; .reg .b32 %r<3>; .reg .pred %p;
    ld.param.u64 %a0, [p];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p, %r0, 77;
    { .param .b64 n; st.param.b64 [n], %a0; .param .b64 got; call (got), malloc, (n);
      ld.param.b64 %a1, [got]; }
    { .param .b64 f; .param .b64 v; st.param.b64 [f], %a0; st.param.b64 [v], %a1;
      .param .b32 said; call (said), vprintf, (f, v); ld.param.b32 %r1, [said]; }
    { .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 g; .param .b64 w;
      st.param.b64 [m], %a0; st.param.b64 [f], %a1; st.param.b32 [l], %r1; st.param.b64 [g], %a0;
      st.param.b64 [w], 1; @%p call __assertfail, (m, f, l, g, w); }
    { .param .b64 n; st.param.b64 [n], %a1; call free, (n); }
    ret;
}
"""  # what the compiler makes of calls


def texts(family: str) -> list[str]:
    return [OURS] if family == "ours" else test_isa.programs()[family]


def test_an_assertion_reads_what_it_says_and_has_no_result() -> None:
    """Its first operand is the message: it must be kept until then, like the others."""
    said = tuple(Reg(name) for name in ("message", "file", "line", "function"))
    assertion = Instr(("assertfail",), said)
    assert uses_of(assertion) == ["message", "file", "line", "function"]
    assert defs_of(assertion) == []


def test_the_row_of_two_words_comes_first() -> None:
    bar = Instr(("bar", "cta", "red", "popc", "u32"), (Reg("d"), Reg("a"), Reg("p")))
    assert (row_of(bar).name, defs_of(bar)) == ("bar.red", ["d"])
    assert defs_of(Instr(("bar", "sync"), (Reg("a"),))) == []
    store = Instr(("wmma", "store", "d", "sync"), (Mem(Reg("at")), Reg("d")))
    assert (defs_of(store), uses_of(store)) == ([], ["at", "d"])
    assert row_of(Instr(("wgmma", "fence"))).effect is Effect.UNKNOWN


@pytest.mark.parametrize("row", instructions.ROWS.values(), ids=lambda row: row.name)
def test_one_thing_becomes_of_each_instruction(row: Row) -> None:
    ways = [way for way in (row.write, row.meet, row.tile) if way]
    assert len(ways) == (row.effect is not Effect.BRANCHES or row.name == "trap")
    assert (row.effect is Effect.MEETS) == bool(row.meet or row.tile)
    assert not row.waits or row.effect is Effect.ACTS


# More than to compute from registers, and to write one.
BEYOND_REGISTERS = re.compile(r"\b(load|store|atomicrmw|cmpxchg|fence|call void|br)\b")
REGISTER = re.compile(r"(= load \S+|store .*), ptr %r\d+$")
Seen = tuple[Instr, set[str], set[str], list[str]]  # registers read and written, other lines


class Watched:
    """Records what the handlers of a segment read, write and emit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.seen: dict[str, list[Seen]] = {}
        self.read: set[str] = set()
        self.written: set[str] = set()
        monkeypatch.setattr(segment, "row_of", self.row_of)
        read, write = segment.Segment.read, segment.Segment.write

        def spied_read(c: segment.Segment, operand: Operand, kind: str) -> Value:
            self.read.update(registers_of(operand))
            return read(c, operand, kind)

        def spied_write(
            c: segment.Segment, operand: Operand, value: Value, signed: bool = False
        ) -> None:
            self.written.update(registers_of(operand))
            write(c, operand, value, signed)

        monkeypatch.setattr(segment.Segment, "read", spied_read)
        monkeypatch.setattr(segment.Segment, "write", spied_write)

    def row_of(self, instr: Instr) -> Row:
        row = row_of(instr)
        return dataclasses.replace(row, write=self.watched(row)) if row.write else row

    def watched(self, row: Row) -> Handler:
        def write(c: Context, instr: Instr) -> None:
            self.read, self.written = set(), set()
            before = len(c.e.lines)
            assert row.write
            row.write(c, instr)
            lines = [line for line in c.e.lines[before:] if BEYOND_REGISTERS.search(line)]
            beyond = [line for line in lines if not REGISTER.search(line)]
            self.seen.setdefault(row.name, []).append((instr, self.read, self.written, beyond))
            self.read, self.written = set(), set()

        return write


@pytest.mark.parametrize("family", [*test_isa.programs(), "ours"])
def test_a_row_says_what_the_handler_does(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    for text in texts(family):
        module = parse_module(text)
        for function in module.functions.values():
            if function.entry:
                lower.lower(module, function.name, "k")
    assert watched.seen or family == "matrices"
    for name, found in watched.seen.items():
        row = instructions.ROWS[name]
        for instr, read, written, beyond in found:
            assert read <= {*uses_of(instr)}, instr.text
            assert written == {*defs_of(instr)}, instr.text
            if row.effect in (Effect.CHEAP, Effect.COMPUTES):
                assert beyond == [], instr.text


def operand_counts(form: str) -> range:
    """How many operands a form may have."""
    optional = len(re.findall(r"\[, \w+\]", form))
    needed = len([e for e in re.sub(r"\[, \w+\]", "", form).split(", ") if e not in ("", "%cc")])
    return range(needed, needed + optional + 1)


@pytest.mark.parametrize("family", [*test_isa.programs(), "ours"])
def test_a_form_names_each_operand(family: str) -> None:
    for text in texts(family):
        module = parse_module(text)
        for function in module.functions.values():
            if function.entry:
                for instr in flatten(module, function).instrs:
                    form = row_of(instr).form
                    counts = operand_counts(form)
                    fits = len(instr.args) in counts or "…" in form
                    # the token of an arrival may be left out
                    fits |= row_of(instr).gives and isinstance(instr.args[0], Mem)
                    assert fits, (instr.text, form)


def test_each_instruction_s_use_of_addresses_is_known() -> None:
    """Otherwise every kernel that contains it would be open (proxy/ptx/sets.py)."""
    names = [tuple(name.split(".")) for name in instructions.ROWS]
    assert [name for name in names if flow_of(name) is None] == []
