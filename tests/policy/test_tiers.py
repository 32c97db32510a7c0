"""In a shortage, jobs of lower tiers give up devices to those of higher ones: they are shrunk
before they are suspended, only if that places a job, and never for a lower tier."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.vocabulary import TIERS, Decision, Disturbance, Job
from support.decided import GIB, World, job

pytestmark = pytest.mark.unit

SCHEDULERS = ["fifo", "backfill"]


def of(tier: str, name: str, devices: int, guarantee: int | None = None, **fields: Any) -> Job:
    return replace(job(name, devices, devices, guarantee), tier=tier, **fields)


def elsewhere(world: World) -> None:
    """Add two jobs, so that no bound rules out a wrong decision on group 0: a basic one that may
    use devices of that group, but has one of group 1, and a premium one in group 2."""
    world.add(of("basic", "outside", 1, groups=(0, 1), created=9.0))
    world.add(of("premium", "top", 1, groups=(2,)))


# ---- examples


def test_the_lowest_tier_is_suspended_first() -> None:
    world = World(3)
    world.add(of("premium", "p", 1), of("standard", "s", 1), of("basic", "b", 1))
    world.settle()
    world.add(of("premium", "new", 1, created=1.0))
    decisions = world.decide()
    assert decisions["b"].devices == () and decisions["b"].cause == "tier"
    assert decisions["b"].reason == "gives up 1 device for new (premium)"
    assert decisions["b"].outcome == "devices"
    assert decisions["new"].disturbs == (Disturbance("b", 2.0),)
    assert decisions["new"].reason == "needs 1 device; waits until these jobs give up some: b"
    world.settle()
    assert world.own == {"p": 1, "s": 1, "b": 0, "new": 1}
    world.add(of("premium", "next", 1, created=2.0), of("premium", "last", 1, created=3.0))
    world.settle()
    assert world.own == {"p": 1, "s": 0, "b": 0, "new": 1, "next": 1, "last": 0}


def test_jobs_are_shrunk_before_one_of_a_lower_tier_is_suspended() -> None:
    world = World(4)
    world.add(of("basic", "b", 1), of("standard", "s", 3, guarantee=1))
    world.settle()
    world.add(of("standard", "new", 2, created=1.0))
    world.settle()
    assert world.own == {"b": 1, "s": 1, "new": 2}
    world.add(of("standard", "next", 1, created=2.0))
    world.settle()
    assert world.own == {"b": 0, "s": 1, "new": 2, "next": 1}


def test_a_higher_tier_is_not_shrunk() -> None:
    world = World(2, 1, 1)
    world.add(of("premium", "p", 2, guarantee=1))
    world.settle()
    elsewhere(world)
    world.settle()
    world.add(of("standard", "s", 1, created=1.0))
    assert not world.turn() and world.own == {"p": 2, "outside": 1, "top": 1, "s": 0}


def test_jobs_of_one_precedence_do_not_suspend_each_other() -> None:
    world = World(2, 1, 1)
    world.add(of("standard", "fixed", 1), of("standard", "spare", 1, guarantee=0))
    elsewhere(world)
    world.settle()
    world.add(of("standard", "other", 1, guarantee=0, created=1.0))
    assert not world.turn() and world.own["spare"] == 1
    world.add(of("standard", "new", 1, created=2.0), of("standard", "newer", 1, created=3.0))
    world.settle()
    assert [world.own[name] for name in ("fixed", "spare", "new", "newer")] == [1, 0, 1, 0]


def test_an_elastic_job_of_a_lower_tier_loses_its_guarantee() -> None:
    world = World(2)
    world.add(of("basic", "b", 2, guarantee=1))
    world.settle()
    world.add(of("standard", "s", 2, created=1.0))
    assert world.decide()["b"].reason == "gives up 2 devices for s (standard)"
    world.settle()
    assert world.own == {"b": 0, "s": 2}


def test_a_lower_priority_gives_up_devices_first() -> None:
    world = World(2)
    world.add(of("standard", "high", 1, priority=2), of("standard", "low", 1, priority=-1))
    world.settle()
    world.add(of("standard", "mid", 1, created=1.0))
    decisions = world.decide()
    assert decisions["low"].reason == "gives up 1 device for mid (priority 0)"
    assert decisions["low"].cause == "order"
    world.settle()
    assert world.own == {"high": 1, "low": 0, "mid": 1}
    world.add(of("standard", "other", 1, created=2.0))
    assert not world.turn(), "jobs of one priority do not suspend each other"


def test_the_job_that_is_cheapest_to_stop_is_suspended() -> None:
    world = World(3)
    world.add(
        of("basic", "slow", 1, pause=9.0, created=2.0),
        of("basic", "quick", 1, pause=0.5),
        of("basic", "late", 1, pause=0.5, created=1.0),
    )
    world.settle()
    world.add(of("standard", "s", 1, created=3.0))
    world.settle()
    assert world.own == {"slow": 1, "quick": 1, "late": 0, "s": 1}


def test_no_job_is_suspended_for_one_that_still_does_not_fit() -> None:
    world = World(4, 1, 1)
    world.add(of("premium", "p", 2), of("basic", "b", 1), of("basic", "c", 1))
    elsewhere(world)
    world.settle()
    before = world.own
    world.add(of("standard", "s", 3, created=1.0))
    assert not world.turn() and world.own == {**before, "s": 0}


def test_one_job_is_suspended_if_it_is_enough() -> None:
    """`last`, which would be the first to go, keeps its device: `wide` has to go anyway."""
    world = World(4)
    world.add(of("basic", "wide", 3), of("basic", "last", 1, created=1.0))
    world.settle()
    world.add(of("standard", "s", 3, created=2.0))
    world.settle()
    assert world.own == {"wide": 0, "last": 1, "s": 3}


def test_devices_that_the_borrower_cannot_use_do_not_count() -> None:
    """`wide`, the first to go, gives up one device that `new` can use, and one that it cannot."""
    world = World(2, 1)
    world.add(of("basic", "b", 1), of("basic", "wide", 2, groups=(0, 1), created=1.0))
    world.settle()
    assert world.own == {"b": 1, "wide": 2}
    world.add(of("standard", "new", 2, created=2.0))
    assert {each.job for each in world.decide()["new"].disturbs} == {"b", "wide"}
    world.settle()
    assert world.own == {"b": 0, "wide": 0, "new": 2}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_job_gives_up_devices_that_one_suspended_before_would_take(scheduler: str) -> None:
    """`high` suspends `first`, which then goes before `late`, and would take what `spare` has."""
    world = World(2, scheduler=scheduler)
    world.add(of("basic", "first", 1), of("basic", "spare", 1, guarantee=0, pause=9.0))
    world.settle()
    world.add(of("standard", "high", 1, created=1.0), of("basic", "late", 1, created=2.0))
    decisions = world.decide()
    assert decisions["first"].devices == () and decisions["spare"].cause is None
    assert decisions["late"].disturbs == ()
    world.turn()
    assert world.decide()["spare"].reason == "gives up 1 device for first"
    world.settle()
    assert world.own == {"first": 1, "spare": 0, "high": 1, "late": 0}


def test_the_minimum_run_time_holds_for_the_own_tier_only() -> None:
    world = World(2)
    world.add(
        of("standard", "a", 1, min_runtime=100.0), of("standard", "b", 1, 0, min_runtime=50.0)
    )
    world.turn()
    assert world.own == {"a": 1, "b": 1}
    since = world.jobs["a"].since
    world.add(of("standard", "high", 1, priority=5, created=1.0))
    world.now = since + 49.0
    assert all(each.cause is None for each in world.decide().values())
    world.now = since + 50.0
    assert world.decide()["b"].devices == ()
    world.jobs["b"] = replace(world.jobs["b"], min_runtime=1000.0)
    world.now = since + 100.0
    assert world.decide()["a"].devices == ()
    world.jobs["b"] = replace(world.jobs["b"], min_runtime=10.0)
    world.now = since - 1000.0  # the clock was set back
    assert world.decide()["b"].devices == ()
    world.jobs["b"] = replace(world.jobs["b"], min_runtime=1000.0)
    world.now = since + 1.0
    world.add(of("premium", "p", 1, created=2.0))
    assert world.decide()["b"].reason == "gives up 1 device for p (premium)"


def test_a_job_is_not_shrunk_during_its_minimum_run_time() -> None:
    world = World(2)
    world.add(of("standard", "a", 2, guarantee=1, min_runtime=10.0))
    world.settle()
    world.add(of("standard", "b", 1, created=1.0))
    world.now = world.jobs["a"].since + 9.0
    assert all(each.cause is None for each in world.decide().values())
    world.now += 1.0
    assert world.decide()["a"].reason == "gives up 1 device for b"


def test_jobs_resume_by_tier_priority_and_age() -> None:
    waiting = [
        of("premium", "e", 1, created=5.0),
        of("standard", "d", 1, created=4.0, priority=1),
        of("standard", "c", 1, created=2.0, begun=True),
        of("standard", "b", 1, created=3.0),
        of("basic", "a", 1, created=0.0, begun=True),
    ]
    world = World(1)
    world.add(*waiting)
    order = []
    while world.jobs:
        world.settle()
        (runs,) = (name for name, devices in world.own.items() if devices)
        order.append(runs)
        del world.jobs[runs]
    assert order == ["e", "d", "c", "b", "a"]


def test_idle_devices_are_used_by_a_job_that_can_be_suspended_again() -> None:
    """`wide` has a claim on one device and waits for two."""
    world = World(2)
    world.add(of("standard", "s", 1))
    world.settle()
    world.add(of("standard", "wide", 2, created=1.0), of("standard", "late", 1, created=2.0))
    world.add(of("basic", "b", 1, created=3.0))
    world.settle()
    assert world.own == {"s": 1, "wide": 0, "late": 0, "b": 1}
    del world.jobs["s"]
    world.settle()
    assert world.own == {"wide": 2, "late": 0, "b": 0}


def test_a_job_that_would_keep_idle_devices_for_its_minimum_run_time_gets_none() -> None:
    world = World(2)
    world.add(of("standard", "s", 1))
    world.settle()
    world.add(of("standard", "wide", 2, created=1.0))
    world.add(of("standard", "low", 1, priority=-1, created=3.0, min_runtime=60.0))
    world.settle()
    assert world.own == {"s": 1, "wide": 0, "low": 0}
    world.jobs["low"] = replace(world.jobs["low"], min_runtime=0.0)
    world.settle()
    assert world.own == {"s": 1, "wide": 0, "low": 1}


def test_a_job_waits_for_free_devices_before_others_give_up_theirs() -> None:
    world = World(1)
    world.rules = replace(world.rules, preemption_delay=30.0)
    world.add(of("basic", "b", 1))
    world.settle()
    world.add(of("premium", "p", 1, created=100.0))
    world.now = 129.0
    assert world.decide()["b"].cause is None
    assert world.decide()["p"].reason == "needs 1 device; free for it now: 0"
    world.jobs["p"] = replace(world.jobs["p"], waits_since=110.0)  # it lost its devices then
    world.now = 139.0
    assert world.decide()["b"].cause is None
    world.now = 140.0
    assert world.decide()["b"].devices == ()
    world.jobs["p"] = replace(world.jobs["p"], created=1000.0)  # the clock was set back
    assert world.decide()["b"].devices == ()


# ---- properties


@st.composite
def worlds(draw: st.DrawFn, scheduler: str) -> World:
    """Jobs of all tiers that have arrived one after the other, and may have left."""
    world = World(draw(st.integers(1, 6)), draw(st.integers(0, 3)), scheduler=scheduler)
    if draw(st.booleans()):
        world.host_memory = draw(st.integers(0, 12)) * GIB
    for number in range(draw(st.integers(1, 7))):
        devices = draw(st.integers(1, 4))
        each = of(
            draw(st.sampled_from(TIERS)),
            f"j{number}",
            devices,
            draw(st.one_of(st.none(), st.integers(0, devices))),
            created=float(draw(st.integers(0, 2))),
            priority=draw(st.sampled_from([0, 0, 1])),
            min_runtime=draw(st.sampled_from([0.0, 0.0, 3.0])),
            pause=draw(st.sampled_from([1.0, 2.0])),
            groups=draw(st.sampled_from([(0,), (1,), (0, 1)])),
        )
        world.add(each)
        for _ in range(draw(st.integers(0, 3))):
            world.turn()
        if len(world.jobs) > 2 and draw(st.booleans()):
            del world.jobs[draw(st.sampled_from(sorted(world.jobs)))]
    return world


def check(world: World, decisions: dict[str, Decision]) -> None:
    """Check which jobs lose devices, and to which jobs."""
    given_away = [at for each in decisions.values() for at in each.devices or ()]
    assert len(given_away) == len(set(given_away)), "a device is given twice"
    assert set(given_away) <= {at for group in world.members for at in group}
    borrowers: dict[str, list[Job]] = {}
    for name, decision in decisions.items():
        for each in decision.disturbs:
            if each.job != name:
                borrowers.setdefault(each.job, []).append(world.jobs[name])
    for name, its in world.jobs.items():
        now = decisions[name].devices or ()
        if set(now) >= set(its.own):
            assert name not in borrowers
            continue
        assert borrowers[name], f"{name} loses devices to no job"
        for other in borrowers[name]:
            above = TIERS.index(other.tier) - TIERS.index(its.tier)
            assert above >= 0, f"{name} loses devices to a lower tier"
            if above == 0:
                assert world.now - its.since >= its.min_runtime, f"{name} has just started"
        if not now:
            strongest = max(
                (TIERS.index(each.tier), each.priority, each.guarantee != 0)
                for each in borrowers[name]
            )
            assert strongest > (TIERS.index(its.tier), its.priority, its.guarantee != 0)
        else:
            assert its.guarantee is not None and len(now) >= max(1, its.guarantee)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_no_job_loses_devices_to_a_lower_tier_or_before_its_time(
    scheduler: str, data: st.DataObject
) -> None:
    world = data.draw(worlds(scheduler))
    for _ in range(3):
        check(world, world.decide())
        world.turn()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_constant_input_reaches_a_fixed_point(scheduler: str, data: st.DataObject) -> None:
    world = data.draw(worlds(scheduler))
    for _ in range(20 * len(world.jobs) + 20):
        changed = world.turn()
        if not changed:
            world.now += 1000.0  # all minimum run times are over
            if not world.turn():
                return
    raise AssertionError("no fixed point")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_a_job_is_disturbed_only_if_that_places_another_one(
    scheduler: str, data: st.DataObject
) -> None:
    world = data.draw(worlds(scheduler))
    decisions, before = world.decide(), world.own
    borrowers = [
        name
        for name, decision in decisions.items()
        if any(each.job != name for each in decision.disturbs)
    ]
    world.turn()
    world.turn()
    for name in borrowers:
        assert world.own[name] > before[name], "others were disturbed for nothing"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(
    scheduler: str, data: st.DataObject, random: Random
) -> None:
    world = data.draw(worlds(scheduler))
    decisions = world.decide()
    shuffled = list(world.jobs.items())
    random.shuffle(shuffled)
    world.jobs = dict(shuffled)
    assert world.decide() == decisions
