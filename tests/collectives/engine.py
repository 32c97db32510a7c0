"""Engines of several devices in one process, over a transport with random delays.

Memory, arithmetic and messages are Python's and NumPy's, so that only the engine is under test:
which operation reads what, in which order partial results combine, and which messages are sent. A
peer's data comes as over a network: later, in any order, as a copy that is spoilt once it is
released; or now and then at once. Outboxes and copies are in spaces of their own, whose addresses
are no pointers; nor are those of scratch memory, which the device sometimes has."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.links import LINKS, NO_LINKS, Links, Wishes, World

Array = NDArray[Any]
Place = tuple[int, int]  # of a hal_ref: space and address
DTYPES: dict[str, int] = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
}
NAMES = {number: name for name, number in DTYPES.items()}
SUM, PROD, MAX, MIN, AVG = range(5)
(ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, SEND, RECV, ALLTOALL, GATHER, SCATTER) = (
    range(10)
)
UFUNCS = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum}
OUTBOX = 1 << 32  # distance between the devices' outboxes, so that offsets cannot be mixed up
SCRATCH = 1 << 62  # here and above are addresses of scratch memory
LATER = -1  # COLL_LATER
EACH = 2**32 - 1  # COLL_EACH
ABORTED = -2  # COLL_ABORTED
COPIES = 1000  # the space of a device's copies is so far from that of its outbox


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
        self.readers: dict[int, int] = {}  # devices that may fetch a block: a bit for each
        self.scratch: dict[int, Any] = {}
        self.links = Links(self, number)
        self.fetched: dict[int, Any] = {}  # by address, with whose it is: not released yet
        self.spoilt: list[Any] = []
        self.next_offset = OUTBOX * (number + 1)
        io = ffi.new("struct coll_io *")
        self.keep: list[Any] = [io]
        for name in (
            "read",
            "write",
            "receiver",
            "keeper",
            "forget",
            "hand",
            "reduce",
            "scale",
            "send",
            "scratch_alloc",
            "scratch_free",
            "outbox_alloc",
            "outbox_free",
            "fetch",
            "release",
            "joined",
            "completed",
            "abort_complete",
            "broken",
            "failed",
            "link_open",
            "link_state",
            "link_name",
            "link_connect",
            "link_sum",
            "link_cancel",
            "link_close",
            "link_decided",
        ):
            kind = ffi.typeof("struct coll_io").fields
            type_ = dict(kind)[name].type
            of_links = name.startswith("link_")
            if name == "link_open" and number in cluster.links.none:
                continue
            does = getattr(self.links if of_links else self, "on_" + name)
            callback = ffi.callback(type_, does, onerror=cluster.note)
            self.keep.append(callback)
            setattr(io, name, callback)
        where = ffi.new("uint32_t[]", cluster.placement)
        self.coll = lib.coll_new(io, number, cluster.devices, len(cluster.placement), where)
        assert self.coll != ffi.NULL
        if cluster.links.allowed:
            lib.coll_allow_links(self.coll)

    def _place(self, ref: Any) -> Place:
        """The place of an argument, which is freed when the call returns."""
        return int(self.cluster.ffi.cast("uintptr_t", ref.space)), ref.addr

    def _bytes(self, place: Place, count: int) -> Any:
        """The bytes that a hal_ref names. Raises AssertionError if any does not exist."""
        ffi = self.cluster.ffi
        space, addr = place
        if not space and addr < SCRATCH:
            return ffi.buffer(ffi.cast("uint8_t *", addr), count)
        held = self.blocks if space == self.number + 1 else self.fetched if space else self.scratch
        if not space and addr >= LINKS:
            held = self.links.memory
        assert space in (0, self.number + 1, self.number + 1 + COPIES)
        for base, (block, size, *_rest) in held.items():
            if base <= addr and addr + count <= base + size:
                return ffi.buffer(block + (addr - base), count)
        raise AssertionError(f"nothing of {count} bytes at {addr:#x} of space {space}")

    def _ref(self, space: int, addr: int) -> Any:
        ffi = self.cluster.ffi
        at = ffi.new("struct hal_ref *")
        at.space, at.addr = ffi.cast("struct hal_space *", space), addr
        return at[0]

    def on_read(self, _: Any, rank: int, addr: int, to: Any, count: int, token: int) -> None:
        place = self._place(to)

        def run() -> None:
            self._bytes(place, count)[:] = self.cluster.memory[rank][addr : addr + count].tobytes()

        self.cluster.later(self, token, run)

    def on_write(self, _: Any, rank: int, addr: int, at: Any, count: int, token: int) -> None:
        place = self._place(at)

        def run() -> None:
            self.cluster.written[rank] += count
            data = np.frombuffer(self._bytes(place, count), np.uint8)
            self.cluster.memory[rank][addr : addr + count] = data

        self.cluster.later(self, token, run)

    def on_receiver(self, _: Any, ranks: Any, count: int, addr: int, size: int) -> int:
        """One of them, or each."""
        found = [ranks[i] for i in range(count)]
        assert count > 1 and size > 0 and len(set(found)) == count
        assert all(self.cluster.placement[rank] == self.number for rank in found)
        if self.cluster.chosen is not None:
            return min(self.cluster.chosen, count)
        chosen: int = self.cluster.random.choice([EACH, *range(count)])
        return chosen

    def on_keeper(self, _: Any, ranks: Any, addrs: Any, size: int) -> int:
        """One of the two, or each."""
        assert size > 0 and ranks[0] != ranks[1]
        assert all(self.cluster.placement[ranks[i]] == self.number for i in range(2))
        if self.cluster.keeps is not None:
            return self.cluster.keeps
        chosen: int = self.cluster.random.choice([EACH, 0, 1, 0, 1])
        return chosen

    def on_forget(self, _: Any, rank: int, addr: int, count: int) -> None:
        """It reads as anything from now on."""
        self.cluster.memory[rank][addr : addr + count] = 0xA5
        self.cluster.forgotten[rank] += count

    def on_hand(self, _: Any, giver: int, to: int, addr: int, count: int, token: int) -> None:
        assert giver != to
        memory = self.cluster.memory

        def run() -> None:
            memory[to][addr : addr + count] = memory[giver][addr : addr + count]
            self.cluster.handed += 1

        self.cluster.later(self, token, run)

    def _array(self, at: Place, count: int, dtype: int) -> Array:
        kind = np.dtype(NAMES[dtype])
        return np.frombuffer(self._bytes(at, count * kind.itemsize), kind)

    def _operand(self, operand: Any, count: int, dtype: int) -> Callable[[], Array]:
        """Returns a function that reads a sum's operand when the sum runs."""
        place, rank, kind = self._place(operand.at), operand.rank, np.dtype(NAMES[dtype])
        if not operand.window:
            return lambda: self._array(place, count, dtype)

        def found() -> Array:
            space, addr = place
            assert space == 0 and addr % kind.itemsize == 0
            assert self.cluster.placement[rank] == self.number
            there: Array = self.cluster.memory[rank][addr : addr + count * kind.itemsize]
            return there.view(kind)

        return found

    def on_reduce(
        self, _: Any, dst: Any, a: Any, b: Any, count: int, dtype: int, op: int, token: int
    ) -> None:
        to = self._place(dst)
        left_of, right_of = (self._operand(each, count, dtype) for each in (a, b))

        def run() -> None:
            left, right = left_of(), right_of()
            with np.errstate(all="ignore"):
                self._array(to, count, dtype)[:] = UFUNCS[op](left, right)

        self.cluster.later(self, token, run)

    def on_scale(
        self,
        _: Any,
        dst: Any,
        a: Any,
        count: int,
        dtype: int,
        scalar: Any,
        divisor: int,
        token: int,
    ) -> None:
        ffi = self.cluster.ffi
        to, operand = self._place(dst), self._place(a)
        factor = None if scalar == ffi.NULL else bytes(ffi.buffer(scalar, 8))

        def run() -> None:
            values = self._array(operand, count, dtype).copy()
            if factor is None:
                values = divide(values, divisor)
            else:
                values = values * np.frombuffer(factor, values.dtype)[0]
            self._array(to, count, dtype)[:] = values

        self.cluster.later(self, token, run)

    def on_send(self, _: Any, to: int, message: Any) -> None:
        assert to != self.number
        copy = self.cluster.ffi.new("struct peer_message *", message[0])
        self.cluster.sent += 1
        self.cluster.queues[(self.number, to)].append(copy)

    def on_scratch_alloc(self, _: Any, count: int) -> int:
        assert count > 0
        if self.cluster.random.random() < 0.5:
            return 0
        address = SCRATCH + self.next_offset
        self.next_offset += (count + 63) // 64 * 64
        self.scratch[address] = (self.cluster.ffi.new("uint8_t[]", count), count)
        return address

    def on_scratch_free(self, _: Any, address: int, count: int) -> bool:
        if address not in self.scratch:
            return False
        block, size = self.scratch.pop(address)
        assert size == count
        self.cluster.ffi.buffer(block)[:] = b"\xee" * size
        return True

    def on_outbox_alloc(self, _: Any, count: int, readers: int, offset: Any) -> Any:
        assert readers and not readers >> self.number & 1 and not readers >> self.cluster.devices
        block = self.cluster.ffi.new("uint8_t[]", count)
        offset[0] = self.next_offset
        self.next_offset += (count + 63) // 64 * 64
        self.blocks[offset[0]] = (block, count)
        self.readers[offset[0]] = readers
        return self._ref(self.number + 1, offset[0])

    def on_outbox_free(self, _: Any, offset: int, count: int) -> None:
        block, size = self.blocks.pop(offset)
        assert size == count
        self.cluster.ffi.buffer(block)[:] = b"\xee" * size  # no reader may use it any more

    def on_fetch(self, _: Any, device: int, offset: int, count: int, token: int, place: Any) -> int:
        cluster, ffi = self.cluster, self.cluster.ffi
        assert device != self.number and count > 0
        cluster.bytes_read[self.number] += count
        cluster.fetches += 1
        failing = cluster.fetches == cluster.failing_fetch

        def copy() -> Any:
            """Only now: until it has been released its owner must keep it."""
            block, size = cluster.device[device].blocks.get(offset, (None, 0))
            if count > size or failing:
                return None
            assert cluster.device[device].readers[offset] >> self.number & 1
            addr = self.next_offset
            self.next_offset += (count + 63) // 64 * 64
            data = ffi.new("uint8_t[]", bytes(ffi.buffer(block, count)))
            self.fetched[addr] = (data, count, device)
            return self._ref(self.number + 1 + COPIES, addr)

        def over() -> None:
            cluster.awaited[self.number] -= 1
            at = copy()
            cluster.lib.coll_fetched(self.coll, token, at or self._ref(0, 0), 0 if at else 5)

        if cluster.random.random() < 0.75:
            cluster.due.append(over)
            cluster.awaited[self.number] += 1
            cluster.most_awaited = max(cluster.most_awaited, cluster.awaited[self.number])
            return LATER
        at = copy()
        if at is None:
            return 5
        place[0] = at
        return 0

    def on_release(self, _: Any, device: int, place: Any, count: int) -> None:
        space, addr = self._place(place)
        assert space == self.number + 1 + COPIES
        data, *whose = self.fetched.pop(addr)
        assert whose == [count, device]
        self.cluster.ffi.buffer(data, count)[:] = b"\xdd" * count
        self.spoilt.append(data)  # kept, so that no other object gets its memory

    def on_joined(
        self, _: Any, rank: int, comm: int, key: int, error: int, n: int, at: int
    ) -> None:
        self.cluster.joined[(rank, comm)] = (key, error, n, at)

    def on_completed(self, _: Any, rank: int, comm: int, ticket: int, error: int) -> None:
        assert ticket not in self.cluster.completed and ticket not in self.cluster.aborted
        assert error in (0, ABORTED)
        (self.cluster.aborted if error else self.cluster.completed).add(ticket)

    def on_abort_complete(self, _: Any, rank: int, comm: int) -> None:
        self.cluster.left.add((rank, comm))

    def on_broken(self, _: Any, rank: int, comm: int, hopeless: bool) -> None:
        self.cluster.broken[(rank, comm)] = hopeless or self.cluster.broken.get((rank, comm), False)

    def on_failed(self, _: Any, text: Any) -> None:
        self.cluster.failure = self.cluster.ffi.string(text).decode()


class Cluster:
    """All devices of one epoch. memory[rank] is that rank's window, from address 0."""

    def __init__(
        self,
        native: tuple[Any, Any],
        placement: list[int],
        devices: int,
        seed: int,
        memory: list[NDArray[np.uint8]],
        links: Wishes = NO_LINKS,
    ) -> None:
        self.links, self.opened = links, 0
        self.worlds: dict[bytes, World] = {}
        self.errors: list[BaseException] = []
        self.native, self.placement, self.devices = native, placement, devices
        self.ffi, self.lib = native
        self.random = random.Random(seed)
        self.memory = memory
        self.queues: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.due: list[Callable[[], None]] = []
        self.fetches, self.failing_fetch = 0, -1
        self.io_fails = False  # on the device, as where the memory's rank has failed
        self.awaited: dict[int, int] = defaultdict(int)  # fetches under way, of each device
        self.most_awaited = 0
        self.joined: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        self.completed: set[int] = set()
        self.aborted: set[int] = set()  # tickets of operations that ended unfinished
        self.left: set[tuple[int, int]] = set()  # (rank, communicator) that was aborted
        self.broken: dict[tuple[int, int], bool] = {}  # another one did; hopeless?
        self.failure: str | None = None
        self.tickets = self.sent = self.handed = 0
        self.chosen: int | None = None  # receives for others; None: any, or each for itself
        self.keeps: int | None = None  # which of two holds a sum; None: any, or each its own
        self.forgotten: dict[int, int] = defaultdict(int)  # bytes, by rank
        self.written: dict[int, int] = defaultdict(int)  # bytes, by rank
        self.bytes_read: dict[int, int] = defaultdict(int)
        self.device = [Device(self, d) for d in range(devices)]

    def note(self, _type: object, error: BaseException, _where: object) -> None:
        """A callback from the engine has failed; `step` raises that."""
        self.errors.append(error)

    def close(self) -> None:
        for d in self.device:
            self.lib.coll_free(d.coll)
            assert not d.fetched and not d.blocks and not d.scratch and not d.links.open

    def coll(self, rank: int) -> Any:
        return self.device[self.placement[rank]].coll

    def later(self, device: Device, token: int, run: Callable[[], None]) -> None:
        def over() -> None:
            run()
            self.lib.coll_io_done(device.coll, token, 5 if self.io_fails else 0)

        self.due.append(over)

    def step(self) -> bool:
        """One io call ends, or one message arrives."""
        pairs = [p for p, q in self.queues.items() if q]
        if not pairs and not self.due:
            return False
        if self.due and (not pairs or self.random.random() < 0.5):
            self.due.pop(self.random.randrange(len(self.due)))()
        else:
            pair = self.random.choice(pairs)
            message = self.queues[pair].popleft()
            self.lib.coll_receive(self.device[pair[1]].coll, pair[0], message)
        self.check()
        return True

    def check(self) -> None:
        """The engine's own counts and links; and what it has called."""
        if self.errors:
            raise self.errors[0]
        for d in self.device:
            wrong = self.lib.coll_invalid(d.coll)
            assert wrong == self.ffi.NULL, self.ffi.string(wrong).decode()

    def settle(self) -> None:
        while self.failure is None and self.step():
            pass

    def init(self, comm: int, members: list[int], identity: int) -> None:
        unique = self.ffi.new("uint8_t[128]", identity.to_bytes(8, "little") + bytes(120))
        for at, rank in enumerate(members):
            self.lib.coll_init(self.coll(rank), rank, comm, unique, len(members), at)

    def abort(self, rank: int, comm: int) -> None:
        self.lib.coll_abort(self.coll(rank), rank, comm)

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

    def lacks(self, rank: int) -> int:
        """One of `enum coll_lack`: for whom what the rank has called waits."""
        return int(self.lib.coll_lacks(self.coll(rank), rank))

    def save(self, rank: int) -> bytes:
        out = self.ffi.new("uint8_t[]", 1 << 16)
        count = self.lib.coll_save(self.coll(rank), rank, out, 1 << 16)
        return bytes(self.ffi.buffer(out, count))

    def restore(self, rank: int, image: bytes) -> int:
        return int(self.lib.coll_restore(self.coll(rank), rank, image, len(image)))
