"""Promise: whatever ranks that share memory do, in whichever order, no rank reads other bytes than
it would alone, no rank waits forever, and the counts are right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings

from rankfold.proxy.hal.soft.modules import Loader
from support.shared_programs import GRADIENT, Op, Program, Step, check, programs

SQUASHED: list[bool] = []
# Runs take long, so failures are made smaller, and not explained.
PHASES = [phase for phase in settings().phases if phase is not Phase.explain]
COMMON: dict[str, Any] = {
    "suppress_health_check": list(HealthCheck),
    "deadline": None,
    "phases": PHASES,
}
UPDATE = [
    Step(Op("scale", 3, 0)),
    Step(Op("scale", GRADIENT, 3)),
    Step(Op("reduce", GRADIENT)),
    Step(Op("update", 1, GRADIENT)),
    Step(Op("update", 0, 1)),
    Step(Op("sync")),
]


@pytest.mark.slow
@settings(max_examples=30, derandomize=True, **COMMON)
@given(program=programs(16))
@example(Program(3, 96, UPDATE * 3, None, [], [(0, 1), (1, 3)]))
def test_no_rank_can_tell_that_it_shares(kernels: Loader, program: Program) -> None:
    squashed = check(kernels, program)
    event("squashed" if squashed else "not squashed")
    SQUASHED.append(squashed > 0)


def test_enough_is_squashed() -> None:
    assert not SQUASHED or sum(SQUASHED) >= 0.3 * len(SQUASHED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=1500, **COMMON)
@given(program=programs(60))
def test_no_rank_can_tell_for_long(kernels: Loader, program: Program) -> None:
    check(kernels, program)


@settings(max_examples=5, derandomize=True, **COMMON)
@given(program=programs(16))
def test_alone_is_what_a_device_for_each_does(kernels: Loader, program: Program) -> None:
    """The reference for the folded runs is right."""
    assert check(kernels, program, folded=False) == 0


LESS = {"not squashed": {"squash": False}, "not shared": {"share": False}}
# A move after each update, within chunks that are shared.
GOING = [step for cut in ("cut", "save", "cut") for step in [*UPDATE, Step(Op(cut))]]
PART = Op("update", 1, GRADIENT, 36, 1, 0, 60)


@pytest.mark.parametrize("less", LESS)
@settings(max_examples=8, derandomize=True, **COMMON)
@given(program=programs(16))
@example(Program(3, 12, [*UPDATE, Step(PART), *UPDATE], None, [], [(0, 1), (1, 3)]))
def test_no_rank_can_tell_that_it_does_not(kernels: Loader, less: str, program: Program) -> None:
    assert check(kernels, program, **LESS[less]) == 0


@settings(max_examples=10, derandomize=True, **COMMON)
@given(program=programs(16))
@example(Program(3, 96, [*GOING, Step(PART)], None, [], [(0, 1), (1, 3)]))
def test_no_rank_can_tell_that_it_goes_elsewhere(kernels: Loader, program: Program) -> None:
    check(kernels, program, moved=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", [*LESS, "moved"])
@settings(max_examples=300, **COMMON)
@given(program=programs(60))
def test_nor_for_long(kernels: Loader, how: str, program: Program) -> None:
    check(kernels, program, **LESS.get(how, {"moved": True}))
