"""Promise: whatever a client writes where it requests aborts, its rank is still served."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfold import records
from rankfold.proxy.native import Native
from support.ring_client import STREAM_SYNC, RingClient, attach, device, leave, until

CONTRACT = records.channel()
HEADER = CONTRACT.structs["rf_header"]
SLOTS = int(CONTRACT.constants["RF_SLOT_COUNT"])
URGENT, URGENTS = HEADER["urgent"].offset, HEADER["urgents"].offset
LEGACY = 1  # a handle of another kind

NAMES = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.just(LEGACY), st.just(1 << 32))
ROUND = st.tuples(
    st.dictionaries(st.integers(0, SLOTS - 1), NAMES, max_size=SLOTS),  # entry: communicator
    st.integers(-(2**31), 2**31),  # what is added to the count of requests
)


@pytest.fixture
def served() -> Iterator[tuple[RingClient, Native]]:
    client = RingClient()
    with device() as native:
        attach(native, client)
        yield client, native
        leave(native)
    client.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rounds=st.lists(ROUND, min_size=1, max_size=4))
def test_any_request_for_an_abort_leaves_the_rank_served(
    served: tuple[RingClient, Native], rounds: list[tuple[dict[int, int], int]]
) -> None:
    client, native = served
    for entries, more in rounds:
        for entry, name in entries.items():
            struct.pack_into("<Q", client.map, URGENT + 8 * entry, name)
        count = (client.u32(URGENTS) + (more or 1)) % 2**32
        struct.pack_into("<I", client.map, URGENTS, count)
        client.ring()

        def taken() -> bool:
            return not any(client.u64(URGENT + 8 * entry) for entry in range(SLOTS))

        until(taken, native)
        assert client.call(STREAM_SYNC, struct.pack("<Q", LEGACY)) == 0
