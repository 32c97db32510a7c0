"""Pinned memory that is in use is registered with the driver: copies use it directly. The fake
driver checks that it is registered once, stays mapped, keeps its pages, and is unregistered when
nothing uses it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest
from softgpu.harness import CHUNK, Device, ffi

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State
from support.ring_client import OFF_PINS, RingClient, attach, leave, settle
from support.ring_client import PINNED as ANNOUNCE
from support.ring_client import device as served

from .conftest import Kernels
from .fake_driver import Fake

PINNED = 0x200000000000 + (1 << 39)
SLOT = 1 << 33
CHUNKS = 4


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made


class Arena:
    """The pinned memory of a rank, in its space and in ours."""

    def __init__(self, device: Device, rank: int = 0):
        self.device, self.space = device, device.space()
        self.at = PINNED + rank * SLOT
        self.fd = os.memfd_create("arena")
        os.ftruncate(self.fd, CHUNKS * CHUNK)
        opened = device.hal.space_map_host(self.space.handle, self.at, self.fd, 0, CHUNKS * CHUNK)
        assert opened == 0

    def pin(self, chunk: int, count: int = 1, pinned: bool = True) -> None:
        hal, handle = self.device.hal, self.space.handle
        hal.space_pin(handle, self.at + chunk * CHUNK, count * CHUNK, pinned)
        until(lambda: hal.space_pinned(handle), 60, "the driver has it")

    def copy(self, device_at: int, offset: int, nbytes: int, out: bool = False) -> None:
        """A copy to the device, or from it to the arena."""
        work = ffi.new("struct hal_work *", {"kind": self.device.lib.HAL_COPY})
        ends = (work.copy.dst, work.copy.src)
        there, here = reversed(ends) if out else ends
        there.space = here.space = self.space.handle
        there.addr, here.addr = device_at, self.at + offset
        work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = nbytes
        work.copy.height = 1
        self.device.run(work)

    def bytes(self, offset: int, nbytes: int) -> bytes:
        return os.pread(self.fd, nbytes, offset)

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def arena(device: Device) -> Iterator[Arena]:
    made = Arena(device)
    yield made
    made.close()


def data(nbytes: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)


def test_copies_of_registered_memory_use_no_buffer(fake: Fake, arena: Arena) -> None:
    """Across two registrations, at any offset, in both directions."""
    space, wanted, size = arena.space, data(2 * CHUNK), 2 * CHUNK - 4000
    os.pwrite(arena.fd, wanted.tobytes(), 0)
    before = fake.calls("cuMemHostRegister_v2")
    arena.pin(0, 3)
    assert fake.calls("cuMemHostRegister_v2") - before == 3
    at = space.alloc(3 * CHUNK)
    before = fake.calls("cuLaunchHostFunc")
    arena.copy(at + 512, 1000, size)
    arena.copy(at + 512, CHUNK + 8, size, out=True)
    assert fake.calls("cuLaunchHostFunc") == before
    assert arena.bytes(CHUNK + 8, size) == wanted[1000 : 1000 + size].tobytes()
    space.check()


def test_memory_that_is_not_registered_goes_through_buffers(fake: Fake, arena: Arena) -> None:
    """A copy that begins in memory that is registered, and ends in memory that is not."""
    space, wanted = arena.space, data(2 * CHUNK)
    os.pwrite(arena.fd, wanted.tobytes(), 0)
    arena.pin(1)
    before = fake.calls("cuLaunchHostFunc")
    at = space.alloc(2 * CHUNK)
    arena.copy(at, 0, 2 * CHUNK)
    assert fake.calls("cuLaunchHostFunc") - before == 4, "two buffers, in and free"
    assert (space.read(at, 2 * CHUNK, np.uint8) == wanted).all()
    arena.pin(1, pinned=False)
    before = fake.calls("cuLaunchHostFunc")
    arena.copy(at, 0, 2 * CHUNK)
    assert fake.calls("cuLaunchHostFunc") - before == 8
    space.check()


def test_rows_between_registered_memory_and_the_device(arena: Arena) -> None:
    space, wanted = arena.space, data(2 * CHUNK)
    os.pwrite(arena.fd, wanted.tobytes(), 0)
    arena.pin(0, 2)
    at = space.alloc(2 * CHUNK)
    work = ffi.new("struct hal_work *", {"kind": arena.device.lib.HAL_COPY})
    work.copy.dst.space = work.copy.src.space = space.handle
    work.copy.dst.addr, work.copy.src.addr = at + 300, arena.at + 100
    work.copy.width, work.copy.height = 1000, 1900
    work.copy.dst_pitch, work.copy.src_pitch = 1100, 1700
    arena.device.run(work)
    got = space.read(at + 300, 1900 * 1100, np.uint8).reshape(1900, 1100)[:, :1000]
    want = np.lib.stride_tricks.as_strided(wanted[100:], (1900, 1000), (1700, 1))
    assert (got == want).all()


def test_two_ranks_have_their_own_at_once(device: Device, kernels: Kernels) -> None:
    """It is where the program has it, whichever rank is active."""
    arenas = [Arena(device, rank) for rank in range(2)]
    for each in arenas:
        each.pin(0)
    for _ in range(2):
        for rank, each in enumerate(arenas):
            each.space.launch(kernels("put"), 1, 1, each.at + 8, 100 + rank)
            at = each.space.put(np.zeros(1, np.uint32))
            each.copy(at, 8, 4)
            assert each.space.read(at, 1, np.uint32)[0] == 100 + rank
            each.space.check()
    for rank, each in enumerate(arenas):
        assert np.frombuffer(each.bytes(8, 4), np.uint32)[0] == 100 + rank
        each.close()


def test_the_next_rank_at_these_addresses_gets_its_own(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    """Its kernel waits until what the last one has registered is gone, pinned or not itself."""
    first, before = Arena(device), fake.calls("cuMemHostUnregister")
    first.pin(0, 4)
    device.hal.space_destroy(device.spaces.pop().handle)
    for pinned in (False, True):
        arena = Arena(device)
        if pinned:
            device.hal.space_pin(arena.space.handle, arena.at, CHUNK, True)
        arena.space.launch(kernels("put"), 1, 1, arena.at + 8, 77)
        arena.space.check()
        assert np.frombuffer(arena.bytes(8, 4), np.uint32)[0] == 77
        device.hal.space_destroy(device.spaces.pop().handle)
        arena.close()
    until(lambda: fake.calls("cuMemHostUnregister") - before == 5, 60, "all of it is unregistered")
    assert first.bytes(8, 4) == bytes(4)
    first.close()


def test_memory_that_the_driver_refuses_is_pageable(fake: Fake, arena: Arena) -> None:
    fake.fail("cuMemHostRegister_v2", 1, 801)
    os.pwrite(arena.fd, data(CHUNK).tobytes(), 0)
    arena.pin(0)
    at = arena.space.alloc(CHUNK)
    arena.copy(at, 0, CHUNK)
    assert (arena.space.read(at, CHUNK, np.uint8) == data(CHUNK)).all()
    arena.space.check()


def test_memory_that_the_driver_does_not_give_back_ends_the_device(fake: Fake) -> None:
    """Kernels would write to pages that the program no longer has."""
    with Device(memory=16 * CHUNK, hal="nvidia") as device:
        arena = Arena(device)
        arena.pin(0)
        fake.fail("cuMemHostUnregister", 1, 999)
        device.hal.space_pin(arena.space.handle, arena.at, CHUNK, False)
        until(lambda: arena.space.error()[0] == 709, 20, "the device is lost")
        assert "pinned memory cannot be taken back from the driver" in arena.space.error()[1]
        os.close(arena.fd)
    fake.reset()


def test_a_rank_whose_kernel_runs_does_not_hold_up_another_ones_memory(
    device: Device, kernels: Kernels
) -> None:
    arenas = [Arena(device, rank) for rank in range(2)]
    flag = arenas[0].space.put(np.zeros(1, np.uint32))
    running, params = arenas[0].space.kernel_work(kernels("until_set"), 1, 1, flag)
    stream = device.new_stream()
    number = device.submit(running, stream)
    time.sleep(0.02)
    arenas[1].pin(0, 2)
    arenas[1].pin(0, 2, pinned=False)
    assert device.hal.completed(stream) < number and params is not None
    arenas[0].space.write(flag, np.ones(1, np.uint32))
    device.wait(number, stream)
    for each in arenas:
        each.close()


def announced(client: RingClient, chunks: int) -> None:
    """The client says that the first so many chunks are in use; the reply comes."""
    client.map[OFF_PINS : OFF_PINS + 8] = ((1 << chunks) - 1).to_bytes(8, "little")
    assert client.call(ANNOUNCE) == 0


def test_memory_that_a_client_uses_is_registered_wherever_it_is(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the reply comes, after the rank has moved, and not after it has left."""
    monkeypatch.setenv("RANKFOLD_TEST_HAL", "nvidia")
    client = RingClient()
    begun = fake.calls("cuMemHostRegister_v2"), fake.calls("cuMemHostUnregister")

    def made() -> tuple[int, int]:
        """How often was memory registered, and unregistered?"""
        ended = fake.calls("cuMemHostRegister_v2"), fake.calls("cuMemHostUnregister")
        return ended[0] - begun[0], ended[1] - begun[1]

    try:
        with served(64 * MiB, share=False) as native:
            attach(native, client)
            announced(client, 3)
            assert made() == (3, 0)
            announced(client, 2)
            assert made() == (3, 1)
            native.barrier(1, True)
            settle(native, 1, "cut")
            assert native.job_leave(1)
            settle(native, 1, "saved")
            native.job_close(1)
        assert made() == (3, 3)
        with served(64 * MiB, share=False) as native:
            native.job_open(2, 2, 0, 1, [0], -1)
            native.rank_attach(2, 0, client.fd, client.image)
            announced(client, 2)
            assert made() == (5, 3)
            leave(native, 2)
        assert made() == (5, 5)
    finally:
        client.close()


def lines(job: RunningJob) -> int:
    there = (job.folder / "logs/rank-0.out").exists()
    return job.output(0).count("\n") if there else 0


def test_pinned_memory_comes_goes_and_moves(
    state: State, fake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folded, apart, and on a software GPU in between, a rank's kernels and copies see the same."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")
    program = [str(cuda.build(Path(__file__).parent / "pinned.cu")), "16"]
    with Fleet(state, memory=64 * MiB, kinds=("nvidia", "nvidia", "soft")) as fleet:
        job = fleet.start("apart", program, [0, 1], memory=32 * MiB)
        assert job.wait() == [0, 0], [job.errors(0), job.errors(1)]
        wanted = [job.output(rank) for rank in range(2)]
        job = fleet.start("moved", program, [0, 0], memory=32 * MiB)
        for placement in ([1, 0], [2, 2], [1, 1]):
            seen = lines(job)
            until(lambda: lines(job) > seen or job.exit_status(0) is not None)  # noqa: B023
            if job.exit_status(0) is None:
                job.move([fleet.names[p] for p in placement])
        assert job.wait() == [0, 0], [job.errors(0), job.errors(1)]
        assert [job.output(rank) for rank in range(2)] == wanted
    for log in (state.path / "proxies").glob("*.log"):
        assert "pinned memory cannot be" not in log.read_text()
