"""Chunks of a rank that stay together become one handle of the driver, so a switch takes few calls.
They are divided when they are not shown together any more. The fake driver checks that nothing is
in progress meanwhile, and that no handle is mapped in part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from softgpu.harness import CHUNK, DEV_BASE, Device, ffi

from .conftest import Kernels
from .fake_driver import Fake

BLOCK = 16  # chunks
BASE = DEV_BASE + BLOCK * CHUNK  # the second region of the window
SETTLED = 3  # CUDA_SETTLED
WORDS = CHUNK // 4


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=6 * BLOCK * CHUNK, hal="nvidia") as made:
        yield made


class Rank:
    """A rank with chunks from BASE on. Each has a word of its own."""

    def __init__(self, device: Device, number: int, count: int = 2 * BLOCK):
        self.space, self.number = device.space(), number
        self.chunks: list[int] = []
        for index in range(count):
            self.add(index)

    def add(self, index: int, chunk: int | None = None) -> None:
        if chunk is None:
            made = ffi.new("uint32_t *")
            assert self.space.hal.chunk_create(self.space.device.handle, made) == 0
            chunk = int(made[0])
        assert self.space.map(BASE + index * CHUNK, chunk) == 0
        self.chunks.append(chunk)
        self.space.write(BASE + index * CHUNK, np.array([self.word(index)], np.uint32))

    def remove(self, index: int) -> int:
        assert self.space.hal.space_unmap(self.space.handle, BASE + index * CHUNK) == 0
        return self.chunks[index]

    def word(self, index: int) -> int:
        return 1000 * self.number + index

    def run(self, kernels: Kernels, index: int = 1) -> None:
        """A kernel of the rank, which needs its memory in the window."""
        value = self.word(index)
        self.space.launch(kernels("put"), 1, 1, BASE + index * CHUNK + 64, value)
        self.space.check()

    def check(self, indices: Any, written: int | None = 1) -> None:
        for index in indices:
            at = BASE + index * CHUNK
            assert self.space.read(at, 1, np.uint32)[0] == self.word(index)
        if written is not None:
            at = BASE + written * CHUNK + 64
            assert self.space.read(at, 1, np.uint32)[0] == self.word(written)


CALLS = ("cuMemMap", "cuMemUnmap", "cuMemSetAccess")


def made(fake: Fake) -> list[int]:
    return [fake.calls(each) for each in CALLS]


def turns(kernels: Kernels, *ranks: Rank, count: int = SETTLED + 1) -> None:
    for _ in range(count):
        for rank in ranks:
            rank.run(kernels)


def switch(fake: Fake, kernels: Kernels, rank: Rank) -> list[int]:
    """The calls of a switch to this rank."""
    before = made(fake)
    rank.run(kernels)
    return [b - a for a, b in zip(before, made(fake), strict=True)]


def test_a_switch_takes_two_calls_for_32_mib(fake: Fake, device: Device, kernels: Kernels) -> None:
    """At first it takes them for each 2 MiB. Access is given per range, and costs per handle."""
    ranks = [Rank(device, number) for number in range(2)]
    turns(kernels, *ranks, count=1)
    assert switch(fake, kernels, ranks[0]) == [32, 32, 1]
    turns(kernels, *ranks)
    assert switch(fake, kernels, ranks[0]) == [2, 2, 2]
    for rank in ranks:
        rank.check(range(2 * BLOCK))


def test_chunks_that_are_not_together_any_more_are_divided(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    """A chunk is freed, and another rank gets it, elsewhere."""
    one, two = Rank(device, 0), Rank(device, 1)
    turns(kernels, one, two)
    chunk = one.remove(BLOCK + 3)
    two.add(2 * BLOCK, chunk)
    turns(kernels, one, two, count=1)
    one.check([*range(BLOCK + 3), *range(BLOCK + 4, 2 * BLOCK)])
    two.check(range(2 * BLOCK + 1))
    assert switch(fake, kernels, one)[0] == 1 + BLOCK - 1, "one block, and chunks"
    one.add(BLOCK + 3)
    turns(kernels, one, two, count=SETTLED + 2)
    assert switch(fake, kernels, one)[:2] == [2, 3], "they are together again"
    one.check(range(2 * BLOCK))
    two.check(range(2 * BLOCK + 1))


def test_memory_that_becomes_read_only_is_divided(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    one, two = Rank(device, 0), Rank(device, 1)
    turns(kernels, one, two)
    assert one.space.protect(BASE + 5 * CHUNK, 1, False) == 0
    turns(kernels, one, two, count=1)
    one.check(range(2 * BLOCK))
    assert switch(fake, kernels, one)[0] == BLOCK + 1
    two.check(range(2 * BLOCK))


def test_memory_that_changes_at_each_turn_stays_in_chunks(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    one, two = Rank(device, 0, BLOCK), Rank(device, 1, BLOCK)
    creates = fake.calls("cuMemCreate")
    for _ in range(2 * SETTLED):
        for rank in (one, two):
            chunk = rank.remove(2)
            assert rank.space.map(BASE + 2 * CHUNK, chunk) == 0
            rank.run(kernels)
    assert fake.calls("cuMemCreate") == creates
    one.check(range(BLOCK))


def test_content_moves_when_copies_are_done(fake: Fake, device: Device, kernels: Kernels) -> None:
    """Copies of another rank are under way when a rank's chunks are joined."""
    one, two = Rank(device, 0), Rank(device, 1)
    turns(kernels, one, two, count=SETTLED)
    stream, data = device.new_stream(), np.arange(1, BLOCK * WORDS + 1, dtype=np.uint32)
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_COPY})
    work.copy.dst.space, work.copy.dst.addr = two.space.handle, BASE + BLOCK * CHUNK
    work.copy.src.addr, work.copy.width, work.copy.height = data.ctypes.data, data.nbytes, 1
    work.copy.dst_pitch = work.copy.src_pitch = data.nbytes
    fake.hold(True)
    number = device.submit(work, stream)
    launched = [
        (each, *each.space.kernel_work(kernels("put"), 1, 1, BASE + CHUNK + 64, each.word(1)))
        for each in (one, two)
    ]
    other = device.new_stream()
    last = [device.submit(launch, other) for _rank, launch, _params in launched][-1]
    creates = fake.calls("cuMemCreate")
    time.sleep(0.05)
    assert fake.calls("cuMemCreate") == creates and not device.hal.completed(other)
    fake.hold(False)
    device.wait(number, stream)
    device.wait(last, other)
    assert fake.calls("cuMemCreate") > creates
    got = two.space.read(BASE + BLOCK * CHUNK, len(data), np.uint32)
    assert (got == data).all()
    one.check(range(2 * BLOCK))
    two.check(range(BLOCK))


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemAddressReserve"])
def test_a_gpu_that_is_full_keeps_chunks(
    fake: Fake, device: Device, kernels: Kernels, call: str
) -> None:
    one, two = Rank(device, 0), Rank(device, 1)
    turns(kernels, one, two, count=SETTLED)
    fake.fail(call, 1, 2)
    turns(kernels, one, two)
    assert switch(fake, kernels, one) == [32, 32, 1]
    one.check(range(2 * BLOCK))


def test_random_changes_keep_all_content(fake: Fake, device: Device, kernels: Kernels) -> None:
    """Chunks come, go and change hands in any order, between turns in any order."""
    random, joined = np.random.default_rng(7), fake.calls("cuMemCreate")
    ranks = [Rank(device, number, 20) for number in range(3)]
    there = [dict(enumerate(rank.chunks)) for rank in ranks]
    for _ in range(240):
        number = int(random.integers(3))
        rank, has = ranks[number], there[number]
        for _ in range(int(random.integers(1, 4)) if random.integers(16) == 0 else 0):
            index = int(random.choice([5, 9, 17, 20, 25]))
            if index in has:
                chunk = has.pop(index)
                rank.space.hal.space_unmap(rank.space.handle, BASE + index * CHUNK)
                rank.space.hal.chunk_destroy(device.handle, chunk)
            else:
                rank.add(index)
                has[index] = rank.chunks[-1]
        rank.run(kernels)
        if random.integers(10) == 0:
            rank.check(has)
    for rank, has in zip(ranks, there, strict=True):
        rank.check(has)
    assert fake.calls("cuMemCreate") > joined + 2
