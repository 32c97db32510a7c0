"""Faults seeded into the check of order, one at a time: each must be noticed by the tests."""

from __future__ import annotations

from barrier.mutants import Mutant

CLOCK = [
    Mutant("host-not-joined", "join_clock(c, &l->clock, &c->host);", ""),
    Mutant(
        "legacy-waits-for-none",
        "if (l->kind == ORDER_LEGACY)\n\t\tbehind_blocking(c, l);\n\tfor",
        "for",
    ),
    Mutant("legacy-waits-for-all", "if (c->lanes[n]->kind == ORDER_BLOCKING)", "if (1)"),
    Mutant("blocking-not-behind-legacy", "l->kind == ORDER_BLOCKING && n < c->count", "0"),
    Mutant("free-behind-legacy", "l->kind == ORDER_BLOCKING && n < c->count", "n < c->count"),
    Mutant(
        "record-of-nothing",
        "memcpy(m->done, l->clock.done, c->count * sizeof *m->done);",
        "memset(m->done, 0, c->count * sizeof *m->done);",
    ),
    Mutant("record-not-behind", "clocks_begin(c, l);\n\tm->count", "m->count"),
    Mutant("wait-for-nothing", "clocks_begin(c, l);\n\tjoin(&l->clock, m->done, m->count);", ""),
    Mutant("place-of-the-living", "if (c->lanes[n]->gone && host_knows(", "if (host_knows("),
    Mutant("place-before-it-is-known", "&& host_knows(c, &c->lanes[n]->clock))", ")"),
    Mutant("turn-not-kept", "join_clock(c, &c->turns[n].clock, &l->clock);", ""),
    Mutant("turn-not-taken", "join_clock(c, &l->clock, &c->turns[n].clock);", ""),
    Mutant(
        "host-sees-legacy-alone",
        "if (l->kind == ORDER_LEGACY)\n\t\tbehind_blocking(c, l);\n\tjoin",
        "join",
    ),
]
ORDER = [
    Mutant("all-before", "return op->tick <= clock->done[op->place];", "return true;"),
    Mutant("next-is-before", "op->tick <= clock", "op->tick <= 1 + clock"),
    Mutant("a-read-replaces-a-write", "(y->use == ORDER_WRITE || y->use == x->use) &&", ""),
    Mutant("gaps-replace", "&& (y->whole || !x->whole)", ""),
    Mutant("replaced-unordered", "(ordered && replaced(old, x))", "replaced(old, x)"),
    Mutant("reads-conflict", "return x->use != y->use || x->use == ORDER_WRITE;", "return true;"),
    Mutant("additions-conflict", "x->use == ORDER_WRITE;", "x->use != ORDER_READ;"),
    Mutant("hulls-are-certain", "(x->whole && y->whole) ||", "1 ||"),
    Mutant("within-either", "(x->whole && within(y, x))", "(x->whole && within(x, y))"),
    Mutant("told-twice", "if (known->pairs[n] == pair)", "if (0)"),
    Mutant(
        "cut-loses-the-head",
        "if (!copied(head, tail, tail->begin, at))",
        "*head = (struct stretch){tail->begin, at, NULL, 0};\n\tif (0)",
    ),
    Mutant("cut-not-at-the-end", "} else if (!cut(o, n, until)) {", "} else if (0) {"),
    Mutant("forgets-too-much", "addr) ||\n\t    !cut(o, first_behind(o, until), until))", "addr))"),
    Mutant(
        "forgets-nothing",
        "uint32_t first = first_behind(o, addr), last = first;",
        "return; uint32_t first = 0, last = 0;",
    ),
    Mutant(
        "one-neighbour-stands-for-both",
        "if (same(&o->extents[kept], &o->extents[n])) {",
        "if (o->extents[kept].end == o->extents[n].begin) {",
    ),
]
