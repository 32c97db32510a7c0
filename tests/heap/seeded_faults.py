"""Faults seeded into the allocator and into the numbers of call sites."""

from __future__ import annotations

from collections.abc import Callable

from heap import properties, test_call_sites, test_heap
from heap.properties import Heap
from support.seeding import Check, Copy, Table


def rule(copy: Copy, name: str) -> Callable[[], None]:
    """A property, or a test of test_heap.py."""
    sources = [copy.of(source) for source in test_heap.SOURCES]
    loaded = properties.load(properties.build(copy.folder, sources, warnings=False))
    by_name = {each.__name__: each for each in properties.ALL}
    if name in by_name:
        return lambda: by_name[name](loaded, properties.HUNT)
    test = getattr(test_heap, name)
    return lambda: test(lambda capacity=64 * test_heap.MIB: Heap(loaded, capacity))


def call_sites(copy: Copy) -> Callable[[], None]:
    program = test_call_sites.build(copy.folder, copy.changed)
    return lambda: test_call_sites.check(program)


def by(name: str) -> Check:
    return Check(rule, (name,), quick=True)


CALL_SITES = Check(call_sites, quick=True)
EQUAL = by("stable_addresses_are_equal_whatever_else_ranks_allocate")
RESERVED = by("reserved_addresses_are_kept_and_mapped_memory_counts")
HONEST = by("nothing_overlaps_and_counts_are_honest")
EXHAUSTED = by("memory_is_exhausted_where_no_place_is_left")
APART = by("what_lasts_shares_no_chunk_with_what_was_learnt_to_pass")
ENDS = by("test_lasting_and_short_lived_buffers_come_from_different_ends")
OF_SIZE = by("test_lasting_sizes_are_learnt")
BEGIN = by("test_large_buffers_begin_at_a_chunk_and_small_ones_keep_to_their_functions")
COUNTED = by("test_memory_is_counted_in_chunks_touched")
SHORT = by("test_short_of_space_a_freed_range_is_given_out_and_waits_for_its_free")
TAILS = by("test_short_of_space_the_rest_of_a_chunk_is_used_from_either_side")
PACKED = by("test_the_reserve_leaves_most_of_the_device")

TABLE: Table = {
    "interpose/client/issue/placement.c": {
        ENDS: {
            "one-end-for-all": ("if (out->apart)\n\t\treturn true;", ""),
            "nothing-learnt": ("return 2 * o->freed > o->allocated;", "return false;"),
            "frees-of-a-site-forgotten": ("of_site->freed++;", ";"),
        },
        EQUAL: {
            "groups-one-after-the-other": (
                "find_aligned(h, from, LARGE,",
                "find_aligned(h, MIDDLE, LARGE,",
            ),
            "large-ones-after-the-other": ("next && next < HEAP_END ? next : home", "LARGE"),
        },
        APART: {
            "groups-share-chunks": (
                "return whole < OWN_SITE_BYTES ? key_of(r->path, 2) :",
                "return whole < OWN_SITE_BYTES ? 2 :",
            ),
        },
        BEGIN: {
            "sites-share-chunks": (
                "key_of(r->path, 2) : key_of(r->site, 3)",
                "key_of(r->path, 2) : key_of(r->path, 2)",
            ),
            "large-ones-unaligned": (
                "of_size ? round_up(of_size->next, RF_CHUNK_BYTES) : 0",
                "of_size ? of_size->next : 0",
            ),
            "passing-large-ones-unaligned": (
                "find_aligned(h, RF_DEV_BASE, MIDDLE,",
                "find_lowest(h,",
            ),
        },
        OF_SIZE: {
            "sizes-not-told-apart": (
                "o = find_origin(h, size_key(r->site, whole));\n\tif (!o)",
                "o = NULL;\n\tif (!o)",
            ),
            "frees-of-a-size-forgotten": ("of_size->freed++;", ";"),
        },
        TAILS: {
            "fallback-at-one-end-only": ("k < 2", "k < 1"),
        },
        EXHAUSTED: {
            "fallback-at-the-first-hole": ("if (needed < fewest)", "if (fewest == UINT64_MAX)"),
        },
        PACKED: {
            "grouping-without-bound": ("chunks <= packed + reserve", "true"),
        },
        COUNTED: {
            "more-than-the-device-has": (
                "return fewest <= unused_chunks(h);",
                "return fewest <= unused_chunks(h) + 1;",
            ),
        },
    },
    "interpose/client/issue/heap.c": {
        SHORT: {
            "no-fallback": ("&& !place_anywhere(h, whole, out)", ""),
            "no-end-of-the-quarantine": (
                "free_retired(h, h->freed_count);\n\t\tif (!choose_place(",
                "if (!choose_place(",
            ),
        },
        HONEST: {
            "freed-bytes-still-count": ("h->live_bytes -= e->bytes;", ""),
        },
        RESERVED: {
            "unmapped-addresses-are-anyones": (
                "e->state = e->reservation ? HEAP_RESERVED : HEAP_QUARANTINED;",
                "e->state = HEAP_QUARANTINED;",
            ),
            "unmapped-addresses-become-free": (
                "seq, true, !e->reservation}",
                "seq, true, true}",
            ),
            "unreserved-while-something-is-mapped": (
                "if (h->extents[i].state != HEAP_RESERVED)\n"
                "\t\t\treturn false;\n\theap_reservation",
                ";\n\theap_reservation",
            ),
            "mapped-where-something-is": (
                "if (h->extents[i].state != HEAP_RESERVED)\n\t\t\treturn false;\n\tstruct",
                ";\n\tstruct",
            ),
            "mapped-beyond-the-end": ("|| bytes > first + whole - addr)", ")"),
            "promised-and-live": ("\theap_unpromise(h, bytes / RF_CHUNK_BYTES);\n", ""),
            "unreserved-addresses-count-as-memory": (
                "(struct heap_freed){addr, bytes, seq, .addresses = true}",
                "(struct heap_freed){addr, bytes, seq, true, true}",
            ),
            "reused-before-the-free-retires": (
                "\tif (new.state != HEAP_LIVE)\n\t\tnew.seq = *after;\n",
                "",
            ),
            "reservations-merged": (" && a->reservation == b->reservation &&", " &&"),
        },
    },
    "interpose/client/issue/call_site.c": {
        CALL_SITES: {
            "sites-of-the-process": (
                "f->offset = f->address - (uint64_t)module.dli_fbase;",
                "f->offset = f->address;",
            ),
            "functions-of-the-process": (
                "_Unwind_GetRegionStart(context) - (uint64_t)module.dli_fbase;",
                "_Unwind_GetRegionStart(context);",
            ),
            "each-line-a-path": (
                "mix_hash(found->path, f->function)",
                "mix_hash(found->path, f->offset)",
            ),
            "one-site-for-all": (
                "mix_hash(found->site, f->offset)",
                "mix_hash(found->site, f->function)",
            ),
            "one-frame-less-remembered": (
                "i < CALL_SITE_FRAMES && at;",
                "i < CALL_SITE_FRAMES - 1 && at;",
            ),
            "remembered-in-part": (
                "if (f->at != at || f->address != address)\n\t\t\treturn false;",
                "if (f->at != at || f->address != address)\n\t\t\tbreak;",
            ),
        },
    },
}
