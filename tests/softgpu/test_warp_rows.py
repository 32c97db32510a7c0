"""Operations of a warp, by two groups of its lanes: those of a mask, and the others.
PTX ISA, 9.7.9.6 and 9.7.13."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES, signed

THREADS = 80  # the last warp is not whole
WARPS = 3
WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Lanes:
    """The values in the lanes of a group, by lane."""

    a: dict[int, int]
    b: dict[int, int]

    @property
    def mask(self) -> int:
        return sum(1 << lane for lane in self.a)


Answer = tuple[int | None, int | None]  # %d and %p; None: undefined
Reference = Callable[[Lanes, int], Answer]


@dataclass(frozen=True)
class Row:
    """`code` uses %a and %b (32 bits), %q (a is odd), %m (the group's lanes); gives %d and %p."""

    code: str
    reference: Reference


# ---- what each gives ---------------------------------------------------------------------------


def shfl(mode: str, amount: Callable[[Lanes, int], int], c: int, predicate: bool) -> Reference:
    """As the ISA's page on shfl.sync has it."""
    segment, clamp = c >> 8 & 31, c & 31

    def reference(lanes: Lanes, lane: int) -> Answer:
        b = amount(lanes, lane) & 31
        low = lane & segment
        high = low | clamp & ~segment
        place, inside = {
            "up": (lane - b, lane - b >= high),
            "down": (lane + b, lane + b <= high),
            "bfly": (lane ^ b, lane ^ b <= high),
            "idx": (low | b & ~segment, (low | b & ~segment) <= high),
        }[mode]
        value = lanes.a.get(place if inside else lane)
        return value, int(inside) if predicate else None

    return reference


def shuffles() -> list[Row]:
    rows = []
    for mode in ("up", "down", "bfly", "idx"):
        for width in (32, 16, 4):
            c = (32 - width) << 8 | (0 if mode == "up" else 31)
            for b, amount in (("%b", lambda lanes, lane: lanes.b[lane]), ("3", lambda *_: 3)):
                name = f"shfl.sync.{mode}.b32"
                rows += [
                    Row(f"{name} %d|%p, %a, {b}, {c:#x}, %m;", shfl(mode, amount, c, True)),
                    Row(f"{name} %d, %a, {b}, {c:#x}, %m;", shfl(mode, amount, c, False)),
                ]
    odd = shfl("idx", lambda lanes, lane: lanes.b[lane], 0x0907, True)  # no width has this
    return [*rows, Row("shfl.sync.idx.b32 %d|%p, %a, %b, 0x0907, %m;", odd)]


def votes() -> list[Row]:
    def predicate(test: Callable[[list[bool]], bool], flip: bool) -> Reference:
        return lambda lanes, _: (None, int(test([(a & 1 != 0) != flip for a in lanes.a.values()])))

    def ballot(flip: bool) -> Reference:
        return lambda lanes, _: (
            sum(1 << lane for lane, a in lanes.a.items() if (a & 1 != 0) != flip),
            None,
        )

    rows = []
    for q, flip in (("%q", False), ("!%q", True)):
        rows += [
            Row(f"vote.sync.all.pred %p, {q}, %m;", predicate(all, flip)),
            Row(f"vote.sync.any.pred %p, {q}, %m;", predicate(any, flip)),
            Row(f"vote.sync.uni.pred %p, {q}, %m;", predicate(lambda v: len(set(v)) == 1, flip)),
            Row(f"vote.sync.ballot.b32 %d, {q}, %m;", ballot(flip)),
        ]
    # The order in which CUB writes it, which ptxas takes too.
    return [*rows, Row("vote.ballot.sync.b32 %d, %q, %m;", ballot(False))]


def matches() -> list[Row]:
    """Rows of match instructions with few different values, in 32 bits and in the upper half of
    64."""

    def anyone(lanes: Lanes, lane: int) -> Answer:
        same = (other for other, a in lanes.a.items() if a & 1 == lanes.a[lane] & 1)
        return sum(1 << other for other in same), None

    def everyone(lanes: Lanes, _: int) -> Answer:
        same = len({a & 1 for a in lanes.a.values()}) == 1
        return lanes.mask if same else 0, int(same)

    small = ".reg .b32 x; .reg .b64 y; and.b32 x, %a, 1; mov.b64 y, {0, x};"
    return [
        Row(f"{small} match.any.sync.b32 %d, x, %m;", anyone),
        Row(f"{small} match.any.sync.b64 %d, y, %m;", anyone),
        Row(f"{small} match.all.sync.b32 %d|%p, x, %m;", everyone),
        Row(f"{small} match.all.sync.b64 %d|%p, y, %m;", everyone),
    ]


def reductions() -> list[Row]:
    def of(function: Callable[[int, int], int], sign: bool = False) -> Reference:
        def reference(lanes: Lanes, _: int) -> Answer:
            values = [signed(a, 32) if sign else a for a in lanes.a.values()]
            return reduce(function, values) & WORD, None

        return reference

    rows = [
        Row(f"redux.sync.{name}.{'s' if sign else 'u'}32 %d, %a, %m;", of(function, sign))
        for name, function in (("add", operator.add), ("min", min), ("max", max))
        for sign in (False, True)
    ]
    bitwise = (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor))
    return rows + [Row(f"redux.sync.{n}.b32 %d, %a, %m;", of(function)) for n, function in bitwise]


def others() -> list[Row]:
    """The leading lane, the active lanes, and memory that lanes exchange behind their barrier."""

    def leader(lanes: Lanes, lane: int) -> Answer:
        first = min(lanes.a)  # the ISA leaves the choice open
        return first, int(lane == first)

    def neighbour(lanes: Lanes, lane: int) -> Answer:
        above = [other for other in lanes.a if other > lane]
        return lanes.a[min(above, default=min(lanes.a))], None

    exchange = """
        .reg .b32 at, up, x; .reg .pred none;
        shl.b32 at, %me, 2;
        mov.u32 x, slots;
        add.u32 at, at, x;
        bar.warp.sync %m;
        st.shared.b32 [at], %a;
        bar.warp.sync %m;
        mov.u32 up, %lanemask_gt;
        and.b32 up, up, %m;
        setp.eq.u32 none, up, 0;
        selp.b32 up, %m, up, none;
        brev.b32 up, up;
        bfind.shiftamt.u32 up, up;  // the lowest lane
        and.b32 x, %me, 31;
        sub.u32 up, up, x;
        shl.b32 up, up, 2;
        add.u32 at, at, up;
        ld.shared.b32 %d, [at];"""
    return [
        Row("elect.sync %d|%p, %m;", leader),
        Row("activemask.b32 %d;", lambda lanes, _: (lanes.mask, None)),
        Row(exchange, neighbour),
    ]


ROWS = [*shuffles(), *votes(), *matches(), *reductions(), *others()]


def without_members() -> list[Row]:
    """As before there was .sync: lanes that part come together again before they act."""

    def without_mask(row: Row) -> Row:
        return Row(row.code.replace(".sync", "").replace(", %m;", ";"), row.reference)

    rows = [without_mask(row) for row in [*shuffles(), *votes()]]
    everyone = "setp.eq.u32 all, 0, 0;"

    def present(lanes: Lanes, _: int) -> Answer:
        return lanes.mask, None

    def odd_and_all(lanes: Lanes, lane: int) -> Answer:
        odd = sum(1 << n for n, a in lanes.a.items() if a & 1)
        return odd if odd >> lane & 1 else 0, int(len(lanes.a) > 0)

    skipped = f"""
        .reg .pred all; .reg .b32 t; {everyone}
        @!%q bra OVER;
        vote.ballot.b32 %d, all;
    OVER:
        vote.all.pred %p, all;
        vote.ballot.b32 t, all;
        setp.eq.and.u32 %p, t, %m, %p;"""
    rounds = f"""
        .reg .pred all, more; .reg .b32 n; {everyone}
        and.b32 n, %a, 7;
    AGAIN:
        vote.any.pred more, all;
        setp.ne.u32 more, n, 0;
        sub.u32 n, n, 1;
        @more bra AGAIN;
        vote.ballot.b32 %d, all;"""
    barrier = f"""
        .reg .pred all; {everyone}
        vote.ballot.b32 %d, all;
        bar.warp.sync %m;"""
    return [*rows, Row(skipped, odd_and_all), Row(rounds, present), Row(barrier, present)]


OLD_ROWS = without_members()


# ---- the kernel --------------------------------------------------------------------------------


def source(rows: list[Row] = ROWS, version: str = "8.6", target: str = "sm_90") -> str:
    parts = []
    for index, row in enumerate(rows):
        parts.append(f"""
    mov.b32 %d, 0;
    setp.ne.u32 %p, 0, 0;
    @%inside bra IN{index};
    not.b32 %m, %mask;
    and.b32 %m, %m, %there;
    {{ {row.code} }}
    bra JOIN{index};
IN{index}:
    and.b32 %m, %mask, %there;
    {{ {row.code} }}
JOIN{index}:
    selp.b32 %t, 1, 0, %p;
    st.global.v2.b32 [%out+{8 * THREADS * index}], {{%d, %t}};""")
    return f"""
.version {version}
.target {target}
.address_size 64
.visible .entry warps(.param .u64 in, .param .u64 masks, .param .u64 out)
{{
    .shared .align 4 .b32 slots[{THREADS}];
    .reg .b32 %me, %a, %b, %m, %d, %t, %mask, %there;
    .reg .b64 %in, %out, %o, %where;
    .reg .pred %p, %q, %inside;
    mov.u32 %me, %tid.x;
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    ld.param.u64 %where, [masks];
    mul.wide.u32 %o, %me, 8;
    add.u64 %in, %in, %o;
    add.u64 %out, %out, %o;
    ld.global.v2.b32 {{%a, %b}}, [%in];
    and.b32 %t, %a, 1;
    setp.eq.u32 %q, %t, 1;
    shr.u32 %t, %me, 5;
    mul.wide.u32 %o, %t, 8;
    add.u64 %where, %where, %o;
    ld.global.v2.b32 {{%mask, %there}}, [%where];
    mov.u32 %t, %lanemask_eq;
    and.b32 %t, %t, %mask;
    setp.ne.u32 %inside, %t, 0;
    {"".join(parts)}
    ret;
}}
"""


def old_source() -> str:
    """For a device that still has them without .sync."""
    return source(OLD_ROWS, "6.3", "sm_50")


def check(
    kernels: Loader, space: Space, data: Array, masks: list[int], rows: list[Row], text: str
) -> None:
    function = kernels.function(kernels.module(text.encode(), 1), "warps")
    there = [sum(1 << lane for lane in range(min(32, THREADS - 32 * w))) for w in range(WARPS)]
    out = space.put(np.zeros((len(rows), THREADS, 2), np.uint32))
    where = space.put(np.array([*zip(masks, there, strict=True)], np.uint32))
    space.launch(function, 1, THREADS, space.put(data), where, out)
    space.check()
    got = space.read(out, len(rows) * THREADS * 2, np.uint32).reshape(len(rows), THREADS, 2)
    values = data.tolist()
    for row, results in zip(rows, got.tolist(), strict=True):
        for thread, (d, p) in enumerate(results):
            warp, lane = divmod(thread, 32)
            inside = masks[warp] >> lane & 1
            lanes = [
                n for n in range(32) if there[warp] >> n & 1 and masks[warp] >> n & 1 == inside
            ]
            held = [values[32 * warp + n] for n in lanes]
            group = Lanes(
                {n: v[0] for n, v in zip(lanes, held, strict=True)},
                {n: v[1] for n, v in zip(lanes, held, strict=True)},
            )
            wanted = row.reference(group, lane)
            for name, have, want in (("d", d, wanted[0]), ("p", p, wanted[1])):
                assert want is None or have == want, (
                    f"{row.code} lane {lane} of {group.mask:#x}: {name} is {have:#x}, not {want:#x}"
                )


def operands() -> st.SearchStrategy[Array]:
    def made(seed: int, alike: bool) -> Array:
        data = np.random.default_rng(seed).integers(0, 2**32, (THREADS, 2), np.uint32)
        if alike:
            data[:32, 0] |= 1
            data[32:64, 0] = data[32, 0]
        return data

    return st.builds(made, st.integers(0, 2**32 - 1), st.booleans())


MASK = st.one_of(
    st.integers(0, WORD), st.sampled_from([0, WORD, 1, 1 << 31, 0x55555555, 0xFFFF, 0xFFFF0000])
)


@EXAMPLES
@given(data=operands(), masks=st.lists(MASK, min_size=WARPS, max_size=WARPS))
def test_warps_in_two_groups(kernels: Loader, space: Space, data: Array, masks: list[int]) -> None:
    check(kernels, space, data, masks, ROWS, source())


@EXAMPLES
@given(data=operands(), masks=st.lists(MASK, min_size=WARPS, max_size=WARPS))
def test_warps_whose_lanes_name_no_members(
    kernels: Loader, space: Space, data: Array, masks: list[int]
) -> None:
    check(kernels, space, data, masks, OLD_ROWS, old_source())
