"""PTX is read however it is spelled: without spaces or with them, with constant expressions."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.compiler import codegen, lower, objects
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx import constants
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.module import parse_module
from rankfold.proxy.ptx.sets import Sets, sets_of
from softgpu.harness import Space

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"
REGISTERS = ".reg .b32 %r<4>; .reg .b64 %q; .reg .f32 %f; .reg .pred %p; ld.param.u64 %q, [a];"
BODIES = (
    ".reg .f32 %x <3>; mov.f32 %x2, 0f00000000;",
    ".reg .f32 x < 3 >, y; mov.f32 y, x1;",
    ".reg.b32 x; mov.u32 x, 1;",
    ".reg .v2 .f32 v; mov.f32 v.x, %f; add.f32 v.g, v.r, v.x; st.global.v2.f32 [%q], v;",
    ".reg .v4 .b32 v; ld.global.v4.b32 v, [%q]; st.global.b32 [%q], v.w;",
    ".shared.b32 s; st.shared.b32 [s], %r1;",
    "@ !%p add.u32 %r0, %r0, 1; @ %p ret; @! %p ret;",
    "ld.global.u32 %r0, [ %q + 4 ]; ld.global.u32 %r0, [%q+-4]; ld.global.u32 %r0, [%q+4*2+1];",
    "mov.b64 { %r0 , %r1 } , %q ;",
    "add.s32 %r0, %r0, - 1; add.s32 %r0, %r0, (1+2)*4; mov.u32 %r0, ~0; mov.u32 %r0, WARP_SZ-1;",
    "mov.f32 %f, .5; mov.f32 %f, -2.; mov.f32 %f, 1E-3; mov.f32 %f, 0F3f800000;",
    '\n#line 3 "x"\nmov.u32 %r0, 1;',
)
FUNCTION = f"(.param .u64 a) {{ {REGISTERS} ret; }}"
MODULES = (
    HEADER.replace("\n", " ") + ".visible.entry k" + FUNCTION,
    '# 1 "k.ptx"\n' + HEADER + ".entry k" + FUNCTION,
    HEADER + ".entry k" + FUNCTION.replace(") {", ')\n.pragma "nounroll";\n{'),
    HEADER + ".visible.entry k" + FUNCTION.replace(".param .u64", ".param.u64.ptr.global.align 8"),
    HEADER + ".global.u32 g;.const.align 8 .u32 c[2]={1+1,3};.entry k" + FUNCTION,
)
TEXTS = [f"{HEADER}.entry k(.param .u64 a)\n{{ {REGISTERS}\n{body} ret; }}\n" for body in BODIES]


# Modifiers in another order than in the PTX ISA, and in that one.
ORDERS = {
    "ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%r0, %r1, %r2, %r3}, [%q];": (
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%q];"
    ),
    "ldmatrix.shared.trans.b16.x2.sync.m8n8.aligned {%r0, %r1}, [%q];": (
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r0, %r1}, [%q];"
    ),
    "stmatrix.x1.trans.sync.aligned.m8n8.shared.b16 [%q], {%r0};": (
        "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%q], {%r0};"
    ),
    "movmatrix.trans.sync.b16.aligned.m8n8 %r0, %r1;": (
        "movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;"
    ),
    "setp.and.f32.ftz.gtu %p, %f, %f, !%p;": "setp.gtu.and.ftz.f32 %p, %f, %f, !%p;",
    "set.xor.u32.u32.ne %r0, %r1, %r2, %p;": "set.ne.xor.u32.u32 %r0, %r1, %r2, %p;",
    "vadd.sat.u32.s32.u32.max %r0, %r1, %r2, %r3;": "vadd.u32.s32.u32.sat.max %r0, %r1, %r2, %r3;",
    "vset4.add.lt.u32.s32 %r0, %r1, %r2, %r3;": "vset4.u32.s32.lt.add %r0, %r1, %r2, %r3;",
    "ld.v2.param.b32 {%r0, %r1}, [a];": "ld.param.v2.b32 {%r0, %r1}, [a];",
    "atom.add.gpu.u32.global %r0, [%q], 1;": "atom.gpu.global.add.u32 %r0, [%q], 1;",
    "mma.row.m16n8k8.aligned.col.sync.f16.f16.f16.f16 {%r0, %r1}, {%r0, %r1}, {%r2}, {%r2, %r3};": (
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r0, %r1}, {%r0, %r1}, {%r2}, "
        "{%r2, %r3};"
    ),
}


def lowered(body: str) -> tuple[str, Sets]:
    module = parse_module(f"{HEADER}.entry k(.param .u64 a)\n{{ {REGISTERS}\n{body} ret; }}\n")
    return lower.lower(module, "k", "k").ir, sets_of(module, module.functions["k"], False)


@pytest.mark.parametrize("body", ORDERS)
def test_modifiers_are_read_in_any_order(body: str) -> None:
    assert lowered(body)[0] == lowered(ORDERS[body])[0]
    assert lowered(body)[1].words == lowered(ORDERS[body])[1].words


IN_ANY_ORDER = f"{HEADER}.entry k(.param .u64 a)\n{{ {REGISTERS}\n{' '.join(ORDERS)} ret; }}\n"


@pytest.mark.parametrize("text", [*TEXTS, *MODULES, IN_ANY_ORDER])
def test_spellings_that_ptxas_accepts_are_translated(text: str, tmp_path: Path) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(text)
    command = [str(cuda.NVCC), "-cubin", "-arch=sm_90", "-o", "/dev/null", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codegen.compile_kernel(objects.kernel_source(parse_module(text), "k"), "k")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("(1 + 2) * 3", 9),
        ("-7/2", -3),
        ("-7%4", -3),
        ("0x10U|017", 31),
        ("1<<4>>1", 8),
        ("5>3?7:8", 7),
        ("!0 && 2 == 2", 1),
        ("~0b1", -2),
        ("WARP_SZ / 2", 16),
        ("1 | 2 ^ 3 & 6", 1),
        ("- -3", 3),
        ("0?1:0?2:3", 3),
    ],
)
def test_constant_expressions_are_those_of_c(text: str, value: int) -> None:
    assert constants.evaluate(text) == value


@pytest.mark.parametrize("text", ["", "1+", "(1", "1 2", "x", "1/0", "3?4"])
def test_invalid_constants_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"constant|division"):
        constants.evaluate(text)


def test_a_size_that_cannot_be_read_is_an_error() -> None:
    module = parse_module(HEADER + ".global .b32 g[0x2][ 3 ];")
    assert module.variables["g"].size == 24
    for size in ("n", "2+2"):
        with pytest.raises(ModuleError, match=r"no size of an array: \["):
            parse_module(HEADER + f".global .b32 g[{size}];")


CALLS = """
.extern .global .u64 table[3];
.const .align 4 .u32 words[4] = {100, 200, 300, 400};
.func(.reg.u32 o)twice(.reg.u32 i){ add.u32 o, i, i; ret; }
.func (.reg .u32 o) square (.reg .u32 i) {
    .reg .pred low; setp.lt.u32 low, i, 4; mov.u32 o, 1; @low ret; mul.lo.u32 o, i, i;
}
.func (.reg .u32 o) faculty (.reg .u32 i) {
    .reg .pred end; .reg .u32 less; setp.eq.u32 end, i, 0; mov.u32 o, 1; @end ret;
    sub.u32 less, i, 1; call (less), faculty, (less); mul.lo.u32 o, less, i; ret;
}
.func plus (.reg .u64 to, .reg .f32 what, .param .b32 more) {
    .reg .f32 x, y; ld.param.f32 x, [more]; add.f32 y, what, x; st.global.f32 [to], y; ret;
}
.visible .entry k(.param .u64 a) {
    .reg .u32 me, i, x, y; .reg .u64 out, f, wide; .reg .pred odd;
    ld.param.u64 out, [a];
    mov.u32 me, %tid.x;
    mad.wide.u32 out, me, 24, out;
    rem.u32 i, me, 3;
    ld.global.u64 f, table[i];
    proto: .callprototype (.reg .u32 _) _ (.reg .u32 _);
    call (x), f, (me), proto;
    st.global.u32 [out], x;
    and.b32 y, me, 1; setp.eq.u32 odd, y, 1;
    mov.u32 x, 5;
    @odd call (x), square, (me);
    st.global.u32 [out+4], x;
    call (x), square, (3*3);
    st.global.u32 [out+8], x;
    ld.const.u32 x, words[i+1]; cvt.u64.u32 wide, i; ld.const.u32 y, words[wide]; add.u32 x, x, y;
    ld.const.u32 y, words[3];
    add.u32 x, x, y;
    st.global.u32 [out+12], x;
    add.u64 wide, out, 16;
    { .param .b32 more; st.param.f32 [more], 0f3f000000; call plus, (wide, 0f40000000, more); }
    mov.u64 f, words[2];
    mov.u64 wide, words; sub.u64 f, f, wide;
    st.global.u32 [out+20], f;
    ret;
}
.visible .global .u64 table[3] = {twice, square, faculty};
"""


def test_registers_are_passed_and_arrays_indexed(kernels: Loader, space: Space) -> None:
    module = kernels.module((HEADER + CALLS).encode(), 1)
    out = space.put(np.zeros((9, 6), np.uint32))
    variables = space.put(np.frombuffer(module.globals_image, np.uint8))
    space.launch(kernels.function(module, "k"), 1, 9, out, globals_addr=variables)
    space.check()

    def square(i: int) -> int:
        return 1 if i < 4 else i * i

    words = [100, 200, 300, 400]
    wanted = [
        [
            (2 * i, square(i), math.factorial(i))[i % 3],
            square(i) if i % 2 else 5,
            81,
            words[i % 3] + words[i % 3 + 1] + 400,
            0x40200000,
            8,
        ]
        for i in range(9)
    ]
    assert space.read(out, 54, np.uint32).reshape(9, 6).tolist() == wanted


VECTORS = """
.func (.reg .v2 .u32 o) swap (.reg .v2 .u32 i) { mov.u32 o.x, i.y; mov.u32 o.g, i.r; ret; }
.visible .entry k(.param .u64 a) {
    .reg .u64 out; .reg .u16 %h<4>; .reg .v2 .u32 w, x; .reg .v4 .u16 v;
    ld.param.u64 out, [a];
    mov.u32 w.x, 1; mov.u32 w.y, 2;
    call (x), swap, (w);
    st.global.v2.u32 [out], x;
    mov.u16 %h0, 3; mov.u16 %h1, 4; mov.u16 %h2, 5; mov.u16 %h3, 6;
    mov.v4.u16 v, {%h3, %h2, %h1, %h0};
    st.global.v4.u16 [out+8], v;
    ret;
}
"""


def test_vectors_of_registers_are_operands_and_arguments(kernels: Loader, space: Space) -> None:
    out = space.put(np.zeros(4, np.uint32))
    module = kernels.module((HEADER + VECTORS).encode(), 1)
    space.launch(kernels.function(module, "k"), 1, 1, out)
    space.check()
    assert space.read(out, 2, np.uint32).tolist() == [2, 1]
    assert space.read(out + 8, 4, np.uint16).tolist() == [6, 5, 4, 3]
