"""Faults seeded into what opaque code is trusted to do: tests/proxy/test_opaque.py must notice
each."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

LAUNCHES, MEASURE, HIDDEN = "opaque/launches.c", "opaque/measure.c", "queue/opaque_launch.c"
FILES = [
    (
        LAUNCHES,
        Mutant(
            "one-rank-is-enough", "return b->count && b->count == b->voters;", "return b->count;"
        ),
    ),
    (LAUNCHES, Mutant("once-is-enough", "#define HOLDS 2u", "#define HOLDS 1u")),
    (
        LAUNCHES,
        Mutant("effects-not-compared", "if (b->count && !equal(b->effect, effect)) {", "if (0) {"),
    ),
    (LAUNCHES, Mutant("never-measured-again", " || now % every == 0)", ")")),
    (
        LAUNCHES,
        Mutant(
            "each-rank-counts-for-itself",
            "if (!it->count || number > it->numbers[(it->count - 1) % RECENT])",
            "if (1)",
        ),
    ),
    (LAUNCHES, Mutant("reads-what-each-has", "parts_both(&b->before, &m->before);", ";")),
    (LAUNCHES, Mutant("reads-nothing", "ranges_add(&it->reads, same) &&", "")),
    (LAUNCHES, Mutant("dissent-is-kept-quiet", "\t\treturn was;", "\t\treturn false;")),
    (
        LAUNCHES,
        Mutant(
            "strays-are-forgotten",
            "ranges_add_one(&s->writes, page_addr(pages[i]), RF_CHUNK_BYTES) &&",
            "",
        ),
    ),
    (MEASURE, Mutant("contents-have-no-versions", "note_all(memory, &m->it);", "(void)note_all;")),
    (
        MEASURE,
        Mutant(
            "one-version-for-all",
            "digest_word(&d, p->sum[0]);\n\t\tdigest_word(&d, p->sum[1]);\n",
            "",
        ),
    ),
    (
        HIDDEN,
        Mutant(
            "key-without-parameters", "digest_bytes(&d, i->data, i->kernel.launch.param_bytes);", ""
        ),
    ),
    (HIDDEN, Mutant("key-of-any-occurrence", "digest_word(&d, trusted->occurrence);", "")),
    (
        HIDDEN,
        Mutant(
            "trusted-while-it-is-measured",
            "if (r->measure.state && r->measure.item == i)",
            "if (0)",
        ),
    ),
    (HIDDEN, Mutant("trusted-all-the-same", "!r->memory.doubted &&", "")),
    (
        "loop/opaque_turn.c",
        Mutant("nobody-hears", "crosscheck_dissent(r->job, r->measure.name, &dissent);", ";"),
    ),
    (
        "loop/alarm.c",
        Mutant(
            "other-devices-do-not-hear",
            "peer_send(j->peer, n, PEER_CROSSCHECK, &m);\n\tnote_dissent",
            ";\n\tnote_dissent",
        ),
    ),
    (
        "memory/content.c",
        Mutant("pages-unknown-all-the-same", "if (f->astray && !f->trusted)", "if (f->astray)"),
    ),
]

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    FILES, "tests/proxy/test_opaque.py"
)
