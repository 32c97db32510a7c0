"""Every form of an instruction that NVIDIA's assembler takes for sm_90 is translated, or listed in
isa.yaml as refused.

FORMS spells the instructions' grammar generously: all modifiers with all types. ptxas says which
of the combinations exist. PTX ISA 9.0, chapter 9.7.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cuda
import llvmlite.binding as llvm
import pytest
import yaml

from rankfold.proxy.hal.soft.compiler import lower
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.module import parse_module

# {a|b} is a or b. T and U stand for types; %T1 is register 1 for one of type T, %W1 for one twice
# as wide, and <%T> one, two, four or eight of them. BYTES and IN are written out below.
FORMS = """
{add|sub}{|.rn|.rz|.rm|.rp}{|.ftz}{|.sat}.T %T0, %T1, %T2
{add|sub|addc|subc}{|.cc}.T %T0, %T1, %T2
mul{|.rn|.rz|.rm|.rp}{|.ftz}{|.sat}.T %T0, %T1, %T2
mul{.lo|.hi}.T %T0, %T1, %T2
mul.wide.T %W0, %T1, %T2
mad{|.rn|.rz|.rm|.rp}{|.ftz}{|.sat}.T %T0, %T1, %T2, %T3
{mad|madc}{.lo|.hi}{|.cc|.sat}.T %T0, %T1, %T2, %T3
mad.wide.T %W0, %T1, %T2, %W3
mul24{.lo|.hi}.T %T0, %T1, %T2
mad24{.lo|.hi}{|.sat}.T %T0, %T1, %T2, %T3
{sad|fma.rn}.T %T0, %T1, %T2, %T3
{div|rem}{|.rn|.rz|.rm|.rp|.approx|.full}{|.ftz}.T %T0, %T1, %T2
{abs|neg|not|cnot|brev}{|.ftz}.T %T0, %T1
{min|max}{|.ftz}{|.NaN}{|.xorsign}{|.abs}{|.relu}.T %T0, %T1, %T2
{min|max}.T.relu %T0, %T1, %T2
{min|max}{|.ftz}{|.NaN}{|.abs}.T %T0, %T1, %T2, %T3
{popc|clz|bfind|bfind.shiftamt}.T %r0, %T1
fns.T %T0, %T1, %T2, %T3
bfe.T %T0, %T1, %r2, %r3
bfi.T %T0, %T1, %T2, %r3, %r4
bmsk{.clamp|.wrap}.T %T0, %T1, %T2
szext{.clamp|.wrap}.T %T0, %T1, %r2
{dp4a|dp2a.lo|dp2a.hi}{.u32|.s32}{.u32|.s32} %r0, %r1, %r2, %r3
testp{.finite|.infinite|.number|.notanumber|.normal|.subnormal}.T %p0, %T1
copysign.T %T0, %T1, %T2
fma{.rn|.rz|.rm|.rp}{|.ftz}{|.sat|.relu}{|.oob}.T %T0, %T1, %T2, %T3
{rcp|sqrt}{.rn|.rz|.rm|.rp|.approx}{|.ftz}.T %T0, %T1
{rsqrt|sin|cos|lg2|ex2|tanh}{|.approx}{|.ftz}.T %T0, %T1
set{.eq|.lt|.ge|.lo|.hs|.equ|.num|.nan}{|.ftz}.U.T %U0, %T1, %T2
set{.ne|.ltu}{.and|.or|.xor}{|.ftz}.U.T %U0, %T1, %T2, %p1
setp{.eq|.ne|.lt|.le|.gt|.ge|.lo|.ls|.hi|.hs|.equ|.neu|.ltu|.num|.nan}{|.ftz}.T %p0, %T1, %T2
setp{.eq|.lt|.hs|.gtu}{.and|.or|.xor}{|.ftz}.T %p0, %T1, %T2, !%p1
setp{.eq|.lt|.gtu}{|.ftz}.T %p0|%p1, %T1, %T2
setp{.eq|.ltu}{.and|.or|.xor}{|.ftz}.T %p0|%p1, %T1, %T2, %p2
selp.T %T0, %T1, %T2, %p1
slct{|.ftz}.T.U %T0, %T1, %T2, %U3
{and|or|xor}.T %T0, %T1, %T2
lop3{|.or|.and}.b32 {%r0|%r0|%p0|_|%p0}, %r1, %r2, %r3, 0x1e{|, %p1}
shf{.l|.r}{.wrap|.clamp}.b32 %r0, %r1, %r2, %r3
{shl|shr}.T %T0, %T1, %r2
prmt.b32{|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16} %r0, %r1, %r2, %r3
mov.T %T0, %T1
mov{.v2|.v4}.T <%T>, <%T>
shfl{.up|.bfly}.sync.b32 %r0|%p0, %r1, %r2, %r3, %r4
shfl.sync{.up|.down|.bfly|.idx}.b32 {%r0|%r0|%p0}, %r1, %r2, {%r3|0x1f}, %r4
ld{|.weak|.volatile}{|.global|.shared|.shared::cta|.local|.const}{|.v2|.v4}.T <%T>, [%rd7]
st{|.weak|.volatile}{|.global|.shared|.shared::cta|.local}{|.v2|.v4}.T [%rd7], <%T>
ld{|.global|.shared}{.ca|.cg|.cs|.lu|.cv}{|.v2|.v4}.T <%T>, [%rd7]
st{|.global|.shared}{.wb|.cg|.cs|.wt}{|.v2|.v4}.T [%rd7], <%T>
ld{.relaxed|.acquire}{.cta|.cluster|.gpu|.sys}{|.global|.shared}{|.v2}.T <%T>, [%rd7]
st{.relaxed|.release}{.cta|.cluster|.gpu|.sys}{|.global|.shared}{|.v2}.T [%rd7], <%T>
ld.mmio.relaxed.sys.global.T <%T>, [%rd7]
st.mmio.relaxed.sys.global.T [%rd7], <%T>
ld.global{|.nc}{|.L1::evict_first|.L1::no_allocate}{|.L2::64B|.L2::256B}{|.v2|.v4}.T <%T>, [%rd7]
ld.global{|.nc}{|.L1::evict_last}.L2::cache_hint{|.v2}.T <%T>, [%rd7], %rd1
ld.global{.ca|.cg|.cs}.nc{|.v2|.v4}.T <%T>, [%rd7]
st.global{|.L1::evict_last|.L1::no_allocate}{|.v2|.v4}.T [%rd7], <%T>
ldu{|.global}{|.v2|.v4}.T <%T>, [%rd7]
atom{|.global|.shared}{.and|.or|.xor|.exch|.add|.inc|.dec|.min|.max|.add.noftz}.T %T0, [%rd7], %T1
atom{|.acquire|.acq_rel}{|.gpu|.sys}{|.global|.shared}{.add|.exch|.max}.T %T0, [%rd7], %T1
atom{|.relaxed|.release}{|.cta}{|.global|.shared}.cas.T %T0, [%rd7], %T1, %T2
atom.relaxed.gpu.global{.add|.min|.max}{|.noftz}{.v2|.v4|.v8}.T <%T>, [%rd7], <%T>
atom.global.v2{.add|.min|.max}{|.noftz}.T <%T>, [%rd7], <%T>
atom{.and|.or|.xor|.exch|.add|.min|.max}{|.acquire|.acq_rel}{.cta|.sys}.T %T0, [%rd7], %T1
atom.cas{|.release}{.gpu|.cluster}.T %T0, [%rd7], %T1, %T2
red{.and|.or|.xor|.add|.max}{|.relaxed|.release}{.cta|.gpu}.T [%rd7], %T1
red{|.global|.shared}{.and|.or|.xor|.add|.inc|.dec|.min|.max|.add.noftz}.T [%rd7], %T1
red{|.relaxed|.release}{|.cta|.cluster|.sys}{|.global|.shared}{.add|.or|.max}.T [%rd7], %T1
red{|.relaxed.gpu}.global{.add|.min|.max}{|.noftz}{.v2|.v4|.v8}.T [%rd7], <%T>
{atom|red}.global.add.L2::cache_hint.u32 {%r0, |}[%rd7], %r1, %rd1
cvt{|.rn|.rz|.rm|.rp|.rna|.rni|.rzi|.rmi|.rpi}{|.ftz}{|.sat}.U.T %U0, %T1
cvt{.rn|.rz|.rna}{|.satfinite}{|.relu}.U.T %U0, %T1
cvt{.rn|.rz}{|.relu}{|.satfinite}.U.T %U0, %T1
cvt{.rn|.rz}{|.relu}{|.satfinite}.U.f32 %U0, %f1, %f2
cvt.rn.satfinite{|.relu}.U.T %U0, %T1
cvt.pack.sat{.u16|.s16|.u8|.s8|.u4|.s4|.u2|.s2}.s32{|.b32} %r0, %r1, %r2{|, %r3}
v{add|sub|absdiff|min|max}{.u32|.s32}{.u32|.s32}{.u32|.s32}{|.sat} %r0, %r1{|.b3}, %r2{|.h1}
v{add|sub|absdiff|min|max}{.u32|.s32}.u32.s32{|.sat}{.add|.min|.max} %r0, %r1{|.b0}, %r2{|.h0}, %r3
v{add|sub|absdiff|min|max}.s32.u32.s32{|.sat} %r0{.b0|.b3|.h1}, %r1{|.b1}, %r2{|.h0}, %r3
v{shl|shr}{.u32|.s32}{.u32|.s32}.u32{|.sat}{.clamp|.wrap} %r0, %r1{|.b2}, %r2{|.h1}
v{shl|shr}.s32.u32.u32{|.sat}{.clamp|.wrap}{.add|.min|.max} %r0, %r1{|.b2}, %r2, %r3
v{shl|shr}.s32.u32.u32{|.sat}{.clamp|.wrap} %r0{.b2|.h0}, %r1{|.b2}, %r2, %r3
vset{.u32|.s32}{.u32|.s32}{.eq|.ne|.lt|.le|.gt|.ge} %r0, %r1{|.b2}, %r2{|.h1}
vset.u32.s32{.eq|.lt}{|.add|.min|.max} %r0{|.b1|.h1}, %r1, %r2, %r3
vmad{.u32|.s32}{.u32|.s32}{.u32|.s32}{|.po}{|.sat}{|.shr7|.shr15} %r0, %r1{|.b3}, %r2{|.h1}, %r3
vmad{.u32|.s32}{.u32|.s32}{.u32|.s32}{|.sat}{|.shr7} %r0, {|-}%r1{|.b3}, {|-}%r2, {|-}%r3
v{add|sub|avrg|absdiff|min|max}{2|4}{.u32|.s32}{.u32|.s32}{.u32|.s32}{|.sat|.add} %r0, %r1, %r2, %r3
v{add|avrg}2.s32.u32.s32{|.sat|.add} %r0{|.h0|.h1|.h10}, %r1{|.h00|.h32}, %r2{|.h12}, %r3
v{sub|min}4.s32.u32.s32{|.sat|.add} %r0{|.b0|.b20|.b3210}, %r1{|.b7654|.b0000}, %r2{|.b0123}, %r3
vset{2|4}.u32.s32{.eq|.lt}{|.add} %r0{|.h1|.b31}, %r1{|.h20|.b4210}, %r2, %r3
vset{2|4}{.u32|.s32}{.u32|.s32}{.eq|.ne|.lt|.ge}{|.add} %r0, %r1, %r2, %r3
vote.sync{.all|.any|.uni}.pred %p0, {|!}%p1, %r1
vote{.all|.any|.uni}.sync.pred %p0, {|!}%p1, %r1
vote{.sync.ballot|.ballot.sync}.b32 %r0, {|!}%p1, {%r1|-1}
match{.any.sync|.all.sync|.sync.any|.sync.all}.T {%r0|%r0|%p0}, %T1, %r2
redux{.add|.max|.and}.sync.T %T0, %T1, %r2
redux.sync{.add|.min|.max|.and|.or|.xor}{|.abs|.NaN}.T %T0, %T1, %r2
activemask.b32 %r0
elect.sync {%r0|_}|%p0, %r1
{bar|barrier}{|.cta}{.sync|.arrive}{|.aligned} {0|%r0}{|, 64|, %r1}
{bar|barrier}{|.cta}.red{.and|.or}{|.aligned}.pred %p0, {1|%r0}{|, %r1}, {|!}%p1
{bar|barrier}{|.cta}.red.popc{|.aligned}.u32 %r0, {1|%r0}{|, 64}, %p1
bar.warp.sync {%r0|-1}
membar{.cta|.gl|.sys}
fence{|.sc|.acq_rel|.acquire|.release}{.cta|.cluster|.gpu|.sys}
fence.mbarrier_init.release.cluster
fence.proxy.tensormap::generic{.release|.acquire}{.gpu|.sys} {|[%rd7], 128}
fence.proxy{.alias|.async|.async.global|.async.shared::cta}
isspacep{.const|.global|.local|.shared|.shared::cta|.shared::cluster|.param} %p0, %rd1
cvta{|.to}{.const|.global|.local|.shared|.shared::cta|.shared::cluster|.param}.u64 %rd0, %rd1
cp.async{.ca|.cg}.shared{|::cta}.global{|.L2::64B|.L2::128B|.L2::256B} [%rd6], [%rd7], {4|8|16}
cp.async{.ca|.cg}.shared{|::cta}.global{|.L2::128B} [%rd6], [%rd7], {4|8|16}{|, %r1|, %p1}
cp.async{.ca|.cg}.shared.global.L2::cache_hint{|.L2::256B} [%rd6], [%rd7], {8|16}{|, %r1}, %rd1
cp.async{.commit_group|.wait_all}
cp.async{|.bulk}.wait_group{|.read} 2
cp.async.mbarrier.arrive{|.noinc}{|.shared|.shared::cta}.b64 [%rd6]
cp.async.bulk.shared{::cta|::cluster}.global.BYTES [%rd6], [%rd7], {%r1|16}, [%rd5]
cp.async.bulk.shared::cluster.global.BYTES.multicast::cluster [%rd6], [%rd7], 16, [%rd5], %rs1
cp.async.bulk.shared::cluster.shared::cta.BYTES [%rd6], [%rd7], %r1, [%rd5]
cp.async.bulk.shared::cluster.global.BYTES.L2::cache_hint [%rd6], [%rd7], 16, [%rd5], %rd1
cp.async.bulk.global.shared::cta.bulk_group{|.L2::cache_hint} [%rd6], [%rd7], 16{|, %rd1}
cp.async.bulk.commit_group
mbarrier{.init|.inval}{|.shared|.shared::cta}.b64 [%rd6]{|, %r1|, 7}
mbarrier{.expect_tx|.complete_tx}{|.relaxed}{|.cta|.cluster}IN.b64 [%rd6], %r1
mbarrier.arrive{|_drop}{|.release|.relaxed}{|.cta|.cluster}IN.b64 {%rd0|_}, [%rd6]{|, %r1|, 7}
mbarrier.arrive{|_drop}{.noComplete|.expect_tx}{|.release}{|.cta}IN.b64 {%rd0|_}, [%rd6], {%r1|7}
mbarrier.test_wait{|.acquire|.relaxed}{|.cta|.cluster}IN.b64 %p0, [%rd6], %rd1
mbarrier.test_wait.parity{|.acquire|.relaxed}{|.cta|.cluster}IN.b64 %p0, [%rd6], {%r1|1}
mbarrier.try_wait{|.acquire|.relaxed}{|.cta|.cluster}IN.b64 %p0, [%rd6], %rd1{|, %r1|, 99}
mbarrier.try_wait.parity{|.acquire|.relaxed}{|.cta}IN.b64 %p0, [%rd6], %r1{|, %r2}
mbarrier.pending_count.b64 %r0, %rd1
nanosleep.u32 %r0
prefetch{|.global|.local}{|.L1|.L2|.L2::evict_last|.L2::evict_normal} [%rd7]
prefetchu.L1 [%rd7]
{applypriority.global.L2::evict_normal|discard.global.L2} [%rd7], 128
mapa{|.shared::cluster}.T %T0, %T1, %r2
getctarank{|.shared::cluster}.T %r0, %T1
createpolicy.fractional{.L2::evict_last|.L2::evict_first}.b64 %rd0{|, 0.5}
createpolicy.range{|.global}.L2::evict_last.L2::evict_unchanged.b64 %rd0, [%rd7], %r0, %r1
createpolicy.cvt.L2.b64 %rd0, 0x12f0000000000000
griddepcontrol{.launch_dependents|.wait}
pmevent 3
stacksave.u64 %rd0
stackrestore.u64 %rd0
alloca.u64 %rd0, %rd1{|, 32}
{trap|exit|ret}
"""
FORMS = FORMS.replace("BYTES", "mbarrier::complete_tx::bytes")
FORMS = FORMS.replace("IN.b64", "{|.shared|.shared::cta|.shared::cluster}.b64")
# Instructions on matrices: <a T> stands for the registers that matrix A of the shape takes.
MATRIX_FORMS = """
mma.sync.aligned.S{.row|.col}{.row|.col}{|.satfinite|.rz}.C.T.T.C <d C>, <a T>, <b T>, <c C>
mma.sync.aligned.S.row.col.s32{.u8|.s8}{.u8|.s8}.s32{|.satfinite} <d s32>, <a s8>, <b s8>, <c s32>
mma.sync.aligned.S.row.col.s32{.u4|.s4}{.u4|.s4}.s32 <d s32>, <a s4>, <b s4>, <c s32>
mma.sync.aligned.S.row.col.C{.e4m3|.e5m2}{.e4m3|.e5m2}.C <d C>, <a e4m3>, <b e4m3>, <c C>
mma.sync.aligned.S.row.col.s32.b1.b1.s32{.xor|.and}.popc <d s32>, <a b1>, <b b1>, <c s32>
wmma.mma.sync.aligned{.row|.col}{.row|.col}.S{.f16|.f32}.C <d C>, <a h>, <b h>, <c C>
wmma.mma.sync.aligned{.row|.col}{.row|.col}.S.f16.f32 <d f16>, <a h>, <b h>, <c f32>
wmma.mma.sync.aligned{.row.col|.col.row}.S.C.T.T.C{|.satfinite|.rp} <d C>, <a T>, <b T>, <c C>
wmma.mma{.xor|.and}.popc.sync.aligned.row.col.S.s32.b1.b1.s32 <d s32>, <a b1>, <b b1>, <c s32>
wmma.load.a.sync.aligned{.row|.col}.S.T <a T>, [%rd7]{|, %r8}
wmma.load.b.sync.aligned{.row|.col}.S.shared::cta.T <b T>, [%rd7]{|, 64}
wmma.load{.a|.b}.sync.aligned{.row|.col}.S{|.global}.f16 <a h>, [%rd7]{|, %r8}
wmma.load.c.sync.aligned{.row|.col}.S{|.shared}.C <c C>, [%rd7]{|, %r8}
wmma.store.d.sync.aligned{.row|.col}.S{|.global}.C [%rd7], <d C>{|, %r8}
"""
SHAPES = {
    "mma": "m8n8k4 m8n8k16 m8n8k32 m8n8k128 m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m16n8k128 "
    "m16n8k256".split(),
    "wmma": "m8n8k4 m8n8k16 m8n8k32 m8n8k128 m16n16k8 m16n16k16 m32n8k16 m8n32k16".split(),
}
ELEMENTS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f64": 64,
    "e4m3": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
    "f32": 32,
    "s32": 32,
}
ROW_FORMS = """
ldmatrix.sync.aligned.m8n8{.x1|.x2|.x4}{|.trans}{|.shared|.shared::cta}.b16 <r>, [%rd7]
stmatrix.sync.aligned.m8n8{.x1|.x2|.x4}{|.trans}{|.shared|.shared::cta}.b16 [%rd7], <r>
movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1
"""
TYPES = {  # their registers
    **dict.fromkeys(("u16", "s16", "b16", "bf16", "e4m3x2", "e5m2x2"), "rs"),
    **dict.fromkeys(("u8", "s8", "b8"), "rs"),
    **dict.fromkeys(("u32", "s32", "b32", "f16x2", "bf16x2", "tf32", "u16x2", "s16x2"), "r"),
    **dict.fromkeys(("u64", "s64", "b64", "f32x2"), "rd"),
    "b128": "rq",
    "f16": "rs",
    "f32": "f",
    "f64": "fd",
    "pred": "p",
}
WIDER = {"rs": "r", "r": "rd"}
HEAD = """.version 9.0
.target sm_90
.address_size 64
.visible .entry form()
{
.reg .pred %p<8>; .reg .b16 %rs<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .f64 %fd<9>;
.reg .b64 %rd<9>; .reg .b128 %rq<9>;
"""
AT_ONCE = 400
ISA = yaml.safe_load(Path(__file__).with_name("isa.yaml").read_text())


def alternatives(text: str) -> Iterator[str]:
    """All that braces allow. A bar before a predicate does not part: d|p is one operand."""
    parts = re.split(r"\{([^}]*)\}", text)
    chosen = [re.split(r"\|(?!%p)", part) if i % 2 else [part] for i, part in enumerate(parts)]
    return map("".join, itertools.product(*chosen))


def expanded(line: str) -> Iterator[str]:
    """The forms of one line of FORMS."""
    pair = re.search(r"\bU\b", line)
    for first, second in itertools.product(TYPES, TYPES if pair else ["u8"]):
        kind, other = TYPES[first], TYPES[second]
        for form in alternatives(line):
            name, _, operands = form.partition(" ")
            width = re.search(r"\.v(\d)\b", name)
            many = [f"%T{i}" for i in range(int(width[1]) if width else 1)]
            group = "{" + ", ".join(many) + "}" if width else many[0]
            operands = operands.replace("<%T>", group).replace("%T", f"%{kind}")
            operands = operands.replace("%W", f"%{WIDER.get(kind, kind)}")
            operands = operands.replace("%U", f"%{other}")
            name = re.sub(r"\.T\b", "." + first, re.sub(r"\.U\b", "." + second, name))
            yield f"{name} {operands}".strip()
        if not re.search(r"\bT\b", line):
            return


def registers(part: str, element: str, shape: str) -> str:
    """A fragment: its elements over 32 lanes. `h`: wmma's of halves, which has eight registers."""
    m, n, k = map(int, re.findall(r"\d+", shape))
    rows, columns = {"a": (m, k), "b": (k, n)}.get(part, (m, n))
    bits, each = ELEMENTS.get(element, 0), 64 if element == "f64" else 32
    count = rows * columns * bits // 32 // each if bits else 8
    if shape == "m8n8k4" and element in ("f16", "f32"):  # four products
        count = {"a": 2, "b": 2}.get(part, 4 if element == "f16" else 8)
    name = {"f64": "fd", "f32": "f"}.get(element, "r")
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def of_matrices() -> Iterator[str]:
    for line in MATRIX_FORMS.strip().splitlines():
        types = list(ELEMENTS)[:10] if ".T" in line else ["f16"]
        sums = ["f16", "f32", "f64", "s32"] if re.search(r"\bC\b", line) else ["s32"]
        if line.startswith("wmma.mma") and ".T" in line:  # halves have a line of their own
            types, sums = [t for t in types if t not in ("f16", "e4m3")], sums[1:]
        for form, shape, element, total in itertools.product(
            alternatives(line), SHAPES[line.partition(".")[0]], types, sums
        ):
            if line[0] == "w" and "f64" in (element, total) and shape != "m8n8k4":
                continue  # over many of these ptxas trips: see that_exist
            form = re.sub(r"\bS\b", shape, form)
            form = re.sub(r"\bT\b", element, re.sub(r"\bC\b", total, form))
            for part, kind in re.findall(r"<(\w) (\w+)>", form):
                form = form.replace(f"<{part} {kind}>", registers(part, kind, shape))
            if "{}" not in form:
                yield form
    for line in ROW_FORMS.strip().splitlines():
        for form in alternatives(line):
            count = int((re.search(r"\.x(\d)", form) or "01")[1])
            yield form.replace("<r>", "{" + ", ".join(f"%r{i}" for i in range(count)) + "}")


def first_words() -> list[str]:
    """Returns the first word of each form, without the forms: writing them out takes seconds."""
    found: dict[str, None] = {}
    for line in filter(None, (FORMS + MATRIX_FORMS + ROW_FORMS).splitlines()):
        head = re.match(r"(\{[^}]*\}|[^.\s{])*", line)
        assert head
        found |= {form.split(".")[0]: None for form in alternatives(head[0])}
    return [*found]


@cache
def forms() -> dict[str, list[str]]:
    """The forms by the instruction's first word."""
    found: dict[str, dict[str, None]] = {}
    for line in FORMS.strip().splitlines():
        for form in expanded(line):
            found.setdefault(form.split(" ")[0].split(".")[0], {})[form] = None
    for form in of_matrices():
        found.setdefault(form.split(".")[0], {})[form] = None
    return {name: list(group) for name, group in found.items()}


def text(lines: list[str]) -> str:
    return HEAD + "".join(f"{line};\n" for line in [*lines, "ret"]) + "}\n"


def that_exist(candidates: list[str], source: Path) -> list[str]:
    """Those to which ptxas has no objection. It names the lines of errors, some at a time."""
    before = HEAD.count("\n") + 1
    while candidates:
        source.write_text(text(candidates))
        command = [str(cuda.NVCC), "-cubin", "-arch=sm_90", "-Xptxas", "-O0", "-o", "/dev/null"]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True)
        if done.returncode == 0:
            break
        bad = {int(n) - before for n in re.findall(r"line (\d+); error", done.stderr)}
        left = [form for index, form in enumerate(candidates) if index not in bad]
        if len(left) == len(candidates):  # it trips over one, and does not say over which
            assert "ptxas" in done.stderr, done.stderr
            if len(left) == 1:
                return []
            half = len(left) // 2
            return that_exist(left[:half], source) + that_exist(left[half:], source)
        candidates = left
    return candidates


def translated(form: str) -> bool:
    try:
        lowered = lower.lower(parse_module(text([form])), "form", "form")
    except ModuleError as error:
        assert error.code == 801, error.message
        assert repr(form) in error.message
        return False
    llvm.parse_assembly(lowered.ir).verify()
    return True


def covers(entry: str, form: str) -> bool:
    return set(entry.split(".")) <= set(form.split(" ")[0].split("."))


def refused(form: str) -> bool:
    return any(covers(entry, form) for entry in ISA["refused forms"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", first_words())
def test_every_form_is_translated_or_listed(name: str, tmp_path: Path) -> None:
    candidates, exist = forms()[name], []
    for start in range(0, len(candidates), AT_ONCE):
        exist += that_exist(candidates[start : start + AT_ONCE], tmp_path / "forms.ptx")
    assert exist
    wrong = [form for form in exist if translated(form) == refused(form)]
    assert not wrong


def test_the_grammar_has_every_instruction() -> None:
    names = {name.split(".")[0] for family in ISA["translated"].values() for name in family}
    assert names - {"bra", "brx", "call"} == set(forms()) - set(ISA["no effect"])
    assert first_words() == [*forms()], "each has a test"


def test_every_refused_form_is_one() -> None:
    spelled = [form for group in forms().values() for form in group]
    for entry in ISA["refused forms"]:
        assert any(covers(entry, form) for form in spelled), entry
