"""Promise: what ranks' versions call equal is equal, byte for byte, whatever they did; and ranks
that did the same are known to hold the same.

Ranks of one job on two devices post kernels, copies, fills, and collectives: sometimes all the
same, sometimes each its own. At cuts they are saved, and what their images say is compared.
"""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hostile.records import FUNCTION_GET, LAUNCH, MODULE_DATA, MODULE_GLOBALS, MODULE_LOAD

from rankfold.proxy.hal.soft.modules import Loader
from support.contents import Image, check_equal_versions
from support.devices import Devices, devices
from support.ring_client import (
    CHUNK,
    COLLECTIVE,
    COMM_INIT,
    CONTRACT,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    OFF_BULK,
    RingClient,
)  # fmt: skip

RANKS, WORDS = 3, 96  # words: of each buffer
GLOBALS = DEV_BASE + CHUNK
BUFFERS = [DEV_BASE + 512 * n for n in range(8)]
MODULE, COMM, FIRST_FUNCTION = 16, 17, 32
INT32, SUM = 2, 0
FILL = CONTRACT.opcodes["FILL"].number
KINDS = ("ALLREDUCE", "REDUCE", "BROADCAST", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "GATHER",
         "SCATTER")  # fmt: skip

BODY = """
    .reg .pred %p;
    .reg .b32 %r<9>;
    .reg .b64 %d<9>;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [from];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [add];
    mov.u32 %r3, %tid.x;
    setp.ge.u32 %p, %r3, %r1;
    @%p bra done;
    mul.wide.u32 %d3, %r3, 4;
    add.u64 %d4, %d1, %d3;
    add.u64 %d5, %d2, %d3;
"""
# What each does with its word of `out` (%d4) and of `from` (%d5).
WORK = {
    "scale": "ld.global.u32 %r4, [%d5]; mad.lo.u32 %r4, %r4, 3, %r2; st.global.u32 [%d4], %r4;",
    "update": "ld.global.u32 %r4, [%d4]; ld.global.u32 %r5, [%d5]; mad.lo.u32 %r4, %r4, 5, %r5;"
              "add.u32 %r4, %r4, %r2; st.global.u32 [%d4], %r4;",
    "tally": "mov.u64 %d6, counter; ld.global.u32 %r4, [%d6]; add.u32 %r4, %r4, %r2;"
             "st.global.u32 [%d6], %r4; st.global.u32 [%d4], %r4;",
    "atomic": "ld.global.u32 %r5, [%d5]; atom.global.add.u32 %r4, [%d1], %r5;"
              "st.global.u32 [%d4], %r4;",
    "block": "mov.u32 %r4, %ntid.x; mov.u32 %r5, %nctaid.x; mad.lo.u32 %r4, %r4, 7, %r5;"
             "st.global.u32 [%d4], %r4;",
    "address": "cvt.u32.u64 %r4, %d5; st.global.u32 [%d4], %r4;",
    "pointer": "st.global.u64 [%d1], %d2; ld.global.u64 %d6, [%d1]; add.u64 %d6, %d6, %d3;"
               "ld.global.u32 %r4, [%d6]; add.u32 %r4, %r4, 9; st.global.u32 [%d6], %r4;",
}  # fmt: skip
NAMES = list(WORK)


def source() -> bytes:
    text = (
        ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .u32 counter;\n"
    )
    for name, work in WORK.items():
        text += f".visible .entry {name}(.param .u64 out, .param .u64 from, .param .u32 count,"
        text += f" .param .u32 add)\n{{{BODY}{work}\ndone:\n    ret;\n}}\n"
    return text.encode()


class Rank(RingClient):
    def load(self) -> None:
        image = source()
        self.map[OFF_BULK : OFF_BULK + len(image)] = image
        for at in BUFFERS:
            self.alloc(at, 4 * WORDS)
        self.alloc(GLOBALS, 256)
        self.post(MODULE_DATA, struct.pack("<QQII", MODULE, 0, len(image), 0))
        assert self.call(MODULE_LOAD, struct.pack("<QQII", MODULE, len(image), 1, 0)) == 0
        self.post(MODULE_GLOBALS, struct.pack("<QQ", MODULE, GLOBALS))
        for number, name in enumerate(NAMES):
            body = struct.pack("<QQII", MODULE, FIRST_FUNCTION + number, 1, len(name))
            assert self.call(FUNCTION_GET, body + name.encode()) == 0
        self.begin(COMM_INIT, struct.pack("<QII", COMM, RANKS, self.rank) + b"\1" * 128)

    def launch(self, name: str, out: int, given: int, count: int, add: int, threads: int) -> None:
        head = struct.pack("<QQ6I4I", 1, FIRST_FUNCTION + NAMES.index(name), 1, 1, 1, threads, 1, 1,
                           0, 24, 0, 0)  # fmt: skip
        self.post(LAUNCH, head + struct.pack("<QQII", out, given, count, add))

    def move(self, to: int, given: int, words: int) -> None:
        self.post(COPY, self.copy(to, given, 4 * words))

    def fill(self, to: int, value: int, element: int, count: int) -> None:
        self.post(FILL, struct.pack("<5QII", 1, to, count, 1, count * element, value, element))

    def collective(self, kind: int, send: int, recv: int, count: int) -> None:
        self.post(COLLECTIVE, struct.pack("<6QIIiI", 1, COMM, send, recv, count, SUM, kind, INT32,
                                          0, 0))  # fmt: skip


@pytest.fixture
def ranks(kernels: Loader) -> Iterator[tuple[Devices, list[Rank]]]:
    """On two devices, their communicator made."""
    made = [Rank(rank, RANKS) for rank in range(RANKS)]
    with devices(kernels, 2) as here:
        here.place(1, made, [0, 0, 1])
        for rank in made:
            rank.load()
        assert [rank.finish() for rank in made] == [0] * RANKS
        yield here, made
        here.leave(1)
    for rank in made:
        rank.close()


def images(here: Devices, ranks: list[Rank], stack: ExitStack, cut: int) -> list[Image]:
    """At a cut, which lasts."""
    here.stop(1)
    assert all(native.job_save(1) for native in here.natives)
    assert {event.text for event in here.saved(cut)} == {""}
    return [
        Image(stack.enter_context(mmap.mmap(rank.image, 0, access=mmap.ACCESS_READ)))
        for rank in ranks
    ]


def content(image: Image, at: int) -> list[tuple[object, ...]]:
    """What lies in a buffer, by versions."""
    end = at + 4 * WORDS
    return [
        (max(r.addr, at) - at, r.version, r.offset + max(0, at - r.addr) if not r.period else 0)
        for r in image.runs if r.addr < end and at < r.addr + r.bytes
    ]  # fmt: skip


def anything(chance: random.Random, ranks: list[Rank]) -> None:
    """One operation: all ranks', each with its own numbers, or one rank's."""
    kind = chance.choice(["launch", "launch", "launch", "move", "fill", "write", "collective"])
    if kind == "collective":
        name = chance.choice(KINDS)
        send, recv = chance.sample(BUFFERS, 2)
        count = chance.choice([8, WORDS // RANKS])
        for rank in ranks:
            rank.collective(CONTRACT.enums["rf_coll"][f"RF_COLL_{name}"], send, recv, count)
        return
    who = ranks if chance.randrange(3) else [chance.choice(ranks)]
    same = chance.randrange(4) > 0
    out, given = chance.choice(BUFFERS), chance.choice(BUFFERS)
    numbers = (chance.choice([WORDS, 64, 32]), chance.randrange(3), chance.choice([96, 128]))
    for rank in who:
        if not same:
            out, given = chance.choice(BUFFERS), chance.choice(BUFFERS)
            numbers = (chance.choice([WORDS, 64, 32]), chance.randrange(3), 96)
        count, add, threads = numbers
        if kind == "launch":
            rank.launch(chance.choice(NAMES) if not same else NAMES[add * 2 % len(NAMES)], out,
                        given, count, add, threads)  # fmt: skip
        elif kind == "move":
            rank.move(out, given, count)
        elif kind == "fill":
            rank.fill(out, 0x01010101 * add + (count == 64), 1 << add, count // 4)
        else:
            rank.write(out, bytes([add] * count))


@pytest.mark.parametrize("seed", range(4))
def test_equal_versions_are_equal_bytes(ranks: tuple[Devices, list[Rank]], seed: int) -> None:
    here, made = ranks
    chance = random.Random(seed)
    for cut in range(25):
        for _ in range(chance.randrange(1, 12)):
            anything(chance, made)
        with ExitStack() as stack:
            check_equal_versions(images(here, made, stack, cut))
        here.go_on(1, made)
        assert [rank.call(DEVICE_SYNC) for rank in made] == [0] * RANKS


def test_ranks_that_do_the_same_are_known_to_hold_the_same(
    ranks: tuple[Devices, list[Rank]],
) -> None:
    """A step of data-parallel training, with gradients that lie elsewhere in each rank."""
    here, made = ranks
    parameters, mean, own = BUFFERS[0], BUFFERS[1], BUFFERS[2]
    for rank in made:
        gradient = BUFFERS[3 + rank.rank]
        rank.write(own, bytes([rank.rank] * 4 * WORDS))
        rank.write(parameters, bytes(range(96)) * 4)
        rank.launch("scale", gradient, own, WORDS, 1, 96)
        rank.collective(CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"], gradient, mean, WORDS)
        rank.move(gradient, mean, WORDS)
        rank.launch("update", parameters, gradient, WORDS, 2, 96)
        rank.launch("tally", BUFFERS[6], own, 1, 2, 96)
        rank.launch("update", BUFFERS[7], parameters, WORDS, 2 + (rank.rank == 1), 96)
    with ExitStack() as stack:
        found = images(here, made, stack, 0)
        check_equal_versions(found)
        for at in (parameters, mean):
            assert content(found[0], at) == content(found[1], at) == content(found[2], at), hex(at)
            assert content(found[0], at)[0][2] == 0
        assert content(found[0], own) != content(found[1], own)
        assert content(found[0], BUFFERS[7]) != content(found[1], BUFFERS[7])
        assert content(found[0], BUFFERS[7]) == content(found[2], BUFFERS[7])
        assert content(found[0], GLOBALS) == content(found[2], GLOBALS)
    here.go_on(1, made)
