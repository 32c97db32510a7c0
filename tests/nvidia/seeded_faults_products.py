"""Faults that the tests of this folder detect: which library has computed a product."""

from __future__ import annotations

from support.seeding import Table

_VERSIONS = (
    "tests/nvidia/test_versions.py::"
    "test_products_of_another_version_of_the_library_are_other_content"
)

TABLE: Table = {
    "proxy/core/queue/effects.c": {
        f"{_VERSIONS}[0]": {
            "products-of-any-version": (
                "digest_word(&d, r->device->hal->product_library(&a));",
                "(void)r;",
            ),
        },
    },
    "proxy/hal/nvidia/versions.c": {
        f"{_VERSIONS}[2]": {
            "cublas-of-any-version": ("number = number * 1000 + (uint64_t)value;", "(void)value;"),
        },
    },
}
