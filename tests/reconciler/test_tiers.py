"""Jobs of lower tiers are shrunk or suspended for those of higher ones by the steps that move any
job, and `status` says for which one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.vocabulary import TIERS
from rankfold.reconciler.model.desired import Desired, Job
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.source.revision import differences

from .test_ranges import fleet, job, on, reasons, wish

pytestmark = pytest.mark.unit


def of(tier: str, name: str, gpus: int, least: int | None = None, **fields: Any) -> Job:
    return job(name, gpus, gpus, least, tier=tier, **fields)


def test_a_job_of_a_lower_tier_is_suspended_and_continues_later() -> None:
    b, s = of("basic", "b", 2), of("standard", "s", 1, created=1.0)
    place = fleet(2, b)
    place.converge()
    wish(place, b, s)
    assert reasons(place, "b")["WaitingForDevices"] == "gives up 2 devices for s (standard)"
    assert reasons(place, "s")["WaitingForDevices"] == (
        "needs 1 device; waits until these jobs give up some: b"
    )
    assert place.converge().converged == {"s"} and on(place) == {"b": 0, "s": 1}
    waits = reasons(place, "b")["WaitingForDevices"]
    assert waits == "needs 2 devices of any kind; free for it now: 1"
    wish(place, b)
    assert place.converge().converged == {"b"} and on(place)["b"] == 2
    assert place.records["b"].restarts == 0, "it continued from memory"


def test_a_job_that_shrinks_says_why() -> None:
    a, p = of("standard", "a", 2, 1), of("premium", "p", 1, created=1.0)
    place = fleet(2, a)
    place.converge()
    wish(place, a, p)
    assert reasons(place, "a")["Converging"] == (
        "tier: gives up 1 device for p (premium); step: placed"
    )
    place.converge()
    assert on(place) == {"a": 1, "p": 1}


def test_the_minimum_run_time_ends_with_time_alone() -> None:
    low = of("standard", "low", 1, min_runtime_s=50)
    high = of("standard", "high", 1, priority=1, created=1.0)
    place = fleet(1, low)
    place.converge()
    wish(place, low, high)
    place.converge()
    assert on(place) == {"low": 1}
    place.now += 50.0
    place.converge()
    assert on(place) == {"high": 1, "low": 0}


def test_a_plan_shows_the_tier() -> None:
    before = Desired(jobs={"a": of("standard", "a", 1)})
    after = Desired(jobs={"a": of("premium", "a", 1, priority=2, min_runtime_s=60)})
    (found,) = differences(before, after, {"a": Record("a")})
    assert found.fields == (
        ("spec.tier", "standard", "premium"),
        ("spec.priority", 0, 2),
        ("spec.minRuntime", 0, 60),
    )
    assert not found.disturbs


@st.composite
def wishes(draw: st.DrawFn) -> list[list[Job]]:
    """Several desired states of jobs of all tiers."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))

    def one(number: int, ranks: int) -> Job:
        least = draw(st.one_of(st.none(), st.integers(0, ranks - 1)))
        return of(
            draw(st.sampled_from(TIERS)),
            f"j{number}",
            ranks,
            least,
            created=float(number),
            priority=draw(st.sampled_from([0, 1])),
            suspend=draw(st.sampled_from([False, False, True])),
        )

    return [[one(n, size) for n, size in enumerate(sizes)] for _ in range(draw(st.integers(1, 3)))]


@settings(max_examples=40)
@given(st.integers(1, 5), wishes(), st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_any_sequence_of_wishes_converges(
    devices: int, rounds: list[list[Job]], turns: list[int]
) -> None:
    """Wishes may change in the middle of a move; `Fleet` checks the invariants at every action."""
    place = fleet(devices)
    for jobs, patience in zip(rounds, turns, strict=False):
        wish(place, *jobs)
        for _ in range(patience):
            place.turn()
    place.converge(160)
    held = on(place)
    waits = [each for each in rounds[-1] if not each.suspend and held.get(each.name, 0) == 0]
    for each in rounds[-1]:
        if each.suspend:
            assert held.get(each.name, 0) == 0
    for one in waits:  # no other job has devices with which it could run
        lower = [each for each in rounds[-1] if TIERS.index(each.tier) < TIERS.index(one.tier)]
        assert sum(held.get(each.name, 0) for each in lower) < one.least


def test_replacing_a_job_by_one_of_another_tier_moves_nothing() -> None:
    a = of("basic", "a", 1)
    place = fleet(1, a)
    place.converge()
    wish(place, replace(a, tier="premium"))
    place.converge()
    assert place.records["a"].epoch == 1
