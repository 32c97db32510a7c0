"""Requirements of tests on the machine. A missing one fails in CI and skips the test elsewhere."""

from __future__ import annotations

import functools
import os
from typing import NoReturn

import pytest

from rankfold import criu
from rankfold.interpose import descriptions

_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


@functools.cache
def _has(capability: int) -> bool:
    with open("/proc/self/status") as status:
        effective = next(line.split()[1] for line in status if line.startswith("CapEff"))
    return bool(int(effective, 16) >> capability & 1)


def may_make_namespaces() -> bool:
    """Whether this process has CAP_SYS_ADMIN."""
    return _has(_CAP_SYS_ADMIN)


def may_read_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, so that CRIU can save another user's processes."""
    return _has(_CAP_SYS_RESOURCE)


def missing(feature: str) -> NoReturn:
    """End the test: it cannot show anything on this machine, and in CI it must."""
    if os.environ.get("RANKFOLD_TEST_CI"):
        pytest.fail(feature, pytrace=False)
    pytest.skip(feature)


def need_namespaces() -> None:
    """Requires pid namespaces."""
    if not may_make_namespaces():
        missing("needs CAP_SYS_ADMIN for a pid namespace")


def need_cuda_headers(library: str = "cudart") -> None:
    """Where NVIDIA's header of `library` (as in `interpose.headers.FILES`) is not to be found."""
    if not descriptions.header_folders(library):
        missing(f"no CUDA headers on this machine (of {library})")


def need_criu() -> None:
    """Requires CRIU that works, and so namespaces, too."""
    need_namespaces()
    try:
        if trouble := criu.trouble():
            missing(f"CRIU cannot work here: {trouble}")
    except criu.Missing as error:
        missing(str(error))
