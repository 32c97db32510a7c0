"""The allocator: no overlap, honest counts, placements that do not depend on the server's pace, and
what ranks have in common at the same places in all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from heap import properties
from heap.properties import Heap
from support.native import REPOSITORY

CLIENT = REPOSITORY / "interpose/client/issue"
SOURCES = [CLIENT / "heap.c", CLIENT / "placement.c"]
MIB = 1 << 20
CHUNK = 2 * MIB
BASE, TOP = 0x200000000000, 0x200000000000 + (1 << 39)
MIDDLE = (BASE + TOP) // 2


@pytest.fixture(scope="module")
def heap(tmp_path_factory: pytest.TempPathFactory) -> properties.Loaded:
    return properties.load(properties.build(tmp_path_factory.mktemp("heap"), SOURCES))


@pytest.fixture
def make(heap: properties.Loaded) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        yield lambda capacity=64 * MIB: stack.enter_context(Heap(heap, capacity))


@pytest.mark.parametrize("prop", properties.ALL, ids=lambda p: p.__name__)
def test_for_all_programs(heap: properties.Loaded, prop: properties.Property) -> None:
    prop(heap, properties.LOOK)


def test_lasting_and_short_lived_buffers_come_from_different_ends(make: Any) -> None:
    heap = make()
    parameters, _ = heap.alloc(1000, site=1)
    gradient, _ = heap.alloc(1000, site=2)
    assert min(parameters, gradient) >= MIDDLE
    assert parameters // CHUNK != gradient // CHUNK
    heap.free(gradient)
    assert heap.alloc(1000, site=2) == (BASE, 0), "it does not live on"
    heap.free(BASE)
    assert heap.alloc(2000, site=2) == (BASE + 1024, 0), "nor, it seems, what is new from there"
    assert heap.alloc(1000, site=1) == (parameters + 1024, 0)


def test_lasting_sizes_are_learnt(make: Any) -> None:
    heap = make()
    for _ in range(3):
        heap.free(heap.alloc(5000, site=1)[0])
    for _ in range(4):
        assert heap.alloc(700, site=1)
    assert heap.alloc(700, site=1)[0] >= MIDDLE
    assert heap.alloc(5000, site=1)[0] < MIDDLE


def test_large_buffers_begin_at_a_chunk_and_small_ones_keep_to_their_functions(make: Any) -> None:
    heap = make(1024 * MIB)
    large = [heap.alloc(CHUNK + 1, site=1)[0] for _ in range(3)]
    assert [a % CHUNK for a in large] == [0, 0, 0]
    assert large == [large[0] + 2 * i * CHUNK for i in range(3)], "one after the other"
    for address in large:
        heap.free(address)
    heap.free(heap.alloc(1000, site=2)[0])
    assert heap.alloc(1000, site=2)[0] == BASE
    assert heap.alloc(CHUNK + 1, site=1)[0] == BASE + CHUNK, "where it does not live on either"
    small = [heap.alloc(1000, site=site, path=7)[0] for site in range(10, 30)]
    assert len({a // CHUNK for a in small}) == 1, "a chunk for each line would be dear"
    middling = [heap.alloc(CHUNK // 8, site=site, path=7)[0] for site in range(10, 30)]
    assert len({a // CHUNK for a in middling + small[:1]}) == 21


def test_frees_at_the_end_of_a_context_teach_nothing(make: Any) -> None:
    heap = make()
    heap.free(heap.alloc(1000, site=1)[0], learn=False)
    assert heap.alloc(1000, site=1)[0] >= MIDDLE


def test_memory_is_counted_in_chunks_touched(make: Any) -> None:
    heap = make(4 * CHUNK)
    addresses = [heap.alloc(CHUNK)[0] for _ in range(4)]
    assert heap.alloc(1) is None
    assert heap.alloc(1, site=1) is None
    heap.free(addresses[1])
    assert heap.alloc(CHUNK), "what is freed counts no more, retired or not"
    assert (heap.heap.live_chunks, heap.heap.held_chunks) == (4, 5)
    heap.retire(heap.seq)
    assert (heap.heap.live_chunks, heap.heap.held_chunks) == (4, 4)


def test_short_of_space_a_freed_range_is_given_out_and_waits_for_its_free(make: Any) -> None:
    heap = make(CHUNK)
    addresses = [heap.alloc(CHUNK // 4)[0] for _ in range(4)]
    heap.free(addresses[2])
    assert heap.alloc(CHUNK // 4) == (addresses[2], 1)


def test_short_of_space_the_rest_of_a_chunk_is_used_from_either_side(make: Any) -> None:
    for freed in (0, 1):
        heap = make(2 * CHUNK)
        halves = [heap.alloc(CHUNK // 2)[0] for _ in range(2)]
        heap.free(halves[freed])
        got = heap.alloc(CHUNK + CHUNK // 2, site=1)
        assert got and halves[freed] in (got[0], got[0] + CHUNK)


def test_the_reserve_leaves_most_of_the_device(make: Any) -> None:
    for capacity, reserve in ((24, 8), (64, 17), (1600, 41)):
        for size in (CHUNK // 8, CHUNK // 2 + 512, CHUNK + 512):
            heap = make(capacity * CHUNK)
            for site in range((capacity - reserve - 2) * CHUNK // size):
                assert heap.alloc(size, site=site), f"{site} buffers of {size} bytes are all"


def test_a_freed_range_rests_while_there_is_other_space(make: Any) -> None:
    heap = make()
    heap.free(heap.alloc(100)[0])
    first, _ = heap.alloc(100)
    heap.free(first)
    heap.retire(heap.seq)
    for _ in range(64):
        address, after = heap.alloc(100)
        assert address != first and not after
        heap.free(address)
    assert heap.alloc(100)[0] == first


@pytest.mark.parametrize("size", [0, 1 << 40, (1 << 64) - 1])
def test_sizes_that_cannot_be_are_refused(make: Any, size: int) -> None:
    assert make().alloc(size) is None


def test_more_call_sites_than_are_remembered_are_placed_anyway(make: Any) -> None:
    heap = make()
    for site in range(40000):
        address, _ = heap.alloc(100, site=site)
        heap.free(address)
        heap.retire(heap.seq)
    heap.check()
    assert heap.alloc(100, site=site + 1)[0] < MIDDLE, "nothing can be learnt of it"
