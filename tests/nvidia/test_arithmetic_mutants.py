"""A fault seeded into versions of what is computed: a test of two kinds of device must notice."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

FILES = [
    (
        "queue/effects.c",
        Mutant(
            "all-devices-compute-alike",
            "\tdigest_word(d, r->device->arithmetic.a);\n\tdigest_word(d, "
            "r->device->arithmetic.b);\n",
            "\t(void)r;\n",
        ),
    ),
]

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    FILES, "tests/nvidia/test_fleet.py", options=["-k", "another_kind"]
)
