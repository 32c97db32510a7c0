"""Ranks made of nothing but bytes that compute: kernels over words of 32 bits, copies, fills and
collectives of one communicator."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from support.ring_client import (
    COLLECTIVE,
    COMM_INIT,
    COPY,
    DEVICE_SYNC,
    OFF_BULK,
    RingClient,
    opcodes,
)

MODULE_DATA, MODULE_LOAD, MODULE_GLOBALS, FUNCTION_GET, LAUNCH, FILL = opcodes(
    "MODULE_DATA", "MODULE_LOAD", "MODULE_GLOBALS", "FUNCTION_GET", "LAUNCH", "FILL"
)
MODULE, COMM, FIRST_FUNCTION = 16, 17, 32
INT32, SUM = 2, 0

BODY = """
    .reg .pred %p;
    .reg .b32 %r<9>;
    .reg .b64 %d<10>;
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
# The code of each kernel for its word of `out` (%d4) and of `from` (%d5).
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
    "address": "ld.global.u32 %r5, [%d5]; cvt.u32.u64 %r4, %d5; add.u32 %r4, %r4, %r5;"
    "st.global.u32 [%d4], %r4;",
    "double": "ld.global.u32 %r4, [%d5]; mad.lo.u32 %r4, %r4, 2, %r2; st.global.u32 [%d4], %r4;",
    "twice": "ld.global.u32 %r4, [%d4]; add.u32 %r4, %r4, 1; st.global.u32 [%d4], %r4;"
    "ld.global.u32 %r5, [%d5]; add.u32 %r5, %r5, 1; st.global.u32 [%d5], %r5;",
    "either": "setp.eq.u32 %p, %r2, 99; selp.b64 %d6, %d4, %d5, %p; ld.global.u32 %r4, [%d6];"
    "st.global.u32 [%d4], %r4;",
    # from `from`, or from `out` itself
    "perhaps": "setp.eq.u32 %p, %r2, 99; selp.b64 %d6, %d4, %d5, %p; ld.global.u32 %r4, [%d6];"
    "ld.global.u32 %r5, [%d4]; mad.lo.u32 %r4, %r4, 3, %r5; st.global.u32 [%d4], %r4;",
    "pointer": "st.global.u64 [%d1], %d2; ld.global.u64 %d6, [%d1]; add.u64 %d6, %d6, %d3;"
    "ld.global.u32 %r4, [%d6]; add.u32 %r4, %r4, 9; st.global.u32 [%d6], %r4;",
    # writes where a pointer in `from` points
    "linked": "ld.global.u64 %d6, [%d2]; st.global.u32 [%d6], %r2;",
    # where the bits in memory lead, up to 4 KiB behind `out`; then it continues `count` times
    "stray": "ld.global.u32 %r4, [%d5]; popc.b32 %r4, %r4; cvt.u64.u32 %d6, %r4;"
    "mul.lo.u64 %d7, %d6, %d6; mul.lo.u64 %d8, %d7, 4; add.u64 %d9, %d8, %d1;"
    "st.global.u32 [%d9], %r2; mov.u32 %r5, 0; again: ld.volatile.global.u32 %r6, [%d5];"
    "add.u32 %r5, %r5, 1; setp.lt.u32 %p, %r5, %r1; @%p bra again;",
    # when the word of `from` is no longer 0
    "until": "again: ld.volatile.global.u32 %r4, [%d5]; setp.eq.u32 %p, %r4, 0; @%p bra again;"
    "st.global.u32 [%d4], %r4;",
    # from the buffer that is `add` behind `from`; into the one that is so behind `out`
    "behind": "mul.wide.u32 %d6, %r2, 512; add.u64 %d6, %d6, %d5; ld.global.u32 %r4, [%d6];"
    "st.global.u32 [%d4], %r4;",
    # that `add` is not 99
    "claim": "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;"
    "mov.u64 %d6, said; cvta.global.u64 %d6, %d6; st.param.b64 [a], %d6; st.param.b64 [b], %d6;"
    "st.param.b32 [c], 7; st.param.b64 [d], %d6; st.param.b64 [e], 1; setp.eq.u32 %p, %r2, 99;"
    "@%p call __assertfail, (a, b, c, d, e); } ld.global.u32 %r4, [%d5];"
    "st.global.u32 [%d4], %r4;",
    "beyond": "mul.wide.u32 %d6, %r2, 512; add.u64 %d6, %d6, %d4; ld.global.u32 %r4, [%d5];"
    "st.global.u32 [%d6], %r4;",
}
NAMES = list(WORK)


def source() -> bytes:
    text = (
        ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .u32 counter;\n"
        ".global .align 1 .b8 said[6] = {119, 114, 111, 110, 103, 0};\n"  # wrong
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d,"
        " .param .b64 e);\n"
    )
    for name, work in WORK.items():
        text += f".visible .entry {name}(.param .u64 out, .param .u64 from, .param .u32 count,"
        text += f" .param .u32 add)\n{{{BODY}{work}\ndone:\n    ret;\n}}\n"
    return text.encode()


class Computing(RingClient):
    """A rank with a module whose variable `counter` is at `variables`."""

    def __init__(self, rank: int, ranks: int, variables: int):
        super().__init__(rank, ranks)
        self.ranks, self.variables = ranks, variables

    def load(self, buffers: Sequence[int], size: int) -> None:
        image = source()
        self.map[OFF_BULK : OFF_BULK + len(image)] = image
        for address in buffers:
            self.alloc(address, size)
        self.alloc(self.variables, 256)
        self.post(MODULE_DATA, struct.pack("<QQII", MODULE, 0, len(image), 0))
        assert self.call(MODULE_LOAD, struct.pack("<QQII", MODULE, len(image), 1, 0)) == 0
        self.post(MODULE_GLOBALS, struct.pack("<QQ", MODULE, self.variables))
        for number, name in enumerate(NAMES):
            body = struct.pack("<QQII", MODULE, FIRST_FUNCTION + number, 1, len(name))
            assert self.call(FUNCTION_GET, body + name.encode()) == 0
        self.begin(COMM_INIT, struct.pack("<QII", COMM, self.ranks, self.rank) + b"\1" * 128)

    def launch(
        self,
        name: str,
        out: int,
        given: int,
        count: int,
        add: int,
        threads: int = 96,
        stream: int = 1,
    ) -> None:
        function = FIRST_FUNCTION + NAMES.index(name)
        head = struct.pack("<QQ6I4I", stream, function, 1, 1, 1, threads, 1, 1, 0, 24, 0, 0)
        self.post(LAUNCH, head + struct.pack("<QQII", out, given, count, add))

    def move(self, to: int, given: int, words: int, stream: int = 1) -> None:
        self.post(COPY, self.copy(to, given, 4 * words, stream=stream))

    def fill(self, to: int, value: int, element: int, count: int, stream: int = 1) -> None:
        self.post(FILL, struct.pack("<5QII", stream, to, count * element, count, 1, value, element))

    def collective(self, kind: int, send: int, recv: int, count: int, stream: int = 1) -> None:
        self.post(
            COLLECTIVE,
            struct.pack("<6QIIiI", stream, COMM, send, recv, count, SUM, kind, INT32, 0, 0),
        )


def sync(ranks: Sequence[Computing]) -> None:
    for rank in ranks:
        rank.begin(DEVICE_SYNC)
    assert [rank.finish() for rank in ranks] == [0] * len(ranks)
