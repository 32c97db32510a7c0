"""Promise: what is saved of a rank is what there was, record by record; restored, it is saved as
the same again; and a state that cannot be, though its checksum is right, is refused in words: the
device continues."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hostile.records import KERNELS, MODULE_DATA, MODULE_LOAD, MODULE_UNLOAD

from rankfold import records
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import NativeError
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo
from support.computing import sync
from support.moving_rank import PLACES, Moving, alive, moving
from support.ring_client import (
    COMM_INIT,
    OFF_BULK,
    STREAM_CREATE,
    RingClient,
    attach,
    hand_over,
    leave,
    settle,
)
from support.trained import OWN, WORDS, folded, words

SAVED = records.saved()
STATE = SAVED.constants["STATE_OFFSET"]
HEADER = SAVED.structs["state_header"].layout()
KINDS = SAVED.by_number()
CHUNK_OF = {at: (at - PLACES[0]) // (2 << 20) for at in PLACES}
UNUSED = ("alloc", 6, 0)  # in a chunk of its own
Raw = list[tuple[str, bytes]]


def read(client: RingClient) -> Raw:
    """The records of the saved state, by name."""
    *_, size, _checksum = HEADER.unpack(os.pread(client.image, HEADER.size, STATE))
    data, found, at = os.pread(client.image, size, STATE + HEADER.size), [], 0
    while at < size:
        count, opcode = struct.unpack_from("<IH", data, at)
        found.append((KINDS[opcode].name, data[at : at + count]))
        at += count
    return found


def write(client: RingClient, state: Raw) -> None:
    """In the place of the saved state, with the checksum that belongs to it."""
    magic, version, *_ = HEADER.unpack(os.pread(client.image, HEADER.size, STATE))
    data, checksum = b"".join(raw for _, raw in state), 0xCBF29CE484222325
    for byte in data:
        checksum = (checksum ^ byte) * 0x100000001B3 % (1 << 64)
    os.pwrite(client.image, HEADER.pack(magic, version, 0, len(data), checksum) + data, STATE)


def fields(state: Raw, name: str) -> list[dict[str, Any]]:
    shape = SAVED.opcodes[name].record
    found = [SAVED.unpack(shape, raw) for kind, raw in state if kind == name]
    return [{k: v for k, v in each.items() if k != "r"} for each in found]


def put(raw: bytes, name: str, field: str, value: int | bytes) -> bytes:
    """The record with another value."""
    at = SAVED.opcodes[name].record[field]
    new = value if isinstance(value, bytes) else value.to_bytes(at.size, "little")
    return raw[: at.offset] + new + raw[at.offset + len(new) :]


def changed(state: Raw, name: str, **values: int | bytes) -> Raw:
    """The state with other values in its first record of that name."""
    new = list(state)
    n = [kind for kind, _ in state].index(name)
    for field, value in values.items():
        new[n] = (name, put(new[n][1], name, field, value))
    return new


def moved(m: Moving, change: Callable[[Raw], Raw] | None = None) -> Raw:
    """The rank goes to the other device: what was saved of it, and changed on the way."""
    client, (here, there) = m.program.client, m.natives
    saved: list[Raw] = []

    def between() -> None:
        saved.append(read(client))
        if change:
            saved.append(change(saved[0]))
            write(client, saved[1])

    hand_over(here, client, m.job, there, m.job + 1, between)
    m.natives.reverse()
    m.job += 1
    return saved[-1]


@pytest.fixture
def made(kernels: Loader) -> Iterator[Moving]:
    """A rank that has two of everything, and has used them; and memory that it has not."""
    with moving(kernels) as m:
        alive(m.program)
        for operation in (("record", 0, 0), ("launch", 1, 1), ("reduce", 0, 1), UNUSED):
            assert all(error == 0 for error, _ in m.program.do(operation)), operation
        yield m


def test_pages_set_aside_are_behind_the_saved_state() -> None:
    assert (
        STATE + SAVED.constants["STATE_BYTES_MAX"] <= records.image_hold().constants["HOLD_OFFSET"]
    )


def test_saved_state_is_complete(made: Moving) -> None:
    handles, client = made.program.handles, made.program.client
    state = moved(made)
    [rank] = fields(state, "RANK")
    assert (rank["rank"], rank["world_size"], rank["capacity_chunks"]) == (0, 1, 32)
    assert (rank["kernels"], rank["collectives"], rank["switches"]) == (1, 1, 1)
    assert rank["seq"] == rank["records"] == client.seq
    assert [(b["addr"], b["bytes"], b["call_site"], b["stable"]) for b in fields(state, "BUFFER")][
        :2
    ] == [(PLACES[1], 4096, 1, 1), (PLACES[2], 1 << 20, 2, 0)]
    here = {c["chunk"] for c in fields(state, "CHUNK")}
    assert here & set(CHUNK_OF.values()) == {CHUNK_OF[PLACES[1]], CHUNK_OF[PLACES[2]]}
    assert [(s["id"], s["flags"], s["priority"]) for s in fields(state, "STREAM")] == [
        (handles["stream"][2], 1, -1),
        (handles["stream"][3], 0, -2),
    ]
    assert [(e["id"], e["flags"], e["recorded"]) for e in fields(state, "EVENT")] == [
        (handles["event"][0], 0, 1),
        (handles["event"][1], 2, 0),
    ]
    modules = fields(state, "MODULE")
    assert [m["id"] for m in modules] == handles["module"]
    assert all(len(m["hash"]) == 64 and m["globals_addr"] and not m["image_bytes"] for m in modules)
    for function in fields(state, "FUNCTION"):
        assert (function["param_bytes"], function["max_threads"]) == (12, 1024)
    assert [(c["id"], c["issued"]) for c in fields(state, "COMM")] == [
        (handles["comm"][0], 1),
        (handles["comm"][1], 0),
    ]
    assert [r["id"] for r in fields(state, "REDOP")] == handles["redop"]


def full(state: Raw) -> Raw:
    """With all that one rank alone does not come to."""
    names = (
        "kernels",
        "collectives",
        "switches",
        "squashed",
        "not_swapped",
        "copies",
        "unforeseen",
        "prepared",
        "async_error",
    )
    state = changed(
        state,
        "RANK",
        **{name: 700 + n for n, name in enumerate(names)},
        error_text=b"an error that stays",
    )
    alarm = struct.pack("<IH", 576, SAVED.opcodes["ALARM"].number).ljust(576, b"\0")
    alarms = [("ALARM", put(alarm, "ALARM", "text", text)) for text in (b"a bit", b"another bit")]
    return [*state[:-1], *alarms, state[-1]]


def test_restored_state_is_saved_unchanged(made: Moving) -> None:
    for n in range(200):  # more than fits the first guess at their size
        number = made.program.fresh("comm")
        body = struct.pack("<QII", number, 1, 0) + struct.pack("<Q", n).ljust(128, b"\2")
        assert made.program.client.call(COMM_INIT, body) == 0
    before = time.monotonic_ns()
    first = moved(made, full)
    again = moved(made)
    passed = time.monotonic_ns() - before
    assert len(fields(again, "COMM")) == 202
    # The engine stores its own in another order, and events grow older.
    exact = [
        [each for each in state if each[0] not in ("COMMS", "EVENT")] for state in (first, again)
    ]
    assert sorted(exact[0]) == sorted(exact[1])
    assert [name for name, _ in first] == [name for name, _ in again]
    for one, two in zip(fields(first, "EVENT"), fields(again, "EVENT"), strict=True):
        assert one | {"age_ns": 0} == two | {"age_ns": 0}
        assert not one["recorded"] or 0 < two["age_ns"] - one["age_ns"] < passed


def test_all_handles_are_good_for_the_same_elsewhere(kernels: Loader) -> None:
    with moving(kernels) as goes, moving(kernels) as stays:
        for made in (goes, stays):
            alive(made.program)
        goes.move()
        assert goes.program.look() == stays.program.look()


def test_pages_in_the_image_are_not_taken_for_zeros(kernels: Loader) -> None:
    """Nothing says what it is: ranks that come together share none of it."""
    with folded(kernels, 2) as (here, ranks):
        (native,) = here.natives
        for rank in ranks:
            rank.write(OWN, bytes([rank.rank + 1] * 4 * WORDS))
        sync(ranks)
        here.stop(1)
        assert native.job_leave(1)
        settle(native, 1, "saved")
        native.job_close(1)
        for rank in ranks:
            write(rank, [each for each in read(rank) if each[0] != "VERSIONS"])
        here.place(1, ranks, [0, 0])
        for rank in ranks:
            rank.launch("scale", OWN, OWN, WORDS, 0)
        sync(ranks)
        assert [words(rank, OWN) for rank in ranks] == [[0x03030303] * WORDS, [0x06060606] * WORDS]


def test_a_module_may_arrive_in_parts_on_several_devices(kernels: Loader) -> None:
    """Data that has arrived counts until it is loaded: then as much can arrive again."""
    with moving(kernels) as m:
        client = m.program.client
        for part in (len(KERNELS) // 2, 16):
            number = m.program.fresh("module")
            for begin, end in ((0, part), (part, len(KERNELS))):
                client.map[OFF_BULK : OFF_BULK + end - begin] = KERNELS[begin:end]
                body = struct.pack("<QQII", number, begin, end - begin, 0)
                assert client.call(MODULE_DATA, body) == 0
                m.move()
            assert client.call(MODULE_LOAD, struct.pack("<QQII", number, len(KERNELS), 1, 0)) == 0


class Held:
    """Compiles no kernel before it may."""

    def __init__(self, kernels: Loader):
        self.kernels, self.may = kernels, threading.Event()
        self.may.set()

    def module(self, image: bytes, kind: int) -> ModuleInfo:
        return self.kernels.module(image, kind)

    def function(self, module: ModuleInfo, name: str) -> FunctionInfo:
        assert self.may.wait(60)
        return self.kernels.function(module, name)


def test_modules_not_yet_recompiled_are_saved_unchanged(kernels: Loader) -> None:
    """A module that has been unloaded meanwhile is not saved."""
    held = Held(kernels)
    with moving(held) as m:
        alive(m.program)
        stays, goes = m.program.handles["module"]
        assert m.program.do(("function", 1, 1))[0][0] == 0
        held.may.clear()
        try:
            first = moved(m, with_other("FUNCTION", static_shared_bytes=7, max_threads=99))
            assert m.program.client.call(MODULE_UNLOAD, struct.pack("<Q", goes)) == 0
            again = moved(m)
        finally:
            held.may.set()
        assert [each["id"] for each in fields(again, "MODULE")] == [stays]
        assert fields(again, "FUNCTION") == fields(first, "FUNCTION")[:2]
        assert all(error == 0 for error, _ in m.program.do(("launch", 0, 1)))


def streams(state: Raw) -> Raw:
    [(name, raw), *_] = [each for each in state if each[0] == "STREAM"]
    many = [(name, put(raw, name, "id", 100_000 + n)) for n in range(5000)]
    return [*state[:-1], *many, state[-1]]


def twice(name: str) -> Callable[[Raw], Raw]:
    def change(state: Raw) -> Raw:
        return [*state[:-1], next(each for each in state if each[0] == name), state[-1]]

    return change


def with_other(name: str, **values: int | bytes) -> Callable[[Raw], Raw]:
    return lambda state: changed(state, name, **values)


def communicators_in_two_records(state: Raw) -> Raw:
    """The second record could also be read as another kind: a reduction with the number 5000."""
    state = [each for each in state if each[0] != "COMM"]
    n = [name for name, _ in state].index("COMMS")
    size = SAVED.opcodes["COMMS"].record.size + 24  # and the engine's own header
    head, rest = state[n][1][:size], state[n][1][size:]
    redop = struct.pack("<IH", len(rest), SAVED.opcodes["REDOP"].number)
    rest = put(redop + rest[len(redop) :], "REDOP", "id", 5000)
    return [*state[:n], ("COMMS", struct.pack("<I", size) + head[4:] + rest), *state[n + 1 :]]


IMPOSSIBLE: dict[str, Callable[[Raw], Raw]] = {
    "another rank": with_other("RANK", rank=1),
    "another world": with_other("RANK", world_size=2),
    "another place in the ring": with_other("RANK", tail=64),
    "a page beyond the heap": with_other("CHUNK", chunk=1 << 40),
    "a page without a buffer": with_other("CHUNK", chunk=20),
    "a page of a rank that there is not": with_other("CHUNK", image_owner=1),
    "more versions than there are": with_other("VERSIONS", bytes=1 << 30),
    "half a version": with_other("VERSIONS", bytes=20),
    "more communicators than there are": with_other("COMMS", bytes=1 << 30),
    "communicators in two records": communicators_in_two_records,
    "a communicator of another key": with_other("COMM", key=5),
    "a communicator without members": with_other("COMM", id=9999, key=0),
    "a hash without an end": with_other("MODULE", hash=b"a" * 72),
    "an image without an end": with_other("MODULE", image_bytes=1 << 30),
    "a function of no module": with_other("FUNCTION", module=9),
    "a name without an end": with_other("FUNCTION", name_bytes=1 << 30),
    "a stream twice": twice("STREAM"),
    "an event twice": twice("EVENT"),
    "streams without end": streams,
    "an alarm without an end": lambda state: changed(full(state), "ALARM", text=b"x" * 512),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_impossible_state_is_refused_despite_a_valid_checksum(made: Moving, what: str) -> None:
    with pytest.raises(NativeError, match="rank 0: its saved state") as refusal:
        moved(made, IMPOSSIBLE[what])
    assert "memory" not in str(refusal.value)
    made.natives.reverse()
    made.job += 1  # which is there without a rank
    other = RingClient()
    attach(made.natives[0], other, job=99)
    assert other.call(STREAM_CREATE, struct.pack("<QIi", 17, 0, 0)) == 0
    leave(made.natives[0], 99)
    other.close()
