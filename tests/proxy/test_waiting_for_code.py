"""Promise: while code of a rank is loaded or compiled, its device says so, and not that the rank
computes on the host."""

from __future__ import annotations

import select
import struct

import pytest

from rankfold.proxy.native import EVENT_MODULE, Native
from rankfold.proxy.ptx.errors import NOT_FOUND
from support.computing import MODULE, MODULE_DATA, MODULE_LOAD, Computing, source
from support.ring_client import DEV_BASE, OFF_BULK, attach, device, leave, until


def at(native: Native) -> str:
    found = native.rank_status(1, 0)
    assert found is not None
    return found.at


def token_of(native: Native, kind: int) -> int:
    """Of the request that the core makes of its Python half."""
    tokens: list[int] = []

    def asked() -> bool:
        tokens.extend(event.token for event in native.events() if event.kind == kind)
        return bool(tokens)

    until(asked, native)
    return tokens[0]


def test_a_rank_that_waits_for_its_code() -> None:
    rank, image = Computing(0, 1, DEV_BASE), source()
    rank.map[OFF_BULK : OFF_BULK + len(image)] = image
    with device() as native:
        attach(native, rank)
        assert at(native) == "host"
        rank.post(MODULE_DATA, struct.pack("<QQII", MODULE, 0, len(image), 0))
        rank.begin(MODULE_LOAD, struct.pack("<QQII", MODULE, len(image), 1, 0))
        token = token_of(native, EVENT_MODULE)
        assert at(native) == "code"
        native.module_ready(token, NOT_FOUND)
        assert rank.finish() == NOT_FOUND and at(native) == "host"
        leave(native)
    rank.close()


def test_requests_that_keep_coming_are_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a rank that sends requests all the time would keep its proxy from all else."""
    monkeypatch.setattr("rankfold.proxy.native.EVENTS_AT_ONCE", 2)
    rank = Computing(0, 1, DEV_BASE)
    with device() as native:
        attach(native, rank)
        for number in range(5):
            rank.post(MODULE_DATA, struct.pack("<QQII", MODULE + number, 0, 16, 0))
            rank.begin(MODULE_LOAD, struct.pack("<QQII", MODULE + number, 16, 1, 0), number + 1)
        until(lambda: native.rank_status(1, 0).records == 10, native)  # type: ignore[union-attr]
        found = []
        while select.select([native.event_fd], [], [], 0)[0]:
            found.append(len(list(native.events())))
        assert max(found) == 2 and sum(found) >= 5
        leave(native)
    rank.close()
