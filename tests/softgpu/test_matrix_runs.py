"""Matrix operations that follow one another are one cut, and compute what they compute apart."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rankfold.proxy.hal.soft.compiler import matrix
from rankfold.proxy.hal.soft.compiler.instructions import row_of
from rankfold.proxy.hal.soft.compiler.lower import Kernel
from rankfold.proxy.hal.soft.compiler.matrix_runs import in_runs
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.inline import flatten
from rankfold.proxy.ptx.model import Float
from rankfold.proxy.ptx.module import find, parse_module
from softgpu.harness import Space

WARP, SUMS, HALVES, OFFSETS = 32, 16, 12, 4
OUT = SUMS + HALVES + OFFSETS  # registers that the kernel stores
APART = "bar.warp.sync -1;"
PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


def kernel(lines: list[str]) -> str:
    """A kernel of one warp. %f are floats, %h pairs of small halves, %o offsets in shared memory:
    each thread has others, and stores all of them after `lines`."""
    set_up = [f"cvt.rn.f32.u32 %f{i}, %lane; add.f32 %f{i}, %f{i}, 0f{i:08X};" for i in range(SUMS)]
    set_up += [f"mad.lo.u32 %h{i}, %lane, {3 + 2 * i}, 0x30002c00;" for i in range(HALVES)]
    set_up += [f"mad.lo.u32 %o{i}, %lane, 16, {64 * i};" for i in range(OFFSETS)]
    set_up += ["mad.lo.u32 %r0, %lane, 4, %base;"]
    set_up += [f"mad.lo.u32 %r1, %lane, {77 + i}, 0x31002d00; st.shared.u32 [%r0+{128 * i}], %r1;"
               for i in range(8)]  # fmt: skip
    names = [*(f"%f{i}" for i in range(SUMS)), *(f"%h{i}" for i in range(HALVES))]
    names += [f"%o{i}" for i in range(OFFSETS)]
    store = [f"st.global.b32 [%out+{128 * i}], {name};" for i, name in enumerate(names)]
    body = "\n    ".join([*set_up, APART, *lines, APART, *store])
    return f"""
.version 9.0
.target sm_90
.address_size 64
.visible .entry runs(.param .u64 out)
{{
    .reg .b32 %lane, %base, %r<4>, %h<{HALVES}>, %o<{OFFSETS}>; .reg .b64 %out, %at;
    .reg .f32 %f<{SUMS}>; .reg .pred %p; .shared .align 16 .b8 memory[1024];
    mov.u32 %lane, %tid.x;
    mov.u32 %base, memory;
    ld.param.u64 %out, [out];
    mul.wide.u32 %at, %lane, 4;
    add.u64 %out, %out, %at;
    {body}
    ret;
}}
"""


def cuts(lines: list[str]) -> int:
    """The number of cuts between the first barrier of the warp and the last one."""
    module = parse_module(kernel(lines))
    return len(Kernel(module, find(module, "runs"), "rf_runs").graph.cuts) - 3


def products(count: int) -> list[str]:
    """Products that share their multiplicands; each continues the sum of the one before."""
    return [f"{PRODUCT} {{%f0, %f1, %f2, %f3}}, {{%h0, %h1, %h2, %h3}}, {{%h{i % 8}, %h9}}, "
            "{%f0, %f1, %f2, %f3};" for i in range(count)]  # fmt: skip


LOAD = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%h4, %h5}, [%o0];"


def test_consecutive_operations_are_one_cut() -> None:
    assert cuts(products(7)) == 1
    assert cuts([*products(2), LOAD, "movmatrix.sync.aligned.m8n8.trans.b16 %h6, %h4;"]) == 1


def test_arithmetic_of_other_registers_is_moved() -> None:
    two = products(2)
    assert cuts([two[0], "add.u32 %o0, %o1, 16;", LOAD, two[1]]) == 1


@pytest.mark.parametrize(
    "between",
    [
        "mov.b32 %h2, %h7;",  # the first product reads it
        "add.f32 %f0, %f0, 0f3F800000;",  # it writes it
        "mov.b32 %f4, %f3;",
        "st.shared.u32 [%o0], %h0;",
        "mov.u32 %r1, %clock;",
        "AGAIN: add.u32 %o0, %o0, 1;",
    ],
)
def test_other_instructions_end_a_run(between: str) -> None:
    two = products(2)
    assert cuts([two[0], between, two[1]]) == 2


def test_a_result_that_is_replaced_ends_a_run() -> None:
    assert cuts([LOAD, "mov.b32 %h4, %h7;", *products(1)]) == 2


def test_a_value_that_some_threads_replace_is_kept_by_the_others(
    kernels: Loader, space: Space
) -> None:
    lines = ["setp.lt.u32 %p, %lane, 9;", APART, "@%p mov.b32 %h0, 7;", APART]
    function = kernels.function(kernels.module(kernel(lines).encode(), 1), "runs")
    out = space.put(np.zeros(OUT * WARP, np.uint32))
    space.launch(function, 1, WARP, out)
    space.check()
    got = space.read(out, OUT * WARP, np.uint32).reshape(OUT, WARP)[SUMS]
    lane = np.arange(WARP)
    assert (got == np.where(lane < 9, 7, lane * 3 + 0x30002C00)).all()


def test_an_address_that_a_run_computes_ends_it() -> None:
    assert cuts([LOAD, "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%h6}, [%h4];"]) == 2


def test_a_form_that_is_refused_is_named_within_a_run(kernels: Loader) -> None:
    wrong = f"{PRODUCT} {{%f0, %f1, %f2, %f3}}, {{%h0, %h1}}, {{%h2, %h3}}, {{%f0, %f1, %f2, %f3}};"
    text = kernel([products(1)[0], wrong, LOAD])
    with pytest.raises(ModuleError, match="%h2, %h3"):
        kernels.function(kernels.module(text.encode(), 1), "runs")


def test_zeros_of_both_signs_are_different_operands() -> None:
    minus, plus = "0d8000000000000000", "0d0000000000000000"
    text = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d0, %d1}, {%d2}, {%d2}, "
    header = ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n"
    body = f"{{ .reg .f64 %d<3>; {text}{{{minus}, {plus}}}; {text}{{{plus}, {minus}}}; ret; }}"
    module = parse_module(header + body)
    instrs = flatten(module, find(module, "k")).instrs
    (run,) = [each for each in in_runs(instrs) if row_of(each).tile]
    given = [word.of for word in matrix.tiles(run).given.values()]
    assert sum(isinstance(of, Float) for of in given) == 4  # two words each


def line(chance: random.Random) -> str:
    """An operation, or arithmetic, on any registers."""
    halves = [f"%h{i}" for i in range(HALVES)]

    def some(count: int) -> str:
        return "{" + ", ".join(chance.sample(halves, count)) + "}"

    def sums() -> str:
        first = 4 * chance.randrange(SUMS // 4)
        return "{" + ", ".join(f"%f{first + i}" for i in range(4)) + "}"

    one, other = chance.choice(halves), chance.choice(halves)
    offset = f"%o{chance.randrange(OFFSETS)}"
    constants = "{0f00000000, 0f80000000, 0f3F800000, 0f00000000}"
    return chance.choice(
        [
            *[f"{PRODUCT} {sums()}, {some(4)}, {some(2)}, {sums()};"] * 4,
            f"{PRODUCT} {sums()}, {some(4)}, {some(2)}, {constants};",
            f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {some(4)}, [{offset}];",
            f"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {some(2)}, [{offset}+32];",
            f"stmatrix.sync.aligned.m8n8.x2.shared.b16 [{offset}], {some(2)};",
            f"movmatrix.sync.aligned.m8n8.trans.b16 {one}, {other};",
            f"xor.b32 {offset}, {offset}, 32;",
            f"and.b32 {one}, {other}, 0xbfffbfff;",
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_run_computes_what_its_operations_compute_apart(
    kernels: Loader, space: Space, seed: int
) -> None:
    chance = random.Random(seed)
    lines = [line(chance) for _ in range(24)]
    apart = [text for each in lines for text in (each, APART)]
    assert cuts(lines) < 20
    results = []
    for each in (lines, apart):
        function = kernels.function(kernels.module(kernel(each).encode(), 1), "runs")
        out = space.put(np.zeros(OUT * WARP, np.uint32))
        space.launch(function, 1, WARP, out)
        space.check()
        results.append(space.read(out, OUT * WARP, np.uint32).reshape(OUT, WARP))
    differs = np.argwhere(results[0] != results[1])
    assert not len(differs), f"{differs[:5]} of\n" + "\n".join(lines)
    assert len(np.unique(results[0])) > OUT * WARP // 3
