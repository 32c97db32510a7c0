"""Several devices in one process, for jobs that are driven through their rings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rankfold.proxy.native import EVENT_ALARM, EVENT_SAVED, Event, Native, segment_create
from rankfold.proxy.ptx.info import ModuleInfo
from support.answers import Kernels, answering
from support.ring_client import CHUNK, RingClient, device, leave, settle, until

MODULES: dict[str, ModuleInfo] = {}  # those that are known by their hash, everywhere


class Devices:
    """Some devices in this process, each with its own thread, and their events."""

    def __init__(self, natives: list[Native], told: list[list[Event]]):
        self.natives, self.told = natives, told
        self.spoilt = False  # a test has changed content

    def place(self, job: int, clients: Sequence[RingClient], where: list[int]) -> None:
        """Rank r on device where[r]."""
        segment = segment_create(len(self.natives)) if len(self.natives) > 1 else -1
        for index, native in enumerate(self.natives):
            native.job_open(job, job, index, len(self.natives), where, segment)
        for client in clients:
            self.natives[where[client.rank]].rank_attach(job, client.rank, client.fd, client.image)
        if segment >= 0:
            os.close(segment)

    def compute(self) -> None:
        """Waits until each rank has run a kernel: a rank stopped earlier has nothing to lose."""
        for native in self.natives:
            until(lambda: native.status()["kernels"] > 0, native)  # noqa: B023

    def stop(self, job: int) -> None:
        self.natives[0].barrier(job, True)
        for native in self.natives:
            settle(native, job, "cut")

    def saved(self, n: int) -> list[Event]:
        """The n-th answer of each device to a save."""
        for native, told in zip(self.natives, self.told, strict=True):
            until(lambda: len(only_saved(told)) > n, native)  # noqa: B023
        return [only_saved(told)[n] for told in self.told]

    def continue_running(self, job: int, clients: Sequence[RingClient]) -> None:
        self.natives[0].barrier(job, False)
        for native in self.natives:
            settle(native, job, "running")
        for client in clients:
            client.ring()

    def alarms(self) -> list[list[str]]:
        """The alarms of each device."""
        return [[e.text for e in told if e.kind == EVENT_ALARM] for told in self.told]

    def leave(self, job: int) -> None:
        assert self.spoilt or not any(self.alarms()), self.alarms()
        for native in self.natives:
            leave(native, job)


def only_saved(told: list[Event]) -> list[Event]:
    return [event for event in told if event.kind == EVENT_SAVED]


@contextmanager
def devices(
    kernels: Kernels,
    count: int,
    chunks: int = 64,
    speed: float = 1.0,
    workers: int = 1,
    validate: int = 1,
    opaque: bool = False,
    prepare: bool = True,
    quantum_ns: int = 0,
    share: bool = True,
    squash: bool = True,
) -> Iterator[Devices]:
    how = (chunks * CHUNK, speed, quantum_ns, workers, validate, opaque, prepare, share, squash)
    with ExitStack() as stack:
        natives = [stack.enter_context(device(*how)) for _ in range(count)]
        told: list[list[Event]] = [[] for _ in natives]
        for native, events in zip(natives, told, strict=True):
            stack.enter_context(answering(native, kernels, MODULES, events))
        yield Devices(natives, told)
