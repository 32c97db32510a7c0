"""The work of a plan grows with the fleet, not with jobs times devices."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from rankfold.reconciler import plan
from rankfold.reconciler.plan.placement import block_sizes, cover
from support.crowd import crowd, moments

pytestmark = pytest.mark.unit

FEW, MANY = 6, 36


def lines(jobs: int) -> dict[str, int]:
    """Lines run in the planner, each turn of a comprehension included: the most that one plan took
    of each part of a fleet's life."""
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        if "/reconciler/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = True, False
        counted += event == "line"
        return trace

    most: dict[str, int] = {}
    fleet = crowd(jobs)
    for moment in moments(fleet):
        block_sizes.cache_clear()
        cover.cache_clear()
        observed, before, counted = fleet.observed(), sys.gettrace(), 0
        sys.settrace(trace)
        try:
            plan.plan(fleet.desired, fleet.records, observed, fleet.now)
        finally:
            sys.settrace(before)
        most[moment] = max(most.get(moment, 0), counted)
    return most


@pytest.mark.slow
def test_the_cost_of_a_plan_grows_with_the_fleet() -> None:
    few, many = lines(FEW), lines(MANY)
    assert few.keys() == many.keys() == {"start", "change", "loss"}
    for moment, count in few.items():
        assert count > 1_000, "nothing was counted"
        grown = many[moment] / count
        assert grown < 1.5 * MANY / FEW, f"{moment}: {grown:.1f} times the work of {FEW} jobs"
