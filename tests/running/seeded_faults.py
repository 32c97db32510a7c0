"""Faults seeded into the line that stderr shows when a kernel fails."""

from __future__ import annotations

from support.seeding import Table

TABLE: Table = {
    "proxy/core/rank/ring.c": {
        "tests/running/test_behaviour.py::test_a_fault_is_said_once_and_where": {
            "rest-of-its-text-lost": ('length > first ? text + first : ""', '""'),
        },
    },
    "proxy/hal/soft/print.c": {
        "tests/running/test_behaviour.py::test_a_fault_is_said_once_and_where": {
            "block-of-several-that-run-as-one": ("block->ctaid[0] + x / width", "block->ctaid[0]"),
        },
    },
}
