"""Contents that were seen, by their versions: what is compared with what, and what is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import native

SOURCE = native.CORE / "crosscheck/pairs.c"
NEW, KNOWN, SAME, DIFFERS = range(4)
SETS, WAYS, NO_CHUNK = 4096, 4, 2**32 - 1


def load(folder: Path, source: Path = SOURCE) -> tuple[Any, Any]:
    args = [f"-I{native.CORE}"]
    library = native.build(folder, [source], warnings=source == SOURCE, args=args)
    text = native.structures(native.CORE / "versions/digest.h", "version")
    text += native.structures(native.CORE / "crosscheck/crosscheck.h", "witness", "pair", "pairs")
    text += """
    uint32_t pairs_add(struct pairs *, const struct pair *, struct witness *other);
    bool pairs_seen(const struct pairs *, struct version digest, const struct witness *);
    void pairs_close(struct pairs *);
    """
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(text)
    return ffi, ffi.dlopen(str(library))


class Pairs:
    def __init__(self, library: tuple[Any, Any]) -> None:
        self.ffi, self.lib = library
        self.kept = self.ffi.new("struct pairs *")
        self.other = self.ffi.new("struct witness *")

    def pair(self, digest: tuple[int, int], sums: tuple[int, int], who: dict[str, int]) -> Any:
        made = self.ffi.new("struct pair *")
        made.digest.a, made.digest.b = digest
        made.sum = sums
        for name, value in who.items():
            setattr(made.who, name, value)
        return made

    def add(self, digest: tuple[int, int], sums: tuple[int, int] = (1, 1), **who: int) -> int:
        return int(self.lib.pairs_add(self.kept, self.pair(digest, sums, who), self.other))

    def seen(self, digest: tuple[int, int], **who: int) -> bool:
        pair = self.pair(digest, (1, 1), who)
        return bool(self.lib.pairs_seen(self.kept, pair.digest, self.ffi.addressof(pair, "who")))


def bytes_are_compared(pairs: Pairs) -> None:
    """Both halves of digest and checksum."""
    assert pairs.add((1, 1), (5, 6), rank=3) == NEW
    assert pairs.add((1, 2), (7, 8)) == NEW
    assert pairs.add((1, 1), (5, 6), rank=4, number=1) == SAME
    for sums in ((5, 7), (9, 6)):
        assert pairs.add((1, 1), sums, rank=9) == DIFFERS and pairs.other.rank == 4
    assert pairs.add((1, 2), (7, 8), number=1) == SAME


def what_was_said_already_is_known(pairs: Pairs) -> None:
    """At the same collective of the same communicator; what was said last counts."""
    when = [{"key": key, "number": number} for key, number in ((1, 1), (1, 2), (2, 2))]
    assert pairs.add((1, 1), (5, 6), **when[0]) == NEW
    for each in when[1:]:
        assert pairs.add((1, 1), (5, 6), **each) == SAME
        assert pairs.add((1, 1), (5, 6), **each) == KNOWN


def a_chunk_is_looked_at_once(pairs: Pairs) -> None:
    here = {"chunk": 7, "device": 1, "key": 1, "number": 1}
    assert not pairs.seen((1, 1), **here)
    pairs.add((1, 1), (1, 1), **here)
    assert pairs.seen((1, 1), **here) and not pairs.seen((1, 2), **here)
    for other in ({"chunk": 8}, {"device": 2}, {"key": 2}, {"number": 2}):
        assert not pairs.seen((1, 1), **{**here, **other})
    nowhere = {**here, "chunk": NO_CHUNK}
    pairs.add((2, 1), (1, 1), **nowhere)
    assert not pairs.seen((2, 1), **nowhere), "what is on the host has no chunk"


def what_was_seen_longest_ago_goes(pairs: Pairs) -> None:
    """A new pair replaces the least recently seen pair of its set; all others stay."""
    digests = [(5 + SETS * n, n) for n in range(WAYS + 1)]
    assert pairs.add((6, 0)) == NEW
    for each in digests[:WAYS]:
        assert pairs.add(each) == NEW
    for n, each in enumerate(digests[:WAYS]):
        assert pairs.add(each, number=n + 1) == SAME
    assert pairs.add(digests[0], number=9) == SAME
    assert pairs.add(digests[WAYS]) == NEW
    assert [pairs.add(each, number=99) for each in (digests[0], *digests[2:])] == [SAME] * WAYS
    assert pairs.add((6, 0), number=99) == SAME
    assert pairs.add(digests[1]) == NEW, "it has gone"


RULES = (
    bytes_are_compared,
    what_was_said_already_is_known,
    a_chunk_is_looked_at_once,
    what_was_seen_longest_ago_goes,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_contents_are_compared_with_what_was_seen(tmp_path: Path, rule: Any) -> None:
    pairs = Pairs(load(tmp_path))
    rule(pairs)
    pairs.lib.pairs_close(pairs.kept)
