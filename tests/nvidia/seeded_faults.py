"""A fault seeded into versions of what is computed: a test of two types of device detects it."""

from __future__ import annotations

from support.seeding import Table

OTHER_TYPE = (
    "tests/nvidia/test_fleet.py::test_results_of_another_device_type_are_not_reused[compared]"
)

TABLE: Table = {
    "proxy/core/queue/effects.c": {
        OTHER_TYPE: {
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
