"""Faults seeded into the heap, one at a time: each is noticed by the property or test named."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in the sources and is replaced by `new`."""

    name: str
    old: str
    new: str
    noticed_by: str


EQUAL = "stable_addresses_are_equal_whatever_else_ranks_allocate"
HONEST = "nothing_overlaps_and_counts_are_honest"
EXHAUSTED = "memory_is_exhausted_where_no_place_is_left"
APART = "what_lasts_shares_no_chunk_with_what_was_learnt_to_pass"
ENDS = "test_what_may_live_on_and_what_does_not_come_from_different_ends"
OF_SIZE = "test_what_lives_on_is_learnt_of_each_size"
BEGIN = "test_large_buffers_begin_at_a_chunk_and_small_ones_keep_to_their_functions"
COUNTED = "test_memory_is_counted_in_chunks_touched"
SHORT = "test_short_of_room_a_freed_range_is_given_out_and_waits_for_its_free"
TAILS = "test_short_of_room_the_rest_of_a_chunk_is_used_from_either_side"
PACKED = "test_what_is_kept_apart_leaves_most_of_the_device"

MUTANTS = [
    Mutant("one-end-for-all", "if (out->apart)\n\t\treturn true;", "", ENDS),
    Mutant(
        "groups-one-after-the-other",
        "find_aligned(h, from, LARGE,",
        "find_aligned(h, MIDDLE, LARGE,",
        EQUAL,
    ),
    Mutant("large-ones-after-the-other", "next && next < HEAP_END ? next : home", "LARGE", EQUAL),
    Mutant(
        "groups-share-chunks",
        "return whole < OWN_SITE_BYTES ? key_of(r->path, 2) :",
        "return whole < OWN_SITE_BYTES ? 2 :",
        APART,
    ),
    Mutant(
        "sites-share-chunks",
        "key_of(r->path, 2) : key_of(r->site, 3)",
        "key_of(r->path, 2) : key_of(r->path, 2)",
        BEGIN,
    ),
    Mutant(
        "large-ones-unaligned",
        "of_size ? round_up(of_size->next, RF_CHUNK_BYTES) : 0",
        "of_size ? of_size->next : 0",
        BEGIN,
    ),
    Mutant(
        "passing-large-ones-unaligned",
        "find_aligned(h, RF_DEV_BASE, MIDDLE,",
        "find_lowest(h,",
        BEGIN,
    ),
    Mutant("nothing-learnt", "return 2 * o->freed > o->allocated;", "return false;", ENDS),
    Mutant(
        "sizes-not-told-apart",
        "o = find_origin(h, size_key(r->site, whole));\n\tif (!o)",
        "o = NULL;\n\tif (!o)",
        OF_SIZE,
    ),
    Mutant("frees-of-a-size-forgotten", "of_size->freed++;", ";", OF_SIZE),
    Mutant("frees-of-a-site-forgotten", "of_site->freed++;", ";", ENDS),
    Mutant("no-fallback", "&& !place_anywhere(h, whole, out)", "", SHORT),
    Mutant("fallback-at-one-end-only", "k < 2", "k < 1", TAILS),
    Mutant(
        "fallback-at-the-first-hole", "if (needed < fewest)", "if (fewest == UINT64_MAX)", EXHAUSTED
    ),
    Mutant(
        "no-end-of-the-quarantine",
        "promote(h, h->freed_count);\n\t\tif (!choose_place(",
        "if (!choose_place(",
        SHORT,
    ),
    Mutant("grouping-without-bound", "chunks <= packed + reserve", "true", PACKED),
    Mutant(
        "more-than-the-device-has",
        "return fewest <= h->capacity_chunks - h->live_chunks;",
        "return fewest <= h->capacity_chunks + 1 - h->live_chunks;",
        COUNTED,
    ),
    Mutant("freed-bytes-still-count", "h->live_bytes -= e->bytes;", "", HONEST),
]
