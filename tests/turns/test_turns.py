"""Promise: as of tests/proxy/test_shared_programs.py, for any interleaving of ranks, device and
time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from support.shared_programs import Op, Program, Step

from . import driver
from .driver import Found, Move, Setting, check, schedules, twisted
from .world import Library

COMMON: dict[str, Any] = {
    "suppress_health_check": list(HealthCheck),
    "deadline": None,
    "phases": [phase for phase in settings().phases if phase is not Phase.explain],
}

FOUND: list[Found] = []


# A rank needs a page for a copy that all ranks make while another rank's content is checked on it:
# the loop sleeps until the check is over.
CHECKED = Program(
    2,
    96,
    [
        Step(Op("sync")),
        Step(Op("reduce", 2)),
        Step(Op("move", 0, 1, stream=2)),
        Step(Op("update", 0, 0)),
    ],
    None,
    [],
    [],
)
FEW = [Move("post", 0), Move("turn"), Move("post", 0), Move("post", 1), Move("turn", count=12)]


@pytest.mark.slow
@settings(max_examples=50, derandomize=True, **COMMON)
@given(program=twisted(16), schedule=schedules(60), setting=driver.settings)
@example(CHECKED, FEW, Setting())
def test_no_rank_can_tell_whatever_comes_first(
    library: Library, program: Program, schedule: list[Move], setting: Setting
) -> None:
    FOUND.append(check(library, program, schedule, setting))


def test_enough_has_waited() -> None:
    """In a third of them something ran once for several ranks, in some a rank waited without
    success."""
    assert not FOUND or sum(found.squashed > 0 for found in FOUND) >= 0.3 * len(FOUND)
    assert not FOUND or any(found.let_go for found in FOUND)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=4000, **COMMON)
@given(program=twisted(40), schedule=schedules(120), setting=driver.settings)
def test_nor_for_long(
    library: Library, program: Program, schedule: list[Move], setting: Setting
) -> None:
    check(library, program, schedule, setting)
