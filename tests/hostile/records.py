"""Records of a rank gone wrong: mostly plausible (live handles, addresses of the heap), some not.

Everything is drawn from a `random.Random`, which may be Hypothesis's own: then what fails shrinks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from support.ring_client import (
    ALLOC,
    BULK_BYTES,
    CHUNK,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    EVENT_CREATE,
    EVENT_DESTROY,
    EVENT_QUERY,
    EVENT_RECORD,
    EVENT_SYNC,
    FILL,
    FREE,
    STREAM_CREATE,
    STREAM_DESTROY,
    STREAM_QUERY,
    STREAM_SYNC,
    STREAM_WAIT,
    opcodes,
)

GRANT, PINNED, MODULE_DATA, MODULE_LOAD, MODULE_GLOBALS, MODULE_UNLOAD, FREE_ASYNC = opcodes(
    *("GRANT", "PINNED", "MODULE_DATA", "MODULE_LOAD", "MODULE_GLOBALS", "MODULE_UNLOAD"),
    "FREE_ASYNC",
)
FUNCTION_GET, GLOBAL_GET, FUNCTION_NAMES, TENSOR_MAP, CLUSTERS = opcodes(
    "FUNCTION_GET", "GLOBAL_GET", "FUNCTION_NAMES", "TENSOR_MAP", "CLUSTERS"
)
EVENT_ELAPSED, LAUNCH, HOST_FUNC, HOST_DONE, GEMM, GEMM_AUX, GEMM_CALL = opcodes(
    "EVENT_ELAPSED", "LAUNCH", "HOST_FUNC", "HOST_DONE", "GEMM", "GEMM_AUX", "GEMM_CALL"
)
COMM_INIT, COMM_SPLIT, COMM_DESTROY, COMM_ABORT, COMM_FINALIZE = opcodes(
    "COMM_INIT", "COMM_SPLIT", "COMM_DESTROY", "COMM_ABORT", "COMM_FINALIZE"
)
COLLECTIVE, REDOP_CREATE, REDOP_DESTROY = opcodes("COLLECTIVE", "REDOP_CREATE", "REDOP_DESTROY")
SLOTS = 64
EDGES = (0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1, DEV_BASE - 1, DEV_BASE + 2**39)
# Handles by kind: few, so that most name something that is or was there.
STREAMS, EVENTS, MODULES = (1, 1, 1, 16, 17, 18), (32, 33, 34), (48, 49)
FUNCTIONS, COMMS, REDOPS = (64, 65), (80, 81), (96, 97)

KERNELS = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .entry add_one(.param .u64 at, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r2, %r3, %r4, %r2;
    setp.ge.u32 %p, %r2, %r1;
    @%p bra done;
    cvta.to.global.u64 %d1, %d1;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d3, %d1, %d2;
    ld.global.u32 %r5, [%d3];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%d3], %r5;
done:
    ret;
}
"""


def handle(r: Random, pool: tuple[int, ...]) -> int:
    return r.choice(pool) if r.randrange(40) else wild(r)


def wild(r: Random) -> int:
    return r.choice(EDGES) if r.randrange(2) else r.getrandbits(64)


def address(r: Random) -> int:
    if not r.randrange(40):
        return wild(r)
    return DEV_BASE + r.randrange(64) * (CHUNK // 8) + r.randrange(4) * 512


def amount(r: Random) -> int:
    if not r.randrange(40):
        return wild(r)
    return r.randrange(3 * CHUNK) if not r.randrange(6) else r.randrange(512)


def _alloc(r: Random) -> bytes:
    return struct.pack("<QQQII", address(r), amount(r), 0, r.randrange(2), 0)


def _copy(r: Random) -> bytes:
    places = [r.choice((0, 0, 1)), r.choice((0, 1, 2))] if r.randrange(30) else [wild(r) % 256] * 2
    at = [
        address(r) if p == 0 else r.randrange(70) * BULK_BYTES // 2 if p == 1 else r.randrange(3)
        for p in places
    ]
    width, height = amount(r), 1 if r.randrange(4) else amount(r) % 20
    pitches = [width + r.randrange(64) if r.randrange(20) else wild(r) for _ in range(2)]
    inline = bytes(r.randrange(600)) if places[1] == 2 else b""
    numbers = [value % 2**64 for value in (*at, *pitches, width, height)]
    head = struct.pack("<7Q2BB5x", handle(r, STREAMS), *numbers, *places, r.randrange(2))
    return head + inline


def _fill(r: Random) -> bytes:
    element = r.choice((1, 2, 4)) if r.randrange(30) else wild(r) % 2**32
    width, pitch = amount(r), amount(r) * 4
    return struct.pack(
        "<5QII",
        handle(r, STREAMS),
        address(r) & ~3,
        pitch % 2**64,
        width,
        r.randrange(5),
        r.getrandbits(32),
        element,
    )


def _name(r: Random) -> bytes:
    name = r.choice((b"add_one", b"counter", b"nothing", b"\xff\xfe", bytes(9)))
    size = len(name) if r.randrange(20) else wild(r) % 2**32
    head = (handle(r, MODULES), handle(r, FUNCTIONS), r.randrange(70), size)
    return struct.pack("<QQII", *head) + name


def _names(r: Random) -> bytes:
    first, bulk = (r.randrange(3), r.randrange(70)) if r.randrange(20) else [wild(r) % 2**32] * 2
    return struct.pack("<QII", handle(r, MODULES), first, bulk)


def _clusters(r: Random) -> bytes:
    sides = [r.randrange(4) for _ in range(6)]
    return struct.pack("<Q", handle(r, FUNCTIONS)) + struct.pack(
        "<10I", *sides, r.randrange(2**17), r.randrange(2**32), r.randrange(4), r.randrange(2)
    )


def _tensor_map(r: Random) -> bytes:
    rest = r.randbytes(296) if r.randrange(2) else bytes(296)
    return struct.pack("<QII", address(r), r.randrange(5), r.randrange(2**32)) + rest


def _launch(r: Random) -> bytes:
    grid = [1 + r.randrange(4), 1, 1] if r.randrange(20) else [wild(r) % 100 for _ in range(3)]
    block = [1 + r.randrange(64), 1, 1] if r.randrange(20) else [wild(r) % 2**32, 1, 1]
    params = struct.pack("<QI", address(r), r.randrange(4096))
    size = len(params) if r.randrange(20) else wild(r) % 2**32
    cluster = 0 if r.randrange(200) else wild(r) % 2**32
    handles = (handle(r, STREAMS), handle(r, FUNCTIONS))
    head = (*handles, *grid, *block, 0, size, r.randrange(2), cluster)
    return struct.pack("<QQ6I4I", *head) + params


def _matrix(r: Random, rows: int, columns: int) -> list[int]:
    strides = [1, rows + r.randrange(3)] if r.randrange(2) else [columns + r.randrange(3), 1]
    if not r.randrange(20):
        strides[r.randrange(2)] = wild(r)
    batch = 0 if r.randrange(3) else rows * columns if r.randrange(10) else wild(r)
    return [address(r), *strides, batch % 2**64]


def _gemm(r: Random) -> bytes:
    m, n, k = (1 + r.randrange(40) if r.randrange(40) else wild(r) for _ in range(3))
    count = 1 + r.randrange(3) if r.randrange(40) else wild(r)
    shapes = ((m, k), (k, n), (m, n), (m, n))
    matrices = [x % 2**64 for rows, columns in shapes for x in _matrix(r, rows, columns)]
    kind = r.choice((0, 0, 0, 1, 2, 3, 10, 14))
    types = [kind, kind, kind, kind] if r.randrange(4) else [r.randrange(16) for _ in range(4)]
    flags = 0 if r.randrange(4) else r.randrange(16) if r.randrange(10) else wild(r) % 2**32
    bias = 0 if r.randrange(3) else address(r)
    scalars = (address(r), address(r)) if flags & 2 else (r.getrandbits(64), r.choice((0, wild(r))))
    return struct.pack(
        "<25Q4B3I",
        handle(r, STREAMS),
        m,
        n,
        k,
        count,
        *matrices,
        bias,
        m,
        *scalars,
        *types,
        flags,
        68,
        0,
    )


def _gemm_aux(r: Random) -> bytes:
    ld = 128 * r.randrange(1, 3) if r.randrange(10) else wild(r) % 2**64
    body = bytearray(_gemm(r) + struct.pack("<4Q", address(r), 1, ld, 40 * ld % 2**64))
    if r.randrange(5):  # flags that go together, at their place
        flags = r.choice((20, 24, 32, 64, 160, 192, 256, 512)) | r.choice((0, 2))
        struct.pack_into("<I", body, 204, flags)
    return bytes(body)


def _gemm_call(r: Random) -> bytes:
    workspace = (address(r), r.choice((0, 256, wild(r) % 2**64))) if r.randrange(2) else (0, 0)
    ld = [wild(r) % 2**64 if r.randrange(10) == 0 else 16 for _ in range(4)]
    kinds = (r.randrange(10), r.randrange(4), r.randrange(4), r.randrange(256))
    rest = (-1, r.randrange(2), 0, 0xFFFFFFFF, 16, 16, 16, 16, 0, 4096)
    return _gemm_aux(r) + struct.pack("<6Q4B3i6IQ", *workspace, *ld, *kinds, *rest)


def _module_data(r: Random) -> bytes:
    """Mostly the whole text that is in bulk slot 0."""
    if r.randrange(4):
        return struct.pack("<QQII", handle(r, MODULES), 0, len(KERNELS), 0)
    sizes = (amount(r) % 2**64, amount(r) % 2**32, r.randrange(70))
    return struct.pack("<QQII", handle(r, MODULES), *sizes)


def _module_load(r: Random) -> bytes:
    size = len(KERNELS) if r.randrange(10) else amount(r)
    return struct.pack("<QQII", handle(r, MODULES), size, r.randrange(3), 0)


def _comm_init(r: Random) -> bytes:
    nranks, rank = (1, 0) if r.randrange(20) else (wild(r) % 2**32, r.randrange(3))
    return struct.pack("<QII", handle(r, COMMS), nranks, rank) + r.randbytes(128)


def _split(r: Random) -> bytes:
    return struct.pack("<QQii", handle(r, COMMS), handle(r, COMMS), r.randrange(-1, 3), 0)


def _collective(r: Random) -> bytes:
    kind = r.randrange(10) if r.randrange(30) else wild(r) % 2**32
    dtype = r.randrange(12) if r.randrange(30) else wild(r) % 2**32
    op = r.randrange(5) if r.randrange(6) else handle(r, REDOPS)
    root = 0 if r.randrange(30) else r.randrange(-3, 3)
    numbers = [address(r), address(r), amount(r) // 8, op]
    return struct.pack(
        "<6QIIiI", handle(r, STREAMS), handle(r, COMMS), *numbers, kind, dtype, root, 0
    )


def _redop(r: Random) -> bytes:
    return struct.pack("<QQII8s", handle(r, REDOPS), handle(r, COMMS), r.randrange(12), 0, bytes(8))


def _one(pool: tuple[int, ...]) -> Callable[[Random], bytes]:
    return lambda r: struct.pack("<Q", handle(r, pool))


def _two(first: tuple[int, ...], second: tuple[int, ...]) -> Callable[[Random], bytes]:
    return lambda r: struct.pack("<QQ", handle(r, first), handle(r, second))


def _create(pool: tuple[int, ...]) -> Callable[[Random], bytes]:
    return lambda r: struct.pack("<QIi", handle(r, pool), r.randrange(3), 0)


BODIES: dict[int, Callable[[Random], bytes]] = {
    ALLOC: _alloc,
    FREE: lambda r: struct.pack("<Q", address(r)),
    COPY: _copy,
    FILL: _fill,
    FREE_ASYNC: lambda r: struct.pack("<QQ", address(r), handle(r, STREAMS)),
    GRANT: lambda r: struct.pack("<Q", wild(r)),
    PINNED: lambda r: b"",
    MODULE_DATA: _module_data,
    MODULE_LOAD: _module_load,
    MODULE_GLOBALS: lambda r: struct.pack("<QQ", handle(r, MODULES), address(r)),
    MODULE_UNLOAD: _one(MODULES),
    FUNCTION_GET: _name,
    GLOBAL_GET: _name,
    FUNCTION_NAMES: _names,
    TENSOR_MAP: _tensor_map,
    CLUSTERS: _clusters,
    STREAM_CREATE: _create(STREAMS),
    STREAM_DESTROY: _one(STREAMS),
    STREAM_SYNC: _one(STREAMS),
    STREAM_QUERY: _one(STREAMS),
    DEVICE_SYNC: lambda r: b"",
    EVENT_CREATE: _create(EVENTS),
    EVENT_DESTROY: _one(EVENTS),
    EVENT_RECORD: _two(EVENTS, STREAMS),
    STREAM_WAIT: _two(EVENTS, STREAMS),
    EVENT_SYNC: _one(EVENTS),
    EVENT_QUERY: _one(EVENTS),
    EVENT_ELAPSED: _two(EVENTS, EVENTS),
    LAUNCH: _launch,
    GEMM: _gemm,
    GEMM_AUX: _gemm_aux,
    GEMM_CALL: _gemm_call,
    HOST_FUNC: lambda r: struct.pack("<QQ", handle(r, STREAMS), wild(r)),
    HOST_DONE: lambda r: bytes(16),
    COMM_INIT: _comm_init,
    COMM_SPLIT: _split,
    COMM_DESTROY: _one(COMMS),
    COMM_ABORT: _one(COMMS),
    COMM_FINALIZE: _one(COMMS),
    COLLECTIVE: _collective,
    REDOP_CREATE: _redop,
    REDOP_DESTROY: _one(REDOPS),
}
OPCODES = tuple(BODIES)


def number(r: Random, right: int) -> int:
    """A record's number: now and then a wrong one."""
    wrong = (0, right - 1, 1 if right > 1 else 2, right + 1, right + 2**40, 2**64 - 1, wild(r))
    return right if r.randrange(1000) else r.choice(wrong)


def record(r: Random) -> tuple[int, int, bytes]:
    """Opcode, reply slot and body."""
    opcode = r.choice(OPCODES)
    body = BODIES[opcode](r)
    if not r.randrange(30) and body:
        at = r.randrange(len(body))
        body = body[:at] + bytes([r.randrange(256)]) + body[at + 1 :]
    if not r.randrange(60):
        body = body[: r.randrange(len(body) + 1)]
    slot = r.randrange(1, SLOTS + 1) if r.randrange(100) else 0
    if not r.randrange(200):
        opcode, slot = r.randrange(2**16), r.randrange(2**16)
    return opcode, slot, body
