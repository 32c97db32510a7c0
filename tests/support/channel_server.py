"""The other side of a client's channel, in a test's hands: a launcher's door and a server's loop.

For tests of the client alone: what it writes into its memfd, and how it waits. The test decides
when records are consumed and in which order replies are given; a real proxy decides that itself.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankfold import records
from support import words
from support.ring_client import opcodes

CONTRACT = records.channel()
HEADER = CONTRACT.structs["rf_header"]
MAGIC = CONTRACT.constants["RF_MAGIC"]
HELLO = struct.Struct("<QIIII")
DEVICE = struct.Struct("<64sQ15I9I")
WELCOME = struct.Struct(f"<QiIII{DEVICE.size}s256s")
MEMFD_BYTES, SHARED_BYTES, OFF_SLOTS, OFF_RING, OFF_BULK, SLOT_BYTES, RING_BYTES, BULK_BYTES = (
    CONTRACT.constants[f"RF_{name}"]
    for name in (
        "MEMFD_BYTES",
        "OFF_PINNED",
        "OFF_SLOTS",
        "OFF_RING",
        "OFF_BULK",
        "SLOT_BYTES",
        "RING_BYTES",
        "BULK_BYTES",
    )
)
EPOCH, SLEEPING, HEAD, DOORBELL, SPACE_WAITERS, TAIL, SPACE_SEQ, BULK_SEQ = (
    HEADER[name].offset
    for name in (
        "epoch",
        "server_sleeping",
        "head",
        "doorbell",
        "space_waiters",
        "tail",
        "space_seq",
        "bulk_seq",
    )
)
RETIRED, GRANT, ASYNC_ERROR, BULK_BUSY = (
    HEADER[name].offset for name in ("retired_free", "grant_bytes", "async_error", "bulk_busy")
)
URGENT, SLOTS = HEADER["urgent"].offset, CONTRACT.constants["RF_SLOT_COUNT"]
MIB = 1 << 20

PAD = CONTRACT.constants["RF_OP_PAD"]
ANSWERED = CONTRACT.constants["RF_SLOT_ANSWERED"]
ALLOC, FREE, FREE_ASYNC, GRANT_OP, COPY, FILL = opcodes(
    "ALLOC", "FREE", "FREE_ASYNC", "GRANT", "COPY", "FILL"
)
MODULE_DATA, MODULE_LOAD, MODULE_GLOBALS, FUNCTION_GET, GLOBAL_GET = opcodes(
    "MODULE_DATA", "MODULE_LOAD", "MODULE_GLOBALS", "FUNCTION_GET", "GLOBAL_GET"
)
STREAM_CREATE, STREAM_SYNC, STREAM_QUERY, DEVICE_SYNC = opcodes(
    "STREAM_CREATE", "STREAM_SYNC", "STREAM_QUERY", "DEVICE_SYNC"
)
LAUNCH, HOST_FUNC, HOST_DONE = opcodes("LAUNCH", "HOST_FUNC", "HOST_DONE")
COMM_INIT, COLLECTIVE = opcodes("COMM_INIT", "COLLECTIVE")


@dataclass(frozen=True)
class Record:
    opcode: int
    slot: int
    seq: int
    body: bytes  # what follows the 16 bytes of the header

    def fields(self, form: str) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self.body)


def device(memory: int = 64 * MIB) -> bytes:
    threads, shared, clocks = (1024, 2048), (49152, 166912, 167936), (10**6, 10**6)
    figures = (8, 0, 4, 32, *threads, *shared, 65536, 65536, *clocks, 256, 4096, 32)
    return DEVICE.pack(b"test device", memory, *figures, *[0] * 8)


class ChannelServer:
    """Listens at `path`; `consume` takes records, `answer` replies. Use as a context manager.

    With `automatic` a thread consumes and answers everything, by `replies` (opcode → bytes) or with
    an empty success, and remembers the records.
    """

    def __init__(
        self,
        path: Path,
        *,
        memory: int = 64 * MIB,
        refuse: str = "",
        automatic: bool = True,
        devices: int = 2,
    ):
        self.path = path
        self.devices = devices
        self.memory = memory
        self.refuse = refuse
        self.automatic = automatic
        self.greetings: list[int] = []
        self.records: list[Record] = []
        self.replies: dict[int, Callable[[Record], tuple[int, bytes]]] = {}
        self.ready = threading.Event()
        self.tail = 0
        self._stop = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._door)]
        self._map: mmap.mmap | None = None

    def __enter__(self) -> ChannelServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()
        if self._map is not None:
            self._map.close()

    # ---- the launcher's part ----

    def _door(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                self._say_hello(sock)

    def _say_hello(self, sock: socket.socket) -> None:
        data, ancillary, _flags, _address = sock.recvmsg(HELLO.size, socket.CMSG_SPACE(4))
        if len(data) != HELLO.size:
            return
        magic, _major, _minor, pid, _reserved = HELLO.unpack(data)
        assert magic == MAGIC
        self.greetings.append(pid)
        for _level, _kind, raw in ancillary:
            fds = array.array("i")
            fds.frombytes(raw)
            self._take(fds[0])
        message = self.refuse.encode()
        sock.send(
            WELCOME.pack(
                MAGIC, int(bool(message)), self.devices, 0, 1, device(self.memory), message
            )
        )

    def _take(self, fd: int) -> None:
        self.seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        self.size = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, SHARED_BYTES)
        os.close(fd)
        self.put64(EPOCH, 1)
        self.ready.set()
        if self.automatic:
            thread = threading.Thread(target=self._serve)
            self._threads.append(thread)
            thread.start()

    # ---- the memfd ----

    @property
    def map(self) -> mmap.mmap:
        assert self._map is not None
        return self._map

    def get32(self, offset: int) -> int:
        return words.load32(self.map, offset)

    def get64(self, offset: int) -> int:
        return words.load64(self.map, offset)

    def put32(self, offset: int, value: int) -> None:
        words.store32(self.map, offset, value)

    def put64(self, offset: int, value: int) -> None:
        words.store64(self.map, offset, value)

    def bulk(self, offset: int, size: int) -> bytes:
        return self.map[OFF_BULK + offset : OFF_BULK + offset + size]

    # ---- the server's part ----

    def peek(self) -> bool:
        return self._map is not None and self.get64(HEAD) > self.tail

    def consume(self) -> Record:
        """The next record, which must be there."""
        while True:
            offset = OFF_RING + self.tail % RING_BYTES
            size, opcode, slot, seq = struct.unpack_from("<IHHQ", self.map, offset)
            assert size % 64 == 0 and 0 < size <= RING_BYTES, f"a record of {size} bytes"
            if opcode != PAD:
                record = Record(opcode, slot, seq, self.map[offset + 16 : offset + size])
                self.records.append(record)
            self.tail += size
            self.put64(TAIL, self.tail)
            if self.get32(SPACE_WAITERS):
                words.add32_and_wake(self.map, SPACE_SEQ, 1)
            if opcode != PAD:
                return record

    def next(self) -> Record:
        """The next record, as soon as it comes."""
        while not self.peek():
            assert not self._stop.wait(0.0005)
        return self.consume()

    def drain(self) -> None:
        """Wait until the thread has consumed all that the client wrote."""
        while self.peek():
            assert not self._stop.wait(0.0005)

    def grant(self) -> None:
        """The client's first question: as much memory as the device has."""
        record = self.next()
        assert record.opcode == GRANT_OP
        self.put64(GRANT, self.memory)
        self.answer(record)

    def serve_kernels(self, error: int = 0) -> None:
        """Answer for modules, which load with `error`: each kernel has one parameter, a pointer."""

        def function(record: Record) -> tuple[int, bytes]:
            offset = OFF_BULK + record.fields("QQI")[2] * BULK_BYTES
            self.map[offset : offset + 8] = bytes([0, 0, 0, 0, 8, 0, 0, 0])  # offset 0, 8 bytes
            return 0, b"".join(v.to_bytes(4, "little") for v in (1, 8, 0, 1024, 8, 0, 0, 88))

        self.replies[MODULE_LOAD] = lambda record: (error, bytes(16))
        self.replies[FUNCTION_GET] = function

    def answer(self, record: Record, error: int = 0, data: bytes = b"") -> None:
        offset = OFF_SLOTS + (record.slot - 1) * SLOT_BYTES
        words.store32(self.map, offset + 4, error & 0xFFFFFFFF)
        self.map[offset + 16 : offset + 16 + len(data)] = data
        words.set32_and_wake(self.map, offset, ANSWERED)

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self.peek():
                self.answer_urgent()
                self._stop.wait(0.0005)
                continue
            record = self.consume()
            if record.opcode == GRANT_OP:
                self.put64(GRANT, self.memory)
            if record.opcode in (FREE, FREE_ASYNC):
                self.put64(RETIRED, record.seq)
            handler = self.replies.get(record.opcode)
            reply = handler(record) if handler else (0, b"")
            if record.opcode == COPY:
                self._release(record)
            if record.slot:
                self.answer(record, *reply)

    def answer_urgent(self, error: int = 0) -> None:
        """Requests outside of the ring: queries of streams and events, and aborts."""
        for entry in range(SLOTS) if self._map is not None else ():
            if self.get64(URGENT + 8 * entry):
                self.put64(URGENT + 8 * entry, 0)
                seq = self.records[-1].seq if self.records else 0
                self.answer(Record(0, entry + 1, 0, b""), error, struct.pack("<Qd", seq, 0))

    def _release(self, record: Record) -> None:
        """The data of a source slot have been read."""
        dst_place, src_place, release = struct.unpack_from("<BBB", record.body, 56)
        if release and src_place == 1:
            slot = record.fields("QQQ")[2] // BULK_BYTES
            words.and64(self.map, BULK_BUSY, ~(1 << slot) & (1 << 64) - 1)
            words.add32_and_wake(self.map, BULK_SEQ, 1)
        assert dst_place in (0, 1)

    def of(self, opcode: int) -> list[Record]:
        return [r for r in self.records if r.opcode == opcode]
