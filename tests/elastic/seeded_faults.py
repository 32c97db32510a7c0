"""Faults seeded into the elastic runtime. The tests need PyTorch's CPU build."""

from __future__ import annotations

from support.seeding import Table

BITS = "tests/elastic/test_bits.py"
SUMS = f"{BITS}::test_sums_are_those_of_gloo[3]"

TABLE: Table = {
    "elastic/order.py": {
        SUMS: {
            "ascending-ring": ("(first - hop) % len(owner)", "(first + hop) % len(owner)"),
            "begins-at-the-next-rank": ("(each - 1) % world)", "each % world)"),
            "one-segment-more": ("2 * world)\n", "2 * world + 1)\n"),
            "adds-twice": ("values[2 if first else 0 :]", "values[1 if first else 0 :]"),
        },
    },
}
