"""Faults seeded into how a result comes to several ranks: tests/proxy/test_results.py must notice
each."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

FILES = [
    ("memory/transfer.c", Mutant("edges-are-left-out", "if (!is_there(t, at)) {\n", "if (0) {\n")),
    (
        "memory/transfer.c",
        Mutant(
            "copied-over-what-others-have",
            "if (!is_there(t, at) && !may_write(t, at, next - at))",
            "if (0)",
        ),
    ),
    (
        "memory/transfer.c",
        Mutant(
            "an-operand-begins-anew",
            "memory_resolve(m, at.addr + t->done,",
            "memory_resolve(m, at.addr,",
        ),
    ),
    (
        "memory/transfer.c",
        Mutant("as-far-as-the-first-lies-together", "n = n < other ? n : other;", "(void)other;"),
    ),
    (
        "memory/transfer.c",
        Mutant(
            "all-parts-of-a-sum-go-to-its-beginning", "{dst.space, dst.addr + t->done};", "dst;"
        ),
    ),
    (
        "memory/transfer.c",
        Mutant("what-a-failed-rank-gave-is-added", "any |= (t->memory", "any |= 0 && (t->memory"),
    ),
    (
        "memory/transfer.c",
        Mutant("nor-is-the-second-looked-at", "(t->source && failed(", "(0 && failed("),
    ),
    (
        "collective/shape.c",
        Mutant("a-gathering-is-handed-in-part", "return bytes * nranks;", "return bytes;"),
    ),
    (
        "collective/shape.c",
        Mutant("parts-are-handed-as-the-whole", "default: return 0;\n", "default: return bytes;\n"),
    ),
    (
        "collective/op.c",
        Mutant(
            "who-receives-elsewhere-is-left-out",
            "\t\tif (op->calls[k].recv == op->calls[seat].recv) {",
            "\t\t{",
        ),
    ),
    (
        "loop/job_io.c",
        Mutant(
            "nothing-is-let-go-of",
            "if (j->world.ranks[rank])\n\t\tmemory_forget(",
            "if (0)\n\t\tmemory_forget(",
        ),
    ),
    ("collective/piece.c", Mutant("nothing-is-handed", "if (call->receiver == i)", "if (1)")),
]

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    FILES, "tests/proxy/test_results.py"
)
