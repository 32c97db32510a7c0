"""A fault seeded into versions of what is computed: a test of two kinds of device detects it."""

from __future__ import annotations

from support.seeding import Table

OTHER_KIND = ("tests/nvidia/test_fleet.py", "-k", "another_kind")

TABLE: Table = {
    "proxy/core/queue/effects.c": {
        OTHER_KIND: {
            "all-devices-compute-alike": (
                (
                    "\tdigest_word(d, r->device->arithmetic.a);\n"
                    "\tdigest_word(d, r->device->arithmetic.b);\n"
                ),
                "\t(void)r;\n",
            ),
        },
    },
}
