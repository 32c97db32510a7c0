"""Accesses that are proved to be apart are, and kernels that resemble them still meet.

Kernels of the form `if (t < h) s[t] = … s[t + h] …`, and ones that are nearly of it: an interpreter
whose threads go in step, a load of all before a store of any, executes each, and its results are
compared with the device's. Where a thread stores what another one loads in the same round, the
compiler must have put a meeting place between.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.compiler import lower
from rankfold.proxy.hal.soft.compiler.uniformity import Uniformity
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.inline import flatten
from rankfold.proxy.ptx.module import parse_module
from rankfold.proxy.ptx.values import Values
from softgpu.harness import Device, Space, loader

REDUCTIONS = Path(__file__).with_name("reductions.cu")
THREADS = 32
MEMORY = 2048  # bytes of shared memory
FIRST = 256  # where the array begins in it
WORD = 1 << 32


@dataclass(frozen=True)
class Round:
    """Threads whose `compared` is `test` h + `more` load a word at t + h and store one at t, of an
    array that begins at one place, or for `each` thread at one of two.

    `h`: how it comes about (HALVES); `number`: what it is made of. `t`: which word is a thread's
    (PLACES); so is `compared`. `stride`, `wide`: bytes from a word to the next, and whether all of
    them are loaded and stored. `shift`: the offset of the loaded word in bytes. `exchanged`:
    the word at t is loaded, and the one further on stored. `late`: between the two a thread counts
    as long as its value says. `predicated`: without branches. `halving`: again with h / 2 until
    that is 0, with this between: "bar.sync 0", "bar.warp.sync -1", or nothing; or, if it is
    `inside`, between load and store. `leaping`: instead, once more with an h whose address is the
    same."""

    h: str = "half"
    number: int = 8
    t: str = "me"
    compared: str = "me"
    test: str = "lt.u32"
    more: int = 0
    each: bool = False
    stride: int = 4
    wide: bool = False
    shift: int = 0
    exchanged: bool = False
    late: bool = False
    predicated: bool = False
    halving: str | None = None
    inside: bool = False
    leaping: bool = False


# Each leaves it in %h. The first ones are the same for all threads.
SAME_HALVES = {
    "constant": "mov.u32 %h, {number};",
    "half": "mov.u32 %x, %ntid.x; shr.u32 %h, %x, 1;",
    "parameter": "ld.param.u32 %h, [bound];",
    "far": "mov.u32 %h, {far};",  # so that addresses wrap round
    "chosen": "ld.param.u32 %x, [bound]; mov.u32 %h, {number}; setp.gt.u32 %q, %x, 9;"
    "@%q bra C{n}; mov.u32 %h, 3; C{n}:",
}
HALVES = {
    **SAME_HALVES,
    "own": "shr.u32 %x, %me, 1; add.u32 %h, %x, 1;",
    "loaded": "and.b32 %h, %in, 15;",
    "branch": "mov.u32 %h, {number}; and.b32 %x, %in, 4; setp.eq.u32 %q, %x, 0; @%q bra C{n};"
    "mov.u32 %h, 5; C{n}:",
    "counted": "mov.u32 %h, 24; and.b32 %c, %in, 3; L{n}: shr.u32 %h, %h, 1;"
    "setp.eq.u32 %q, %c, 0; @%q bra C{n}; sub.u32 %c, %c, 1; bra L{n}; C{n}:",
}
PLACES = {
    "me": "mov.u32 {to}, %me;",
    "mirrored": "xor.b32 {to}, %me, 31;",
    "next": "add.u32 {to}, %me, 1;",
    "lower": "sub.u32 {to}, %me, 16;",
    "found": "and.b32 {to}, %in, 31;",
}
TESTS = {
    "lt.u32": np.less,
    "le.u32": np.less_equal,
    "lt.s32": np.less,
    "le.s32": np.less_equal,
    "eq.u32": np.equal,
    "ne.u32": np.not_equal,
    "ge.u32": np.greater_equal,
}

rounds = st.builds(
    Round,
    h=st.sampled_from([*HALVES]),
    number=st.integers(0, 33),
    t=st.sampled_from([*PLACES]),
    compared=st.sampled_from([*PLACES]),
    test=st.sampled_from([*TESTS]),
    more=st.sampled_from([0, 0, 0, -1, 1]),
    each=st.booleans(),
    stride=st.sampled_from([4, 4, 8]),
    wide=st.booleans(),
    shift=st.sampled_from([0, 0, 0, -8, 8]),
    exchanged=st.booleans(),
    late=st.booleans(),
    predicated=st.booleans(),
    halving=st.sampled_from([None, None, "bar.sync 0;", "bar.warp.sync -1;", ""]),
    inside=st.booleans(),
    leaping=st.booleans(),
)
near = st.tuples(  # the idiom, with few changes
    st.sampled_from(
        [
            Round(),
            Round(h="constant"),
            Round(halving="bar.sync 0;"),
            Round(halving="bar.warp.sync -1;"),
        ]
    ),
    rounds,
    st.sets(st.sampled_from([*Round.__dataclass_fields__]), max_size=3),
).map(lambda made: replace(made[0], **{name: getattr(made[1], name) for name in made[2]}))


def sensible(it: Round) -> Round:
    """Without what no program may do: threads of a warp that are at no barrier, or addresses
    outside of memory."""
    wide = it.wide and it.stride == 8
    halving = it.halving if it.h != "far" else None
    if halving and it.h not in SAME_HALVES:
        halving = ""
    inside = it.inside and bool(halving)
    leaping = it.leaping and halving is not None and it.h == "half"
    late = it.late and not it.predicated and not inside
    return replace(it, wide=wide, halving=halving, late=late, inside=inside, leaping=leaping)


kernels_of = st.lists(st.one_of(near, rounds).map(sensible), min_size=1, max_size=3)


# ---- to PTX --------------------------------------------------------------------------------------


def far(it: Round) -> int:
    return WORD // it.stride + it.number


def leap(it: Round) -> int:
    """Times half the threads, it has the same address once more."""
    return WORD // it.stride // (THREADS // 2) + 1


def written(it: Round, n: int) -> str:
    how, value = ("u64", "%vd") if it.wide else ("u32", "%v")
    further = f"[%o+{it.shift}]"
    load, store = ("[%a]", further) if it.exchanged else (further, "[%a]")
    shift = {4: 2, 8: 3}[it.stride]
    change = f"mad.lo.{how} {value}, {value}, 3, 1;"
    late = (
        f"and.b32 %y, %v, 63; add.u32 %y, %y, 1; T{n}: setp.le.u32 %q, %y, 1; @%q bra U{n};"
        f"and.b32 %x, %y, 1; setp.eq.u32 %q, %x, 1; shr.u32 %x, %y, 1; @%q mad.lo.u32 %x, %y, 3, 1;"
        f"mov.u32 %y, %x; bra T{n}; U{n}: add.u32 %v, %v, %y; cvt.u64.u32 %z, %y;"
        "add.u64 %vd, %vd, %z;"
    )
    narrow = "cvt.u32.u64 %v, %vd;" if it.wide else "cvt.u64.u32 %vd, %v;"
    body = [
        f"ld.shared.{how} {value}, {load};",
        narrow,
        late * it.late,
        change,
        f"st.shared.{how} {store}, {value};",
    ]
    if it.inside:
        body = [
            f"@!%p bra I{n};",
            *body[:2],
            f"I{n}: {it.halving} @!%p bra N{n};",
            *body[2:],
            f"N{n}:",
        ]
    elif it.predicated:
        body = [f"@%p {line}" if "shared" in line else line for line in body]
    else:
        body = [f"@!%p bra N{n};", *body, f"N{n}:"]
    again = f"mul.lo.u32 %h, %h, {leap(it)}; setp.lt.u32 %q, %h, {WORD // it.stride + 64};"
    if not it.leaping:
        again = "shr.u32 %h, %h, 1; setp.ne.u32 %q, %h, 0;"
    return "\n".join(
        [
            HALVES[it.h].format(n=n, number=it.number, far=far(it)),
            PLACES[it.t].format(to="%t"),
            PLACES[it.compared].format(to="%e"),
            f"H{n}:" if it.halving is not None else "",
            f"add.u32 %b, %h, {it.more}; setp.{it.test} %p, %e, %b;",
            f"shl.b32 %a, %t, {shift}; add.u32 %a, %base, %a;",
            f"and.b32 %x, %in, 1; shl.b32 %x, %x, {shift}; add.u32 %a, %a, %x;" * it.each,
            f"shl.b32 %o, %h, {shift}; add.u32 %o, %a, %o;",
            *body,
            f"{it.halving * (not it.inside)} {again} @%q bra H{n};"
            if it.halving is not None
            else "",
            "bar.sync 0;",
        ]
    )


def ptx_of(kernel: list[Round]) -> str:
    body = "\n".join(written(each, n) for n, each in enumerate(kernel))
    words = range(0, MEMORY, 4 * THREADS)
    fill = "".join(f"ld.global.u32 %x, [%rd+{at}]; st.shared.u32 [%m+{at}], %x;" for at in words)
    drain = "".join(f"ld.shared.u32 %x, [%m+{at}]; st.global.u32 [%rd+{at}], %x;" for at in words)
    return f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 data, .param .u32 bound)
{{
.reg .b32 %h, %x, %y, %c, %me, %in, %t, %e, %b, %a, %o, %v, %base, %m;
.reg .b64 %rd, %w, %vd, %z; .reg .pred %p, %q;
.shared .align 8 .b8 memory[{MEMORY}];
mov.u32 %me, %tid.x; ld.param.u64 %rd, [data]; mul.wide.u32 %w, %me, 4; add.u64 %rd, %rd, %w;
mov.u32 %m, memory; add.u32 %base, %m, {FIRST}; shl.b32 %x, %me, 2; add.u32 %m, %m, %x;
ld.global.u32 %in, [%rd]; mov.u64 %vd, 0; mov.u32 %v, 0;
{fill}
bar.sync 0;
{body}
{drain}
ret;
}}
"""


# ---- in step -------------------------------------------------------------------------------------


def halves(it: Round, own: np.ndarray[Any, Any], bound: int) -> np.ndarray[Any, Any]:
    me = np.arange(THREADS)
    found: Any = {
        "constant": it.number,
        "half": THREADS // 2,
        "parameter": bound,
        "far": far(it),
        "chosen": it.number if bound > 9 else 3,
        "own": me // 2 + 1,
        "loaded": own & 15,
        "branch": np.where(own & 4, 5, it.number),
        "counted": 12 >> (own & 3),
    }[it.h]
    return np.broadcast_to(found, THREADS).astype(np.int64)


def place(name: str, own: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    me = np.arange(THREADS)
    found = {"me": me, "mirrored": me ^ 31, "next": me + 1, "lower": me - 16, "found": own & 31}
    return found[name].astype(np.int64)


def late(value: int) -> int:
    value = (value & 63) + 1
    while value > 1:
        value = 3 * value + 1 if value % 2 else value // 2
    return value


class InStep:
    """`crosses`: a thread has stored what another one has loaded in the same round."""

    def __init__(self, words: np.ndarray[Any, Any], bound: int):
        self.memory = words.copy().view(np.uint8)
        self.own, self.bound = words[:THREADS].astype(np.int64), bound
        self.crosses = False

    def run(self, it: Round) -> None:
        h = halves(it, self.own, self.bound)
        live = np.ones(THREADS, bool)
        while live.any():
            self.once(it, h, live)
            h = h * leap(it) % WORD if it.leaping else h // 2
            live &= (h > 0) & (h < WORD // it.stride + 64) & (it.halving is not None)

    def once(self, it: Round, h: np.ndarray[Any, Any], live: np.ndarray[Any, Any]) -> None:
        sides = [place(it.compared, self.own), h + it.more]
        if "s32" in it.test:
            sides = [(side + WORD // 2) % WORD - WORD // 2 for side in sides]
        on = live & TESTS[it.test](*(side if "s32" in it.test else side % WORD for side in sides))
        kind = np.uint64 if it.wide else np.uint32
        size = np.dtype(kind).itemsize
        at = FIRST + it.stride * (place(it.t, self.own) + it.each * (self.own & 1))
        further = (at + it.stride * h + it.shift) % WORD
        loads, stores = (at, further) if it.exchanged else (further, at)
        values = {}
        for t in np.flatnonzero(on):
            value = int(self.memory[loads[t] : loads[t] + size].view(kind)[0])
            value += late(value) if it.late else 0
            values[t] = (3 * value + 1) % (1 << 8 * size)
        for t, value in values.items():
            self.memory[stores[t] : stores[t] + size] = np.array([value], kind).view(np.uint8)
            others = [u for u in values if u != t]
            self.crosses |= any(abs(loads[u] - stores[t]) < size for u in others)


def meets(kernel: list[Round]) -> int:
    """How many places there are at which only our own instruction lets threads wait."""
    module = parse_module(ptx_of(kernel))
    made = lower.Kernel(module, module.functions["k"], "k")
    return sum(c.instr is not None and c.instr.op[0] == "meet" for c in made.graph.cuts.values())


def inputs(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, WORD, MEMORY // 4, dtype=np.uint32)


def check(kernels: Loader, kernel: list[Round], seed: int, bound: int) -> None:
    words = inputs(seed)
    reference = InStep(words, bound)
    for each in kernel:
        reference.run(each)
    module = kernels.module(ptx_of(kernel).encode(), 1)
    with Device() as device:
        space = device.space()
        at = space.put(words)
        space.launch(kernels.function(module, "k"), 1, THREADS, at, bound)
        space.check()
        got = space.read(at, len(words), np.uint32)
    np.testing.assert_array_equal(got, reference.memory.view(np.uint32))


def still_meets(it: Round, seed: int, bound: int) -> None:
    reference = InStep(inputs(seed), bound)
    reference.run(it)
    found = meets([it])
    event(f"crosses: {reference.crosses}, meets: {found > 0}")
    assert found or it.inside or not reference.crosses


@pytest.fixture(scope="module")
def kernels() -> Iterator[Loader]:
    """A loader of its own: these kernels are not worth keeping."""
    with (
        tempfile.TemporaryDirectory(prefix="rf-") as folder,
        loader(Path(folder) / "cache", Path(folder) / "c.sock") as made,
    ):
        yield made


COMMON: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
GIVEN: dict[str, Any] = {"seed": st.integers(0, 9), "bound": st.integers(0, 20)}


@settings(max_examples=100, **COMMON)
@given(it=st.one_of(near, rounds).map(sensible), **GIVEN)
def test_threads_meet_where_one_stores_what_another_one_loads(
    it: Round, seed: int, bound: int
) -> None:
    still_meets(it, seed, bound)


@settings(max_examples=20, **COMMON)
@given(kernel=kernels_of, **GIVEN)
def test_as_in_step(kernels: Loader, kernel: list[Round], seed: int, bound: int) -> None:
    check(kernels, kernel, seed, bound)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=5000, **COMMON)
@given(it=st.one_of(near, rounds).map(sensible), **GIVEN)
def test_threads_meet_where_many_store_what_others_load(it: Round, seed: int, bound: int) -> None:
    still_meets(it, seed, bound)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=1000, **COMMON)
@given(kernel=kernels_of, **GIVEN)
def test_many_as_in_step(kernels: Loader, kernel: list[Round], seed: int, bound: int) -> None:
    check(kernels, kernel, seed, bound)


BARRIER = "bar.sync 0;"
APART = [
    Round(),
    Round(halving=BARRIER),
    Round(halving="bar.warp.sync -1;"),
    Round(halving=BARRIER, test="lt.s32"),
    Round(halving=BARRIER, predicated=True),
    Round(h="constant", late=True),
    Round(halving=BARRIER, exchanged=True),
    Round(halving=BARRIER, stride=8),
    Round(halving=BARRIER, stride=8, wide=True),
    Round(halving=BARRIER, shift=8),
    Round(halving=BARRIER, h="chosen"),
    Round(h="constant"),
    Round(h="constant", test="le.u32", more=-1),
    Round(t="mirrored", compared="mirrored"),
    Round(t="found", compared="found"),
]
MAY_MEET = [
    Round(test="le.u32"),
    Round(halving=BARRIER, test="le.s32"),
    Round(halving=BARRIER, more=1),
    Round(halving=BARRIER, more=-1),  # h could be 0
    Round(halving=BARRIER, shift=-8),
    Round(halving=BARRIER, test="ge.u32"),
    Round(halving=""),
    Round(compared="next", shift=-8),
    Round(compared="mirrored"),
    Round(h="far"),
    Round(h="parameter"),
    Round(h="own"),
    Round(h="loaded"),
    Round(h="branch"),
    Round(h="counted"),
    Round(h="constant", test="ge.u32", shift=8),
    Round(h="constant", test="ne.u32", shift=8),
    Round(t="lower", compared="lower", test="lt.s32"),
    Round(each=True),
    Round(halving=BARRIER, inside=True),
    Round(halving=BARRIER, leaping=True),
]


@pytest.mark.parametrize("it", APART, ids=str)
def test_disjoint_accesses_need_no_meeting(kernels: Loader, it: Round) -> None:
    assert meets([it]) == 0
    check(kernels, [it], 1, 11)


@pytest.mark.parametrize("it", MAY_MEET, ids=str)
def test_nearly_disjoint_accesses_meet(kernels: Loader, it: Round) -> None:
    assert meets([it]) > 0
    check(kernels, [it], 1, 11)


@pytest.mark.parametrize(
    "name", ["halving", "launched", "unrolled", "shuffled", "greatest", "paired"]
)
def test_reductions(kernels: Loader, space: Space, name: str) -> None:
    function = kernels.function(kernels.module(cuda.ptx(REDUCTIONS).encode(), 1), name)
    values = np.random.default_rng(5).permutation(5 * 256).reshape(5, 256) % 251
    out = space.alloc(4 * 5)
    block = (32, 8) if name == "paired" else 256
    space.launch(function, 5, block, space.put(values.astype(np.float32)), out, shared=4 * 256)
    space.check()
    wanted = values.sum(1)
    if name == "paired":
        wanted = (values**2).sum(1) - wanted
    if name == "greatest":
        wanted = np.array([_greatest(row) for row in values])
    np.testing.assert_array_equal(space.read(out, 5, np.float32), wanted)


def _greatest(row: np.ndarray[Any, Any]) -> int:
    """The place of the greatest value; among equal ones, the one that a tree finds."""
    at = np.arange(len(row))
    while len(at) > 1:
        low, high = np.split(at, 2)
        at = np.where(row[high] > row[low], high, low)
    return int(at[0])


# ---- what is the same for all threads ------------------------------------------------------------


def uniformity(body: str) -> Uniformity:
    """The uniformity of a kernel whose only loop, or whose only branch, is BODY."""
    module = parse_module(f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 data, .param .u32 bound)
{{
.reg .b32 %n, %x, %bound; .reg .b64 %rd; .reg .pred %same, %own, %found, %q;
ld.param.u64 %rd, [data]; ld.param.u32 %bound, [bound]; mov.u32 %x, %tid.x; mov.u32 %n, 0;
setp.eq.u32 %same, %bound, 7; setp.eq.u32 %own, %x, 7; ld.global.u32 %x, [%rd];
setp.eq.u32 %found, %x, 7;
{body}
st.global.u32 [%rd], %n;
ret;
}}
""")
    flat = flatten(module, module.functions["k"])
    return Uniformity(Values(flat, {"data": 0, "bound": 8}))


LOOP = "LOOP: {} add.u32 %n, %n, 1; setp.lt.u32 %q, %n, {}; @%q bra LOOP;"


@pytest.mark.parametrize(
    ("body", "joins"),
    [
        ("bar.sync 0;", True),
        ("bar.warp.sync -1;", True),
        ("@%same bra A; add.u32 %n, %n, 1; A: bar.sync 0;", True),
        ("@%own bra A; add.u32 %x, %x, 1; A: bar.sync 0;", True),
        ("", False),
        ("bar.warp.sync 15;", False),
        ("bar.sync 1, 32;", False),
        ("bar.arrive 0, 64;", False),
        ("shfl.sync.down.b32 %x, %x, 1, 31, 15;", False),
        ("@%own bra A; add.u32 %n, %n, 1; A: bar.sync 0;", False),  # how often, differs
        ("@%same bra A; bar.sync 0; A:", False),
        ("@%own bra A; bar.sync 0; bra B; A: bar.sync 0; B:", False),
    ],
)
def test_whether_threads_wait_for_each_other_in_each_round(body: str, joins: bool) -> None:
    found = uniformity(LOOP.format(body, "%bound"))
    (head,) = [b.number for b in found.blocks.all[1:] if b.instrs[0].target == "LOOP"]
    assert found.joins_each_iteration(head) is joins


@pytest.mark.parametrize(
    ("body", "uniform"),
    [
        ("@%same bra A; add.u32 %n, %n, 1; A:", True),
        ("@%own bra A; add.u32 %n, %n, 1; A:", False),
        ("@%found bra A; add.u32 %n, %n, 1; A:", False),
        ("@%own ret;", True),  # all remaining lanes take the same branch
        ("mov.u32 %n, %ctaid.x; setp.gt.u32 %q, %n, 3; @%q bra A; mov.u32 %n, 0; A:", True),
        ("mov.u32 %n, %tid.y; setp.gt.u32 %q, %n, 3; @%q bra A; mov.u32 %n, 0; A:", False),
        ("vote.sync.any.pred %q, %own, -1; @%q bra A; mov.u32 %n, 0; A:", False),
        (LOOP.format("", "%bound"), True),
        (LOOP.format("", "%x"), False),
    ],
)
def test_whether_threads_go_the_same_way(body: str, uniform: bool) -> None:
    found = uniformity(body)
    assert all(found.branch_is_uniform(block.number) for block in found.blocks.all) is uniform


def test_values_that_differ_after_a_branch() -> None:
    """A branch by a value that another branch, or a loop that some leave earlier, has made."""
    ways = "@%{} bra A; add.u32 %n, %n, 1; A:"
    behind = "setp.eq.u32 %q, %n, 1; @%q bra B; add.u32 %n, %n, 5; B:"
    for which, uniform in (("same", True), ("own", False), ("found", False)):
        found = uniformity(ways.format(which) + behind)
        last = max(b.number for b in found.blocks.all if len(b.successors) > 1)
        assert found.branch_is_uniform(last) is uniform
    for bound, uniform in (("%bound", True), ("%x", False)):
        found = uniformity(LOOP.format("", bound) + behind)
        last = max(b.number for b in found.blocks.all if len(b.successors) > 1)
        assert found.branch_is_uniform(last) is uniform
