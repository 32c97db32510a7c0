"""The ranges that the proxy's core computes for a launch: how far from its words a kernel reads and
writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.sets import Sets
from support import native

ROOM = native.CORE / "rank"
SOURCES = [ROOM / "bounds.c", ROOM / "spans.c"]
DEV_BASE = 0x200000000000  # RF_DEV_BASE: addresses of buffers are from here on


class Span(NamedTuple):
    """Bytes relative to a word, from `low` up to `high`; empty: low == high."""

    low: int
    high: int


class Reach(NamedTuple):
    """None: anywhere."""

    read: Span | None
    written: Span | None


class Word(NamedTuple):
    """A word of the parameters, by its offset."""

    at: int
    use: Use
    reach: Reach


class Launch(NamedTuple):
    """`read`: the parts of the parameters that it reads, each an offset and a number of bytes."""

    words: list[Word]
    read: list[tuple[int, int]]


class Core:
    """rank/bounds.c and spans.c, or a changed copy of one of them."""

    def __init__(self, folder: Path, changed: Path | None = None, name: str = "bounds"):
        sources = [s for s in SOURCES if not changed or s.name != changed.name]
        sources += [changed] if changed else []
        library = native.build(folder, sources, name, warnings=changed is None)
        room = native.CORE
        before = native.structures(room / "memory/memory.h", "bound")
        self.ffi, self.lib = native.load(
            library, room / "proxy.h", room / "rank/bounds.h", before=before
        )

    def function(self, sets: Sets, param_bytes: int) -> Any:
        """A struct proxy_function that says as much, and what it points to."""
        places = {at: n for n, (at, _) in enumerate(sets.words)}
        reached, words = sets.bounds.by_place(places)
        arrays = {
            "words": self.ffi.new(
                "struct proxy_access[]",
                [(at, 8, use, sets.bounds.uses(at)) for at, use in sets.words],
            ),
            "steps": self.ffi.new("struct proxy_step[]", [tuple(s) for s in sets.bounds.steps]),
            "reached": self.ffi.new("struct proxy_reached[]", reached),
            "reached_words": self.ffi.new("uint32_t[]", words),
            "slots": self.ffi.new("struct proxy_slot[]", [tuple(s) for s in sets.bounds.slots]),
            "loads": self.ffi.new("struct proxy_load[]", list(sets.bounds.loads)),
            "parts": self.ffi.new("struct proxy_load[]", list(sets.bounds.parts)),
        }
        counts = {f"{name.removesuffix('s')}_count": len(array) for name, array in arrays.items()}
        function = self.ffi.new(
            "struct proxy_function *", {"param_bytes": param_bytes, **arrays, **counts}
        )
        return function, arrays

    @contextmanager
    def loaded(self, sets: Sets, param_bytes: int) -> Iterator[Any]:
        function, _kept = self.function(sets, param_bytes)
        error = self.ffi.new("int *")
        reaches = self.lib.bounds_copy(function, error)
        assert error[0] == 0, "the steps make no sense"
        yield reaches
        self.lib.bounds_free(reaches)

    def of(
        self, sets: Sets, reaches: Any, params: bytes, grid: Sequence[int], block: Sequence[int]
    ) -> dict[int, Reach]:
        """The reach of each word, by its offset."""
        found = self.launch(reaches, params, grid, block)
        return {w.at: w.reach for w in found.words} if found else {}

    def bounds(
        self, reaches: Any, params: bytes, grid: Sequence[int], block: Sequence[int]
    ) -> Any | None:
        """The struct bound_launch, with arrays of `reaches`. None: it may reach anything."""
        found = self.ffi.new("struct bound_launch *")
        shape = self.ffi.new("struct bound_shape *", {"grid": grid, "block": block})
        return found if self.lib.bounds_of(reaches, shape, params, found) else None

    def launch(
        self, reaches: Any, params: bytes, grid: Sequence[int], block: Sequence[int]
    ) -> Launch | None:
        """None: it may reach anything."""
        found = self.bounds(reaches, params, grid, block)
        if found is None:
            return None
        words = [
            Word(
                w.at,
                Use(w.use),
                Reach(
                    _span(w.bounds.read) if w.bounds.known & Use.READ else None,
                    _span(w.bounds.written) if w.bounds.known & Use.WRITTEN else None,
                ),
            )
            for w in found.words[0 : found.word_count]
        ]
        parts = [(part.at, part.bytes) for part in found.read[0 : found.read_count]]
        return Launch(words, parts)

    def reaches(
        self,
        sets: Sets,
        params: bytes,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (32, 1, 1),
    ) -> dict[int, Reach]:
        """The same of one launch."""
        with self.loaded(sets, len(params)) as reaches:
            return self.of(sets, reaches, params, grid, block)


def _span(bound: Any) -> Span:
    return Span(bound.low, bound.high) if bound.low < bound.high else Span(0, 0)
