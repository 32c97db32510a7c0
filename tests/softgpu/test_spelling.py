"""PTX is read however it is spelled: without spaces or with them, with constant expressions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cuda
import pytest

from rankfold.proxy.hal.soft import codegen, constants, ptx
from rankfold.proxy.hal.soft.errors import ModuleError

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
REGISTERS = ".reg .b32 %r<3>; .reg .b64 %q; .reg .f32 %f; .reg .pred %p; ld.param.u64 %q, [a];"
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
    "# 1 \"k.ptx\"\n" + HEADER + ".entry k" + FUNCTION,
    HEADER + ".entry k" + FUNCTION.replace(") {", ')\n.pragma "nounroll";\n{'),
    HEADER + ".visible.entry k" + FUNCTION.replace(".param .u64", ".param.u64.ptr.global.align 8"),
    HEADER + ".global.u32 g;.const.align 8 .u32 c[2]={1+1,3};.entry k" + FUNCTION,
)  # fmt: skip
TEXTS = [f"{HEADER}.entry k(.param .u64 a)\n{{ {REGISTERS}\n{body} ret; }}\n" for body in BODIES]


@pytest.mark.parametrize("text", [*TEXTS, *MODULES])
def test_what_the_assembler_takes_is_translated(text: str, tmp_path: Path) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(text)
    command = [str(cuda.NVCC), "-cubin", "-arch=sm_80", "-o", "/dev/null", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codegen.compile_kernel(codegen.kernel_source(ptx.parse_module(text), "k"), "k")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1+2*3", 7), ("(1 + 2) * 3", 9), ("-7/2", -3), ("-7%4", -3), ("0x10U|017", 31),
     ("1<<4>>1", 8), ("5>3?7:8", 7), ("!0 && 2 == 2", 1), ("~0b1", -2), ("WARP_SZ / 2", 16),
     ("1 | 2 ^ 3 & 6", 1), ("- -3", 3), ("0?1:0?2:3", 3)],
)  # fmt: skip
def test_constant_expressions_are_those_of_c(text: str, value: int) -> None:
    assert constants.evaluate(text) == value


@pytest.mark.parametrize("text", ["", "1+", "(1", "1 2", "x", "1/0", "3?4"])
def test_what_is_no_constant_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"constant|division"):
        constants.evaluate(text)


def test_a_size_that_cannot_be_read_is_an_error() -> None:
    module = ptx.parse_module(HEADER + ".global .b32 g[0x2][ 3 ];")
    assert module.variables["g"].size == 24
    for size in ("n", "2+2"):
        with pytest.raises(ModuleError, match=r"no size of an array: \["):
            ptx.parse_module(HEADER + f".global .b32 g[{size}];")
