"""Faults seeded into the check of order: fixed and random programs show each."""

from __future__ import annotations

from collections.abc import Callable

from order.test_order import all_of_them
from order.world import load
from support.seeding import Check, Copy, Table


def programs(copy: Copy) -> Callable[[], None]:
    library = load(copy.folder, copy.changed)
    return lambda: all_of_them(library)


PROGRAMS = Check(programs, quick=True)

TABLE: Table = {
    "proxy/core/order/clock.c": {
        PROGRAMS: {
            "host-not-joined": ("join_clock(c, &l->clock, &c->host);", ""),
            "legacy-waits-for-none": (
                "if (l->kind == ORDER_LEGACY)\n\t\tbehind_blocking(c, l);\n\tfor",
                "for",
            ),
            "legacy-waits-for-all": ("if (c->lanes[n]->kind == ORDER_BLOCKING)", "if (1)"),
            "blocking-not-behind-legacy": ("l->kind == ORDER_BLOCKING && n < c->count", "0"),
            "free-behind-legacy": ("l->kind == ORDER_BLOCKING && n < c->count", "n < c->count"),
            "record-of-nothing": (
                "memcpy(m->done, l->clock.done, c->count * sizeof *m->done);",
                "memset(m->done, 0, c->count * sizeof *m->done);",
            ),
            "record-not-behind": ("clocks_begin(c, l);\n\tm->count", "m->count"),
            "wait-for-nothing": (
                "clocks_begin(c, l);\n\tjoin_clocks(&l->clock, m->done, m->count);",
                "",
            ),
            "place-of-the-living": ("if (c->lanes[n]->gone && host_knows(", "if (host_knows("),
            "place-before-it-is-known": ("&& host_knows(c, &c->lanes[n]->clock))", ")"),
            "turn-not-kept": ("join_clock(c, &c->turns[n].clock, &l->clock);", ""),
            "turn-not-taken": ("join_clock(c, &l->clock, &c->turns[n].clock);", ""),
            "host-sees-legacy-alone": (
                "if (l->kind == ORDER_LEGACY)\n\t\tbehind_blocking(c, l);\n\tjoin",
                "join",
            ),
        },
    },
    "proxy/core/order/order.c": {
        PROGRAMS: {
            "all-before": ("return op->tick <= clock->done[op->place];", "return true;"),
            "next-is-before": ("op->tick <= clock", "op->tick <= 1 + clock"),
            "a-read-replaces-a-write": ("(y->use == ORDER_WRITE || y->use == x->use) &&", ""),
            "gaps-replace": ("&& (y->whole || !x->whole)", ""),
            "replaced-unordered": ("(ordered && is_covered_by(old, x))", "is_covered_by(old, x)"),
            "reads-conflict": ("return x->use != y->use || x->use == ORDER_WRITE;", "return true;"),
            "additions-conflict": ("x->use == ORDER_WRITE;", "x->use != ORDER_READ;"),
            "hulls-are-certain": ("(x->whole && y->whole) ||", "1 ||"),
            "within-either": ("(x->whole && is_within(y, x))", "(x->whole && is_within(x, y))"),
            "told-twice": ("if (known->pairs[n] == pair)", "if (0)"),
            "cut-loses-the-head": (
                "if (!copy_entries(head, tail, tail->begin, at))",
                "*head = (struct stretch){tail->begin, at, NULL, 0};\n\tif (0)",
            ),
            "cut-not-at-the-end": ("} else if (!split_extent(o, n, until)) {", "} else if (0) {"),
            "forgets-too-much": (
                "addr) ||\n\t    !split_extent(o, first_behind(o, until), until))",
                "addr))",
            ),
            "forgets-nothing": (
                "uint32_t first = first_behind(o, addr), last = first;",
                "return; uint32_t first = 0, last = 0;",
            ),
            "one-neighbour-stands-for-both": (
                "if (same_stretch(&o->extents[kept], &o->extents[n])) {",
                "if (o->extents[kept].end == o->extents[n].begin) {",
            ),
        },
    },
}
