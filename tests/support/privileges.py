"""What a test needs from the machine. Missing privileges fail in CI and skip elsewhere."""

from __future__ import annotations

import functools
import os

import pytest

_CAP_SYS_ADMIN = 21


@functools.cache
def may_make_namespaces() -> bool:
    """Whether this process has CAP_SYS_ADMIN."""
    with open("/proc/self/status") as status:
        effective = next(line.split()[1] for line in status if line.startswith("CapEff"))
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def need_namespaces() -> None:
    """Skip the test, or fail it in CI, where pid namespaces cannot be made."""
    if not may_make_namespaces():
        message = "needs CAP_SYS_ADMIN for a pid namespace"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
