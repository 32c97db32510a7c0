"""Ranks that compute on their own numbers and average them, driven through their rings."""

from __future__ import annotations

import struct

from hostile.records import FUNCTION_GET, KERNELS, LAUNCH, MODULE_DATA, MODULE_GLOBALS, MODULE_LOAD

from support.ring_client import (
    CHUNK,
    COLLECTIVE,
    COMM_INIT,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    OFF_BULK,
    RingClient,
)

RANKS, FLOATS = 4, 1024
HEAP = 5 * CHUNK
GLOBALS, GIVEN, SUM = DEV_BASE, DEV_BASE + CHUNK - 512, DEV_BASE + 3 * CHUNK
MODULE, FUNCTION, COMM = 16, 17, 18
FLOAT32, AVERAGE = 7, 4


class Trainer(RingClient):
    """A rank that computes on its own numbers and averages them with the others', step by step."""

    def load(self) -> None:
        self.map[OFF_BULK : OFF_BULK + len(KERNELS)] = KERNELS
        self.alloc(DEV_BASE, HEAP)
        self.post(MODULE_DATA, struct.pack("<QQII", MODULE, 0, len(KERNELS), 0))
        assert self.call(MODULE_LOAD, struct.pack("<QQII", MODULE, len(KERNELS), 1, 0)) == 0
        self.post(MODULE_GLOBALS, struct.pack("<QQ", MODULE, GLOBALS))
        body = struct.pack("<QQII", MODULE, FUNCTION, 1, 7) + b"add_one"
        assert self.call(FUNCTION_GET, body) == 0

    def begin_training(self) -> None:
        self.load()
        numbers = [1 / (3 + 7 * self.rank + i) for i in range(FLOATS)]
        self.write(GIVEN, struct.pack(f"<{FLOATS}f", *numbers))
        self.begin(COMM_INIT, struct.pack("<QII", COMM, RANKS, self.rank) + b"\1" * 128)

    def launch(self) -> None:
        """One unit in the last place more."""
        head = struct.pack("<QQ6I4I", 1, FUNCTION, FLOATS // 64, 1, 1, 64, 1, 1, 0, 12, 0, 0)
        self.post(LAUNCH, head + struct.pack("<QI", GIVEN, FLOATS - self.rank))

    def step(self) -> None:
        """That, then everybody's average: the sum changes with the order in which it is taken."""
        self.launch()
        body = struct.pack("<6QIIiI", 1, COMM, GIVEN, SUM, FLOATS, AVERAGE, 0, FLOAT32, 0, 0)
        self.post(COLLECTIVE, body)
        self.post(COPY, self.copy(GIVEN + 64, SUM, 4 * FLOATS - 256))

    def numbers(self) -> bytes:
        assert self.call(DEVICE_SYNC) == 0
        return self.read(GIVEN, 4 * FLOATS) + self.read(SUM, 4 * FLOATS)


def begin(clients: list[Trainer], steps: int) -> None:
    for client in clients:
        client.begin_training()
    assert [client.finish() for client in clients] == [0] * RANKS
    for client in clients:
        for _ in range(steps):
            client.step()
