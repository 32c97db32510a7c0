"""Faults seeded into the cross-check: tests/proxy/test_crosscheck.py must notice each."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

FILES = [
    (
        "crosscheck/pairs.c",
        Mutant(
            "not-compared",
            "if (there->pair.sum[0] != pair->sum[0] || there->pair.sum[1] != pair->sum[1]) {",
            "if (0) {",
        ),
    ),
    (
        "crosscheck/pairs.c",
        Mutant("nothing-is-kept", "there->used = ++p->clock;", "there->used = 0;"),
    ),
    (
        "crosscheck/check.c",
        Mutant(
            "digest-of-nothing",
            "content_absorb(m, who->addr, who->bytes, &d);",
            "(void)m, (void)who;",
        ),
    ),
    ("crosscheck/check.c", Mutant("never-looked-at", "c->state = CHECK_WAITS;", "return false;")),
    (
        "crosscheck/check.c",
        Mutant("always-the-same-pages", "c->looks |= part_of(round);", "c->looks |= part_of(0);"),
    ),
    (
        "crosscheck/check.c",
        Mutant(
            "copies-of-several-are-skipped",
            "(p->chunk || p->in_image || p->common)",
            "(p->chunk || p->in_image)",
        ),
    ),
    (
        "crosscheck/check.c",
        Mutant(
            "stopped-again-and-again",
            "return c->every && c->fruitless >= FRUITLESS_MAX;",
            "return 0;",
        ),
    ),
    ("loop/alarm.c", Mutant("not-told-on", "send(j, 0, SAYS_PAIR, pair, &none);", "(void)none;")),
    ("loop/alarm.c", Mutant("others-are-not-told", "send(j, n, SAYS_ALARM, pair, &other);", ";")),
    (
        "loop/alarm.c",
        Mutant(
            "shares-all-the-same",
            "memory_doubt(&j->world.ranks[n]->memory);\n\tsnprintf",
            ";\n\tsnprintf",
        ),
    ),
    ("loop/alarm.c", Mutant("shares-where-it-moves", "if (j->crosscheck.count)\n", "if (0)\n")),
    (
        "loop/saved.c",
        Mutant("forgotten-where-it-moves", "crosscheck_known(r->job, s->text);\n", "\n"),
    ),
    ("queue/squash.c", Mutant("squashed-all-the-same", "!r->memory.doubted &&", "")),
    ("queue/reuse.c", Mutant("there-all-the-same", "!r->memory.doubted &&", "")),
]

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    FILES, "tests/proxy/test_crosscheck.py"
)
