"""The allocator: no overlap, honest counts, placements that do not depend on the server's pace."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import native
from support.native import REPOSITORY

CLIENT = REPOSITORY / "interpose/client/issue"
MIB = 1 << 20
CHUNK = 2 * MIB
BASE, TOP = 0x200000000000, 0x200000000000 + (1 << 39)


@pytest.fixture(scope="module")
def heap(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    header = CLIENT / "heap.h"
    library = native.build(tmp_path_factory.mktemp("heap"), [CLIENT / "heap.c"])
    return native.load(library, header)


class Heap:
    """heap.c with a server that retires frees when the test says so."""

    def __init__(self, loaded: tuple[Any, Any], capacity: int):
        self.ffi, self.lib = loaded
        self.heap = self.ffi.new("struct heap *")
        assert self.lib.heap_init(self.heap, capacity)
        self.seq = 0
        self.live: dict[int, int] = {}

    def close(self) -> None:
        self.lib.heap_destroy(self.heap)

    def check(self) -> None:
        wrong = self.lib.heap_invalid(self.heap)
        assert wrong == self.ffi.NULL, self.ffi.string(wrong)

    def alloc(self, size: int, stable: bool) -> tuple[int, int] | None:
        """(address, the free it waits for), or None."""
        address, after = self.ffi.new("uint64_t *"), self.ffi.new("uint64_t *")
        if not self.lib.heap_alloc(self.heap, size, stable, address, after):
            return None
        self.live[address[0]] = size
        return address[0], after[0]

    def free(self, address: int) -> None:
        self.seq += 1
        self.lib.heap_free(self.heap, address, self.seq)
        del self.live[address]

    def retire(self, seq: int) -> None:
        self.lib.heap_retire(self.heap, seq)


@pytest.fixture
def make(heap: tuple[Any, Any]) -> Iterator[Any]:
    made: list[Heap] = []

    def make_heap(capacity: int = 64 * MIB) -> Heap:
        made.append(Heap(heap, capacity))
        return made[-1]

    yield make_heap
    for each in made:
        each.close()


# (size, stable) allocates; a fraction frees the live allocation at that place.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 9 * MIB), st.booleans()),
        st.tuples(st.integers(1, 2000), st.booleans()),
        st.floats(0, 1, exclude_max=True),
    ),
    max_size=150,
)


def follow(heap: Heap, steps: list[Any], retire: Any) -> list[int | None]:
    """Do the steps; where allocations were placed (None: out of memory)."""
    places: list[int | None] = []
    for step in steps:
        if isinstance(step, float):
            if heap.live:
                heap.free(list(heap.live)[int(step * len(heap.live))])
        else:
            got = heap.alloc(*step)
            places.append(got[0] if got else None)
            if got and got[1]:
                assert got[1] > heap.heap.retired_seq, "waits for what is retired already"
                heap.retire(got[1])
        retire(heap)
        heap.check()
    return places


@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_allocations_never_overlap_and_counts_are_honest(
    heap: tuple[Any, Any], steps: list[Any], seed: int
) -> None:
    pace = random.Random(seed)
    mine = Heap(heap, 64 * MIB)
    try:
        follow(mine, steps, lambda h: h.retire(pace.randint(h.heap.retired_seq, h.seq)))
        spans = sorted((a, a + size) for a, size in mine.live.items())
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(a % 512 == 0 and a >= BASE and end <= TOP for a, end in spans)
        chunks = [((a - BASE) // CHUNK, (end - 1 - BASE) // CHUNK + 1) for a, end in spans]
        touched = {chunk for first, past in chunks for chunk in range(first, past)}
        assert mine.heap.live_chunks == len(touched) <= 32
        for address, size in mine.live.items():
            found = mine.lib.heap_find(mine.heap, address + size - 1)
            assert (found.addr, found.asked) == (address, size)
    finally:
        mine.close()


@given(steps=STEPS, seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_neither_placement_nor_exhaustion_depends_on_when_frees_retire(
    heap: tuple[Any, Any], steps: list[Any], seed: int
) -> None:
    pace = random.Random(seed)
    heaps = [Heap(heap, 32 * MIB) for _ in range(3)]
    try:
        never = follow(heaps[0], steps, lambda h: None)
        always = follow(heaps[1], steps, lambda h: h.retire(h.seq))
        anytime = follow(heaps[2], steps, lambda h: h.retire(pace.randint(0, h.seq)))
        assert never == always == anytime
    finally:
        for each in heaps:
            each.close()


def test_stable_buffers_come_from_the_high_end(make: Any) -> None:
    heap = make()
    assert heap.alloc(1000, True) == (TOP - 1024, 0)
    assert heap.alloc(1000, False) == (BASE, 0)
    assert heap.alloc(1, True) == (TOP - 1024 - 512, 0)
    assert heap.alloc(1, False) == (BASE + 1024, 0)


def test_memory_is_counted_in_chunks_touched(make: Any) -> None:
    heap = make(4 * CHUNK)
    for _ in range(4):
        assert heap.alloc(CHUNK, False)
    assert heap.alloc(1, False) is None
    assert heap.alloc(1, True) is None
    heap.free(BASE + CHUNK)
    assert heap.alloc(CHUNK, False), "what is freed counts no more, retired or not"
    assert (heap.heap.live_chunks, heap.heap.held_chunks) == (4, 5)
    heap.retire(heap.seq)
    assert (heap.heap.live_chunks, heap.heap.held_chunks) == (4, 4)


def test_short_of_room_a_freed_range_is_given_out_and_waits_for_its_free(make: Any) -> None:
    heap = make(CHUNK)
    addresses = [heap.alloc(CHUNK // 4, False)[0] for _ in range(4)]
    heap.free(addresses[2])
    assert heap.alloc(CHUNK // 4, False) == (addresses[2], 1)


def test_a_freed_range_rests_while_there_is_other_room(make: Any) -> None:
    heap = make()
    first, _ = heap.alloc(100, False)
    heap.free(first)
    heap.retire(heap.seq)
    for _ in range(64):
        address, after = heap.alloc(100, False)
        assert address != first and not after
        heap.free(address)
    assert heap.alloc(100, False)[0] == first


@pytest.mark.parametrize("size", [0, 1 << 40, (1 << 64) - 1])
def test_sizes_that_cannot_be_are_refused(make: Any, size: int) -> None:
    assert make().alloc(size, False) is None
