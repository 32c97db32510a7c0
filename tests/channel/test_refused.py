"""The error of a request without a reply names the request."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from rankfold import records
from rankfold.proxy.native import Native
from support.ring_client import DEV_BASE, RingClient, attach, device, leave, until

OPCODES = records.channel().opcodes
HEADER = records.channel().structs["rf_header"]


@pytest.fixture
def served() -> Iterator[tuple[RingClient, Native]]:
    client = RingClient()
    with device() as native:
        attach(native, client)
        yield client, native
        leave(native)
    client.close()


def fault(client: RingClient) -> str:
    at = HEADER["fault"].offset
    return client.map[at : HEADER.size].split(b"\0")[0].decode()


def refused(served: tuple[RingClient, Native], opcode: int, body: bytes, word: str) -> str:
    """Posted as the second request, without a slot: the text, once the error is there."""
    client, native = served
    client.alloc(DEV_BASE, 4096)
    client.post(opcode, body)
    until(lambda: client.u32(HEADER[word].offset) != 0, native)
    return fault(client)


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("STREAM_DESTROY", struct.pack("<Q", 77), "handle 77"),
        ("FREE", struct.pack("<Q", DEV_BASE + 512), "addr 0x200000000200"),
        ("EVENT_RECORD", struct.pack("<QQ", 78, 1), "event 78"),
        ("LAUNCH", struct.pack("<QQ", 1, 79) + bytes(40), "function 79"),
        ("GEMM_AUX", struct.pack("<Q", 80) + bytes(240), "g.stream 80"),
        ("LAUNCH", b"", "too short"),
    ],
)
def test_a_refused_request_names_opcode_number_and_handle(
    served: tuple[RingClient, Native], name: str, body: bytes, words: str
) -> None:
    opcode = OPCODES[name]
    text = refused(served, opcode.number, body, "async_error")
    head = f"request 2, {name} (opcode {opcode.number}, {words}), was refused with error "
    assert text.startswith(head) and text.removeprefix(head).isdigit()


def test_one_that_is_not_known_is_named_by_its_number(served: tuple[RingClient, Native]) -> None:
    text = refused(served, 999, b"", "async_error")
    assert text == "request 2, of unknown kind (opcode 999), was refused with error 801"


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("COMM_DESTROY", struct.pack("<Q", 81), "handle 81"),
        ("COLLECTIVE", struct.pack("<QQ", 1, 82) + bytes(48), "comm 82"),
    ],
)
def test_so_does_one_of_communicators(
    served: tuple[RingClient, Native], name: str, body: bytes, words: str
) -> None:
    text = refused(served, OPCODES[name].number, body, "comm_errors")
    number = OPCODES[name].number
    (handle,) = struct.unpack_from("<Q", body, 8 if name == "COLLECTIVE" else 0)
    assert served[0].u64(HEADER["comm_errors"].offset) == handle << 8 | 4
    assert text == f"request 2, {name} (opcode {number}, {words}), was refused with error 4"


def test_a_slot_that_is_none_is_named_with_its_request(served: tuple[RingClient, Native]) -> None:
    client, native = served
    client.post(OPCODES["STREAM_SYNC"].number, struct.pack("<Q", 1), slot=99)
    until(lambda: client.u32(HEADER["async_error"].offset) != 0, native)
    assert (
        fault(client)
        == "request 1, STREAM_SYNC (opcode 22, handle 1), has no reply slot of its own"
    )
