"""Properties of every history of ranks, for the tests and the seeded faults."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from versions.world import BYTES, Ledger, Rank

Operation = tuple[Any, ...]


# Histories that each broke something once.
KNOWN: list[list[Operation]] = [
    [("fill", 0, 0, 4, b"\7\1\7\2"), ("copy", 1, 3, 0, 2, 9), ("fill", 1, 4, 1, b"\7")],
    # Adjacent parts of one content that are not adjacent in it.
    [("unknown", 0, 10, 12), ("copy", 0, 0, 0, 10, 4), ("copy", 0, 4, 0, 16, 4)],
    # Two lives of one rank draw different versions.
    [("unknown", 0, 0, 4), ("moved", 0), ("unknown", 0, 8, 4), ("unknown", 1, 8, 4)],
    # Fills of one and of two different bytes; a rest behind what was written over.
    [("fill", 0, 0, 4, b"\7\7"), ("fill", 0, 8, 4, b"\7\1"), ("unknown", 0, 2, 2)],
    # The contents differ in the second part only; the lengths of the parts differ only.
    [
        ("unknown", 0, 0, 4),
        ("copy", 1, 0, 0, 0, 4),
        ("fill", 1, 2, 1, b"\7\1"),
        ("copy", 2, 0, 0, 0, 4),
        ("fill", 2, 1, 3, b"\7"),
    ],
]


@st.composite
def ranges(draw: st.DrawFn, whole: int = 1) -> tuple[int, int]:
    """An address that `whole` divides, and how many of these: at least one."""
    at = draw(st.integers(0, BYTES // whole - 1))
    return at * whole, draw(st.integers(1, min(12, BYTES // whole - at)))


@st.composite
def operations(draw: st.DrawFn, ranks: int) -> Operation:
    """Few different values, so that different histories meet."""
    rank = draw(st.integers(0, ranks - 1))
    kind = draw(st.sampled_from(["fill", "kernel", "kernel", "copy", "copy", "unknown", "moved"]))
    if kind == "fill":
        value = draw(st.sampled_from([b"\0", b"\7", b"\7\7", b"\7\1", b"\7\1\7\1", b"\7\1\7\2"]))
        return kind, rank, *draw(ranges(len(value))), value
    if kind == "kernel":
        return kind, rank, draw(st.integers(0, 1)), draw(ranges()), draw(ranges())
    if kind == "copy":
        at, count = draw(ranges())
        return (
            kind,
            rank,
            at,
            draw(st.integers(0, ranks - 1)),
            draw(st.integers(0, BYTES - count)),
            count,
        )
    if kind == "unknown":
        return kind, rank, *draw(ranges())
    return kind, rank


def run(ffi: Any, lib: Any, history: list[Operation], ranks: int) -> None:
    """Raises AssertionError where two contents have one key, or a map is not as it should be."""
    world = [Rank(ffi, lib) for _ in range(ranks)]
    left: list[Rank] = []
    ledger = Ledger()
    for kind, number, *rest in history:
        rank = world[number]
        if kind == "fill":
            at, count, value = rest
            rank.fill(at, value, count)
        elif kind == "kernel":
            code, reads, writes = rest
            rank.kernel(code, reads, writes)
        elif kind == "copy":
            at, other, other_at, count = rest
            rank.copy(at, world[other], other_at, count)
        elif kind == "unknown":
            rank.unknown(*rest)
        else:
            world[number] = rank.moved()
            left.append(rank)
        ledger.check(world[number])
    for each in world + left:
        each.close()
