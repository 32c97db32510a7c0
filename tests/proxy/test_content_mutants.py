"""Faults seeded into what items do to versions: tests/proxy/test_contents.py must notice each."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

EFFECTS = [
    Mutant("open-kernel-believed", "if (!f->closed ||", "if ("),
    Mutant("key-without-scalars", "digest_bytes(&d, params, l->param_bytes);", ""),
    Mutant("key-without-shape", "digest_word(&d, (uint64_t)l->grid[n] << 32 | l->block[n]);", ";"),
    Mutant(
        "key-without-code", "digest_word(&d, f->identity.a);\n\tdigest_word(&d, f->identity.b);", ""
    ),
    Mutant("key-without-globals", "n < f->variable_count; n++)", "n < 0; n++)"),
    Mutant("address-that-matters-forgotten", "a->use & PROXY_VALUE ? word :", ""),
    Mutant("atomics-are-ordered", "(a->use & PROXY_ATOMIC ? REACH_UNORDERED : 0)", "0"),
    Mutant("copies-all-alike", "content_of_bytes(host + from, width)", "content_of_bytes(host, 0)"),
    Mutant(
        "fills-all-alike",
        "versions_fill(f->value, f->element);\n\tfor (",
        "versions_fill(7, 1);\n\tfor (",
    ),
    Mutant("collectives-all-alike", "digest_word(&d, p.number++);", ""),
    Mutant("every-rank-gets-the-first-part", "*from = o->count * p->index;", ""),
    Mutant("every-rank-is-the-root", "return root ? o->count : 0;", "return o->count;"),
]
CONTENT = [
    Mutant("one-version-not-read", "versions_absorb(&m->versions, part.addr, part.bytes, d);", ""),
    Mutant("distance-not-seen", "digest_word(d, reach->addr - b->addr);", ""),
    Mutant(
        "elsewhere-is-believed",
        "f->known &= !(bounded && elsewhere(reach, bound, b));",
        "(void)elsewhere;",
    ),
    Mutant("memory-leads-nowhere", "if (uses[n] == REACH_WRITTEN && !bounded)", "if (0)"),
    Mutant(
        "beyond-the-end-is-nothing", "else if (uses[n] == REACH_WRITTEN && f->known)", "else if (0)"
    ),
    Mutant(
        "only-its-range-is-unknown",
        "if (f->astray && !f->trusted)\n\t\t\tpages_unknown(m, range);\n\t\telse ",
        "(void)pages_unknown;\n\t\t",
    ),
    Mutant("what-is-written-stays-as-it-was", "if (!(range->use & REACH_WRITTEN))", ""),
    Mutant("parts-described-by-others", "bool described = false;", "bool described = f->count;"),
    Mutant("results-all-alike", "range * RF_HEAP_BYTES", "0"),
]
FILES = [("queue/effects.c", each) for each in EFFECTS]
FILES += [("memory/content.c", each) for each in CONTENT]

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    FILES, "tests/proxy/test_contents.py", options=["-k", "not bytes"]
)
