"""Jobs leave devices that are drained, for others if there are any; no other job is disturbed
without need."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.decide import decide
from rankfold.policy.lending import least_of
from rankfold.policy.vocabulary import TIERS, Job
from support.decided import World, job

pytestmark = pytest.mark.unit


def plain(name: str, devices: int, created: float = 0.0, **fields: Any) -> Job:
    return replace(job(name, devices, devices, None, created), **fields)


def placed(*jobs: Job, devices: int) -> World:
    """A settled world in which the jobs have devices in this order."""
    world = World(devices)
    for each in jobs:
        world.add(each)
        world.settle()
    return world


def drain(world: World, *positions: int) -> None:
    world.drained = frozenset(positions)


def test_a_job_moves_to_a_free_device_and_keeps_its_others() -> None:
    world = placed(plain("a", 2), plain("b", 1, 1.0), devices=4)
    drain(world, 0)
    (moved, stays) = (world.decide()[name] for name in "ab")
    assert (moved.devices, moved.cause) == ((1, 3), "drain")
    assert moved.reason == "1 of its 2 devices is drained"
    assert [each.job for each in moved.disturbs] == ["a"]
    assert stays.devices == (2,) and stays.cause is None
    world.settle()
    assert world.jobs["a"].own == (1, 3)


def test_without_another_device_it_waits_and_returns() -> None:
    world = placed(plain("a", 2), devices=2)
    drain(world, 1)
    decision = world.decide()["a"]
    assert (decision.devices, decision.cause, decision.outcome) == ((), "drain", "devices")
    assert decision.reason == "1 of its 2 devices is drained, and too few others are free for it"
    world.settle()
    assert world.own == {"a": 0} and world.decide()["a"].position == 1
    drain(world)
    world.settle()
    assert world.own == {"a": 2}


def test_it_continues_on_fewer_as_when_devices_are_bad() -> None:
    world = placed(plain("a", 2, shrinks=True), devices=2)
    drain(world, 1)
    decision = world.decide()["a"]
    assert (decision.devices, decision.cause, decision.outcome) == ((0,), "drain", "fewer")
    world.settle()
    drain(world)
    world.settle()
    assert world.own == {"a": 2}


def test_a_job_with_a_range_shrinks_to_its_least_and_grows_again() -> None:
    world = placed(job("a", 4, 4, 2), devices=4)
    assert world.own == {"a": 4}
    drain(world, 0, 3)
    world.settle()
    assert world.jobs["a"].own == (1, 2)
    drain(world, 0, 1, 3)
    world.settle()
    assert world.own == {"a": 0}
    drain(world)
    world.settle()
    assert world.own == {"a": 4}


def test_a_lower_tier_makes_way_and_a_protected_one_does_not() -> None:
    low = plain("low", 1, 1.0, tier="basic")
    world = placed(plain("a", 1), low, devices=2)
    drain(world, 0)
    first = world.decide()
    assert first["a"].stays and first["low"].cause == "tier", "it waits where it is until then"
    world.settle()
    assert world.jobs["a"].own == (1,) and world.own["low"] == 0
    world = placed(plain("a", 1), replace(low, tier="standard"), devices=2)
    drain(world, 0)
    world.settle()
    assert world.own == {"a": 0, "low": 1}


@pytest.mark.parametrize("fields", [{"min_runtime": 1e6}, {"disturbed": (0.0,)}])
def test_neither_minimum_run_time_nor_budget_holds_it(fields: dict[str, Any]) -> None:
    world = World(2)
    world.rules = replace(world.rules, disturbances=(0, 0, 0))
    world.add(plain("a", 1, **fields))
    world.settle()
    before = world.jobs["a"].disturbed
    drain(world, 0)
    world.settle()
    assert world.jobs["a"].own == (1,) and world.jobs["a"].disturbed == before
    drain(world, 0, 1)
    world.settle()
    assert world.own == {"a": 0}


def test_it_stays_while_host_memory_does_not_suffice() -> None:
    world = World(1, host_memory=1)
    world.add(plain("a", 1, in_memory=True))
    world.settle()
    drain(world, 0)
    decision = world.decide()["a"]
    assert decision.stays and decision.outcome == "memory"
    world.host_memory = 1 << 60
    world.settle()
    assert world.own == {"a": 0}


def test_it_leaves_a_node_that_has_too_few_for_its_locality() -> None:
    world = World(2, 2)
    world.places = [("", "n"), ("", "m")]
    world.add(replace(plain("a", 2), groups=(0, 1), locality="node"))
    world.settle()
    assert world.jobs["a"].own == (0, 1)
    drain(world, 1)
    world.settle()
    assert world.jobs["a"].own == (2, 3)
    drain(world, 1, 2)
    world.settle()
    assert world.own == {"a": 0}, "one device of each node would not do"


JOBS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from([None, None, 0, 1, 2]),
        st.sampled_from(TIERS),
        st.booleans(),
        st.sampled_from([0.0, 1e6]),
        st.sampled_from(["any", "any", "node"]),
    ),
    min_size=1,
    max_size=7,
)


def _world(data: st.DataObject, ranged: bool) -> World:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    world = World(*sizes, scheduler=data.draw(st.sampled_from(["fifo", "backfill"])))
    world.places = [("", f"n{number}") for number in range(len(sizes))]
    budget = data.draw(st.sampled_from([None, 0, 2]))
    world.rules = replace(world.rules, disturbances=(budget, budget, None))
    for number, (devices, least, tier, shrinks, lasts, where) in enumerate(data.draw(JOBS)):
        least = None if least is None or not ranged else min(least, devices)
        each = replace(
            job(f"j{number}", devices, devices, least, float(number)),
            groups=tuple(range(len(sizes))),
            tier=tier,
            shrinks=shrinks,
            min_runtime=lasts,
            locality=where,
        )
        world.add(each)
    world.settle()
    return world


def _positions(data: st.DataObject, world: World) -> frozenset[int]:
    every = sum(map(len, world.members))
    return frozenset(data.draw(st.sets(st.integers(0, every - 1))))


def _check(world: World) -> None:
    held = [at for each in world.jobs.values() for at in each.own]
    assert len(held) == len(set(held)) and set(held) <= set().union(*world.members)


@given(st.data())
def test_no_job_ends_on_a_drained_device(data: st.DataObject) -> None:
    """Whatever is drained, and changes on the way; and the fleet returns to work afterwards."""
    world = _world(data, ranged=True)
    for _ in range(data.draw(st.integers(1, 3))):
        world.drained = _positions(data, world)
        for _ in range(data.draw(st.integers(0, 3))):
            before = {name: set(each.own) for name, each in world.jobs.items()}
            world.turn()
            _check(world)
            for name, each in world.jobs.items():
                assert not (set(each.own) - before[name]) & world.drained, "none gets one"
    world.settle()
    _check(world)
    assert not any(world.drained.intersection(each.own) for each in world.jobs.values())
    world.drained = frozenset()
    world.settle()
    least = {name: least_of(each) for name, each in world.jobs.items()}
    if len(world.members) > 1 or any(0 < world.own[name] < least[name] for name in least):
        return
    free = len(world.fleet().groups[0].free)
    for name, decision in world.decide().items():
        assert decision.position != 1 or least[name] > free, "it waits although enough are free"


@given(st.data())
def test_nothing_moves_that_need_not(data: st.DataObject) -> None:
    """Where the jobs have all that they want, and free devices suffice, the others are left."""
    world = _world(data, ranged=False)
    before = {name: each.own for name, each in world.jobs.items()}
    world.drained = _positions(data, world)
    affected = {name for name, own in before.items() if world.drained.intersection(own)}
    for name, decision in world.decide().items():
        assert decision.cause != "drain" or name in affected
    free = sum(len(group.free) for group in world.fleet().groups)
    lost = sum(len(world.drained.intersection(own)) for own in before.values())
    if lost > free or any(each.locality == "node" for each in world.jobs.values()):
        return
    if any(not own for own in before.values()):
        return
    world.settle()
    for name, each in world.jobs.items():
        kept = set(before[name]) - world.drained
        assert kept <= set(each.own), "it keeps the devices that it may keep"
        assert name in affected or each.own == before[name]
        assert len(each.own) == len(before[name])


@given(st.data(), st.randoms())
def test_the_order_of_the_jobs_does_not_matter(data: st.DataObject, random: Random) -> None:
    world = _world(data, ranged=True)
    world.drained = _positions(data, world)
    decisions = world.decide()
    names = list(world.jobs)
    random.shuffle(names)
    world.jobs = {name: world.jobs[name] for name in names}
    assert (
        world.decide()
        == decisions
        == decide(
            world.fleet(), [world._seen(world.jobs[n]) for n in names], world.rules, world.now
        )
    )
