"""Faults seeded into time slices: tests of them must notice each."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

SLICE = [
    Mutant("never-relents", "\tp->device.relents = true;\n", ""),
    Mutant("as-soon-each-time", "\ts->patience_ns *= 2;\n", ""),
    Mutant(
        "relents-for-ever",
        "p->device.relents && holds && rank_runs_marked(p->device.active)",
        "p->device.relents && holds",
    ),
    Mutant("sleeps-over-it", "\tif (s->held_since_ns && !p->device.relents)\n", "\tif (0)\n"),
    Mutant("over-before-it-began", "r->counters.kernels != p->slice.kernels_before ||", "1 ||"),
    Mutant(
        "some-never-have-a-turn",
        "p->device.memory.turns - since > 2ull * p->device.rank_count",
        "0",
    ),
    Mutant("one-after-the-other", "active->rank ^ apart", "(active->rank + apart) % places"),
    Mutant("room-is-waited-for", "\t\tmemory_cancel(&s->target->memory);", "\t\t;"),
    Mutant("nobody-is-prepared-before-a-call", "ready_before_collective(active) : 0", "0 : 0"),
]
FILES = [("loop/slice.c", each) for each in SLICE]
FILES += [
    (
        "queue/item.c",
        Mutant("everything-goes-on", "device_submits(d, s->head == i)", "device_submits(d, true)"),
    )
]

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    FILES,
    "tests/proxy/test_yielding.py",
    "tests/proxy/test_slices.py",
    "tests/proxy/test_preparing.py",
)
