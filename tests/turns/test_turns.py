"""Promise: as of tests/proxy/test_shared_programs.py, for any interleaving of ranks, device and
time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings

from support.shared_programs import Program, programs

from .driver import Move, check, schedules
from .world import Library

COMMON: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}


@settings(max_examples=40, derandomize=True, **COMMON)
@given(program=programs(16), schedule=schedules(40))
def test_no_rank_can_tell_whatever_comes_first(
    library: Library, program: Program, schedule: list[Move]
) -> None:
    found = check(library, program, schedule)
    event("squashed" if found.squashed else "not squashed")
    event("let go" if found.let_go else "nobody was let go")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=4000, **COMMON)
@given(program=programs(40), schedule=schedules(120))
def test_nor_for_long(library: Library, program: Program, schedule: list[Move]) -> None:
    check(library, program, schedule)
