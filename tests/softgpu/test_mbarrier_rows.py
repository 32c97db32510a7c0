"""mbarrier: what one thread sees of a barrier of its own, and blocks whose threads wait for each
other. Also copies that arrive at a barrier when they complete. PTX ISA, 9.7.9.25 and 9.7.13.15."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import cuda
import numpy as np
import pytest
from hypothesis import given

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.bytewise import Row, check, inputs
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES

SEQUENCES = 16
STEPS = 24
SOURCE = Path(__file__).with_name("mbarriers.cu")


# ---- one thread ----------------------------------------------------------------------------------


@dataclass
class Barrier:
    """As the ISA describes it."""

    expected: int
    pending: int = 0
    tx: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.expected

    def settle(self) -> None:
        if self.pending == self.tx == 0:
            self.phase += 1
            self.pending = self.expected


@dataclass
class Sequence:
    """Instructions that keep the rules, and what each look at the barrier gives: a byte."""

    random: random.Random
    barrier: Barrier
    code: list[str] = field(default_factory=list)
    wanted: bytearray = field(default_factory=bytearray)
    token: tuple[int, int] | None = None  # its phase, and what was pending then

    def where(self) -> tuple[str, str]:
        """The space, and the address in it."""
        return self.random.choice(
            [
                (".shared", "[%sh]"),
                (".shared::cta", "[%sh]"),
                ("", "[%gsh]"),
                (".shared", "[%sh+0]"),
            ]
        )

    def operand(self, count: int) -> str:
        """A constant or a register."""
        if self.random.random() < 0.5:
            return str(count)
        self.code.append(f"mov.b32 n, {count};")
        return "n"

    def semantics(self, *kinds: str) -> str:
        return self.random.choice(["", *(f".{kind}.cta" for kind in kinds)])

    def see(self, value: int) -> None:
        self.code.append(f"st.global.u8 [%out+{len(self.wanted)}], y;")
        self.wanted.append(value)

    def arrive(self) -> None:
        b, (space, at) = self.barrier, self.where()
        drop = "_drop" if b.expected > 1 and self.random.random() < 0.2 else ""
        most = min(b.pending, b.expected - 1) if drop else b.pending
        if most < 1:
            return
        before = (b.phase, b.pending)
        how = self.random.choice(["", "count", "noComplete", "expect_tx"])
        count = self.random.randint(1, most) if how in ("count", "noComplete") else 1
        if how == "noComplete" and count == b.pending and b.tx == 0:
            how = "count"
        sem = self.semantics("release", "relaxed") if how != "noComplete" else ""
        name = f"mbarrier.arrive{drop}" + (f".{how}" if how not in ("", "count") else "")
        if how == "expect_tx":
            b.tx += (nbytes := self.random.randint(1, 99))
            last = f", {self.operand(nbytes)}"
        else:
            last = f", {self.operand(count)}" if how else ""
        self.code.append(f"{name}{sem}{space}.b64 t, {at}{last};")
        b.expected -= count if drop else 0
        b.pending -= count
        b.settle()
        self.token = before

    def transact(self) -> None:
        b, (space, at) = self.barrier, self.where()
        if b.tx > 0 and self.random.random() < 0.7:
            nbytes = self.random.choice([b.tx, self.random.randint(1, b.tx)])
            code = f"mbarrier.complete_tx{space}.b64 {at}, {self.operand(nbytes)};"
            b.tx -= nbytes
        elif b.pending:
            nbytes = self.random.randint(1, 5000)
            sem = self.random.choice(["", ".relaxed.cta"])
            code = f"mbarrier.expect_tx{sem}{space}.b64 {at}, {self.operand(nbytes)};"
            b.tx += nbytes
        else:
            return
        self.code.append(code)
        b.settle()

    def copied(self) -> None:
        """Without .noinc nothing changes."""
        b, (space, at) = self.barrier, self.where()
        noinc = b.pending > 0 and self.random.random() < 0.5
        self.code.append(f"cp.async.mbarrier.arrive{'.noinc' * noinc}{space}.b64 {at};")
        if noinc:
            b.pending -= 1
            b.settle()

    def look(self) -> None:
        b, (space, at) = self.barrier, self.where()
        sem = self.semantics("acquire", "relaxed")
        name = self.random.choice(["mbarrier.test_wait", "mbarrier.try_wait"])
        limit = ", 0x989680" if name.endswith("try_wait") and self.random.random() < 0.5 else ""
        if self.token and self.token[0] >= b.phase - 1 and self.random.random() < 0.6:
            self.code.append(f"{name}{sem}{space}.b64 p, {at}, t{limit};")
            over = self.token[0] < b.phase
        else:
            parity = self.random.randint(0, 1)
            asked = self.operand(parity)
            self.code.append(f"{name}.parity{sem}{space}.b64 p, {at}, {asked}{limit};")
            over = b.phase % 2 != parity
        self.code.append("selp.b32 y, 1, 0, p;")
        self.see(int(over))

    def count(self) -> None:
        if self.token:
            self.code.append("mbarrier.pending_count.b64 y, t;")
            self.see(self.token[1])


def sequence(seed: int) -> Row:
    """A row with instructions that a real device supports, too, in an order that it defines."""
    chance = random.Random(seed)
    made = Sequence(chance, Barrier(chance.choice([1, 2, 3, 200])))
    space, at = made.where()
    made.code.append(f"mbarrier.init{space}.b64 {at}, {made.operand(made.barrier.expected)};")
    for _ in range(STEPS):
        step = chance.choice(
            [made.arrive, made.arrive, made.transact, made.copied, made.look, made.look, made.count]
        )
        if len(made.wanted) < 32:
            step()
    made.code.append(f"mbarrier.inval{space}.b64 {at};")
    wanted = bytes(made.wanted)
    registers = ".reg .b32 n, y; .reg .b64 t; .reg .pred p;"
    return Row(f"{registers} {' '.join(made.code)}", lambda _: wanted)


def largest() -> Row:
    """As many arrivals and bytes as there may be."""
    most = (1 << 20) - 1
    look = "mbarrier.test_wait.shared.b64 p, [%sh], t; selp.b32 y, 1, 0, p; st.global.u8"
    code = f""".reg .b32 y; .reg .b64 t; .reg .pred p;
        mbarrier.init.shared.b64 [%sh], {most};
        mbarrier.arrive.expect_tx.shared.b64 t, [%sh], {most};
        mbarrier.arrive.shared.b64 t, [%sh], {most - 1};
        {look} [%out], y;
        mbarrier.complete_tx.shared.b64 [%sh], {most};
        {look} [%out+1], y;
        mbarrier.arrive.shared.b64 t, [%sh];
        mbarrier.pending_count.b64 y, t;
        st.global.u32 [%out+4], y;"""
    return Row(code, lambda _: bytes((0, 1, 0, 0)) + most.to_bytes(4, "little"))


def bulk() -> list[Row]:
    """Each thread copies for itself, in both directions, and to another place in shared memory."""
    regs = """.reg .b32 x, y, z, w, at; .reg .b64 t, q; .reg .pred p;
        add.u32 at, %sh, 24;
        mbarrier.init.shared.b64 [at], 1;
        createpolicy.fractional.L2::evict_first.b64 q, 1.0;
        mov.b32 x, -1; mov.b32 y, 16;
        st.shared.v4.b32 [%sh], {x, x, x, x};"""
    announce = " mbarrier.arrive.expect_tx.shared.b64 t, [at], 16;"
    ready = " mbarrier.test_wait.shared.b64 p, [at], t; selp.b32 x, 1, 0, p;"
    load, store = "ld.global.v4.b32 {x, y, z, w}, [%in];", "st.global.v4.b32 [%out], {x, y, z, w};"
    back = f"{ready} st.global.u8 [%out+16], x; ld.shared.v4.b32 {{x, y, z, w}}, [%sh]; {store}"
    copy, done = "cp.async.bulk", ".mbarrier::complete_tx::bytes"
    cluster = f"{copy}.shared::cluster"
    groups = f"{copy}.commit_group; {copy}.wait_group.read 0; {copy}.wait_group 0;"
    hint = ".L2::cache_hint"

    def copied(data: bytes) -> bytes:
        return data[:16] + b"\1"

    return [
        Row(f"{regs}{announce} {cluster}.global{done} [%sh], [%in], 16, [at]; {back}", copied),
        Row(
            f"{regs}{announce} {copy}.shared::cta.global{done}{hint} [%sh], [%in], y, [at], q;"
            f"{back}",
            copied,
        ),
        Row(f"{regs}{announce} {back}", lambda _: b"\xff" * 16 + b"\0"),
        Row(
            f"{regs} {load} st.shared.v4.b32 [%sh], {{x, y, z, w}};"
            f" {copy}.global.shared::cta.bulk_group [%out], [%sh], 16; {groups}",
            lambda d: d[:16],
        ),
        Row(
            f"{regs}{announce} {load} st.shared.v4.b32 [%dyn], {{x, y, z, w}};"
            f" {cluster}.shared::cta{done} [%sh], [%dyn], 16, [at]; {back}",
            copied,
        ),
    ]


FAMILIES: dict[str, list[Row]] = {
    "sequences": [*(sequence(seed) for seed in range(SEQUENCES)), largest()],
    "bulk": bulk(),
}


@pytest.mark.parametrize("family", FAMILIES)
@EXAMPLES
@given(data=inputs())
def test_one_thread(kernels: Loader, space: Space, family: str, data: Array) -> None:
    check(kernels, space, FAMILIES[family], data)


# ---- blocks --------------------------------------------------------------------------------------

THREADS = 96


def waiting(loop: str) -> str:
    """Each thread writes a word, round after round, and reads its neighbour's of the round before.
    The last warp is late in each round: it has most to do. `loop` waits for phase `t`."""
    return f"""
.version 8.6
.target sm_90
.address_size 64
.visible .entry rounds(.param .u64 out, .param .u32 count)
{{
    .shared .align 8 .b64 barriers[2];
    .shared .align 4 .b32 words[{THREADS}];
    .reg .b32 me, n, i, at, next, x, y, full, free, parity, tries;
    .reg .b64 out, o, t; .reg .pred p, q, first, more;
    mov.u32 me, %tid.x; ld.param.u32 n, [count]; ld.param.u64 out, [out];
    mov.u32 full, barriers; add.u32 free, full, 8;
    setp.eq.u32 first, me, 0;
    @!first bra READY;
    mbarrier.init.shared.b64 [full], {THREADS};
    mbarrier.init.shared.b64 [free], {THREADS};
READY:
    bar.sync 0;
    mov.u32 at, words; mad.lo.u32 at, me, 4, at;
    add.u32 next, me, 1; rem.u32 next, next, {THREADS};
    mov.u32 x, words; mad.lo.u32 next, next, 4, x;
    mov.u32 i, 0; mov.u32 y, me; mov.u32 parity, 0;
ROUND:
    mad.lo.u32 y, y, 3, i;
    st.shared.u32 [at], y;
    mbarrier.arrive.shared.b64 t, [full];
    {loop.format(n=1, barrier="full")}
    ld.shared.u32 y, [next];
    mbarrier.arrive.shared.b64 t, [free];
    {loop.format(n=2, barrier="free")}
    xor.b32 parity, parity, 1;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
    @more bra ROUND;
    mul.wide.u32 o, me, 4; add.u64 out, out, o;
    st.global.u32 [out], y;
    ret;
}}
"""


LOOPS = {
    "token": "W{n}: mbarrier.try_wait.shared.b64 p, [{barrier}], t; @!p bra W{n};",
    "tested": "W{n}: mbarrier.test_wait.shared.b64 p, [{barrier}], t; @p bra D{n}; bra W{n}; D{n}:",
    "parity": "W{n}: mbarrier.try_wait.parity.shared.b64 p, [{barrier}], parity, 50; @!p bra W{n};",
    "predicate of a number": "W{n}: mbarrier.test_wait.shared.b64 p, [{barrier}], t;"
    " selp.b32 x, 1, 0, p; setp.eq.u32 q, x, 0; @q bra W{n};",
    "counting": "mov.u32 tries, 0; bra W{n}; A{n}: add.u32 tries, tries, 1;"
    " W{n}: mbarrier.try_wait.shared.b64 p, [{barrier}], t; @p bra D{n};"
    " setp.lt.u32 q, tries, 4; @q bra A{n}; nanosleep.u32 20; bra W{n}; D{n}:",
}


@pytest.mark.parametrize("form", LOOPS)
def test_threads_that_wait_let_the_others_run(kernels: Loader, space: Space, form: str) -> None:
    rounds = 7
    function = kernels.function(kernels.module(waiting(LOOPS[form]).encode(), 1), "rounds")
    out = space.put(np.zeros(THREADS, np.uint32))
    space.launch(function, 1, THREADS, out, rounds)
    space.check()
    values = np.arange(THREADS, dtype=np.uint32)
    for i in range(rounds):
        values = np.roll(values * np.uint32(3) + np.uint32(i), -1)
    np.testing.assert_array_equal(space.read(out, THREADS, np.uint32), values)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("compute_75", marks=pytest.mark.slow),
        pytest.param("compute_80", marks=pytest.mark.slow),
        "compute_90",
    ],
)
def test_barriers_and_pipelines_of_libcu(kernels: Loader, space: Space, target: str) -> None:
    """cuda::barrier, cuda::pipeline and cuda::memcpy_async: what each kernel gives is its input,
    each row reversed."""
    module = kernels.module(cuda.ptx(SOURCE, args=[f"-arch={target}"]).encode(), 1)
    rows, width = 9, 128
    data = np.random.default_rng(5).random((rows, width), np.float32)
    at = space.put(data)
    for name in ("by_barrier", "by_pipeline", "by_thread", "dropping", "specialised"):
        out = space.put(np.zeros((rows, width), np.float32))
        space.launch(kernels.function(module, name), 1, width, at, out, rows, shared=4096)
        space.check()
        got = space.read(out, rows * width, np.float32).reshape(rows, width)
        np.testing.assert_array_equal(got, data[:, ::-1], err_msg=f"{name} {target}")


def test_a_copy_of_more_than_shared_memory_holds(kernels: Loader, space: Space) -> None:
    text = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry large(.param .u64 source, .param .u32 place, .param .u32 bytes)
{
    .shared .align 16 .b64 barrier[2];
    .reg .b32 b, to, n; .reg .b64 in;
    ld.param.u64 in, [source]; ld.param.u32 to, [place]; ld.param.u32 n, [bytes];
    mov.u32 b, barrier;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [to], [in], n, [b];
    ret;
}
"""
    function = kernels.function(kernels.module(text.encode(), 1), "large")
    at = space.put(np.zeros(1 << 20, np.uint8))
    for to, nbytes in ((0, 0xFFFFFFF0), (0xFFFFFFF0, 256 << 10), (16, 256 << 10), (0, 1 << 19)):
        other = space.device.space()
        other.put(np.zeros(1 << 20, np.uint8))
        other.launch(function, 1, 1, at, to, nbytes)
        assert other.error()[0] == 700, (to, nbytes)
    space.launch(function, 1, 1, at, 16, 200 << 10)
    space.check()
