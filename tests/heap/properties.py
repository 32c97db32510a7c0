"""Properties of the heap for all programs, and a heap whose server is the test."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from support import native

Loaded = tuple[Any, Any]
Property = Callable[[Loaded, settings], None]

LOOK = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
# The examples that are written down notice what chance may not.
HUNT = settings(LOOK, database=None, phases=[Phase.explicit, Phase.generate])

HEADER = native.REPOSITORY / "interpose/client/issue/heap.h"
MIB = 1 << 20
CHUNK = 2 * MIB
ALIGN = 512
BASE, END = 0x200000000000, 0x200000000000 + (1 << 39)
MIDDLE = (BASE + END) // 2


def build(folder: Path, sources: Sequence[Path], warnings: bool = True) -> Path:
    return native.build(folder, sources, "heap", warnings, [f"-I{HEADER.parent}"])


def load(library: Path) -> Loaded:
    return native.load(library, HEADER)


def whole(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def chunks(address: int, size: int) -> set[int]:
    return set(range((address - BASE) // CHUNK, (address + whole(size) - 1 - BASE) // CHUNK + 1))


class Heap:
    """heap.c with a server that retires frees when the test says so."""

    def __init__(self, loaded: Loaded, capacity: int):
        self.ffi, self.lib = loaded
        self.heap = self.ffi.new("struct heap *")
        assert self.lib.heap_init(self.heap, capacity)
        self.seq = 0
        self.live: dict[int, int] = {}
        self.reserved: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.unmapped: list[tuple[int, int, int]] = []  # with its free

    def __enter__(self) -> Heap:
        return self

    def __exit__(self, *_: object) -> None:
        self.lib.heap_destroy(self.heap)

    def check(self) -> None:
        wrong = self.lib.heap_invalid(self.heap)
        assert wrong == self.ffi.NULL, self.ffi.string(wrong)

    def alloc(self, size: int, site: int = 0, path: int | None = None) -> tuple[int, int] | None:
        """(address, the free it waits for), or None."""
        request = self.ffi.new(
            "struct heap_request *", (size, site, site if path is None else path)
        )
        placed = self.ffi.new("struct heap_placed *")
        if not self.lib.heap_alloc(self.heap, request, placed):
            return None
        self.live[placed.addr] = size
        return placed.addr, placed.after

    def must(self, size: int, site: int, path: int | None = None) -> int:
        """The address of what fits."""
        got = self.alloc(size, site, path)
        assert got, f"{size} bytes are too many"
        return got[0]

    def free(self, address: int, learn: bool = True) -> None:
        self.seq += 1
        self.lib.heap_free(self.heap, address, self.seq, learn)
        del self.live[address]

    def retire(self, seq: int) -> None:
        self.lib.heap_retire(self.heap, seq)

    # ---- reserved addresses ----

    def reserve(self, size: int, site: int) -> int:
        request = self.ffi.new("struct heap_request *", (size, site, site))
        address = self.ffi.new("uint64_t *")
        assert self.lib.heap_reserve(self.heap, request, address)
        self.reserved[address[0]] = size
        return int(address[0])

    def unreserve(self, address: int) -> bool:
        done = bool(self.lib.heap_unreserve(self.heap, address))
        if done:
            del self.reserved[address]
        return done

    def map(self, address: int, size: int) -> int | None:
        """The free it waits for. None: it is not possible, and its memory is promised."""
        placed = self.ffi.new("struct heap_placed *")
        if not self.lib.heap_map(self.heap, address, size, placed):
            return None
        self.mapped[address] = size
        return int(placed.after)

    def unmap(self, address: int) -> None:
        self.seq += 1
        self.lib.heap_free(self.heap, address, self.seq, False)
        self.unmapped.append((address, self.mapped.pop(address), self.seq))

    def reservation(self, address: int) -> tuple[int, int] | None:
        found = self.ffi.new("uint64_t[2]")
        if not self.lib.heap_reservation(self.heap, address, found, found + 1):
            return None
        return int(found[0]), int(found[1])

    def fewest_chunks(self, size: int) -> int:
        """How many empty chunks `size` bytes need, in the best place for them."""
        used = {c for a, n in self.live.items() for c in chunks(a, n)}
        spans = sorted((a, a + whole(n)) for a, n in self.live.items())
        holes = itertools.pairwise([(BASE, BASE), *spans, (END, END)])
        need = whole(size)
        found = [
            len(chunks(at, size) - used)
            for (_, start), (end, _) in holes
            if end - start >= need
            for at in (start, end - need, min(-(-start // CHUNK) * CHUNK, end - need))
        ]
        return min(found)


# (size, site, path) allocates; a fraction frees the live allocation at that place.
SIZES = st.one_of(st.integers(1, 9 * MIB), st.integers(1, 2000), st.integers(1, CHUNK))
ALLOCATIONS = st.tuples(SIZES, st.integers(0, 5), st.integers(0, 2))
STEPS = st.lists(st.one_of(ALLOCATIONS, st.floats(0, 1, exclude_max=True)), max_size=150)


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


def nothing_overlaps_and_counts_are_honest(loaded: Loaded, how: settings) -> None:
    @how
    @given(steps=STEPS, seed=st.integers(0, 2**32))
    @example(steps=[(1, 0, 0), 0.0], seed=0)
    def check(steps: list[Any], seed: int) -> None:
        pace = random.Random(seed)
        with Heap(loaded, 64 * MIB) as mine:
            follow(mine, steps, lambda h: h.retire(pace.randint(h.heap.retired_seq, h.seq)))
            spans = sorted((a, a + size) for a, size in mine.live.items())
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
            assert all(a % ALIGN == 0 and a >= BASE and end <= END for a, end in spans)
            touched = {c for a, size in mine.live.items() for c in chunks(a, size)}
            assert mine.heap.live_chunks == len(touched) <= 32
            for address, size in mine.live.items():
                found = mine.lib.heap_find(mine.heap, address + size - 1)
                assert (found.addr, found.requested) == (address, size)

    check()


def neither_placement_nor_exhaustion_depends_on_when_frees_retire(
    loaded: Loaded, how: settings
) -> None:
    @how
    @given(steps=STEPS, seed=st.integers(0, 2**32))
    def check(steps: list[Any], seed: int) -> None:
        pace = random.Random(seed)
        with (
            Heap(loaded, 32 * MIB) as never,
            Heap(loaded, 32 * MIB) as always,
            Heap(loaded, 32 * MIB) as anytime,
        ):
            places = follow(never, steps, lambda h: None)
            assert places == follow(always, steps, lambda h: h.retire(h.seq))
            assert places == follow(anytime, steps, lambda h: h.retire(pace.randint(0, h.seq)))

    check()


def memory_is_exhausted_where_no_place_is_left(loaded: Loaded, how: settings) -> None:
    @how
    @given(steps=STEPS, capacity=st.integers(1, 24))
    @example(steps=[(1, 0, 0), (1, 0, 1)], capacity=1)
    def check(steps: list[Any], capacity: int) -> None:
        with Heap(loaded, capacity * CHUNK) as heap:
            for step in steps:
                if isinstance(step, float):
                    if heap.live:
                        heap.free(list(heap.live)[int(step * len(heap.live))])
                    continue
                left = capacity - heap.heap.live_chunks
                fits = heap.fewest_chunks(step[0]) <= left
                assert (heap.alloc(*step) is not None) == fits

    check()


def what_leaves_the_reserve_fits(loaded: Loaded, how: settings) -> None:
    """If nothing is freed, allocations that leave the reserve fit, except for two partly filled
    chunks."""

    @how
    @given(steps=st.lists(ALLOCATIONS, min_size=1, max_size=200), capacity=st.integers(8, 300))
    def check(steps: list[Any], capacity: int) -> None:
        room = (capacity - min(capacity // 3, capacity // 64 + 16) - 2) * CHUNK
        with Heap(loaded, capacity * CHUNK) as heap:
            for size, site, path in steps:
                room -= whole(size)
                if room < 0:
                    break
                assert heap.alloc(size, site, path), f"{room} bytes are left"

    check()


# Ranks that have something in common. Sites from 100 on are those of one rank alone.
COMMON_SITES, OWN_SITES = range(1, 7), range(100, 104)
RANK_SIZES = [4, 700, 70_000, CHUNK // 8, CHUNK - 512, CHUNK, 5 * MIB, 12 * MIB]
LASTING = st.lists(
    st.tuples(st.sampled_from(RANK_SIZES), st.sampled_from(COMMON_SITES[:3])), max_size=12
)
PASSING = st.lists(
    st.tuples(st.sampled_from(RANK_SIZES), st.sampled_from(COMMON_SITES[3:])), max_size=8
)
OWN = st.lists(
    st.tuples(
        st.sampled_from(RANK_SIZES), st.sampled_from(OWN_SITES), st.integers(0, 12), st.booleans()
    ),
    max_size=8,
)


def train(heap: Heap, lasting: list[Any], passing: list[Any], own: list[Any], late: int) -> Any:
    """Some mini-batches of one rank. `own`: (size, site, before which allocation of what lasts,
    whether it is freed soon); the last `late` of what lasts come in the first mini-batch.

    Returns the addresses of what lasts, and the chunks of all else after the first mini-batch.
    """
    addresses = []

    def keep(first: int, past: int) -> None:
        for i in range(first, past):
            for size, site, _, freed in (each for each in own if each[2] == i):
                address = heap.must(size, site)
                if freed:
                    heap.free(address)
            size, site = lasting[i]
            addresses.append(heap.must(size, site, site))

    late = min(late, len(lasting))
    keep(0, len(lasting) - late)
    passed: set[int] = set()
    for batch in range(4):
        # The functions that allocate what lasts allocate some of it too.
        mine = [(heap.must(size, site, site % 3 + 1), size) for size, site in passing]
        if batch == 0:
            keep(len(lasting) - late, len(lasting))
        elif batch > 1:
            passed |= {c for address, size in mine for c in chunks(address, size)}
        for address, _ in mine:
            heap.free(address)
        heap.check()
    return addresses, passed


def stable_addresses_are_equal_whatever_else_ranks_allocate(loaded: Loaded, how: settings) -> None:
    # Rare, and then harmless: two hashes that lead to the same place. None of these do.
    homes: dict[int, tuple[int, int]] = {}
    for size, site in itertools.product(RANK_SIZES, (*COMMON_SITES, *OWN_SITES)):
        with Heap(loaded, 16384 * MIB) as heap:
            path = site % 3 + 1 if site in COMMON_SITES else site
            homes[heap.must(size, site, path)] = (size, site)
    both = itertools.product(homes, homes)
    assert not [
        (a, b)
        for a, b in both
        if homes[a][1] < 100 <= homes[b][1] and abs(a - b) // CHUNK < 128 and how is LOOK
    ], "choose other sites"

    @how
    @given(lasting=LASTING, passing=PASSING, own=OWN, late=st.integers(0, 4))
    @example(lasting=[(4, 1)], passing=[], own=[(4, 100, 0, False)], late=0)
    @example(lasting=[(CHUNK, 1)], passing=[], own=[(CHUNK, 100, 0, False)], late=0)
    def check(lasting: list[Any], passing: list[Any], own: list[Any], late: int) -> None:
        with Heap(loaded, 16384 * MIB) as one, Heap(loaded, 16384 * MIB) as other:
            addresses = train(one, lasting, passing, [], late)[0]
            assert train(other, lasting, passing, own, late)[0] == addresses

    check()


def what_lasts_shares_no_chunk_with_what_was_learnt_to_pass(loaded: Loaded, how: settings) -> None:
    @how
    @given(lasting=LASTING, passing=PASSING, own=OWN, late=st.integers(0, 4))
    @example(lasting=[(4, 1), (4, 2)], passing=[], own=[], late=0)
    def check(lasting: list[Any], passing: list[Any], own: list[Any], late: int) -> None:
        with Heap(loaded, 16384 * MIB) as heap:
            addresses, passed = train(heap, lasting, passing, own, late)
            sizes = [size for size, _ in lasting]
            mine = {c for a, size in zip(addresses, sizes, strict=True) for c in chunks(a, size)}
            assert not mine & passed
            assert all(a % CHUNK == 0 for a, n in heap.live.items() if n >= CHUNK)
            for (a, n), (b, m) in itertools.combinations(zip(addresses, lasting, strict=True), 2):
                if n[1] != m[1]:
                    assert not chunks(a, n[0]) & chunks(b, m[0]), "two call sites, one chunk"

    check()


MAPPINGS = st.tuples(
    st.sampled_from(["reserve", "map", "map", "map", "unmap", "unreserve"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 5),
    st.integers(1, 3),
)
MAPPED = st.lists(
    st.one_of(MAPPINGS, MAPPINGS, ALLOCATIONS, st.floats(0, 1, exclude_max=True)), max_size=120
)


ROUND = [("reserve", 0, 0, 1), ("map", 0, 0, 1), ("unmap", 0, 0, 1), ("unreserve", 0, 0, 1)]


def follow_mappings(heap: Heap, steps: list[Any], retire: Any) -> list[Any]:
    """Do the steps; what each has led to."""
    done: list[Any] = []
    for step in steps:
        if isinstance(step, float) or len(step) == 3:
            done += follow(heap, [step], retire)
            continue
        what, which, first, count = step
        of = heap.mapped if what == "unmap" else heap.reserved
        at = list(of)[int(which * len(of))] if of else None
        if what == "reserve":
            done.append(heap.reserve(4 * CHUNK, 7))
        elif at is not None and what == "unreserve":
            inside = any(at <= a < at + 4 * CHUNK for a in heap.mapped)
            assert heap.unreserve(at) != inside
        elif at is not None and what == "unmap":
            heap.unmap(at)
        elif at is not None:
            done.append(try_to_map(heap, at + first * CHUNK, count * CHUNK))
        retire(heap)
        heap.check()
    return done


def try_to_map(heap: Heap, at: int, size: int) -> str:
    if not heap.lib.heap_promise(heap.heap, size // CHUNK):
        return "no memory"
    taken = any(a < at + size and at < a + n for a, n in heap.mapped.items())
    reserved = any(a <= at and at + size <= a + n for a, n in heap.reserved.items())
    after = heap.map(at, size)
    assert (after is None) == (taken or not reserved)
    if after is None:
        heap.lib.heap_unpromise(heap.heap, size // CHUNK)
        return "not there"
    last = max((seq for a, n, seq in heap.unmapped if a < at + size and at < a + n), default=0)
    assert after == (last if last > heap.heap.retired_seq else 0), "its last free"
    if after:
        heap.retire(after)
    return "mapped"


def reserved_addresses_are_kept_and_mapped_memory_counts(loaded: Loaded, how: settings) -> None:
    @how
    @given(steps=MAPPED, seed=st.integers(0, 2**32))
    @example(steps=[("reserve", 0, 0, 1), ("map", 0, 0, 1), ("unmap", 0, 0, 1), (1, 0, 0)], seed=0)
    @example(steps=[("reserve", 0, 0, 1), ("reserve", 0, 0, 1), ("map", 0, 3, 3)], seed=0)
    @example(steps=[("reserve", 0, 0, 1), *[("map", 0, 0, 1), ("unmap", 0, 0, 1)] * 70], seed=0)
    @example(steps=[("reserve", 0, 0, 1), ("map", 0, 0, 1), ("map", 0, 0, 1)], seed=0)
    @example(steps=[("reserve", 0, 0, 1), ("map", 0, 0, 2), ("map", 0, 1, 2)], seed=0)
    @example(steps=[*ROUND * 80], seed=0)
    @example(steps=[*ROUND[:2], ("unreserve", 0, 0, 1)], seed=0)
    @example(steps=[*ROUND[:1] * 2, *[("map", 0, 0, 1), ("unmap", 0, 0, 1)] * 66], seed=0)
    def check(steps: list[Any], seed: int) -> None:
        pace = random.Random(seed)
        with (
            Heap(loaded, 48 * MIB) as mine,
            Heap(loaded, 48 * MIB) as never,
            Heap(loaded, 48 * MIB) as always,
        ):
            done = follow_mappings(
                mine, steps, lambda h: h.retire(pace.randint(h.heap.retired_seq, h.seq))
            )
            assert done == follow_mappings(never, steps, lambda h: None)
            assert done == follow_mappings(always, steps, lambda h: h.retire(h.seq))
            spans = sorted((a, a + n) for of in (mine.live, mine.reserved) for a, n in of.items())
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
            every = {**mine.live, **mine.mapped}
            touched = {c for a, size in every.items() for c in chunks(a, size)}
            assert mine.heap.live_chunks == len(touched)
            assert mine.heap.promised_chunks == 0
            for at, size in mine.reserved.items():
                for address in (at, at + size - 1):
                    assert mine.reservation(address) == (at, size)
            for at, size in mine.mapped.items():
                found = mine.lib.heap_find(mine.heap, at + size - 1)
                assert (found.addr, found.requested) == (at, size)
            for at in mine.live:
                assert mine.reservation(at) is None

    check()


ALL: list[Property] = [
    reserved_addresses_are_kept_and_mapped_memory_counts,
    nothing_overlaps_and_counts_are_honest,
    neither_placement_nor_exhaustion_depends_on_when_frees_retire,
    memory_is_exhausted_where_no_place_is_left,
    what_leaves_the_reserve_fits,
    stable_addresses_are_equal_whatever_else_ranks_allocate,
    what_lasts_shares_no_chunk_with_what_was_learnt_to_pass,
]
