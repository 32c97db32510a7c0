"""Barriers of a block: each form, names, counts, in loops and in branches. PTX ISA, 9.7.13.

Every thread passes a value through shared memory; a barrier that lets threads through too early
gives it the old one. %me is the thread, %slot the address of its word, %a its value, %d the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES

THREADS = 128


@dataclass(frozen=True)
class Row:
    """`reference`: all threads' values to all threads' results."""

    code: str
    reference: Callable[[Array], Any]


def exchange(barrier: str) -> Row:
    """With the thread of the mirrored number, twice, so that one barrier too few shows."""
    code = f"""
    xor.b32 x, %me, {THREADS - 1};
    shl.b32 x, x, 2;
    mov.u32 y, words;
    add.u32 x, x, y;
    st.shared.u32 [%slot], %a;
    {barrier}
    ld.shared.u32 y, [x];
    {barrier}
    add.u32 y, y, 1;
    st.shared.u32 [%slot], y;
    {barrier}
    ld.shared.u32 %d, [x];
    {barrier}"""
    return Row(code, lambda a: a + 1)


PLAIN = (
    "bar.sync 0;",
    "bar.cta.sync 0;",
    "barrier.sync 0;",
    "barrier.cta.sync 0;",
    "barrier.sync.aligned 3;",
    f"bar.sync 5, {THREADS};",
    f"barrier.cta.sync 15, {THREADS};",
    "bar.sync id;",
    "bar.sync id, all;",
)
IN_BRANCHES = """
    @odd bra ODD{n};
    barrier.sync 0;
    bra JOIN{n};
ODD{n}:
    barrier.sync 0;
JOIN{n}:
"""


def in_branches() -> Row:
    """The lanes of a warp come to one barrier at two places."""
    whole = exchange("<>")
    code = whole.code
    for n in range(4):
        code = code.replace("<>", IN_BRANCHES.replace("{n}", str(n)), 1)
    return Row(code, whole.reference)


def voting() -> list[Row]:
    def count(a: Array) -> int:
        return int((a % 3 == 0).sum())

    test = ".reg .b32 r; rem.u32 r, %a, 3; setp.eq.u32 q, r, 0; "
    flag = "selp.u32 %d, 1, 0, p;"
    rows = []
    for name in ("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red.aligned"):
        aligned = name.endswith(".aligned")
        name = name.removesuffix(".aligned")
        end = ".aligned" if aligned else ""
        rows += [
            Row(f"{test} {name}.popc{end}.u32 %d, 0, q;", count),
            Row(f"{test} {name}.popc{end}.u32 %d, 1, {THREADS}, !q;", lambda a: THREADS - count(a)),
            Row(f"{test} {name}.and{end}.pred p, 0, q; {flag}", lambda a: count(a) == THREADS),
            Row(f"{test} {name}.or{end}.pred p, 0, q; {flag}", lambda a: count(a) > 0),
            Row(f"{test} {name}.or{end}.pred p, id, all, !q; {flag}", lambda a: count(a) < THREADS),
        ]
    return rows


def pairs_of_warps() -> Row:
    """Warps 0 and 1 go round a loop with a barrier of their own, warps 2 and 3 less often."""
    code = """
    .reg .b32 pair, round, other;
    shr.u32 pair, %me, 6;
    add.u32 y, pair, 1;
    mov.u32 round, 5;
    sub.u32 round, round, pair;
    xor.b32 other, %me, 33;
    shl.b32 other, other, 2;
    mov.u32 x, words;
    add.u32 other, other, x;
    st.shared.u32 [%slot], %a;
LOOP:
    bar.sync y, 64;
    ld.shared.u32 x, [other];
    bar.sync y, 64;
    add.u32 x, x, 1;
    st.shared.u32 [%slot], x;
    sub.u32 round, round, 1;
    setp.ne.u32 p, round, 0;
    @p bra LOOP;
    bar.sync 0;
    ld.shared.u32 %d, [%slot];
    bar.sync 0;"""

    def reference(a: Array) -> Array:
        me = np.arange(THREADS)
        return np.where(me < 64, a[me ^ 33] + 5, a + 4).astype(np.uint32)

    return Row(code, reference)


def produced() -> Row:
    """Warps 0 and 1 only arrive where 2 and 3 wait for what they wrote; then vice versa."""
    code = f"""
    .reg .b32 other;
    xor.b32 other, %me, 64;
    shl.b32 other, other, 2;
    mov.u32 x, words;
    add.u32 other, other, x;
    setp.lt.u32 p, %me, 64;
    @!p bra CONSUME;
    st.shared.u32 [%slot], %a;
    membar.cta;
    bar.arrive 1, {THREADS};
    barrier.cta.sync 2, {THREADS};
    ld.shared.u32 %d, [other];
    bra END;
CONSUME:
    bar.sync 1, {THREADS};
    ld.shared.u32 %d, [other];
    add.u32 x, %d, 7;
    st.shared.u32 [%slot], x;
    membar.cta;
    barrier.cta.arrive 2, {THREADS};
END:
    bar.sync 0;"""

    def reference(a: Array) -> Array:
        return np.concatenate([a[:64] + 7, a[:64]])

    return Row(code, reference)


def leaving() -> Row:
    """In each round the highest thread that is left stays away for good: it counts no more."""
    code = """
    .reg .b32 left, n;
    mov.u32 left, 0;
    mov.u32 %d, 0;
    rem.u32 n, %me, 4;
AGAIN:
    setp.gt.u32 p, left, n;
    @p bra OUT;
    setp.eq.u32 q, 0, 0;
    barrier.red.popc.u32 x, 0, q;
    add.u32 %d, %d, x;
    add.u32 left, left, 1;
    bra AGAIN;
OUT:
    st.global.u32 [%out], %d;
    exit;"""

    def reference(_a: Array) -> Array:
        counts = np.cumsum([THREADS * (4 - n) // 4 for n in range(4)])
        return counts[np.arange(THREADS) % 4].astype(np.uint32)

    return Row(code, reference)


ROWS = [
    *map(exchange, PLAIN),
    in_branches(),
    *voting(),
    pairs_of_warps(),
    produced(),
    leaving(),  # the last one: its threads end there
]


def source() -> str:
    parts = [
        f"""
    {{
    .reg .b32 x, y, id, all; .reg .pred p, q, odd;
    mov.u32 id, 4; mov.u32 all, {THREADS};
    and.b32 x, %me, 1; setp.eq.u32 odd, x, 1;
    {row.code}
    st.global.u32 [%out], %d;
    add.u64 %out, %out, {4 * THREADS};
    }}"""
        for row in ROWS
    ]
    return f"""
.version 8.6
.target sm_90
.address_size 64
.visible .entry barriers(.param .u64 in, .param .u64 out)
{{
    .shared .align 4 .b32 words[{THREADS}];
    .reg .b32 %me, %slot, %a, %d;
    .reg .b64 %in, %out, %o;
    mov.u32 %me, %tid.x;
    mov.u32 %slot, words;
    mad.lo.u32 %slot, %me, 4, %slot;
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    mul.wide.u32 %o, %me, 4;
    add.u64 %in, %in, %o;
    add.u64 %out, %out, %o;
    ld.global.u32 %a, [%in];
    {"".join(parts)}
    ret;
}}
"""


@EXAMPLES
@given(seed=st.integers(0, 2**32 - 1), step=st.sampled_from([1, 2]))
def test_barriers(kernels: Loader, space: Space, seed: int, step: int) -> None:
    """With a step of 1 everybody votes alike."""
    a = np.random.default_rng(seed).integers(0, 2**30, THREADS, np.uint32)
    a = a // 3 * 3 + np.arange(THREADS, dtype=np.uint32) % step
    function = kernels.function(kernels.module(source().encode(), 1), "barriers")
    out = space.put(np.zeros((len(ROWS), THREADS), np.uint32))
    space.launch(function, 1, THREADS, space.put(a), out)
    space.check()
    got = space.read(out, len(ROWS) * THREADS, np.uint32).reshape(len(ROWS), THREADS)
    for row, result in zip(ROWS, got, strict=True):
        wanted = np.broadcast_to(np.asarray(row.reference(a)).astype(np.uint32), THREADS)
        np.testing.assert_array_equal(result, wanted, row.code)


# ---- special registers --------------------------------------------------------------------------

GRID, BLOCK, DYNAMIC = (3, 2, 2), (5, 4, 3), 64
REGISTERS = [
    *(f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
    *(
        f"{name}.{axis}"
        for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
        for axis in "xyz"
    ),
    "laneid",
    "warpid",
    "lanemask_eq",
    "lanemask_lt",
    "lanemask_le",
    "lanemask_gt",
    "lanemask_ge",
    "cluster_ctarank",
    "cluster_nctarank",
    "dynamic_smem_size",
    "total_smem_size",
]
INEXACT = (
    "nwarpid",
    "smid",
    "nsmid",
    "gridid",
    "clock",
    "clock_hi",
    "globaltimer_lo",
    "globaltimer_hi",
    "aggr_smem_size",
)


def special_source() -> str:
    reads = "".join(
        f"mov.u32 %x, %{name}; st.global.u32 [%out+{4 * i}], %x;\n"
        for i, name in enumerate([*REGISTERS, *INEXACT])
    )
    count = len(REGISTERS) + len(INEXACT)
    return f"""
.version 8.6
.target sm_90
.address_size 64
.extern .shared .align 4 .b8 dynamic[];
.visible .entry special(.param .u64 out)
{{
    .shared .align 4 .b8 fixed[100];
    .reg .b32 %x, %y, %n; .reg .b64 %out, %o, %t<4>; .reg .pred %p, %q;
    ld.param.u64 %out, [out];
    mov.u32 %x, fixed;
    mov.u32 %y, dynamic;
    // the thread's number in the grid
    mov.u32 %n, %ctaid.z; mov.u32 %y, %nctaid.y; mov.u32 %x, %ctaid.y; mad.lo.u32 %n, %n, %y, %x;
    mov.u32 %y, %nctaid.x; mov.u32 %x, %ctaid.x; mad.lo.u32 %n, %n, %y, %x;
    mov.u32 %y, %ntid.z; mov.u32 %x, %tid.z; mad.lo.u32 %n, %n, %y, %x;
    mov.u32 %y, %ntid.y; mov.u32 %x, %tid.y; mad.lo.u32 %n, %n, %y, %x;
    mov.u32 %y, %ntid.x; mov.u32 %x, %tid.x; mad.lo.u32 %n, %n, %y, %x;
    mul.wide.u32 %o, %n, {4 * count + 8};
    add.u64 %out, %out, %o;
    mov.u64 %t0, %clock64; mov.u64 %t1, %globaltimer;
    {reads}
    mov.pred %p, %is_explicit_cluster;
    selp.b32 %x, 1, 0, %p;
    st.global.u32 [%out+{4 * count}], %x;
    mov.u64 %t2, %clock64; mov.u64 %t3, %globaltimer;
    setp.le.u64 %p, %t0, %t2;
    setp.le.and.u64 %p, %t1, %t3, %p;
    selp.b32 %x, 1, 0, %p;
    st.global.u32 [%out+{4 * count + 4}], %x;
    ret;
}}
"""


def wanted_registers(block: tuple[int, ...], thread: tuple[int, ...]) -> list[int]:
    """A row for each coordinate of the grid and the block, x first."""
    number = thread[0] + BLOCK[0] * (thread[1] + BLOCK[1] * thread[2])
    lane = number % 32
    bit = 1 << lane
    full = (1 << 32) - 1
    masks = [bit, bit - 1, 2 * bit - 1, full ^ (2 * bit - 1), full ^ (bit - 1)]
    shared = [DYNAMIC, 100 + DYNAMIC]
    return [
        *thread,
        *BLOCK,
        *block,
        *GRID,
        *block,
        *GRID,
        0,
        0,
        0,
        1,
        1,
        1,
        lane,
        number // 32,
        *masks,
        0,
        1,
        *shared,
    ]


def test_special_registers(kernels: Loader, space: Space) -> None:
    function = kernels.function(kernels.module(special_source().encode(), 1), "special")
    threads = int(np.prod(GRID) * np.prod(BLOCK))
    columns = len(REGISTERS) + len(INEXACT) + 2
    out = space.put(np.zeros((threads, columns), np.uint32))
    space.launch(function, GRID, BLOCK, out, shared=DYNAMIC)
    space.check()
    got = space.read(out, threads * columns, np.uint32).reshape(threads, columns)
    row = iter(got.tolist())
    for block in np.ndindex(GRID[::-1]):
        for thread in np.ndindex(BLOCK[::-1]):
            found = next(row)
            wanted = wanted_registers(block[::-1], thread[::-1])
            assert dict(zip(REGISTERS, found, strict=False)) == dict(
                zip(REGISTERS, wanted, strict=True)
            )
            nwarpid, smid, nsmid = found[len(wanted) : len(wanted) + 3]
            assert wanted[REGISTERS.index("warpid")] < nwarpid and smid < nsmid
            assert found[-2:] == [0, 1]


@pytest.mark.parametrize("name", ["reserved_smem_offset_1", "reserved_smem_offset_begin"])
def test_reserved_shared_memory_is_there(kernels: Loader, space: Space, name: str) -> None:
    """Cooperative groups keep what large tiles share there: it overlaps nothing of the kernel's."""
    text = f"""
.version 8.6
.target sm_90
.address_size 64
.extern .shared .align 4 .b8 dynamic[];
.visible .entry reserved(.param .u64 out)
{{
    .shared .align 4 .b32 own;
    .reg .b32 %x, %r; .reg .b64 %out;
    ld.param.u64 %out, [out];
    mov.u32 %r, %{name};
    mov.u32 %x, 11; st.shared.u32 [own], %x;
    mov.u32 %x, 22; st.shared.u32 [dynamic], %x;
    mov.u32 %x, 33; st.shared.u32 [%r], %x; st.shared.u32 [%r+284], %x;
    ld.shared.u32 %x, [own]; st.global.u32 [%out], %x;
    ld.shared.u32 %x, [dynamic]; st.global.u32 [%out+4], %x;
    ld.shared.u32 %x, [%r+284]; st.global.u32 [%out+8], %x;
    ret;
}}
"""
    function = kernels.function(kernels.module(text.encode(), 1), "reserved")
    out = space.put(np.zeros(3, np.uint32))
    space.launch(function, 1, 1, out, shared=4)
    space.check()
    assert space.read(out, 3, np.uint32).tolist() == [11, 22, 33]
