"""The GPU writes that a work is done when someone waits for it, not after each work; and a rank's
work does not wait for what it need not."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest
from hostile.records import FUNCTION_GET, LAUNCH, MODULE_DATA, MODULE_LOAD
from softgpu.harness import Device, Space

from rankfold import paths
from rankfold.proxy.hal.nvidia.modules import Loader
from support.answers import answering
from support.fleet import MiB, until
from support.ring_client import (
    CHUNK,
    DEV_BASE,
    DEVICE_SYNC,
    NON_BLOCKING,
    OFF_BULK,
    STREAM_CREATE,
    STREAM_QUERY,
    STREAM_SYNC,
    RingClient,
    attach,
    device,
    leave,
)

from .conftest import Kernels
from .fake_driver import Fake

WRITES = "cuStreamWriteValue64_v2"
EVERY = 16  # CUDA_REPORT_EVERY
NOT_READY = 600


@pytest.fixture
def gpu(fake: Fake) -> Iterator[Device]:
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made


def puts(space: Space, kernels: Kernels, count: int, at: int, stream: Any = None) -> int:
    """Submit `count` kernels; each writes its number. Returns the number of the last work."""
    number = 0
    for each in range(count):
        work, params = space.kernel_work(kernels("put"), 1, 1, at, each)
        number = space.device.submit(work, stream)
        assert params is not None
    return number


@pytest.mark.parametrize("late", [False, True])
def test_works_are_reported_together(fake: Fake, gpu: Device, kernels: Kernels, late: bool) -> None:
    """Whether it is known before or after they are issued which of them is awaited."""
    space = gpu.space()
    at = space.put(np.zeros(1, np.uint32))
    before, done = fake.calls(WRITES), int(gpu.hal.completed(gpu.stream))
    launched = fake.calls("cuLaunchKernelEx")
    gpu.hal.await_works(gpu.stream, done if late else done + 40, done if late else done + 40)
    number = puts(space, kernels, 40, at)
    assert number == done + 40
    if late:
        until(lambda: fake.calls("cuLaunchKernelEx") == launched + 40, 60, "all are launched")
        gpu.hal.await_works(gpu.stream, number, number)
    gpu.wait(number)
    assert fake.calls(WRITES) - before <= 40 // EVERY + 1 + late
    assert space.read(at, 1, np.uint32)[0] == 39
    space.check()


def test_a_switch_has_the_works_reported_that_it_waits_for(
    fake: Fake, gpu: Device, kernels: Kernels
) -> None:
    """The kernels of a rank are done and no one has asked, when another one's is to run."""
    ranks, streams = [gpu.space(), gpu.space()], [gpu.stream, gpu.new_stream()]
    at = [space.put(np.zeros(1, np.uint32)) for space in ranks]
    gpu.hal.await_works(streams[0], 1, 1)
    puts(ranks[0], kernels, 3, at[0], streams[0])
    gpu.wait(puts(ranks[1], kernels, 1, at[1], streams[1]), streams[1])
    assert [int(s.read(a, 1, np.uint32)[0]) for s, a in zip(ranks, at, strict=True)] == [2, 0]


def test_a_work_that_no_one_awaits_is_reported_in_the_end(
    fake: Fake, gpu: Device, kernels: Kernels
) -> None:
    space = gpu.space()
    at = space.put(np.zeros(1, np.uint32))
    gpu.hal.await_works(gpu.stream, 1, 1)
    gpu.wait(puts(space, kernels, 3, at))


ELEMENTS = 64


def load(client: RingClient, functions: dict[int, str]) -> None:
    """Loads programs.cu, with these functions of it, by their handles."""
    ptx = cuda.ptx(Path(__file__).parent / "programs.cu").encode()
    client.map[OFF_BULK : OFF_BULK + len(ptx)] = ptx
    client.post(MODULE_DATA, struct.pack("<QQII", 16, 0, len(ptx), 0))
    assert client.call(MODULE_LOAD, struct.pack("<QQII", 16, len(ptx), 1, 0)) == 0
    for handle, name in functions.items():
        body = struct.pack("<QQII", 16, handle, 1, len(name)) + name.encode()
        assert client.call(FUNCTION_GET, body) == 0


def launch(client: RingClient, function: int, stream: int, params: bytes) -> None:
    shape = (1, 1, 1, 128, 1, 1)
    head = struct.pack("<QQ6I4I", stream, function, *shape, 0, len(params), 0, 0)
    client.post(LAUNCH, head + params)


def increment(client: RingClient) -> None:
    launch(client, 17, 1, struct.pack("<QI", DEV_BASE, ELEMENTS))


def test_launches_that_no_one_waits_for_are_launches_only(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sixteenth is reported, and others when the GPU has nothing else to do for long."""
    monkeypatch.setenv("RANKFOLD_TEST_HAL", "nvidia")
    loader = Loader(paths.native("lib/librankfold-proxy.so"), (9, 0))
    client = RingClient()
    try:
        with device(64 * MiB, share=False) as native, answering(native, loader):
            attach(native, client)
            client.alloc(DEV_BASE, 2 * CHUNK)
            load(client, {17: "increment"})
            assert client.call(DEVICE_SYNC) == 0
            calls = ("cuLaunchKernelEx", WRITES, "cuMemcpyAsync", "cuLaunchHostFunc")
            before = [fake.calls(each) for each in calls]
            for _ in range(400):
                increment(client)
            assert client.call(DEVICE_SYNC) == 0
            after = [fake.calls(each) for each in calls]
            launches, writes, *others = (b - a for a, b in zip(before, after, strict=True))
            assert launches == 400 and others == [0, 0]
            assert writes <= 400 // 4, "the loop slept some times, and then waited for the last"
            values = np.frombuffer(client.read(DEV_BASE, 4 * ELEMENTS), np.uint32)
            assert (values == 400).all()
            leave(native)
    finally:
        client.close()


def test_a_rank_gets_new_memory_while_its_kernel_runs(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel waits for a word, which nothing writes before the next kernel has run."""
    monkeypatch.setenv("RANKFOLD_TEST_HAL", "nvidia")
    loader = Loader(paths.native("lib/librankfold-proxy.so"), (9, 0))
    client, one, two = RingClient(), 20, 21
    try:
        with device(64 * MiB, share=False) as native, answering(native, loader):
            attach(native, client)
            load(client, {17: "put", 18: "until_set"})
            for stream in (one, two):
                client.post(STREAM_CREATE, struct.pack("<QIi", stream, NON_BLOCKING, 0))
            client.alloc(DEV_BASE, CHUNK)
            assert client.call(DEVICE_SYNC) == 0
            launch(client, 18, one, struct.pack("<Q", DEV_BASE))
            client.alloc(DEV_BASE + CHUNK, 3 * CHUNK)
            launch(client, 17, two, struct.pack("<QI", DEV_BASE + 2 * CHUNK, 7))
            assert client.call(STREAM_SYNC, struct.pack("<Q", two)) == 0
            assert client.call(STREAM_QUERY, struct.pack("<Q", one)) == NOT_READY
            client.write(DEV_BASE, b"\1\0\0\0", stream=two)
            assert client.call(DEVICE_SYNC) == 0
            assert client.read(DEV_BASE + 2 * CHUNK, 8) == b"\7" + bytes(7)
            leave(native)
    finally:
        client.close()
