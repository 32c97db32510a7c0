"""Conclusions from a kernel's use of its coordinates must not change its results."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankfold.proxy.hal.soft.compiler import lower
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.module import parse_module
from softgpu.harness import Space, store_in_parts

PLACE = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; "
IN_GRID = PLACE + "mad.lo.s32 %r0, %r1, %r2, %r3; "
TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "lt.s32": operator.lt,
    "le.s32": operator.le,
    "gt.s32": operator.gt,
    "ge.s32": operator.ge,
    "lt.u32": operator.lt,
    "le.u32": operator.le,
    "gt.u32": operator.gt,
    "ge.u32": operator.ge,
    "lo.u32": operator.lt,
    "ls.u32": operator.le,
    "hi.u32": operator.gt,
    "hs.u32": operator.ge,
    "eq.s32": operator.eq,
    "ne.u32": operator.ne,
}
MINUS = 0xFFFFFFFF
BOUNDS = (0, 1, 95, 96, 97, 1000, 3839, 3840, 3841, 0x7FFFFFFF, 0x80000000, MINUS - 5, MINUS)


def kernel(body: str) -> str:
    return f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 bound)
{{
    .reg .b32 %r<20>; .reg .b64 %rd<4>; .reg .pred %p<4>;
    ld.param.u64 %rd0, [out];
    ld.param.u32 %r9, [bound];
    {body}
    ret;
}}
"""


STORED = """
    mov.u32 %r4, %ctaid.y; mov.u32 %r5, %nctaid.x; mul.lo.u32 %r6, %r4, %r5;
    mad.lo.s32 %r7, %r6, %r2, %r0;
    mul.wide.u32 %rd1, %r7, 4;
    add.s64 %rd2, %rd0, %rd1;
"""


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("mirrored", [False, True], ids=["place first", "bound first"])
def test_a_comparison_that_splits_the_threads(
    kernels: Loader, space: Space, test: str, mirrored: bool
) -> None:
    """Every thread adds 1 or 2, in blocks that may run as one, in two rows of the grid."""
    operands = "%r9, %r0" if mirrored else "%r0, %r9"
    source = kernel(f"""{IN_GRID} {STORED}
    setp.{test} %p0, {operands};
    ld.global.u32 %r10, [%rd2];
    @%p0 bra yes;
    add.u32 %r10, %r10, 1;
    bra.uni done;
yes:
    add.u32 %r10, %r10, 2;
done:
    st.global.u32 [%rd2], %r10;""")
    function = kernels.function(kernels.module(source.encode(), 1), "k")
    columns, threads = 40, 96
    place = np.tile(np.arange(columns * threads, dtype=np.int64), 2)
    at = space.put(np.zeros(len(place), np.uint32))
    wanted = np.zeros(len(place), np.int64)
    for bound in BOUNDS:
        space.launch(function, (columns, 2), threads, at, bound)
        value = bound - (1 << 32) if test.endswith("s32") and bound >> 31 else bound
        left, right = (value, place) if mirrored else (place, value)
        wanted += np.where(TESTS[test](left, right), 2, 1)
    space.check()
    np.testing.assert_array_equal(space.read(at, len(place), np.uint32), wanted)


@pytest.mark.parametrize("before", ["", "bar.sync 0;"], ids=["alone", "behind a barrier"])
def test_a_place_that_wraps_before_it_is_compared(
    kernels: Loader, space: Space, before: str
) -> None:
    source = kernel(f"""
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd1, %r4, 4;
    add.s64 %rd2, %rd0, %rd1;
    {before}
    add.u32 %r6, %r1, 0xFFFFFFF0;
    setp.lt.u32 %p0, %r6, %r9;
    mov.u32 %r5, 1;
    @%p0 bra yes;
    mov.u32 %r5, 2;
yes:
    st.global.u32 [%rd2], %r5;""")
    function = kernels.function(kernels.module(source.encode(), 1), "k")
    place = (np.tile(np.arange(40), 3) - 16) & MINUS
    for bound in BOUNDS:
        at = space.alloc(4 * len(place))
        space.launch(function, 1, (40, 3), at, bound)
        found = space.read(at, len(place), np.uint32)
        np.testing.assert_array_equal(found, np.where(place < bound, 1, 2))
    space.check()


def test_a_comparison_before_and_behind_a_barrier(kernels: Loader, space: Space) -> None:
    """In blocks of rows: a row's threads are split, each for itself."""
    source = kernel("""
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd1, %r4, 4;
    add.s64 %rd2, %rd0, %rd1;
    setp.ge.u32 %p0, %r1, %r9;
    mov.u32 %r5, 5;
    @%p0 bra wait;
    mov.u32 %r5, 7;
wait:
    bar.sync 0;
    @!%p0 bra small;
    add.u32 %r5, %r5, 100;
small:
    st.global.u32 [%rd2], %r5;""")
    function = kernels.function(kernels.module(source.encode(), 1), "k")
    at = space.alloc(4 * 13 * 9)
    for bound in (0, 1, 6, 12, 13, 14, MINUS):
        space.launch(function, 1, (13, 9), at, bound)
        x = np.tile(np.arange(13), 9)
        np.testing.assert_array_equal(
            space.read(at, 13 * 9, np.uint32), np.where(x >= bound, 105, 7)
        )
    space.check()


@pytest.mark.parametrize(
    ("body", "wide"),
    [
        (IN_GRID + "st.global.u32 [%rd0], %r0;", True),
        (IN_GRID + "mov.u32 %r4, %ctaid.y; st.global.u32 [%rd0], %r4;", True),
        (IN_GRID + "st.global.u32 [%rd0], %r3;", False),
        (IN_GRID + "add.u32 %r5, %r0, %r1; st.global.u32 [%rd0], %r5;", False),
        (IN_GRID + "mov.u32 %r5, %laneid; st.global.u32 [%rd0], %r5;", False),
        (IN_GRID + "bar.sync 0;", False),
        (IN_GRID + ".shared .b32 area; st.shared.u32 [area], %r0;", False),
        (IN_GRID + ".local .b32 own; st.local.u32 [own], %r0;", False),
        (IN_GRID + "mul.wide.u32 %rd1, %r3, 4; st.global.u64 [%rd0], %rd1;", False),
        (IN_GRID + "setp.eq.u32 %p0, %r3, 0; @%p0 st.global.u32 [%rd0], %r0;", False),
        ("mad.lo.s32 %r0, %r9, %r9, %r9; st.global.u32 [%rd0], %r0;", True),
        ("st.global.u32 [%rd0], %tid.x;", False),
    ],
)
def test_which_kernels_run_their_blocks_as_one(body: str, wide: bool) -> None:
    found = lower.lower(parse_module(kernel(body)), "k", "k").ir
    (line,) = [x for x in found.splitlines() if x.startswith("@k = ")]
    flags = int(line.removesuffix("]}").split()[-1])
    assert bool(flags & lower.WIDE) is wide


def test_a_block_s_share_of_a_launch_is_its_own(kernels: Loader, space: Space) -> None:
    """Blocks that run as one still meet every row of the grid, however it is divided."""
    source = kernel(f"""{IN_GRID} {STORED}
    ld.global.u32 %r10, [%rd2];
    add.u32 %r10, %r10, %r4;
    add.u32 %r10, %r10, 1;
    st.global.u32 [%rd2], %r10;""")
    function = kernels.function(kernels.module(source.encode(), 1), "k")
    for grid in ((1, 1), (7, 700), (1000, 3), (33, 129)):
        for threads in (1, 33, 64):
            at = space.put(np.zeros(grid[0] * grid[1] * threads, np.uint32))
            space.launch(function, grid, threads, at, 0)
            wanted = 1 + np.repeat(np.arange(grid[1]), grid[0] * threads)
            found = space.read(at, len(wanted), np.uint32)
            np.testing.assert_array_equal(found, wanted)
    space.check()


SUM = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; mov.u32 %r5, 0; mov.u32 %r6, 0;
    mov.u32 %r0, %r1;
    setp.ge.s32 %p0, %r0, %r9;
    @%p0 bra done;
round:
    mul.wide.s32 %rd1, %r0, 4;
    add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r4, [%rd2];
    add.u32 %r5, %r5, %r4;
    add.u32 %r6, %r6, 1;
    {extra}
    add.s32 %r0, %r0, %r2;
    setp.lt.s32 %p1, %r0, %r9;
    @%p1 bra round;
done:
    bar.sync 0;
    mad.lo.u32 %r5, %r6, 1000003, %r5;
    mul.wide.u32 %rd1, %r1, 4;
    add.s64 %rd2, %rd0, %rd1;
    st.global.u32 [%rd2], %r5;
"""


def test_a_loop_over_neighbours_is_gone_through_side_by_side(kernels: Loader, space: Space) -> None:
    """However many threads have a last round; and what counts the rounds differs behind it."""
    function = kernels.function(kernels.module(kernel(SUM.format(extra="")).encode(), 1), "k")
    words = np.arange(1, 4001, dtype=np.uint32)
    for threads in (1, 20, 32, 100, 256):
        for bound in (0, 1, 31, 100, 255, 256, 257, 1000, MINUS):
            at = space.put(words)
            space.launch(function, 1, threads, at, bound)
            mine = [
                words[t : min(bound, 4000) : threads] if bound != MINUS else words[:0]
                for t in range(threads)
            ]
            wanted = [(int(w.sum()) + 1000003 * len(w)) & MINUS for w in mine]
            np.testing.assert_array_equal(space.read(at, threads, np.uint32), wanted)
    space.check()


@pytest.mark.parametrize(
    ("extra", "side_by_side"),
    [
        ("", True),
        ("ld.global.u32 %r7, [%rd0];", True),
        ("ld.volatile.global.u32 %r7, [%rd0];", False),
        ("red.global.add.u32 [%rd0], %r4;", False),
        ("st.global.u32 [%rd0], %r4;", False),
        ("mul.wide.u32 %rd3, %r4, 4; add.s64 %rd3, %rd0, %rd3; ld.global.u32 %r7, [%rd3];", False),
        ("ld.global.u64 %rd3, [%rd2];", False),
    ],
)
def test_which_loops_threads_regroup_in(extra: str, side_by_side: bool) -> None:
    made = lower.Kernel(
        module := parse_module(kernel(SUM.format(extra=extra))), module.functions["k"], "k"
    )
    assert any(cut.soft for cut in made.graph.cuts.values()) is side_by_side


def test_how_registers_differ_between_threads() -> None:
    """Behind the loop, what its rounds count is not the same for all; nor what is loaded."""
    module = parse_module(kernel(SUM.format(extra="shl.b32 %r8, %r0, 2; sub.u32 %r10, %r2, 1;")))
    slopes = lower.Kernel(module, module.functions["k"], "k").slopes
    found = {name: slopes[f"%{name}"] for name in ("r0", "r1", "r2", "r4", "r5", "r6", "r8", "r10")}
    assert found == {
        "r0": 1,
        "r1": 1,
        "r2": 0,
        "r4": None,
        "r5": None,
        "r6": None,
        "r8": 4,
        "r10": 0,
    }


def test_values_that_differ_between_threads_of_a_loop(kernels: Loader, space: Space) -> None:
    """A loop adds %r6, the rounds of a loop before it, and %r7, which an if has chosen; there is a
    barrier between, behind which all threads are together again."""
    source = kernel(
        SUM.format(extra="").partition("mad.lo.u32")[0]
        + """
    and.b32 %r7, %r1, 4;
    setp.eq.u32 %p2, %r7, 0;
    mov.u32 %r7, 3;
    @%p2 bra chosen;
    mov.u32 %r7, 500;
chosen:
    mov.u32 %r0, %r1;
again:
    mul.wide.s32 %rd1, %r0, 4;
    add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r4, [%rd2];
    mad.lo.u32 %r4, %r6, 1000, %r4;
    add.u32 %r4, %r4, %r7;
    st.global.u32 [%rd2], %r4;
    add.s32 %r0, %r0, %r2;
    setp.lt.s32 %p1, %r0, 500;
    @%p1 bra again;
    """
    )
    function = kernels.function(kernels.module(source.encode(), 1), "k")
    words = np.arange(1, 501, dtype=np.uint32)
    for threads in (64, 96, 100):
        for bound in (0, 40, 64, 250, 384):
            at = space.put(words)
            space.launch(function, 1, threads, at, bound)
            thread = np.arange(500) % threads
            rounds = np.maximum(0, (bound - thread + threads - 1) // threads)
            wanted = words + 1000 * rounds + np.where(thread & 4, 500, 3)
            np.testing.assert_array_equal(space.read(at, 500, np.uint32), wanted)
    space.check()


def test_rows_that_part(kernels: Loader, space: Space) -> None:
    """A value that all threads of a row share is kept once for it; each row goes round the loop
    as often
    as it likes, a warp's last ones stop earlier, and then each thread needs its own."""
    source = kernel("""
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd1, %r4, 4;
    add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r15, [%rd0+4096];
    mad.lo.u32 %r5, %r2, 1000, %r15;
    mad.lo.u32 %r6, %r1, 3, %r5;
    mov.u32 %r10, %r1;
    mov.u32 %r11, 0;
    bar.sync 0;
    add.u32 %r5, %r5, 1;
round:
    mul.wide.u32 %rd1, %r10, 4;
    add.s64 %rd3, %rd0, %rd1;
    ld.global.u32 %r12, [%rd3+4096];
    mad.lo.u32 %r11, %r12, 1, %r11;
    add.u32 %r5, %r5, 7;
    add.u32 %r6, %r6, 5;
    add.u32 %r10, %r10, %r3;
    mad.lo.u32 %r13, %r2, %r3, %r9;
    setp.lt.u32 %p1, %r10, %r13;
    @%p1 bra round;
    bar.sync 0;
    add.u32 %r14, %r5, %r6;
    add.u32 %r14, %r14, %r11;
    setp.lt.u32 %p2, %r2, 2;
    @%p2 bra last;
    bar.sync 0;
    add.u32 %r14, %r14, %r5;
last:
    st.global.u32 [%rd2], %r14;""")
    found_ir = lower.lower(parse_module(source), "k", "k").ir
    assert "@kept = internal constant [0 " not in found_ir and "@step" in found_ir
    function = kernels.function(kernels.module(source.encode(), 1), "k")
    for width, height in ((32, 1), (40, 1), (64, 2), (40, 5), (96, 4)):
        for bound in (0, 1, 33, 40, 64, 100):
            table = np.arange(11, 1011, dtype=np.uint32)
            at = space.put(np.concatenate([np.zeros(1024, np.uint32), table]))
            space.launch(function, 1, (width, height), at, bound)
            y, x = np.divmod(np.arange(width * height), width)
            rounds = np.maximum(1, -(-(y * width + bound - x) // width))
            total = [table[i : i + width * n : width].sum() for i, n in zip(x, rounds, strict=True)]
            uniform = y * 1000 + 11 + 1 + 7 * rounds
            even = y * 1000 + 11 + 3 * x + 5 * rounds
            wanted = uniform + even + total + np.where(y >= 2, uniform, 0)
            found = space.read(at, width * height, np.uint32)
            np.testing.assert_array_equal(found, wanted, f"{width} x {height}, {bound}")
    space.check()


@pytest.mark.parametrize("divided", [False, True], ids=["whole", "compiled in parts"])
def test_an_index_that_wraps_within_a_row(kernels: Loader, space: Space, divided: bool) -> None:
    """Each thread continues as long as its index is positive."""
    source = kernel("""
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; mov.u32 %r5, 0;
    add.u32 %r0, %r1, 0x7FFFFF00;
round:
    sub.u32 %r3, %r0, 0x7FFFFF00;
    mul.wide.u32 %rd1, %r3, 4;
    add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r4, [%rd2];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd2], %r4;
    add.u32 %r5, %r5, 1;
    add.s32 %r0, %r0, %r2;
    setp.ge.s32 %p1, %r0, 0;
    @%p1 bra round;""")
    ir = lower.lower(parse_module(source), "k", "k").ir
    assert "@step" in ir and "call i64 @seg" in ir, "one function of a cut calls another"
    if divided:
        source = source.replace("round:", "mov.u32 %r8, 0; round:")  # another one than the whole
        assert store_in_parts(kernels, source.encode(), "k") > 1
    function = kernels.function(kernels.module(source.encode(), 1), "k")
    for threads in (32, 64, 100):
        at = space.put(np.zeros(512, np.uint32))
        space.launch(function, 1, threads, at, 0)
        place = np.arange(512)
        wanted = (place < 256) | (place < threads)
        np.testing.assert_array_equal(space.read(at, 512, np.uint32), wanted)
    space.check()
