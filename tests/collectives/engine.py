"""Engines of several devices in one process, over a transport with random delays.

Memory, arithmetic and messages are Python's and NumPy's, so that only the engine is under test:
which operation reads what, in which order partial results combine, and who tells whom.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DTYPES: dict[str, int] = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6,
    "float32": 7, "float64": 8,
}  # fmt: skip
NAMES = {number: name for name, number in DTYPES.items()}
SUM, PROD, MAX, MIN, AVG = range(5)
(ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, SEND, RECV, ALLTOALL, GATHER,
 SCATTER) = range(10)  # fmt: skip
UFUNCS = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum}
OUTBOX = 1 << 32  # distance between the devices' outboxes, so that offsets cannot be mixed up


def divide(a: Array, by: int) -> Array:
    """As C does: towards zero for integers."""
    if a.dtype.kind == "f":
        quotient: Array = (a / a.dtype.type(by)).astype(a.dtype)
        return quotient
    whole: Array = np.trunc(a.astype(np.longdouble) / by).astype(a.dtype)
    return whole


class Device:
    """One engine with its io."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.number = cluster, number
        ffi, lib = cluster.native
        self.blocks: dict[int, Any] = {}
        self.next_offset = OUTBOX * (number + 1)
        io = ffi.new("struct coll_io *")
        self.keep: list[Any] = [io]
        for name in ("read", "write", "reduce", "scale", "send", "outbox_alloc", "outbox_free",
                     "peer_memory", "joined", "completed", "failed"):  # fmt: skip
            kind = ffi.typeof("struct coll_io").fields
            type_ = dict(kind)[name].type
            callback = ffi.callback(type_, getattr(self, "on_" + name))
            self.keep.append(callback)
            setattr(io, name, callback)
        where = ffi.new("uint32_t[]", cluster.placement)
        self.coll = lib.coll_new(io, number, cluster.devices, len(cluster.placement), where)
        assert self.coll != ffi.NULL

    def on_read(self, _: Any, rank: int, addr: int, host: Any, count: int, token: int) -> None:
        def run() -> None:
            memory = self.cluster.memory[rank]
            self.cluster.ffi.memmove(host, memory[addr : addr + count].tobytes(), count)

        self.cluster.later(self, token, run)

    def on_write(self, _: Any, rank: int, addr: int, host: Any, count: int, token: int) -> None:
        def run() -> None:
            data = self.cluster.ffi.buffer(host, count)
            self.cluster.memory[rank][addr : addr + count] = np.frombuffer(data, np.uint8)

        self.cluster.later(self, token, run)

    def _array(self, at: Any, count: int, dtype: int) -> Array:
        kind = np.dtype(NAMES[dtype])
        return np.frombuffer(self.cluster.ffi.buffer(at, count * kind.itemsize), kind)

    def on_reduce(self, _: Any, dst: Any, a: Any, b: Any, count: int, dtype: int, op: int,
                  token: int) -> None:  # fmt: skip
        def run() -> None:
            left, right = self._array(a, count, dtype), self._array(b, count, dtype)
            with np.errstate(all="ignore"):
                self._array(dst, count, dtype)[:] = UFUNCS[op](left, right)

        self.cluster.later(self, token, run)

    def on_scale(self, _: Any, dst: Any, a: Any, count: int, dtype: int, scalar: Any, divisor: int,
                 token: int) -> None:  # fmt: skip
        ffi = self.cluster.ffi
        factor = None if scalar == ffi.NULL else bytes(ffi.buffer(scalar, 8))

        def run() -> None:
            values = self._array(a, count, dtype).copy()
            if factor is None:
                values = divide(values, divisor)
            else:
                values = values * np.frombuffer(factor, values.dtype)[0]
            self._array(dst, count, dtype)[:] = values

        self.cluster.later(self, token, run)

    def on_send(self, _: Any, to: int, message: Any) -> None:
        assert to != self.number
        copy = self.cluster.ffi.new("struct peer_message *", message[0])
        self.cluster.sent += 1
        self.cluster.queues[(self.number, to)].append(copy)

    def on_outbox_alloc(self, _: Any, count: int, offset: Any) -> Any:
        block = self.cluster.ffi.new("uint8_t[]", count)
        offset[0] = self.next_offset
        self.next_offset += (count + 63) // 64 * 64
        self.blocks[offset[0]] = (block, count)
        return block

    def on_outbox_free(self, _: Any, offset: int, count: int) -> None:
        block, size = self.blocks.pop(offset)
        assert size == count
        self.cluster.ffi.buffer(block)[:] = b"\xee" * size  # nobody may read it any more

    def on_peer_memory(self, _: Any, device: int, offset: int, count: int) -> Any:
        block, size = self.cluster.device[device].blocks.get(offset, (self.cluster.ffi.NULL, 0))
        self.cluster.bytes_read[self.number] += count
        return block if count <= size else self.cluster.ffi.NULL

    def on_joined(self, _: Any, rank: int, comm: int, key: int, error: int, n: int, at: int
                  ) -> None:  # fmt: skip
        self.cluster.joined[(rank, comm)] = (key, error, n, at)

    def on_completed(self, _: Any, rank: int, comm: int, ticket: int, error: int) -> None:
        assert not error and ticket not in self.cluster.completed
        self.cluster.completed.add(ticket)

    def on_failed(self, _: Any, text: Any) -> None:
        self.cluster.failure = self.cluster.ffi.string(text).decode()


class Cluster:
    """All devices of one epoch. memory[rank] is that rank's window, from address 0."""

    def __init__(self, native: tuple[Any, Any], placement: list[int], devices: int, seed: int,
                 memory: list[NDArray[np.uint8]]) -> None:  # fmt: skip
        self.native, self.placement, self.devices = native, placement, devices
        self.ffi, self.lib = native
        self.random = random.Random(seed)
        self.memory = memory
        self.queues: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.due: list[tuple[Device, int, Callable[[], None]]] = []
        self.joined: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        self.completed: set[int] = set()
        self.failure: str | None = None
        self.tickets = self.sent = 0
        self.bytes_read: dict[int, int] = defaultdict(int)
        self.device = [Device(self, d) for d in range(devices)]

    def close(self) -> None:
        for d in self.device:
            self.lib.coll_free(d.coll)

    def coll(self, rank: int) -> Any:
        return self.device[self.placement[rank]].coll

    def later(self, device: Device, token: int, run: Callable[[], None]) -> None:
        self.due.append((device, token, run))

    def step(self) -> bool:
        """One io call ends, or one message arrives."""
        pairs = [p for p, q in self.queues.items() if q]
        if not pairs and not self.due:
            return False
        if self.due and (not pairs or self.random.random() < 0.5):
            device, token, run = self.due.pop(self.random.randrange(len(self.due)))
            run()
            self.lib.coll_io_done(device.coll, token, 0)
        else:
            pair = self.random.choice(pairs)
            message = self.queues[pair].popleft()
            self.lib.coll_receive(self.device[pair[1]].coll, pair[0], message)
        return True

    def settle(self) -> None:
        while self.failure is None and self.step():
            pass

    def init(self, comm: int, members: list[int], identity: int) -> None:
        unique = self.ffi.new("uint8_t[128]", identity.to_bytes(8, "little") + bytes(120))
        for at, rank in enumerate(members):
            self.lib.coll_init(self.coll(rank), rank, comm, unique, len(members), at)

    def submit(self, rank: int, comm: int, ops: list[dict[str, int]]) -> int:
        """One group; returns its ticket. Raises ValueError(code) if it is refused."""
        array = self.ffi.new("struct rf_collective[]", len(ops))
        for record, op in zip(array, ops, strict=True):
            record.comm = comm
            for name, value in op.items():
                setattr(record, name, value)
        self.tickets += 1
        error = self.lib.coll_submit(self.coll(rank), rank, comm, array, len(ops), self.tickets)
        if error:
            raise ValueError(error)
        return self.tickets

    @property
    def busy(self) -> bool:
        return any(self.lib.coll_busy(d.coll) for d in self.device)

    def save(self, rank: int) -> bytes:
        out = self.ffi.new("uint8_t[]", 1 << 16)
        count = self.lib.coll_save(self.coll(rank), rank, out, 1 << 16)
        return bytes(self.ffi.buffer(out, count))

    def restore(self, rank: int, image: bytes) -> int:
        return int(self.lib.coll_restore(self.coll(rank), rank, image, len(image)))
