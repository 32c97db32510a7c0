"""malloc and free of kernels: what is given is in the heap, apart and aligned, and comes back;
a wrong free, or a write beyond what was given, ends the launch and nothing else."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.info import ModuleInfo
from softgpu.harness import Device, Space

LAUNCH_FAILED, ILLEGAL_ADDRESS = 719, 700
BYTES = 1 << 20
SOURCE = """
extern "C" __global__ void take(void **at, const unsigned long long *bytes)
{
    at[threadIdx.x] = malloc(bytes[threadIdx.x]);
}
extern "C" __global__ void give(void **at)
{
    free(at[threadIdx.x]);
}
extern "C" __global__ void write_at(char *at, int from, int count)
{
    for (int i = 0; i < count; i++)
        at[from + i] = (char)(from + i + 1);
}
extern "C" __global__ void blocks(void **at, int n)
{
    for (int i = 0; i < n; i++)
        at[blockIdx.x * n + i] = new int[blockIdx.x + 1];
}
"""


def variables_with_heap(module: ModuleInfo, space: Space, heap: int) -> int:
    """The module's variables, with the address of a heap."""
    image = bytearray(module.globals_image)
    setup = next(g.offset for g in module.globals if g.name == "__rankfold")
    assert struct.unpack_from("<Q", image, setup + 8) == (1,)  # it wants one
    struct.pack_into("<Q", image, setup + 8, heap)
    return space.put(np.frombuffer(bytes(image), np.uint8))


class Heap:
    """A heap in a space, and the module's variables with its address."""

    def __init__(self, kernels: Loader, space: Space, nbytes: int = BYTES):
        self.kernels, self.space, self.bytes = kernels, space, nbytes
        self.module: ModuleInfo = kernels.module(cuda.ptx(SOURCE).encode(), 1)
        self.start = space.alloc(nbytes)
        space.write(self.start, np.frombuffer(b"\xaa" * nbytes, np.uint8))
        space.write(self.start, np.array([nbytes, 0], np.uint64))
        self.globals = variables_with_heap(self.module, space, self.start)

    def launch(self, name: str, grid: int, block: int, *args: Any) -> None:
        function = self.kernels.function(self.module, name)
        self.space.launch(function, grid, block, *args, globals_addr=self.globals)

    def take(self, *sizes: int) -> list[int]:
        at = self.space.put(np.zeros(len(sizes), np.uint64))
        self.launch("take", 1, len(sizes), at, self.space.put(np.array(sizes, np.uint64)))
        self.space.check()
        return [int(a) for a in self.space.read(at, len(sizes), np.uint64)]

    def give(self, *addresses: int) -> None:
        at = self.space.put(np.array(addresses, np.uint64))
        self.launch("give", 1, len(addresses), at)


@pytest.fixture
def heap(kernels: Loader, space: Space) -> Heap:
    return Heap(kernels, space)


def apart(live: dict[int, int], heap: Heap) -> None:
    """Live blocks are in the heap, at multiples of 16, without a byte in common."""
    end = heap.start
    for address, size in sorted(live.items()):
        assert address % 16 == 0 and address >= end
        end = address + size
    assert end <= heap.start + heap.bytes


def test_random_calls(heap: Heap) -> None:
    chance = random.Random(3)
    live: dict[int, int] = {}
    whole = most(heap)
    for _ in range(60):
        sizes = [
            chance.choice([0, 1, 15, 16, 17, 100, 5000, chance.randint(0, 60000)])
            for _ in range(chance.randint(1, 12))
        ]
        for address, size in zip(heap.take(*sizes), sizes, strict=True):
            if address:
                assert address not in live
                live[address] = size
        apart(live, heap)
        gone = chance.sample(sorted(live), min(len(live), chance.randint(0, 14)))
        heap.give(0, *gone)
        heap.space.check()
        for address in gone:
            del live[address]
    assert len(live) > 5
    heap.give(*live)
    heap.space.check()
    assert most(heap) == whole  # free neighbours have become one


def most(heap: Heap) -> int:
    """The largest piece that is to be had, to 64 bytes."""
    low, high = 0, heap.bytes
    while high - low > 64:
        middle = (low + high) // 2
        (address,) = heap.take(middle)
        heap.give(address)
        low, high = (middle, high) if address else (low, middle)
    return low


def test_the_same_calls_give_the_same_addresses(kernels: Loader) -> None:
    """Relative to the heap: wherever it is, whatever was in it, with however many workers."""
    seen = []
    for workers in (1, 3):
        with Device(workers=workers) as device:
            space = device.space()
            space.alloc(workers << 12)
            heap = Heap(kernels, space)
            at = space.put(np.zeros((300, 4), np.uint64))
            heap.launch("blocks", 300, 1, at, 4)
            space.check()
            places = space.read(at, 1200, np.uint64) - np.uint64(heap.start)
            heap.give(*(int(a) + heap.start for a in places[100:900]))
            space.check()
            seen.append((places.tolist(), [a - heap.start for a in heap.take(64, 640, 6400)]))
    assert seen[0] == seen[1]
    assert len(set(seen[0][0])) == 1200


def test_a_full_heap_gives_null(heap: Heap) -> None:
    assert heap.take(BYTES, 1 << 40, 2**64 - 1, 2**64 - 16) == [0, 0, 0, 0]
    pieces = heap.take(*[BYTES // 16] * 20)
    assert [bool(a) for a in pieces] == [True] * 15 + [False] * 5
    heap.give(pieces[7])
    again = heap.take(BYTES // 16, BYTES // 16)
    assert again == [pieces[7], 0]


@pytest.mark.parametrize("nbytes", [0, 16, 1000, 1600])
def test_a_heap_of_next_to_nothing(kernels: Loader, space: Space, nbytes: int) -> None:
    heap = Heap(kernels, space, max(nbytes, 16))
    space.write(heap.start, np.array([nbytes], np.uint64))
    assert heap.take(1000) == [0]


def test_without_a_heap_there_is_no_memory(heap: Heap) -> None:
    heap.globals = heap.space.put(np.frombuffer(heap.module.globals_image, np.uint8))
    assert heap.take(16) == [0]


def test_wrong_frees(heap: Heap, kernels: Loader) -> None:
    wrong: dict[str, Callable[[list[int], int], int]] = {
        "inside": lambda given, _: given[0] + 16,
        "not aligned": lambda given, _: given[0] + 1,
        "elsewhere": lambda _, start: start - 4096,
        "the heap itself": lambda _, start: start,
        "nowhere": lambda _, __: 0xDEAD0000,
        "twice": lambda given, _: given[2],
    }
    for what, address in wrong.items():
        space = heap.space.device.space()
        other = Heap(kernels, space)
        given = other.take(64, 64, 64, 64)
        other.give(given[2])
        space.check()
        other.give(address(given, other.start))
        code, text = space.error()
        assert code == LAUNCH_FAILED and "free" in text and "give" in text, what
    assert heap.take(16)[0]  # another rank's continues


def test_writes_beyond_the_end_of_a_block(heap: Heap, kernels: Loader) -> None:
    """Headers and lists hold anything then: the launch ends, or continues in the heap."""
    for seed in range(12):
        space = heap.space.device.space()
        other = Heap(kernels, space)
        given = other.take(*[48] * 32)
        other.give(*given[::2])
        junk = np.random.default_rng(seed)
        for _ in range(6):
            where = int(junk.integers(0, 4096)) // 4 * 4
            space.write(other.start + where, junk.integers(0, 2**32, 4, np.uint32))
        at = space.put(np.zeros(32, np.uint64))
        other.launch("take", 1, 32, at, space.put(np.full(32, 40 + seed, np.uint64)))
        other.launch("give", 1, 15, space.put(np.array(given[1:31:2], np.uint64)))
        assert space.error()[0] in (0, LAUNCH_FAILED, ILLEGAL_ADDRESS)
        for address in space.read(at, 32, np.uint64).tolist() if not space.error()[0] else []:
            assert address == 0 or other.start <= address < other.start + BYTES
    assert heap.take(16)[0]


def test_heap_content_is_kept(heap: Heap) -> None:
    first, second = heap.take(1000, 1000)
    heap.launch("write_at", 1, 1, first, 0, 1000)
    heap.give(second)
    heap.space.check()
    wanted = ((np.arange(1000) + 1) % 256).astype(np.uint8)
    np.testing.assert_array_equal(heap.space.read(first, 1000, np.uint8), wanted)
