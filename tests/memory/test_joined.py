"""Buffers that a program has mapped next to each other are one where it matters how far an address
reaches, and are freed one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .device import CELLS, CHUNK
from .steps import own
from .world import ACTIVATE, DEV_BASE, Make, Rank, addr_of

READ, WRITTEN = 1, 2  # enum reach_use
PAGES = 6
STEPS = st.lists(st.tuples(st.integers(0, PAGES - 1), st.sampled_from("jjjaf")), max_size=40)


def whole(rank: Rank, page: int) -> tuple[int, int] | None:
    """The pages from the first one up to, not including, the last one."""
    found = rank.world.lib.memory_whole(rank.memory, DEV_BASE + page * CHUNK + 5)
    if found == rank.world.ffi.NULL:
        return None
    first = (found.addr - DEV_BASE) // CHUNK
    return first, first + found.bytes // CHUNK


def expected(joined: dict[int, bool], page: int) -> tuple[int, int] | None:
    if page not in joined:
        return None
    first, end = page, page + 1
    while joined[page] and joined.get(first - 1):
        first -= 1
    while joined[page] and joined.get(end):
        end += 1
    return first, end


def test_adjacent_joined_buffers_are_one(make: Make) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=STEPS)
    def check(steps: list[tuple[int, str]]) -> None:
        world = make(1, PAGES)
        (rank,) = world.ranks
        joined: dict[int, bool] = {}
        for page, what in steps:
            if what == "f" and page in joined:
                rank.free(page)
                del joined[page]
            elif what != "f" and page not in joined:
                assert rank.alloc(page, what == "j")
                joined[page] = what == "j"
            world.check()
            for each in range(PAGES):
                assert whole(rank, each) == expected(joined, each)

    check()


def key(rank: Rank, to: int) -> tuple[int, int]:
    """The key of a work that reads through the first page's address, without bounds."""
    ffi, lib = rank.world.ffi, rank.world.lib
    digest, footprint = ffi.new("struct digest *"), ffi.new("struct footprint *")
    lib.digest_begin(digest)
    reaches = ffi.new("struct reach[2]")
    reaches[0].addr, reaches[0].use = addr_of(0), READ
    reaches[1].addr, reaches[1].use, reaches[1].bounded = addr_of(to * CELLS), WRITTEN, WRITTEN
    reaches[1].written.low, reaches[1].written.high = 0, CHUNK
    lib.content_footprint(rank.memory, digest, reaches, 2, footprint)
    assert footprint.known and footprint.keyed
    return footprint.key.a, footprint.key.b


def keys(make: Make, joined: bool) -> list[Any]:
    """The keys of it in two ranks that differ only in their second page."""
    world = make(2, 8)
    for rank in world.ranks:
        for page in range(2):
            assert rank.alloc(page, joined)
        assert rank.alloc(3)
        assert rank.request(ACTIVATE)
        world.settle()
        for page in range(2):
            own(rank, page)
            rank.write(page, 1 if page == 0 else 10 + rank.number)
    return [key(rank, 3) for rank in world.ranks]


def test_reads_without_bounds_reach_joined_buffers(make: Make) -> None:
    first, second = keys(make, joined=True)
    assert first != second
    first, second = keys(make, joined=False)
    assert first == second, "what a work reads is in its buffer"
