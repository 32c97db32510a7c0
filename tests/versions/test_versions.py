"""The map of versions: sound for every history, exact where the same was done, and small."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from versions.properties import KNOWN, operations, run
from versions.world import BEGIN, BYTES, END, Rank, load

RANKS = 3
HISTORIES = st.lists(operations(RANKS), max_size=25)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load(tmp_path_factory.mktemp("versions"))


@pytest.fixture
def rank(library: tuple[Any, Any]) -> Rank:
    return Rank(*library)


# ---- digests


def siphash(key: bytes, data: bytes) -> bytes:
    """SipHash-2-4 with 16 bytes of output, as the paper and its reference write it down."""
    mask = 2**64 - 1
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & mask

    def half(a: int, b: int, bits: int) -> None:
        v[a] = (v[a] + v[b]) & mask
        v[b] = rotated(v[b], bits) ^ v[a]

    def rounds(count: int) -> None:
        for _ in range(count):
            half(0, 1, 13)
            half(2, 3, 16)
            v[0] = rotated(v[0], 32)
            half(2, 1, 17)
            half(0, 3, 21)
            v[2] = rotated(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    second = v[0] ^ v[1] ^ v[2] ^ v[3]
    return first.to_bytes(8, "little") + second.to_bytes(8, "little")


def test_the_reference_digest_matches_the_published_vectors() -> None:
    key = bytes(range(16))
    assert siphash(key, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash(key, b"\0").hex() == "da87c1d86b99af44347659119b22fc45"


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=40)), max_size=6))
def test_a_digest_is_siphash_of_its_words(
    library: tuple[Any, Any], parts: list[int | bytes]
) -> None:
    ffi, lib = library
    digest, data = ffi.new("struct digest *"), b""
    lib.digest_begin(digest)
    for part in parts:
        if isinstance(part, int):
            lib.digest_word(digest, part)
            data += part.to_bytes(8, "little")
        else:
            lib.digest_bytes(digest, part, len(part))
            data += len(part).to_bytes(8, "little") + part + bytes(-len(part) % 8)
    found = lib.digest_end(digest)
    assert found.a.to_bytes(8, "little") + found.b.to_bytes(8, "little") == siphash(bytes(16), data)


# ---- equal versions are equal bytes


@pytest.mark.parametrize("history", KNOWN)
def test_histories_that_broke_something_once(
    library: tuple[Any, Any], history: list[tuple[Any, ...]]
) -> None:
    run(*library, history, RANKS)


@given(HISTORIES)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_one_key_never_names_two_contents(
    library: tuple[Any, Any], history: list[tuple[Any, ...]]
) -> None:
    run(*library, history, RANKS)


@pytest.mark.slow
@given(st.lists(operations(RANKS), min_size=20, max_size=120))
@settings(max_examples=600, suppress_health_check=list(HealthCheck), deadline=None)
def test_one_key_never_names_two_contents_at_length(
    library: tuple[Any, Any], history: list[tuple[Any, ...]]
) -> None:
    run(*library, history, RANKS)


# ---- and what is the same is known to be


def test_fresh_memory_fills_and_copies_are_known_by_what_they_hold(
    library: tuple[Any, Any],
) -> None:
    one, two = Rank(*library), Rank(*library)
    assert one.key(3, 9) == two.key(20, 9)
    one.unknown(4, 20)
    one.fill(8, b"\0", 4)
    two.fill(16, b"\0\0\0\0", 1)
    assert one.key(8, 4) == two.key(16, 4) == two.key(0, 4)
    assert one.key(7, 4) != two.key(15, 4)
    two.copy(30, one, 5, 12)
    assert two.key(30, 12) == one.key(5, 12) and two.key(31, 5) == one.key(6, 5)


def test_the_same_kernels_on_equal_content_give_equal_content_at_any_address(
    library: tuple[Any, Any],
) -> None:
    """Gradients have other addresses in each rank; parameters do not."""
    ranks = [Rank(*library) for _ in range(3)]
    for number, rank in enumerate(ranks):
        rank.unknown(32, 8)  # what differs between ranks is not read
        rank.fill(16 + number, b"\3", 8)  # a gradient
        for _ in range(4):
            rank.kernel(1, (16 + number, 8), (0, 8))
    assert len({rank.key(0, 8) for rank in ranks}) == 1
    assert len({bytes(rank.bytes[:8]) for rank in ranks}) == 1
    ranks[1].kernel(2, (17, 8), (0, 8))
    assert ranks[1].key(0, 8) != ranks[0].key(0, 8)


def test_a_cut_and_rejoined_range_is_one_extent(rank: Rank) -> None:
    for at in range(0, BYTES, 4):
        rank.unknown(at, 4)
    assert rank.map.count == BYTES // 4
    for at in random.Random(1).sample(range(0, BYTES, 4), BYTES // 4):
        rank.fill(at, b"\7\1", 2)
    assert rank.map.count == 1 and rank.invalid() == ""


def test_a_range_holds_what_it_was_given(library: tuple[Any, Any]) -> None:
    _, lib = library
    rank = Rank(*library)
    rank.unknown(8, 8)
    rank.fill(16, b"\7\1", 3)
    rank.fill(24, b"\7\1", 2)
    content = [rank.map.extents[n].content for n in range(rank.map.count)]
    unknown, pattern = content[1], content[2]

    def holds(at: int, count: int, what: Any) -> bool:
        return bool(lib.versions_equal(rank.map, BEGIN + at, count, what))

    assert holds(8, 8, unknown) and holds(8, 5, unknown) and holds(0, 0, unknown)
    assert not (holds(9, 4, unknown) or holds(8, 9, unknown) or holds(7, 4, unknown))
    assert holds(16, 6, pattern) and holds(18, 4, pattern) and holds(26, 2, pattern)
    rank.copy(12, rank, 8, 4)
    assert holds(8, 4, unknown) and not holds(8, 8, unknown)
    assert not (holds(17, 2, pattern) or holds(16, 12, pattern) or holds(22, 2, pattern))


def test_a_map_goes_back_and_draws_nothing_twice(library: tuple[Any, Any]) -> None:
    ffi, lib = library
    rank, before = Rank(*library), ffi.new("struct versions *")
    rank.unknown(8, 8)
    keys = [rank.key(at, 4) for at in range(BYTES - 4)]
    assert lib.versions_keep(rank.map, before) == 0
    lib.versions_private(rank.map, BEGIN + 2, 9)
    drawn = digest_of(ffi, lib, rank.map, 3)
    lib.versions_back(rank.map, before)
    assert [rank.key(at, 4) for at in range(BYTES - 4)] == keys and rank.invalid() == ""
    lib.versions_private(rank.map, BEGIN + 2, 9)
    assert digest_of(ffi, lib, rank.map, 3) != drawn


def test_a_copy_over_itself_is_as_memmove(rank: Rank) -> None:
    for at in range(8):
        rank.unknown(at, 1)
    keys = [rank.key(at, 1) for at in range(8)]
    rank.copy(2, rank, 0, 6)
    assert [rank.key(at, 1) for at in range(8)] == keys[:2] + keys[:6]


# ---- bounds


def digest_of(ffi: Any, lib: Any, versions: Any, count: int, at: int = 0) -> tuple[int, int]:
    """The digest of `count` bytes of the map, from `at` on."""
    digest = ffi.new("struct digest *")
    lib.digest_begin(digest)
    lib.versions_absorb(versions, BEGIN + at, count, digest)
    found = lib.digest_end(digest)
    return found.a, found.b


def test_a_map_that_is_cut_too_finely_forgets_and_stays_sound(library: tuple[Any, Any]) -> None:
    ffi, lib = library
    big, other = ffi.new("struct versions *"), Rank(*library)
    most, end = 8192, BEGIN + 8 * 8192
    assert lib.versions_open(big, BEGIN, end) == 0
    lib.versions_private(big, BEGIN, 2)
    lib.versions_copy(other.map, BEGIN, big, BEGIN, 2)
    for at in range(1, 2 * most, 2):
        lib.versions_private(big, BEGIN + at, 1)
        assert big.count <= most and big.capacity <= most
    assert lib.versions_invalid(big) == ffi.NULL and big.count > most // 4
    contents = [each.content for each in ffi.unpack(big.extents, big.count)]
    named = {(c.version.a, c.version.b, c.offset) for c in contents if not c.period}
    assert digest_of(ffi, lib, big, 2) != other.key(0, 2), "the second byte was written since"
    assert len(named) + sum(c.period == 1 for c in contents) == big.count
    lib.versions_close(big)


def finely(library: tuple[Any, Any], count: int) -> Any:
    """A map that has come from elsewhere, with so many extents, most of them of one byte."""
    ffi, lib = library
    made, extents = ffi.new("struct versions *"), ffi.new("struct extent[]", count)
    for n in range(count):
        extents[n].addr = BEGIN + n
        extents[n].content.version.a = n
    assert lib.versions_open(made, BEGIN, BEGIN + 8 * 8192) == 0
    assert lib.versions_load(made, extents, ffi.sizeof(extents)) == 0
    return made


def test_a_map_that_came_from_elsewhere_may_be_cut_as_finely(library: tuple[Any, Any]) -> None:
    """As one that has grown here: nothing is forgotten before there are too many extents."""
    ffi, lib = library
    most = 8192
    for count in (5000, most - 3):
        cut = finely(library, count)
        for n in range(2):
            lib.versions_private(cut, BEGIN + count + n, 1)
        assert cut.count == count + 3 and lib.versions_invalid(cut) == ffi.NULL
        lib.versions_close(cut)
    full = finely(library, most)
    lib.versions_private(full, BEGIN + most, 1)
    assert most // 4 < full.count < most and lib.versions_invalid(full) == ffi.NULL
    lib.versions_close(full)


def test_a_copy_without_space_for_it_is_unknown(library: tuple[Any, Any]) -> None:
    ffi, lib = library
    cut = finely(library, 8000)
    before = digest_of(ffi, lib, cut, 400, 8400)
    lib.versions_copy(cut, BEGIN + 8400, cut, BEGIN, 400)
    assert digest_of(ffi, lib, cut, 400, 8400) != before
    lib.versions_close(cut)


def test_nothing_is_copied_set_or_held_in_an_empty_range(library: tuple[Any, Any]) -> None:
    _, lib = library
    rank = Rank(*library)
    rank.unknown(8, 8)
    keys, count = [rank.key(at, 4) for at in range(BYTES - 4)], rank.map.count
    for at in (0, 8, 10, 16):
        lib.versions_private(rank.map, BEGIN + at, 0)
        lib.versions_copy(rank.map, BEGIN + at, rank.map, BEGIN + 12, 0)
        assert lib.versions_equal(rank.map, BEGIN + at, 0, lib.versions_fill(5, 1))
    assert [rank.key(at, 4) for at in range(BYTES - 4)] == keys and rank.map.count == count
    assert rank.invalid() == ""


def test_a_fill_has_one_name_however_wide_it_is(library: tuple[Any, Any]) -> None:
    _, lib = library

    def named(value: int, width: int) -> tuple[int, ...]:
        c = lib.versions_fill(value, width)
        return c.version.a, c.version.b, c.period

    assert named(7, 1) == named(0x0707, 2) == named(0x07070707, 4)
    assert named(0x0107, 2) == named(0x01070107, 4)
    assert len({named(7, 1), named(7, 2), named(7, 4), named(0x0107, 2), named(0x07010107, 4)}) == 5


def test_zeros_are_known_as_far_as_they_go(library: tuple[Any, Any]) -> None:
    _, lib = library
    rank = Rank(*library)
    rank.unknown(8, 8)
    for at, count, zeros in [
        (0, 8, True),
        (0, 9, False),
        (4, 4, True),
        (16, BYTES - 16, True),
        (15, 2, False),
        (8, 8, False),
    ]:
        assert bool(lib.versions_zeros(rank.map, BEGIN + at, count)) == zeros


def test_two_ranges_are_not_described_as_one(library: tuple[Any, Any]) -> None:
    ffi, lib = library
    rank = Rank(*library)
    rank.unknown(0, 4)
    found = []
    for parts in ([(0, 8)], [(0, 4), (4, 4)], [(0, 8), (8, 0)]):
        digest = ffi.new("struct digest *")
        lib.digest_begin(digest)
        for at, count in parts:
            lib.versions_absorb(rank.map, BEGIN + at, count, digest)
        end = lib.digest_end(digest)
        found.append((end.a, end.b))
    assert len(set(found)) == 3


def test_a_map_that_is_wrong_in_one_place_is_not_taken(library: tuple[Any, Any]) -> None:
    ffi, lib = library
    rank = Rank(*library)
    rank.unknown(8, 8)
    rank.fill(20, b"\7\1", 2)
    size, each = lib.versions_size(rank.map), ffi.sizeof("struct extent")
    saved = ffi.new("uint8_t[]", size)
    lib.versions_save(rank.map, saved)
    good = bytes(ffi.buffer(saved))
    fill = next(n for n in range(rank.map.count) if rank.map.extents[n].content.period == 2)

    def changed(what: Callable[[Any], None]) -> bytes:
        wrong = ffi.from_buffer("struct extent[]", bytearray(good))
        what(wrong)
        return bytes(ffi.buffer(wrong))

    def empty(extents: Any) -> None:
        extents[1].addr = extents[2].addr

    def beyond(extents: Any) -> None:
        extents[fill].content.offset = 2

    def late(extents: Any) -> None:
        extents[0].addr += 1

    def alike(extents: Any) -> None:
        extents[1].content = extents[0].content

    wrong = [changed(what) for what in (empty, beyond, late, alike)]
    for bytes_ in (*wrong, good[:-1], good[: each - 1], b""):
        assert lib.versions_load(rank.map, bytes_, len(bytes_)) == errno.EINVAL
    key = rank.key(8, 8)
    assert lib.versions_load(rank.map, good, size) == 0 and rank.key(8, 8) == key
    rank.unknown(8, 8)
    assert rank.key(8, 8) != key, "nothing is drawn again where a map is loaded"


@given(st.data())
def test_an_invalid_map_is_refused(library: tuple[Any, Any], data: Any) -> None:
    ffi, _ = library
    rank = Rank(*library)
    rank.unknown(8, 8)
    rank.fill(20, b"\7\1", 2)
    size = rank.lib.versions_size(rank.map)
    saved = ffi.new("uint8_t[]", size)
    rank.lib.versions_save(rank.map, saved)
    before = [rank.key(at, 4) for at in range(BYTES - 4)]
    wrong = bytearray(ffi.buffer(saved))
    if data.draw(st.booleans()):
        wrong = wrong[: data.draw(st.integers(0, size - 1))]
    for at in data.draw(st.lists(st.integers(0, size - 1), max_size=4)):
        wrong[at % max(1, len(wrong)) : at % max(1, len(wrong)) + 1] = bytes(
            [data.draw(st.integers(0, 255))]
        )
    taken = rank.lib.versions_load(rank.map, bytes(wrong), len(wrong)) == 0
    assert rank.invalid() == ""
    if not taken:
        assert [rank.key(at, 4) for at in range(BYTES - 4)] == before


def test_a_map_of_other_addresses_is_not_taken(library: tuple[Any, Any]) -> None:
    ffi, lib = library
    rank, other = Rank(*library), ffi.new("struct versions *")
    assert lib.versions_open(other, BEGIN + 8, END) == 0
    saved = ffi.new("uint8_t[]", lib.versions_size(other))
    lib.versions_save(other, saved)
    assert lib.versions_load(rank.map, saved, len(saved)) == errno.EINVAL
    lib.versions_close(other)


# ---- seeded faults


def all_of_them(library: tuple[Any, Any]) -> None:

    @given(HISTORIES)
    @settings(
        max_examples=150, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @seed(1)
    def histories(history: list[tuple[Any, ...]]) -> None:
        run(*library, history, RANKS)

    fixed = (
        test_a_map_of_other_addresses_is_not_taken,
        test_fresh_memory_fills_and_copies_are_known_by_what_they_hold,
        test_the_same_kernels_on_equal_content_give_equal_content_at_any_address,
        test_a_map_that_is_cut_too_finely_forgets_and_stays_sound,
        test_a_range_holds_what_it_was_given,
        test_a_map_goes_back_and_draws_nothing_twice,
        test_a_map_that_came_from_elsewhere_may_be_cut_as_finely,
        test_a_copy_without_space_for_it_is_unknown,
        test_nothing_is_copied_set_or_held_in_an_empty_range,
        test_a_fill_has_one_name_however_wide_it_is,
        test_zeros_are_known_as_far_as_they_go,
        test_two_ranges_are_not_described_as_one,
        test_a_map_that_is_wrong_in_one_place_is_not_taken,
    )
    for test in fixed:
        test(library)
    for known in KNOWN:
        run(*library, known, RANKS)
    histories()
