"""Faults seeded into the comparison of contents: tests/proxy/test_guard.py must notice each."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

FILES = [
    ("guard/pairs.c", Mutant(
        "not-compared",
        "if (there->pair.sum[0] != pair->sum[0] || there->pair.sum[1] != pair->sum[1]) {",
        "if (0) {")),
    ("guard/pairs.c", Mutant("nothing-is-kept", "there->used = ++p->clock;", "there->used = 0;")),
    ("guard/check.c", Mutant("digest-of-nothing", "content_absorb(m, who->addr, who->bytes, &d);",
                             "(void)m, (void)who;")),
    ("guard/check.c", Mutant("never-looked-at", "c->state = CHECK_WAITS;", "return false;")),
    ("guard/check.c", Mutant("always-the-same-pages", "c->looks |= part_of(round);",
                             "c->looks |= part_of(0);")),
    ("guard/check.c", Mutant("copies-of-several-are-skipped",
                             "(p->chunk || p->in_image || p->common)",
                             "(p->chunk || p->in_image)")),
    ("guard/check.c", Mutant("stopped-again-and-again", "return c->every && c->vain >= VAIN_MAX;",
                             "return 0;")),
    ("loop/guard.c", Mutant("not-told-on", "send(j, 0, SAYS_PAIR, pair, &nobody);",
                            "(void)nobody;")),
    ("loop/guard.c", Mutant("others-are-not-told", "send(j, n, SAYS_ALARM, pair, &other);", ";")),
    ("loop/guard.c", Mutant("shares-all-the-same",
                            "memory_doubt(&j->ranks[n]->memory);\n\tsnprintf", ";\n\tsnprintf")),
    ("loop/guard.c", Mutant("shares-where-it-moves", "if (j->guard.count)\n", "if (0)\n")),
    ("loop/saved.c", Mutant("forgotten-where-it-moves",
                            "guard_known(r->job, s->text);\n", "\n")),
    ("queue/squash.c", Mutant("squashed-all-the-same", "!r->memory.doubted &&", "")),
    ("queue/reuse.c", Mutant("there-all-the-same", "!r->memory.doubted &&", "")),
]  # fmt: skip

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    FILES, "tests/proxy/test_guard.py"
)
