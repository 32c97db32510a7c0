"""A job with a locality is placed only on devices of one node or domain. Others move for it only if
that places it, within their budgets, and those that stand still for the shortest time."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.free import Free
from rankfold.policy.moving import Mover, make_way
from rankfold.policy.places import Places, places_of
from rankfold.policy.vocabulary import TIERS, Decision, Disturbance, Group, Job
from support.decided import World, job

pytestmark = pytest.mark.unit

SCHEDULERS = ["fifo", "backfill"]


def racks(*nodes: int, per_domain: int = 2, scheduler: str = "fifo") -> World:
    """Nodes with so many devices; some of them are a domain."""
    world = World(*nodes, scheduler=scheduler)
    world.places = [(f"d{at // per_domain}", f"n{at}") for at in range(len(nodes))]
    return world


def of(world: World, name: str, devices: int, locality: str = "any", **fields: Any) -> Job:
    groups = tuple(range(len(world.members)))
    return replace(job(name, devices, devices), groups=groups, locality=locality, **fields)


def held(world: World, name: str, *own: int, **fields: Any) -> Job:
    """A job that has devices."""
    there = of(world, name, len(own), **fields)
    return replace(there, own=own, placed=len(own), on_devices=True, begun=True)


# ---- examples


def test_the_domain_and_node_with_the_fewest_free_devices_that_suffice_are_filled() -> None:
    world = racks(4, 3, 4, 2)
    for name, devices in (("a", 2), ("b", 3), ("c", 3)):
        world.add(of(world, name, devices))
        world.settle()
    found = {name: each.own for name, each in world.jobs.items()}
    assert found == {"a": (11, 12), "b": (7, 8, 9), "c": (4, 5, 6)}


def test_a_job_that_fits_no_node_gets_as_few_nodes_as_possible() -> None:
    world = racks(2, 4, 3, 1)
    world.add(of(world, "a", 6))
    world.settle()
    assert world.jobs["a"].own == (0, 1, 2, 3, 4, 5)
    world.add(of(world, "b", 4))
    world.settle()
    assert world.jobs["b"].own == (6, 7, 8, 9)


def test_a_job_of_one_domain_is_not_placed_across_domains() -> None:
    world = racks(2, 2, 2, 2)
    world.add(held(world, "x", 0, 1, 2, 3, 4, 5, locality="any"))
    world.add(of(world, "node", 3, "node", created=1.0))
    world.add(of(world, "domain", 2, "domain", created=2.0))
    decisions = world.decide()
    assert decisions["node"].devices is None
    assert decisions["node"].reason == "needs 3 devices of one node; most that are free: 2"
    world.settle()
    assert world.own == {"x": 6, "node": 0, "domain": 2}
    world = racks(2, 2, 2, 2)
    world.add(held(world, "x", 0, 1, 2, 4, 5, 6, min_runtime=9e9))
    world.add(of(world, "domain", 2, "domain", created=2.0))
    assert world.decide()["domain"].devices is None


def test_a_job_that_waits_has_a_claim_on_each_node_that_could_have_it() -> None:
    world = racks(4, 4, 2)
    world.add(held(world, "x", 0, 1, 2, min_runtime=9e9), held(world, "y", 4, 5, 6))
    world.jobs["y"] = replace(world.jobs["y"], locality="node", min_runtime=9e9)
    world.add(of(world, "wide", 4, "node", created=1.0), of(world, "small", 1, created=2.0))
    world.add(of(world, "basic", 2, created=3.0, tier="basic"))
    decisions = world.decide()
    assert decisions["wide"].devices is None
    assert decisions["small"].devices == (8,) and decisions["basic"].devices == (3, 7)


def test_a_small_job_moves_so_that_a_job_has_its_node() -> None:
    world = racks(4, 4)
    world.add(held(world, "a", 0), held(world, "b", 4, 5), of(world, "wide", 3, "node"))
    world.jobs["b"] = replace(world.jobs["b"], pause=0.5)
    world.jobs["a"] = replace(world.jobs["a"], pause=0.1, min_runtime=9e9)
    decisions = world.decide()
    assert world.own == {"a": 1, "b": 2, "wide": 0} and decisions["wide"].devices == (1, 2, 3)
    world.jobs["wide"] = replace(world.jobs["wide"], devices=4, world_size=4)
    decisions = world.decide()
    assert decisions["b"].devices == (1, 2) and decisions["b"].cause == "defragmentation"
    assert decisions["b"].reason == "makes way for wide on node n1"
    assert decisions["b"].disturbs == (Disturbance("b", 0.5),)
    assert decisions["wide"].disturbs == (Disturbance("b", 0.5),)
    waits = "needs 4 devices of one node; waits until these jobs have moved: b"
    assert decisions["wide"].reason == waits
    world.settle()
    assert world.jobs["wide"].own == (4, 5, 6, 7) and world.jobs["b"].own == (1, 2)


def test_the_moves_with_the_shortest_pauses_are_chosen() -> None:
    """Two short moves of one node rather than a long one of the other."""
    world = racks(4, 4)
    world.add(held(world, "long", 0, 1, pause=9.0), held(world, "s", 4, pause=2.0))
    world.add(held(world, "t", 5, pause=3.0), of(world, "wide", 4, "node"))
    world.settle()
    assert world.jobs["wide"].own == (4, 5, 6, 7) and world.jobs["long"].own == (0, 1)
    assert {world.jobs["s"].own, world.jobs["t"].own} == {(2,), (3,)}


def test_no_job_moves_if_that_does_not_place_the_other_one() -> None:
    """Neither of two jobs that have to be in one node fits what is free of another one."""
    world = racks(4, 4, 2)
    for name, own in (("a", (0, 1, 2)), ("b", (4, 5, 6))):
        world.add(held(world, name, *own, locality="node"))
    world.add(of(world, "wide", 4, "node"))
    assert world.decide()["wide"].reason == "needs 4 devices of one node; most that are free: 1"
    assert not world.turn()


def test_a_job_that_frees_more_than_is_missing_does_not_move_for_nothing() -> None:
    """The shortest pause per device is not part of the cheapest moves."""
    world = racks(4, 4)
    world.add(held(world, "a", 0, pause=1.0), held(world, "b", 1, pause=1.4))
    world.add(held(world, "c", 2, 3, pause=2.5))
    places = Places(world.fleet().groups)
    movers = [
        Mover(each, each.own, places.counts(each.own), each.pause, places.units_of(each))
        for each in world.jobs.values()
    ]
    way = make_way(places, movers, frozenset({0}), 2, {1: 4})
    assert way is not None and {mover.job.name for mover, _ in way.moves} == {"a", "b"}


def test_a_job_of_a_domain_moves_within_its_domain_only() -> None:
    world = racks(2, 2, 2, 2)
    world.add(held(world, "a", 0, 2, locality="domain", pause=0.1), held(world, "b", 3))
    world.add(held(world, "c", 4, 5), held(world, "d", 6), of(world, "wide", 2, "node"))
    world.settle()
    assert world.jobs["a"].own == (0, 2) and world.jobs["d"].own == (1,)
    assert world.jobs["wide"].own == (6, 7)


@pytest.mark.parametrize("why", ["budget", "time", "tier", "exempt", "nothing"])
def test_when_a_job_does_not_move(
    why: str,
) -> None:
    world = racks(2, 2)
    world.add(held(world, "a", 0), held(world, "b", 2))
    world.add(of(world, "wide", 2, "node", tier="basic" if why == "tier" else "standard"))
    for name in ("a", "b"):
        if why == "budget":
            world.rules = replace(world.rules, disturbances=(0, 0, 0))
        if why == "time":
            world.jobs[name] = replace(world.jobs[name], min_runtime=100.0)
        if why == "exempt":
            world.rules = replace(world.rules, exempt=("a", "b"))
    world.settle()
    assert world.own["wide"] == (2 if why == "nothing" else 0)


def test_a_job_that_loses_a_device_stays_in_its_node_if_it_can() -> None:
    world = racks(4, 2)
    two = held(world, "a", 0, locality="node")
    world.add(replace(two, devices=2, world_size=2, placed=2))
    assert world.decide()["a"].devices == (0, 1)
    world.add(held(world, "b", 1, 2, 3))
    assert world.decide()["a"].devices == (4, 5)


def test_a_job_that_is_to_be_in_one_node_from_now_on_moves() -> None:
    world = racks(2, 3)
    world.add(held(world, "a", 1, 2))
    assert not world.turn()
    world.jobs["a"] = replace(world.jobs["a"], locality="node")
    world.settle()
    assert world.jobs["a"].own == (0, 1)


def test_an_elastic_job_grows_within_its_node() -> None:
    world = racks(2, 4)
    world.add(held(world, "b", 2, 3, 4), of(world, "a", 4, "node", guarantee=1))
    world.settle()
    assert world.jobs["a"].own in ((5,), (0, 1))
    del world.jobs["b"]
    world.settle()
    assert world.jobs["a"].own in ((2, 3, 4, 5), (0, 1))


def test_devices_are_lent_in_one_node() -> None:
    """Jobs of a lower tier in two nodes: those of one give up their devices."""
    world = racks(2, 2)
    world.add(*(held(world, name, at, tier="basic") for at, name in enumerate("abcd")))
    world.add(of(world, "p", 2, "node", tier="premium", created=1.0))
    world.settle()
    assert set(world.jobs["p"].own) in ({0, 1}, {2, 3})
    assert sum(world.own.values()) == 4


def test_a_fraction_is_guaranteed_if_a_node_has_enough() -> None:
    world = racks(2, 2)
    world.rules = replace(world.rules, fractions=(0.0, 0.0, 0.95))
    world.add(held(world, "a", 0, tier="premium"), held(world, "b", 2, tier="premium"))
    world.add(of(world, "p", 2, "node", tier="premium", created=1.0))
    world.add(of(world, "q", 2, "any", tier="premium", created=2.0))
    decisions = world.decide()
    assert [decisions[name].admitted for name in "abpq"] == [True, True, False, True]


# ---- the cheapest moves


@given(data=st.data())
def test_no_other_moves_take_less_time(data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    world = racks(*nodes)
    positions = list(range(sum(nodes)))
    random = Random(data.draw(st.integers(0, 999)))
    random.shuffle(positions)
    jobs: list[Job] = []
    left = positions[: data.draw(st.integers(1, len(positions)))]
    while left:
        size = min(data.draw(st.integers(1, 2)), len(left))
        own, left = tuple(sorted(left[:size])), left[size:]
        pause = float(data.draw(st.integers(0, 4)))
        jobs.append(held(world, f"j{len(jobs)}", *own, pause=pause))
    held_by = {at for each in jobs for at in each.own}
    places = Places(world.fleet().groups)
    free = {
        at: sum(each not in held_by for each in members) for at, members in enumerate(world.members)
    }
    movers = [
        Mover(each, each.own, places.counts(each.own), each.pause, places.units_of(each))
        for each in jobs
    ]
    leave = data.draw(st.integers(0, len(nodes) - 1))
    missing = data.draw(st.integers(1, nodes[leave]))
    way = make_way(places, movers, frozenset({leave}), missing, free)
    elsewhere = sum(number for at, number in free.items() if at != leave)
    best = min(
        (
            (sum(each.seconds for each in some), len(some), given)
            for count in range(1, len(movers) + 1)
            for some in itertools.combinations(movers, count)
            if all(each.has[leave] for each in some)
            and missing <= (given := sum(each.has[leave] for each in some)) <= elsewhere
        ),
        default=None,
    )
    assert (way.cost if way else None) == best
    if way is not None:
        for mover, parts in way.moves:
            assert sum(number for _, number in parts) == mover.has[leave]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=5), st.data())
def test_devices_are_taken_from_the_fewest_nodes(free: list[int], data: st.DataObject) -> None:
    """If one node has enough, they are taken from the one of these that has the fewest."""
    groups, first = [], 0
    for at, number in enumerate(free):
        groups.append(Group(tuple(range(first, first + number)), number, node=str(at)))
        first += number
    wanted = data.draw(st.integers(0, sum(free)))
    taken = Free(groups).take(range(len(groups)), wanted)
    used = [sum(at in group.free for at in taken) for group in groups]
    assert len(taken) == wanted == len(set(taken)) and taken == sorted(taken)
    fewest = next(
        count for count in range(len(free) + 1) if sum(sorted(free, reverse=True)[:count]) >= wanted
    )
    assert sum(map(bool, used)) == fewest
    if fewest == 1:
        (node,) = (at for at, number in enumerate(used) if number)
        assert free[node] == min(number for number in free if number >= wanted)


# ---- properties


@st.composite
def jobs_of(draw: st.DrawFn, world: World, wide: bool) -> Job:
    """Small jobs may be anywhere most of the time, wide ones are of one node most of the time."""
    small = ["any", "any", "any", "domain", "node"]
    devices = draw(st.integers(2, 4) if wide else st.sampled_from([1, 1, 1, 2]))
    return of(
        world,
        f"j{int(world.now)}",
        devices,
        draw(st.sampled_from(["node", "node", "domain", "any"] if wide else small)),
        guarantee=draw(st.sampled_from([None, None, None, *range(devices)])),
        tier=draw(st.sampled_from(["standard", "standard", *TIERS])),
        created=world.now,
        min_runtime=draw(st.sampled_from([0.0, 0.0, 0.0, 9.0])),
        pause=draw(st.sampled_from([1.0, 2.0, 3.0])),
    )


@st.composite
def worlds(draw: st.DrawFn, scheduler: str) -> World:
    """Small jobs are anywhere; then wide ones arrive, one after the other."""
    nodes = draw(st.lists(st.integers(2, 4), min_size=2, max_size=4))
    world = racks(*nodes, per_domain=draw(st.integers(1, 2)), scheduler=scheduler)
    if draw(st.booleans()):
        world.rules = replace(world.rules, disturbances=(2, 1, None))
    if draw(st.sampled_from([False, False, True])):
        world.rules = replace(world.rules, fractions=(0.0, 0.7, 0.9))
    for at in draw(st.lists(st.integers(0, sum(nodes) - 1), min_size=1, unique=True)):
        each = replace(draw(jobs_of(world, False)), devices=1, world_size=1, guarantee=None)
        each = replace(each, own=(at,), placed=1, on_devices=True, begun=True, since=world.now)
        world.add(each)
        world.now += 1.0
    for _ in range(draw(st.integers(1, 3))):
        world.add(draw(jobs_of(world, True)))
        for _ in range(draw(st.integers(0, 2))):
            check(world, world.decide())
            world.turn()
        world.now += 1.0
    return world


def check(world: World, decisions: dict[str, Decision]) -> None:
    """Check where jobs are placed, and which of them move."""
    given_away = [at for each in decisions.values() for at in each.devices or ()]
    assert len(given_away) == len(set(given_away)), "a device is given twice"
    places = places_of(world.fleet().groups)
    assert places is not None
    for name, decision in decisions.items():
        its = world.jobs[name]
        units = places.units_of(its)
        has = places.counts(decision.devices or ())
        assert any(has.keys() <= set(unit) for unit in units), f"{name} straddles"
        if decision.cause == "defragmentation":
            assert len(decision.devices or ()) == len(its.own), "a move changes the number"
            most = world.rules.disturbances[TIERS.index(its.tier)]
            if most is not None and not any(world.rules.fractions):
                assert len(its.disturbed) < most
            guaranteed = any(world.rules.fractions)
            assert guaranteed or world.now - its.since >= its.min_runtime or its.tier != "premium"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_no_job_straddles_and_no_device_is_given_twice(scheduler: str, data: st.DataObject) -> None:
    world = data.draw(worlds(scheduler))
    for _ in range(3):
        check(world, world.decide())
        world.turn()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_jobs_move_only_if_that_places_another_one(scheduler: str, data: st.DataObject) -> None:
    world = data.draw(worlds(scheduler))
    decisions, before = world.decide(), world.own
    moved = [name for name, each in decisions.items() if each.cause == "defragmentation"]
    helped = {
        decisions[name].reason.split(" on ")[0].removeprefix("makes way for ") for name in moved
    }
    world.turn()
    world.turn()
    for name in helped:
        assert world.own[name] > before[name], "others moved for nothing"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_constant_input_reaches_a_fixed_point(scheduler: str, data: st.DataObject) -> None:
    world = data.draw(worlds(scheduler))
    for _ in range(20 * len(world.jobs) + 20):
        if not world.turn():
            world.now += 10_000.0  # all minimum run times are over
            if not world.turn():
                return
    raise AssertionError("no fixed point")


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


@given(data=st.data())
def test_one_node_changes_nothing(data: st.DataObject) -> None:
    """All devices are of one node: a locality has no effect."""
    world = data.draw(worlds("fifo"))
    world.places = []
    decisions = world.decide()
    world.jobs = {name: replace(each, locality="any") for name, each in world.jobs.items()}
    assert world.decide() == decisions


# ---- nodes that are made free


def free_units(world: World) -> tuple[int, int]:
    """The numbers of domains and nodes that no job uses."""
    held = {at for each in world.jobs.values() for at in each.own}
    used = [
        place for place, those in zip(world.places, world.members, strict=True) if held & {*those}
    ]
    return len({*world.places}) - len({*used}), len(
        {d for d, _ in world.places} - {d for d, _ in used}
    )


def test_a_node_is_made_free_in_a_window_only() -> None:
    world = racks(2, 2, 3, per_domain=3)
    world.add(
        held(world, "a", 0, pause=9.0), held(world, "b", 2, pause=1.0), held(world, "c", 4, 5)
    )
    assert not world.turn()
    world.rules = replace(world.rules, compacts=True)
    decisions = world.decide()
    assert decisions["b"].cause == "defragmentation"
    assert decisions["b"].reason == "leaves node n1, so that it is free"
    world.settle()
    assert world.jobs["a"].own == (0,) and world.jobs["b"].own in ((1,), (6,))


def test_a_domain_is_made_free_before_a_node() -> None:
    world = racks(3, 3, 2, 2)
    world.rules = replace(world.rules, compacts=True)
    world.add(held(world, "a", 0, pause=0.1), held(world, "b", 3, 4, pause=9.0))
    world.add(held(world, "c", 6, pause=5.0))
    assert world.decide()["c"].reason == "leaves domain d1, so that it is free"


@pytest.mark.parametrize("why", ["exempt", "time", "budget", "guaranteed", "waits"])
def test_when_no_node_is_made_free(why: str) -> None:
    world = racks(2, 2)
    world.rules = replace(world.rules, compacts=True)
    world.add(held(world, "a", 0), held(world, "b", 2))
    if why == "exempt":
        world.rules = replace(world.rules, exempt=("a", "b"))
    if why == "budget":
        world.rules = replace(world.rules, disturbances=(0, 0, 0))
    if why == "guaranteed":
        world.rules = replace(world.rules, fractions=(0.0, 0.9, 0.9))
    if why == "time":
        world.jobs = {n: replace(each, min_runtime=99.0) for n, each in world.jobs.items()}
    if why == "waits":
        world.rules = replace(world.rules, preemption_delay=1e9)
        world.add(of(world, "wide", 3, "node"))
    assert not world.turn()


@given(data=st.data())
def test_windows_only_make_places_free_and_end(data: st.DataObject) -> None:
    world = data.draw(worlds("fifo"))
    world.rules = replace(world.rules, compacts=True)
    for _ in range(20 * len(world.jobs) + 40):
        before, own = free_units(world)[::-1], world.own
        moved = {
            name for name, each in world.decide().items() if "so that it is free" in each.reason
        }
        check(world, world.decide())
        changed = world.turn()
        if moved and world.own == own:  # no new job was placed
            assert free_units(world)[::-1] > before
        if not changed:
            world.now += 10_000.0
            if not world.turn():
                return
    raise AssertionError("no fixed point")
