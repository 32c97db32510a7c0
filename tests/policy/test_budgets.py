"""A job is disturbed no more often than its tier allows in an hour, unless a guarantee would be
broken; and each job that waits has its place in the queue."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.vocabulary import BUDGET_S, TIERS, Job, Quota
from rankfold.simulator.costs import Costs
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES
from support.decided import World, job

pytestmark = pytest.mark.unit


def of(tier: str, name: str, devices: int, guarantee: int | None = None, **fields: Any) -> Job:
    return replace(job(name, devices, devices, guarantee), tier=tier, **fields)


def world_of(devices: int, *most: int | None, **fields: Any) -> World:
    world = World(devices)
    world.rules = replace(world.rules, disturbances=most, **fields)
    return world


def test_a_job_is_suspended_as_often_as_its_tier_allows() -> None:
    world = world_of(1, 1, None, None)
    world.add(of("basic", "b", 1))
    world.settle()
    world.add(of("standard", "s", 1, created=1.0))
    world.settle()
    assert world.own == {"b": 0, "s": 1}
    del world.jobs["s"]
    world.settle()
    (at,) = world.jobs["b"].disturbed
    world.add(of("premium", "p", 1, created=2.0))
    world.now = at + BUDGET_S - 2.0
    assert not world.turn() and world.own == {"b": 1, "p": 0}
    world.now = at + BUDGET_S
    world.settle()
    assert world.own == {"b": 0, "p": 1}


def test_a_job_is_not_shrunk_and_does_not_grow_when_its_budget_is_spent() -> None:
    world = world_of(4, None, 0, None)
    world.add(of("standard", "wide", 4, guarantee=1), of("standard", "other", 2, created=1.0))
    world.settle()
    before = world.own
    world.add(of("premium", "p", 1, created=2.0))
    assert not world.turn() and world.own == {**before, "p": 0}
    del world.jobs["p"], world.jobs["other"]
    assert not world.turn(), "it would have to stop in order to grow"


def test_a_guarantee_is_not_limited() -> None:
    world = world_of(2, 0, 0, 0, fractions=(0.0, 0.7, 0.95))
    world.add(of("basic", "b", 1), of("basic", "wide", 1, guarantee=0))
    world.settle()
    world.add(of("premium", "p", 2, created=1.0))
    world.settle()
    assert world.own == {"b": 0, "wide": 0, "p": 2}


def test_a_quota_gets_back_its_devices_whatever_the_budget() -> None:
    """Within its quota, a job keeps its devices."""
    world = world_of(4, 0, 0, 0, quotas=(Quota("a", 2), Quota("b", 2)))
    world.add(of("premium", "a1", 2, quota="a"), of("premium", "a2", 2, quota="a", created=1.0))
    world.settle()
    world.add(of("basic", "b1", 2, quota="b", created=2.0))
    world.settle()
    assert world.own == {"a1": 2, "a2": 0, "b1": 2}
    world.add(of("premium", "b2", 1, quota="b", created=3.0))
    world.settle()
    assert world.own["b1"] == 0 and world.own["b2"] == 1, "now b1 borrows"


def test_a_spent_budget_keeps_a_job_off_claimed_devices() -> None:
    world = world_of(2, 1, None, None)
    world.add(of("standard", "s", 1))
    world.settle()
    world.add(of("standard", "wide", 2, created=1.0))
    world.add(of("basic", "b", 1, created=2.0, disturbed=(world.now,)))
    world.settle()
    assert world.own == {"s": 1, "wide": 0, "b": 0}
    world.now += BUDGET_S
    world.settle()
    assert world.own == {"s": 1, "wide": 0, "b": 1}


def test_the_simulation_continues_when_a_budget_is_there_again() -> None:
    jobs = [
        TraceJob("b", 0.0, 1, 1, 1, 3 * BUDGET_S, tier="basic"),
        TraceJob("p", 100.0, 1, 1, 1, 50.0, tier="premium"),
        TraceJob("q", 300.0, 1, 1, 1, 50.0, tier="premium"),
    ]
    rules = replace(RULES, disturbances=(1, None, None))
    result = Events(jobs, [Kind("gpu", 1)], Costs(), {}, rules).run("fifo")
    assert {done.name: done.start for done in result.jobs} == {
        "b": 0.0,
        "p": 100.0,
        "q": 100.0 + BUDGET_S,
    }


# ---- the queue


def test_each_job_that_waits_has_its_place() -> None:
    world = World(1)
    world.add(of("premium", "p", 1), of("basic", "b", 1, created=1.0))
    world.add(of("standard", "s", 1, created=2.0), of("standard", "first", 1, priority=1))
    world.settle()
    places = {name: each.position for name, each in world.decide().items()}
    assert places == {"p": 0, "first": 1, "s": 2, "b": 3}


# ---- properties


@st.composite
def worlds(draw: st.DrawFn) -> World:
    limit = st.one_of(st.none(), st.integers(0, 2))
    world = World(draw(st.integers(1, 6)))
    world.rules = replace(world.rules, disturbances=(draw(limit), draw(limit), draw(limit)))
    for number in range(draw(st.integers(1, 8))):
        devices = draw(st.integers(1, 4))
        world.add(
            of(
                draw(st.sampled_from(TIERS)),
                f"j{number}",
                devices,
                draw(st.one_of(st.none(), st.integers(0, devices))),
                created=float(draw(st.integers(0, 2))),
                priority=draw(st.sampled_from([0, 1])),
            )
        )
        for _ in range(draw(st.integers(0, 3))):
            world.now += draw(st.sampled_from([0.0, BUDGET_S / 3]))
            world.turn()
        if len(world.jobs) > 2 and draw(st.booleans()):
            del world.jobs[draw(st.sampled_from(sorted(world.jobs)))]
    return world


@given(worlds())
def test_budgets_hold(world: World) -> None:
    for _ in range(20):
        if not world.turn():
            break
    for its in world.jobs.values():
        most = world.rules.disturbances[TIERS.index(its.tier)]
        for first in its.disturbed:
            if most is not None:
                assert sum(0 <= at - first < BUDGET_S for at in its.disturbed) <= most, its


@given(worlds())
def test_constant_input_reaches_a_fixed_point(world: World) -> None:
    world.settle()


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(world: World, random: Random) -> None:
    decisions = world.decide()
    shuffled = list(world.jobs.items())
    random.shuffle(shuffled)
    world.jobs = dict(shuffled)
    assert world.decide() == decisions
    waiting = sorted(each.position for each in decisions.values() if each.position)
    assert waiting == list(range(1, len(waiting) + 1))
    assert all(decisions[name].position for name, its in world.jobs.items() if not (
        decisions[name].devices or its.own
    ))  # fmt: skip
