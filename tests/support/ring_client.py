"""A client made of nothing but bytes: it writes records into a channel as a rank's library would.

For tests of the proxy's core without a program: valid sequences, and sequences no library would
send.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rankfold import image, records
from rankfold.proxy.native import Native, NativeError
from support.patience import scaled

from . import words


def opcodes(*names: str) -> tuple[int, ...]:
    return tuple(records.channel().opcodes[name].number for name in names)


CONTRACT = records.channel()
HEADER = CONTRACT.structs["rf_header"]
MEMFD_BYTES, OFF_SLOTS, OFF_RING, OFF_BULK, RING_BYTES, BULK_BYTES, DEV_BASE, CHUNK = (
    CONTRACT.constants[f"RF_{name}"]
    for name in (
        "MEMFD_BYTES",
        "OFF_SLOTS",
        "OFF_RING",
        "OFF_BULK",
        "RING_BYTES",
        "BULK_BYTES",
        "DEV_BASE",
        "CHUNK_BYTES",
    )
)
EPOCH, SERVED, SLEEPING, HEAD, DOORBELL, TAIL, RETIRED, ASYNC_ERROR = (
    HEADER[name].offset
    for name in (
        "epoch",
        "served",
        "server_sleeping",
        "head",
        "doorbell",
        "tail",
        "retired_free",
        "async_error",
    )
)
HOSTFUNC_HEAD, HOSTFUNC_TAIL, COMM_ERROR, COMM_ERRORS = (
    HEADER[name].offset for name in ("hostfunc_head", "hostfunc_tail", "comm_error", "comm_errors")
)
ALLOC, FREE, COPY, FILL, PINNED = opcodes("ALLOC", "FREE", "COPY", "FILL", "PINNED")
OFF_PINS = CONTRACT.constants["RF_OFF_PINS"]
STREAM_CREATE, STREAM_DESTROY, STREAM_SYNC, STREAM_QUERY, DEVICE_SYNC = opcodes(
    "STREAM_CREATE", "STREAM_DESTROY", "STREAM_SYNC", "STREAM_QUERY", "DEVICE_SYNC"
)
EVENT_CREATE, EVENT_DESTROY, EVENT_RECORD, STREAM_WAIT, EVENT_SYNC, EVENT_QUERY = opcodes(
    "EVENT_CREATE", "EVENT_DESTROY", "EVENT_RECORD", "STREAM_WAIT", "EVENT_SYNC", "EVENT_QUERY"
)
EVENT_ELAPSED, HOST_FUNC, HOST_DONE, GEMM, COMM_INIT, COLLECTIVE = opcodes(
    "EVENT_ELAPSED", "HOST_FUNC", "HOST_DONE", "GEMM", "COMM_INIT", "COLLECTIVE"
)
AT_ADDRESS, AT_BULK, AT_INLINE = CONTRACT.enums["rf_place"].values()
NON_BLOCKING = CONTRACT.constants["RF_STREAM_NON_BLOCKING"]


C = TypeVar("C", bound="RingClient")


class RingClient:
    """One rank's channel and image; `seq` counts its records."""

    def __init__(self, rank: int = 0, world_size: int = 1):
        self.fd = os.memfd_create("channel", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, MEMFD_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.image = os.memfd_create("image", os.MFD_CLOEXEC)
        os.ftruncate(self.image, 1 << 40)
        self.map = mmap.mmap(self.fd, OFF_BULK + 64 * BULK_BYTES)
        header = struct.pack(
            "<QIIQIII", 0x444C4F464B4E4152, 1, 0, MEMFD_BYTES, os.getpid(), rank, world_size
        )
        self.map[: len(header)] = header
        self.rank = rank
        self.seq = 0
        self.head = 0

    def twin(self: C) -> C:
        """Another one at the same point, with copies of channel and image as they are now."""
        made = RingClient(self.rank)
        made.seq, made.head = self.seq, self.head
        copy_sparse(self.fd, made.fd)
        copy_sparse(self.image, made.image)
        made.__class__ = type(self)
        assert isinstance(made, type(self))
        return made

    def close(self) -> None:
        try:
            self.map.close()
        except BufferError:  # views of it that only the garbage collector finds
            gc.collect()
            self.map.close()
        os.close(self.fd)
        os.close(self.image)

    def u32(self, offset: int) -> int:
        return words.load32(self.map, offset)

    def u64(self, offset: int) -> int:
        return words.load64(self.map, offset)

    def post(self, opcode: int, body: bytes = b"", slot: int = 0, seq: int | None = None) -> int:
        """Publish one record; its seq, which is the next one unless a wrong one is wanted."""
        self.seq += 1
        seq = self.seq if seq is None else seq
        self.raw(struct.pack("<IHHQ", self._size(body), opcode, slot, seq) + body)
        return seq

    @staticmethod
    def _size(body: bytes) -> int:
        return (16 + len(body) + 63) // 64 * 64

    def raw(self, record: bytes) -> None:
        """Publish any bytes as a record, padded to 64."""
        data = record + b"\0" * (-len(record) % 64)
        offset = self.head % RING_BYTES
        if offset + len(data) > RING_BYTES:
            pad = RING_BYTES - offset
            struct.pack_into("<IHHQ", self.map, OFF_RING + offset, pad, 0, 0, 0)
            self.head += pad
            offset = 0
        self.map[OFF_RING + offset : OFF_RING + offset + len(data)] = data
        self.head += len(data)
        words.store64(self.map, HEAD, self.head)
        self.ring()

    def ring(self) -> None:
        """Wake the server if it sleeps."""
        if self.u32(SLEEPING):
            words.add32_and_wake(self.map, DOORBELL, 1)

    def call(self, opcode: int, body: bytes = b"", slot: int = 1, wait: float = 20.0) -> int:
        """Publish a record that wants a reply, and wait for it: its error."""
        self.begin(opcode, body, slot)
        return self.finish(slot, wait)

    def begin(self, opcode: int, body: bytes = b"", slot: int = 1) -> None:
        offset = OFF_SLOTS + (slot - 1) * 256
        words.store32(self.map, offset, 1)
        self.post(opcode, body, slot)

    def finish(self, slot: int = 1, wait: float = 20.0) -> int:
        deadline = time.monotonic() + scaled(wait)
        while not self.answered(slot):
            assert time.monotonic() < deadline, f"no reply in slot {slot}"
            time.sleep(0.0005)
        return int(struct.unpack_from("<i", self.map, OFF_SLOTS + (slot - 1) * 256 + 4)[0])

    def answered(self, slot: int = 1) -> bool:
        return self.u32(OFF_SLOTS + (slot - 1) * 256) == 2

    def data(self, count: int, slot: int = 1) -> bytes:
        offset = OFF_SLOTS + (slot - 1) * 256 + 16
        return self.map[offset : offset + count]

    # ---- the common ones ----

    def block(self, stream: int) -> None:
        """The stream waits in a host function until `unblock`."""
        self.post(HOST_FUNC, struct.pack("<QQ", stream, 0))

    def unblock(self) -> None:
        while self.u32(HOSTFUNC_HEAD) == self.u32(HOSTFUNC_TAIL):
            time.sleep(0.0005)  # it has not been called yet
        words.store32(self.map, HOSTFUNC_TAIL, self.u32(HOSTFUNC_TAIL) + 1)
        self.post(HOST_DONE, struct.pack("<QQ", 0, 0))

    def alloc(self, addr: int, size: int) -> None:
        self.post(ALLOC, struct.pack("<QQQII", addr, size, 0, 0, 0))

    def free(self, addr: int) -> int:
        return self.post(FREE, struct.pack("<Q", addr))

    def copy(
        self,
        dst: int,
        src: int,
        width: int,
        *,
        places: tuple[int, int] = (0, 0),
        stream: int = 1,
        inline: bytes = b"",
        height: int = 1,
        pitches: tuple[int, int] = (0, 0),
    ) -> bytes:
        """The body of a COPY."""
        return (
            struct.pack(
                "<7Q2B6x",
                stream,
                dst,
                src,
                pitches[0] or width,
                pitches[1] or width,
                width,
                height,
                *places,
            )
            + inline
        )

    def write(self, addr: int, content: bytes, stream: int = 1) -> None:
        """Host to device, inline; at most 8 KiB."""
        self.post(
            COPY,
            self.copy(
                addr, 0, len(content), places=(AT_ADDRESS, AT_INLINE), stream=stream, inline=content
            ),
        )

    def read(self, addr: int, size: int, stream: int = 1) -> bytes:
        """Device to host through bulk slot 0; at most 256 KiB."""
        error = self.call(
            COPY, self.copy(0, addr, size, places=(AT_BULK, AT_ADDRESS), stream=stream)
        )
        assert error == 0, f"error {error}"
        return self.map[OFF_BULK : OFF_BULK + size]


def twins_of(clients: Sequence[C]) -> list[C]:
    """One of each; what is in the image of another has been brought."""
    made = [client.twin() for client in clients]
    images = {client.rank: client.image for client in made}
    for each in images.values():
        for rank, begin, end in image.read_image(each).pieces(0, image.state_offset()):
            if rank is not None:
                os.pwrite(each, os.pread(images[rank], end - begin, begin), begin)
        state = os.pread(each, 64, image.state_offset())
        os.pwrite(each, image.self_contained(state), image.state_offset())
    return made


def copy_sparse(source: int, target: int) -> None:
    """Copies the written parts of a file into an empty file of the same size."""
    offset, end = 0, os.fstat(source).st_size
    while True:
        try:
            offset = os.lseek(source, offset, os.SEEK_DATA)
        except OSError:  # no more
            return
        hole = min(os.lseek(source, offset, os.SEEK_HOLE), end)
        while offset < hole:
            offset += os.pwrite(
                target, os.pread(source, min(hole - offset, 1 << 20), offset), offset
            )


@contextmanager
def device(
    memory: int = 64 << 20,
    speed: float = 1.0,
    quantum_ns: int = 0,
    workers: int = 1,
    validate: int = 1,
    opaque: bool = False,
    prepare: bool = True,
    share: bool = True,
    squash: bool = True,
) -> Iterator[Native]:
    """A device in this process: a soft one, except for tests/nvidia/test_core.py. Equal content
    of its ranks is compared at each collective."""
    hal = os.environ.get("RANKFOLD_TEST_HAL", "soft")
    native = Native(
        hal,
        memory,
        (8, 0),
        speed,
        workers,
        quantum_ns,
        share=share,
        squash=squash,
        validate=validate,
        opaque=opaque,
        prepare=prepare,
    )
    try:
        yield native
    finally:
        native.close()


def attach(native: Native, client: RingClient, job: int = 1, epoch: int = 1) -> None:
    """Serve `client` as a job of one rank."""
    native.job_open(job, epoch, 0, 1, [0], -1)
    native.rank_attach(job, 0, client.fd, client.image)


def settle(native: Native, job: int, state: str, wait: float = 20.0) -> None:
    """Wait until the job's state is `state`."""
    deadline = time.monotonic() + scaled(wait)
    while (status := native.job_status(job)) is None or status["state"] != state:
        assert time.monotonic() < deadline, f"{status}\n{native.debug_text()}"
        native.hurry(job)
        time.sleep(0.001)


def until(happened: Callable[[], bool], native: Native, wait: float = 20.0) -> None:
    deadline = time.monotonic() + scaled(wait)
    while not happened():
        assert time.monotonic() < deadline, native.debug_text()
        time.sleep(0.001)


def leave(native: Native, job: int = 1) -> None:
    """Let go of a job, whatever it does."""
    native.job_discard(job)
    deadline = time.monotonic() + scaled(20)
    while time.monotonic() < deadline:
        try:
            native.job_close(job)
            return
        except NativeError:
            time.sleep(0.001)
    raise AssertionError(f"the job does not end\n{native.debug_text()}")


def hand_over(
    native: Native,
    client: RingClient,
    job: int,
    to: Native,
    new_job: int,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Cut, save here, `between`, attach there, in the next epoch."""
    native.barrier(job, True)
    settle(native, job, "cut")
    assert native.job_leave(job)
    settle(native, job, "saved")
    native.job_close(job)
    between()
    to.job_open(new_job, new_job, 0, 1, [0], -1)
    to.rank_attach(new_job, 0, client.fd, client.image)
