"""Jobs within their quotas get devices before those that borrow: what is lent is reclaimed at once,
limits hold, those that borrow take turns by what their quotas have had, and a job that has waited
for the longest wait goes before those without a guarantee."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.quotas import HALF_LIFE_S, decayed, treated
from rankfold.policy.vocabulary import TIERS, WITHIN, Disturbance, Job, Quota, Rules
from rankfold.simulator.costs import Costs
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES
from support.decided import World, job

pytestmark = pytest.mark.unit

HOUR = 3600.0


def of(quota: str, name: str, devices: int, guarantee: int | None = None, **fields: Any) -> Job:
    made = job(name, devices, devices, guarantee)
    return replace(made, quota=quota, **fields)


def world_of(devices: int, *quotas: Quota, **fields: Any) -> World:
    world = World(devices)
    world.rules = replace(world.rules, quotas=quotas, **fields)
    return world


def halves(**fields: Any) -> World:
    """Eight devices, four for a, and four for b."""
    return world_of(8, Quota("a", 4), Quota("b", 4), **fields)


# ---- borrowing and reclaiming


def test_idle_devices_are_lent_and_reclaimed() -> None:
    world = halves()
    world.add(of("a", "a1", 4), of("a", "a2", 3, created=1.0))
    world.settle()
    assert world.own == {"a1": 4, "a2": 3}
    world.add(of("b", "b1", 2, created=2.0))
    decisions = world.decide()
    assert (decisions["a2"].devices, decisions["a2"].cause) == ((), "quota")
    assert decisions["a2"].reason == "gives up 3 devices for b1 (quota b)"
    assert decisions["b1"].disturbs == (Disturbance("a2", 2.0),)
    world.settle()
    assert world.own == {"a1": 4, "a2": 0, "b1": 2}
    assert world.decide()["a2"].limit == (
        "jobs before it need the 4 devices of its quota a: it waits for devices that are idle"
    )
    del world.jobs["b1"]
    world.settle()
    assert world.own == {"a1": 4, "a2": 3}


def test_jobs_are_shrunk_before_one_is_suspended() -> None:
    world = halves()
    world.add(of("a", "wide", 6, guarantee=2), of("a", "low", 2, created=1.0, tier="basic"))
    world.settle()
    assert world.own == {"wide": 6, "low": 2}
    world.add(of("b", "b1", 2, created=2.0, tier="basic"))
    decisions = world.decide()
    assert (len(decisions["wide"].devices or ()), decisions["wide"].cause) == (3, "quota")
    world.settle()
    assert world.own == {"wide": 3, "low": 2, "b1": 2}


def test_a_job_within_its_quota_goes_before_a_higher_tier_that_borrows() -> None:
    world = halves()
    world.add(*(of("a", f"a{at}", 2, tier="premium", created=float(at)) for at in range(4)))
    world.settle()
    world.add(of("b", "b1", 4, created=9.0, tier="basic"))
    world.settle()
    assert world.own == {"a0": 2, "a1": 2, "a2": 0, "a3": 0, "b1": 4}


def test_a_higher_tier_takes_no_devices_within_another_quota() -> None:
    world = halves()
    world.add(of("a", "a1", 4, tier="basic"), of("b", "b1", 4, tier="basic"))
    world.settle()
    world.add(of("b", "b2", 1, created=1.0, tier="premium"))
    world.settle()
    assert world.own == {"a1": 4, "b1": 0, "b2": 1}, "its own quota makes way"


def test_growth_beyond_the_quota_is_given_up_for_a_lower_tier() -> None:
    """Growth within the quota is not."""
    world = halves()
    world.add(of("a", "wide", 8, guarantee=1, tier="premium"))
    world.settle()
    world.add(of("b", "b1", 4, created=1.0, tier="basic"))
    world.settle()
    assert world.own == {"wide": 4, "b1": 4}
    world.add(of("", "other", 1, created=2.0, tier="premium"))
    assert not world.turn() and world.own["wide"] == 4


def test_the_minimum_run_time_does_not_hold_for_borrowed_devices() -> None:
    world = halves()
    world.add(of("a", "a1", 4), of("a", "a2", 4, created=1.0, min_runtime=1e6))
    world.settle()
    world.add(of("a", "a3", 1, created=2.0))
    assert not world.turn()
    world.add(of("b", "b1", 1, created=3.0))
    world.settle()
    assert world.own == {"a1": 4, "a2": 0, "a3": 0, "b1": 1}, "a2 is the first in line"


def test_jobs_of_no_quota_have_the_devices_that_no_quota_has() -> None:
    world = world_of(8, Quota("a", 5))
    world.add(of("", "n1", 3), of("unknown", "n2", 3, created=1.0))
    world.settle()
    assert world.own == {"n1": 3, "n2": 3}
    world.add(of("a", "a1", 5, created=2.0))
    world.settle()
    assert world.own == {"n1": 3, "n2": 0, "a1": 5}
    assert "the 3 devices that no quota has" in world.decide()["n2"].limit


def test_the_oldest_jobs_of_a_quota_are_covered() -> None:
    """`wide` is too large for what is left; a younger one does not take its place for good."""
    world = world_of(4, Quota("a", 4))
    world.add(of("a", "first", 3), of("a", "wide", 2, created=1.0), of("a", "c", 1, created=2.0))
    world.settle()
    assert world.own == {"first": 3, "wide": 0, "c": 1} or world.own["c"] == 0
    del world.jobs["first"]
    world.settle()
    assert world.own == {"wide": 2, "c": 1}


def test_a_fraction_is_guaranteed_within_the_quota_only() -> None:
    world = halves(fractions=(0.0, 0.7, 0.95))
    world.add(of("a", "a1", 3), of("a", "a2", 3, created=1.0), of("b", "b1", 1, created=2.0))
    decisions = world.decide()
    assert {name: each.admitted for name, each in decisions.items()} == {
        "a1": True, "a2": False, "b1": True,
    }  # fmt: skip


# ---- limits


def test_a_quota_borrows_no_more_than_its_limit() -> None:
    world = world_of(8, Quota("a", 2, borrow=3), Quota("b", 6))
    world.add(*(of("a", f"a{at}", 2, created=float(at)) for at in range(3)))
    world.settle()
    assert world.own == {"a0": 2, "a1": 2, "a2": 0}
    assert world.decide()["a2"].limit == (
        "its quota a has 2 devices and borrows 3 at most, and jobs before it need these"
    )
    world.add(of("a", "one", 1, created=9.0))
    world.settle()
    assert world.own == {"a0": 2, "a1": 2, "a2": 0, "one": 1}


def test_an_elastic_job_grows_up_to_the_limit() -> None:
    world = world_of(8, Quota("a", 2, borrow=3), Quota("b", 6))
    world.add(of("a", "wide", 8, guarantee=1, world_size=40))
    world.settle()
    assert world.own == {"wide": 5}
    world.add(of("a", "more", 2, created=1.0, tier="premium"))
    world.settle()
    assert world.own == {"wide": 3, "more": 2}


def test_a_quota_lends_no_more_than_its_limit() -> None:
    world = world_of(8, Quota("a", 2), Quota("b", 6, lend=2))
    world.add(*(of("a", f"a{at}", 2, created=float(at)) for at in range(3)))
    world.settle()
    assert world.own == {"a0": 2, "a1": 2, "a2": 0}
    limit = "it is beyond its quota, and others lend no more devices"
    assert world.decide()["a2"].limit == limit
    world.add(of("b", "b1", 5, created=9.0))
    world.settle()
    assert world.own == {"a0": 2, "a1": 0, "a2": 0, "b1": 5}


def test_a_limit_that_is_lowered_suspends_jobs() -> None:
    world = halves()
    world.add(of("a", "a1", 4), of("a", "a2", 3, created=1.0))
    world.settle()
    world.rules = replace(world.rules, quotas=(Quota("a", 4, borrow=0), Quota("b", 4)))
    decision = world.decide()["a2"]
    assert (decision.devices, decision.cause, decision.outcome) == ((), "quota", "devices")
    assert "borrows 0 at most" in decision.reason
    world.settle()
    assert world.own == {"a1": 4, "a2": 0}


# ---- fair share over time


def test_a_use_counts_half_a_day_later() -> None:
    assert decayed(100.0, 0, HALF_LIFE_S) == pytest.approx(50.0)
    assert decayed(0.0, 2, 10.0) == pytest.approx(20.0, rel=1e-3)
    assert decayed(0.0, 3, 1e9) == pytest.approx(3 * HALF_LIFE_S / math.log(2))
    twice = decayed(decayed(7.0, 3, 5e4), 3, 4e4)
    assert twice == pytest.approx(decayed(7.0, 3, 9e4)), "it does not matter when it is counted"
    assert decayed(7.0, 3, -5.0) == 7.0, "a clock that is set back changes nothing"


def test_the_quota_that_had_less_borrows_first() -> None:
    quotas = (Quota("a", 0, used=9e5), Quota("b", 0, used=8e5), Quota("c", 0, 3.0, used=9e5))
    world = world_of(2, *quotas, Quota("owner", 2))
    world.add(of("a", "a1", 1), of("b", "b1", 1, created=1.0), of("c", "c1", 1, created=2.0))
    world.settle()
    assert world.own == {"a1": 0, "b1": 1, "c1": 1}, "c has three times the weight"


def test_jobs_that_borrow_keep_devices_until_they_are_ahead_by_a_turn() -> None:
    world = world_of(1, Quota("a", 0), Quota("b", 0), Quota("owner", 1))
    world.add(of("a", "a1", 1), of("b", "b1", 1, created=1.0))
    world.settle()
    step = HALF_LIFE_S / math.log(2) / 4 / 24 / 4  # a device, four weights: the rest has one
    for used, own in ((4.9 * step, 1), (5.1 * step, 0)):
        quotas = (Quota("a", 0, used=used), *world.rules.quotas[1:])
        world.rules = replace(world.rules, quotas=quotas)
        world.settle()
        assert world.own == {"a1": own, "b1": 1 - own}


def test_quotas_share_what_is_idle_in_proportion_to_their_weights() -> None:
    """One device of a third quota. With twice the weight, a gets two thirds of the time."""
    quotas = (Quota("a", 0, weight=2.0), Quota("b", 0), Quota("owner", 1))
    jobs = [TraceJob(quota, 0.0, 1, 1, 1, 6 * 24 * HOUR, quota=quota) for quota in "ab"]
    rules = replace(RULES, quotas=quotas)
    result = Events(jobs, [Kind("gpu", 1)], Costs(), {}, rules).run("fifo")
    ends = {done.name: done.end for done in result.jobs}
    # When a's work is done, b has had half as much.
    assert ends["a"] == pytest.approx(9 * 24 * HOUR, rel=0.03)
    assert ends["b"] == pytest.approx(12 * 24 * HOUR, rel=0.01)
    assert result.json()["disturbances"] > 20, "they take turns"


# ---- ageing


def test_a_job_that_waited_too_long_goes_first_for_a_while() -> None:
    world = World(1)
    world.rules = replace(world.rules, max_wait=100.0)
    world.add(of("", "p", 1, tier="premium"), of("", "b", 1, created=1.0, tier="basic"))
    world.settle()
    world.now = 99.0
    assert not world.turn() and world.own == {"p": 1, "b": 0}
    assert world.decide()["p"].cause is None
    world.now = 101.0
    assert world.decide()["p"].reason == "gives up 1 device for b (has waited too long)"
    world.settle()
    assert world.own == {"p": 0, "b": 1}
    got = world.jobs["b"].since
    world.now = got + 23.0
    assert not world.turn()
    world.now = got + 25.0
    world.settle()
    assert world.own == {"p": 1, "b": 0}


def test_jobs_that_waited_too_long_do_not_suspend_each_other() -> None:
    world = World(1)
    world.rules = replace(world.rules, max_wait=100.0)
    world.add(of("", "p", 1, tier="premium"))
    world.settle()
    world.add(of("", "b", 1, created=1.0, tier="basic"), of("", "c", 1, created=2.0))
    world.now = 150.0
    world.settle()
    assert world.own == {"p": 0, "b": 1, "c": 0}


def test_no_wait_in_a_full_fleet_is_longer_than_the_bound() -> None:
    """Premium jobs arrive as fast as they end, and a basic one waits."""
    jobs = [TraceJob(f"p{at}", 100.0 * at, 1, 1, 1, 100.0, tier="premium") for at in range(60)]
    jobs.append(TraceJob("b", 1.0, 1, 1, 1, 250.0, tier="basic"))
    jobs.sort(key=lambda each: each.arrival)
    never = Events(jobs, [Kind("gpu", 1)], Costs(), {}).run("fifo")
    assert {done.name: done.start for done in never.jobs}["b"] == 6000.0
    rules = replace(RULES, max_wait=400.0)
    result = Events(jobs, [Kind("gpu", 1)], Costs(), {}, rules).run("fifo")
    found = {done.name: done for done in result.jobs}
    assert found["b"].start == 401.0
    assert found["b"].end <= 1.0 + 3 * 500.0, "it has a hundred seconds in each turn"


# ---- properties

NAMES = ("a", "b", "")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Jobs of two quotas, and of none, that have arrived one after the other."""
    world = World(draw(st.integers(2, 8)))
    devices = len(world.members[0])
    first = draw(st.integers(0, devices))
    limit = st.one_of(st.none(), st.integers(0, 3))
    world.rules = replace(
        world.rules,
        scheduler=draw(st.sampled_from(["fifo", "backfill"])),
        quotas=(
            Quota("a", first, draw(st.sampled_from([1.0, 2.5])), draw(limit), draw(limit)),
            Quota("b", draw(st.integers(0, devices - first)), 1.0, draw(limit), draw(limit)),
        ),
        max_wait=draw(st.sampled_from([0.0, 0.0, 0.0, 5.0])),
    )
    for number in range(draw(st.integers(1, 8))):
        most = draw(st.integers(1, 4))
        world.add(
            of(
                draw(st.sampled_from(NAMES)),
                f"j{number}",
                most,
                draw(st.one_of(st.none(), st.integers(0, most))),
                created=float(draw(st.integers(0, 2))),
                tier=draw(st.sampled_from(TIERS)),
                priority=draw(st.sampled_from([0, 0, 1])),
                min_runtime=draw(st.sampled_from([0.0, 0.0, 3.0])),
            )
        )
        for _ in range(draw(st.integers(0, 3))):
            world.turn()
        if len(world.jobs) > 2 and draw(st.booleans()):
            del world.jobs[draw(st.sampled_from(sorted(world.jobs)))]
        if draw(st.booleans()):
            used = draw(st.integers(0, 10)) * HALF_LIFE_S / 10
            a, b = world.rules.quotas
            world.rules = replace(world.rules, quotas=(replace(a, used=used), b))
    return world


def settle(world: World) -> bool:
    """Whether a fixed point is reached. With a longest wait, turns never end."""
    for _ in range(20 * len(world.jobs) + 20):
        if not world.turn():
            world.now += 1000.0 if not world.rules.max_wait else 0.0
            if not world.turn():
                return True
    return False


@given(worlds())
def test_constant_input_reaches_a_fixed_point(world: World) -> None:
    world.rules = replace(world.rules, max_wait=0.0)
    assert settle(world)


@given(worlds())
def test_each_job_within_its_quota_has_its_devices_in_the_end(world: World) -> None:
    world.rules = replace(world.rules, max_wait=0.0)
    assert settle(world)
    found = treated(world.fleet(), world.jobs.values(), world.rules, world.now)
    for each in found.jobs:
        if each.basis == WITHIN:
            fewest = each.devices if each.guarantee is None else max(1, each.guarantee)
            assert world.own[each.name] >= fewest, f"{each.name} lacks devices of its quota"


@given(worlds())
def test_limits_hold_in_every_turn(world: World) -> None:
    devices = len(world.members[0])
    for _ in range(4):
        world.turn()
    world.rules = replace(world.rules, max_wait=0.0)
    assert settle(world)
    had = {
        name: sum(len(each.own) for each in world.jobs.values() if each.quota == name)
        for name in NAMES
    }
    idle = devices - sum(had.values())
    reserved = 0
    for quota in world.rules.quotas:
        if quota.borrow is not None:
            assert had[quota.name] <= quota.devices + quota.borrow
        if quota.lend is not None:
            reserved += max(0, quota.devices - quota.lend - had[quota.name])
    assert idle >= reserved, "more devices are lent than may be"


@given(worlds())
def test_devices_are_lost_only_to_jobs_that_stand_higher_or_to_a_limit(world: World) -> None:
    decisions = world.decide()
    found = treated(world.fleet(), world.jobs.values(), world.rules, world.now)
    now = {each.name: each for each in found.jobs}
    borrowers: dict[str, list[Job]] = {}
    for name, decision in decisions.items():
        for each in decision.disturbs:
            if each.job != name:
                borrowers.setdefault(each.job, []).append(now[name])
    given_away = [at for each in decisions.values() for at in each.devices or ()]
    assert len(given_away) == len(set(given_away)), "a device is given twice"
    for name, its in now.items():
        if set(decisions[name].devices or ()) >= set(its.own):
            continue
        if name in found.barred or its.devices < len(its.own):
            continue
        for other in borrowers[name]:
            assert other.basis >= its.basis or len(its.own) > (its.covered or 0)
            if other.basis == its.basis and other.quota != its.quota:
                assert TIERS.index(other.tier) >= TIERS.index(its.tier) or other.covered


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(world: World, random: Random) -> None:
    decisions = world.decide()
    shuffled = list(world.jobs.items())
    random.shuffle(shuffled)
    world.jobs = dict(shuffled)
    world.rules = replace(world.rules, quotas=tuple(reversed(world.rules.quotas)))
    assert world.decide() == decisions


@given(worlds())
def test_without_quotas_nothing_else_is_decided(world: World) -> None:
    """One quota with all devices treats jobs as if there were none."""
    world.rules = Rules(100, world.rules.scheduler)
    before = world.decide()
    devices = 1000
    for name, each in world.jobs.items():
        world.jobs[name] = replace(each, quota="a")
    world.rules = replace(world.rules, quotas=(Quota("a", devices),))
    assert world.decide() == before
