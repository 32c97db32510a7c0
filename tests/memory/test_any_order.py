"""Random requests to the memory of ranks, in any order."""

from __future__ import annotations

from typing import Any

import pytest

from .machine import run


def test_any_requests_in_any_order(library: tuple[Any, Any]) -> None:
    run(library, 80)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_any_requests_in_any_order_at_length(library: tuple[Any, Any]) -> None:
    run(library, 5000)
