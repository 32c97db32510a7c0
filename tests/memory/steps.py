"""The first steps of rules about the memory of ranks, and what they request of a rank."""

from __future__ import annotations

from .device import BLANK, CELL, CELLS
from .world import ACTIVATE, COPY, Rank, Work, addr_of


def fill(rank: Rank, pages: int) -> None:
    """Pages with content, resident."""
    for page in range(pages):
        assert rank.alloc(page)
    assert rank.request(ACTIVATE)
    rank.world.settle()
    for page in range(pages):
        rank.write(page, 100 * rank.number + page + 1)


def sharers(rank: Rank, first: int, count: int, room: int = 8) -> tuple[list[Rank], bool]:
    world = rank.world
    ranges = world.ffi.new("struct memory_range *", (addr_of(first), count * CELL))
    found = world.ffi.new("struct rank_memory *[8]")
    exactly = world.ffi.new("bool *")
    n = world.lib.memory_sharers(rank.memory, ranges, 1, found, room, exactly)
    by_memory = {other.memory: other for other in world.ranks}
    return [by_memory[found[i]] for i in range(n)], exactly[0]


def together(rank: Rank, ranks: list[Rank], first: int, count: int, value: int) -> None:
    """Runs once in `rank`, for all who share what it writes."""
    lib = rank.world.lib
    assert lib.memory_may_open(rank.memory, addr_of(first), count * CELL)
    opened = lib.memory_open_shared(rank.memory, addr_of(first), count * CELL)
    if opened and rank.world.faults:
        return
    assert opened == 0
    pages = {cell // CELLS for cell in range(first, first + count)}
    rank.submit(Work(first, count, value, ranks, {p: rank.place(p, True) for p in pages}))


def same(*ranks: Rank, pages: int = 1) -> None:
    """All of them have the same content, resident and one after the other."""
    for rank in ranks:
        for page in range(pages):
            assert rank.alloc(page)
        assert rank.request(ACTIVATE)
        rank.world.settle()
        for page in range(pages):
            own(rank, page)
            rank.write(page, page + 1)


def own(rank: Rank, page: int, pages: int = 1) -> None:
    if not rank.owns(page * CELLS, pages * CELLS):
        assert rank.request(COPY, page=page, pages=pages)
        rank.world.settle()
    assert rank.owns(page * CELLS, pages * CELLS)


def scarce(rank: Rank, pages: int = 3) -> None:
    """Memory is so: what a rank has allocated and not touched needs a chunk one day."""
    for page in range(1, 1 + pages):
        if page not in rank.model:
            assert rank.alloc(page)


def hand(giver: Rank, to: Rank, first: int, count: int) -> list[int]:
    """Pass on what one rank has received to another, in whole pages; returns which pages."""
    world = giver.world
    before = {page: to.chunk(page) for page in to.model}
    error = world.lib.memory_hand(giver.memory, to.memory, addr_of(first), count * CELL)
    if error:
        assert world.faults
        to.failed = True
        world.lib.memory_stop(to.memory)
    pages = [p for p in to.model if to.chunk(p) != before[p] and to.chunk(p) == giver.chunk(p)]
    for page in pages:
        assert page * CELLS >= first and (page + 1) * CELLS <= first + count
        to.model[page] = giver.model[page]
    return pages


def forget(rank: Rank, first: int, count: int) -> None:
    rank.world.lib.memory_forget(rank.memory, addr_of(first), count * CELL)
    for page in list(rank.model):
        if page * CELLS >= first and (page + 1) * CELLS <= first + count:
            rank.model[page] = BLANK


def keeper(ranks: list[Rank], firsts: list[int], count: int) -> int:
    world = ranks[0].world
    memories = world.ffi.new("struct rank_memory *[]", [rank.memory for rank in ranks])
    held = world.ffi.cast("struct rank_memory *const *", memories)
    addrs = world.ffi.new("uint64_t[]", [addr_of(first) for first in firsts])
    return int(world.lib.memory_keeper(held, addrs, count * CELL))


def receiver(ranks: list[Rank], first: int, count: int) -> int:
    world = ranks[0].world
    memories = world.ffi.new("struct rank_memory *[]", [rank.memory for rank in ranks])
    held = world.ffi.cast("struct rank_memory *const *", memories)
    return int(world.lib.memory_receiver(held, len(ranks), addr_of(first), count * CELL))
