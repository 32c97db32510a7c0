"""Elastic jobs use idle devices, and give them up to jobs that wait: no more than are needed, only
if that places a job, and never those that are guaranteed."""

from __future__ import annotations

import sys
from random import Random
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.sizes import largest, useful
from rankfold.policy.vocabulary import Decision, Disturbance
from support.decided import GIB, World, job

pytestmark = pytest.mark.unit

SCHEDULERS = ["fifo", "backfill"]


# ---- the numbers of devices


@given(st.integers(1, 60), st.data())
def test_useful_numbers_of_devices_are_those_that_make_a_job_faster(
    ranks: int, data: st.DataObject
) -> None:
    least = data.draw(st.integers(1, ranks))
    most = data.draw(st.integers(least, ranks))
    sizes, best = [least], -(-ranks // least)
    for devices in range(least + 1, most + 1):
        if -(-ranks // devices) < best:
            sizes.append(devices)
            best = -(-ranks // devices)
    assert useful(ranks, least, most) == tuple(sizes)
    limit = data.draw(st.integers(0, ranks))
    assert largest(tuple(sizes), limit) == max([each for each in sizes if each <= limit], default=0)


# ---- examples


def test_a_job_grows_into_idle_devices_and_gives_them_up() -> None:
    world = World(4)
    world.add(job("a", 4, 4, guarantee=1))
    world.settle()
    assert world.own == {"a": 4}
    world.add(job("b", 2, 2, created=1.0))
    decisions = world.decide()
    assert decisions["a"].devices == (0, 1) and decisions["a"].cause == "order"
    assert decisions["a"].reason == "gives up 2 devices for b"
    assert decisions["a"].disturbs == (Disturbance("a", 2.0),)
    assert decisions["b"].devices is None and decisions["b"].disturbs == (Disturbance("a", 2.0),)
    assert decisions["b"].reason == "needs 2 devices; waits until these jobs give up some: a"
    world.settle()
    assert world.own == {"a": 2, "b": 2}
    del world.jobs["b"]
    decision = world.decide()["a"]
    assert (decision.cause, decision.reason) == ("growth", "devices are idle")
    assert decision.devices == (0, 1, 2, 3) and decision.disturbs == (Disturbance("a", 2.0),)


def test_others_shrink_before_one_without_a_guarantee_is_suspended() -> None:
    world = World(4)
    world.add(job("spare", 1, 1, guarantee=0), job("wide", 3, 3, guarantee=1))
    world.settle()
    assert world.own == {"spare": 1, "wide": 3}
    world.add(job("first", 1, 1, created=1.0))
    assert world.decide()["wide"].reason == "gives up 1 device for first"
    world.settle()
    assert world.own == {"spare": 1, "wide": 2, "first": 1}
    del world.jobs["first"]
    world.add(job("new", 2, 2, created=1.0))
    world.settle()
    assert world.own == {"spare": 1, "wide": 1, "new": 2}
    world.add(job("next", 1, 1, created=2.0))
    world.settle()
    assert world.own == {"spare": 0, "wide": 1, "new": 2, "next": 1}
    world.add(job("last", 1, 1, created=3.0))
    world.settle()
    assert world.own["last"] == 0, "it takes no guaranteed device"
    del world.jobs["new"]
    world.settle()
    assert world.own == {"spare": 1, "wide": 1, "next": 1, "last": 1}


def test_jobs_without_a_guarantee_do_not_suspend_each_other() -> None:
    world = World(2)
    world.add(job("a", 2, 2, guarantee=0))
    world.settle()
    world.add(job("b", 1, 1, guarantee=0, created=1.0), job("c", 1, 1, guarantee=0, created=2.0))
    world.settle()
    assert world.own == {"a": 1, "b": 1, "c": 0}


def test_no_job_gives_up_devices_for_one_that_still_does_not_fit() -> None:
    world = World(4)
    world.add(job("a", 4, 4, guarantee=2))
    world.settle()
    world.add(job("large", 3, 3, created=1.0))
    assert not world.turn() and world.own == {"a": 4, "large": 0}


def test_only_devices_that_a_job_may_use_count() -> None:
    """`a` has two devices to give, but only one of the kind that `new` needs."""
    world = World(2, 2)
    world.add(job("f", 1, 1), replace(job("a", 3, 3, guarantee=1), groups=(0, 1), created=1.0))
    world.settle()
    assert world.jobs["a"].own == (1, 2, 3)
    world.add(job("new", 2, 2, created=2.0))
    assert not world.turn()


def test_a_guarantee_holds_although_another_kind_of_device_could_be_given_up() -> None:
    world = World(1, 1)
    world.add(job("a", 2, 2, guarantee=1))
    world.add(replace(job("spare", 1, 1, guarantee=0), groups=(0, 1), created=1.0))
    world.settle()
    assert (world.jobs["a"].own, world.jobs["spare"].own) == ((0,), (1,))
    world.add(job("new", 1, 1, created=2.0))
    assert not world.turn()


def test_free_devices_are_kept_for_a_job_until_others_have_given_up_the_rest() -> None:
    world = World(4, scheduler="backfill")
    world.add(job("a", 3, 3, guarantee=1))
    world.settle()
    world.add(job("wide", 3, 3, created=1.0), job("narrow", 1, 1, created=2.0))
    world.settle()
    assert world.own == {"a": 1, "wide": 3, "narrow": 0}


def test_jobs_that_cannot_be_helped_take_no_time_for_each_elastic_job() -> None:
    """Each of many jobs that wait needs more than all elastic jobs together can give."""

    def calls(number: int) -> int:
        world, counted = World(2 * number, scheduler="backfill"), 0
        for at in range(number):
            each = job(f"e{at}", 2, 2, guarantee=1)
            own = (2 * at, 2 * at + 1)
            world.add(replace(each, own=own, placed=2, on_devices=True, begun=True))
            devices = 3 * number - at
            world.add(job(f"w{at}", devices, devices, created=1.0 + at))

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal counted
            counted += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            assert all(each.cause is None for each in world.decide().values())
        finally:
            sys.setprofile(before)
        return counted

    assert calls(80) < 5 * calls(20)


def test_as_few_jobs_as_possible_give_up_devices() -> None:
    """The last in line, with one device to give, is not disturbed: the other one has to give three
    anyway."""
    world = World(6)
    world.add(job("wide", 4, 4, guarantee=1), job("narrow", 2, 2, guarantee=1, created=1.0))
    world.settle()
    assert world.own == {"wide": 4, "narrow": 2}
    world.add(job("new", 3, 3, created=2.0))
    world.settle()
    assert world.own == {"wide": 1, "narrow": 2, "new": 3}


def test_a_job_that_cannot_start_takes_nothing() -> None:
    world = World(2)
    world.add(job("a", 2, 2, guarantee=1))
    world.settle()
    world.add(replace(job("b", 1, 1, created=1.0), blocked=True))
    assert not world.turn() and world.own == {"a": 2, "b": 0}


def test_a_job_that_would_need_too_much_host_memory_keeps_its_devices() -> None:
    world = World(4, host_memory=2 * GIB)
    world.add(job("a", 4, 4, guarantee=1))
    world.settle()
    world.add(job("b", 1, 1, created=1.0), job("c", 2, 2, created=2.0))
    world.settle()
    assert world.own == {"a": 2, "b": 1, "c": 0}, "a's ranks fit on 2 devices, not on 1"


def test_no_job_is_suspended_for_one_that_would_then_need_too_much_host_memory() -> None:
    """`new` needs 2 GiB, and `a` 1 GiB more when it has no device."""
    world = World(1, host_memory=2 * GIB)
    world.add(job("a", 1, 1, guarantee=0))
    world.settle()
    world.add(job("new", 3, 1, created=1.0))
    assert not world.turn() and world.own == {"a": 1, "new": 0}
    world.host_memory = 3 * GIB
    world.settle()
    assert world.own == {"a": 0, "new": 1}


def test_host_memory_is_kept_for_a_job_until_others_have_given_up_devices() -> None:
    world = World(3, 1, host_memory=3 * GIB)
    world.add(job("a", 3, 3, guarantee=1))
    world.settle()
    world.add(job("new", 3, 1, created=1.0))
    world.add(replace(job("late", 2, 1, created=2.0), groups=(1,)))
    decisions = world.decide()
    assert decisions["a"].reason == "gives up 1 device for new"
    assert decisions["late"].outcome == "memory"
    world.settle()
    assert world.own == {"a": 2, "new": 1, "late": 0}


def test_devices_are_given_up_only_if_no_job_before_in_line_takes_them() -> None:
    """`both` may use all that `a` gives up for it and for `one`, which can use only the first."""
    world = World(1, 2)
    world.add(replace(job("a", 3, 3, guarantee=0), groups=(0, 1)))
    world.settle()
    world.add(replace(job("both", 2, 2, created=1.0), groups=(0, 1)), job("one", 1, 1, created=2.0))
    assert world.decide()["a"].reason == "gives up 2 devices for both"
    world.settle()
    assert world.own == {"a": 0, "both": 2, "one": 1}, "one after the other"


def test_a_job_moves_to_grow_only_after_a_while() -> None:
    world = World(2)
    world.rules = replace(world.rules, growth_delay=10.0)
    world.add(job("a", 2, 2, guarantee=1), job("b", 1, 1))
    world.settle()
    assert world.own == {"a": 1, "b": 1}
    del world.jobs["b"]
    since = world.now = world.jobs["a"].since
    world.now = since + 9.0
    assert world.decide()["a"].devices == (0,)
    world.now = since + 10.0
    assert world.decide()["a"].devices == (0, 1)
    world.now = since - 1000.0  # the clock was set back
    assert world.decide()["a"].devices == (0, 1)


def test_a_job_that_resumes_gets_all_at_once() -> None:
    world = World(4)
    world.rules = replace(world.rules, growth_delay=1e9)
    world.add(replace(job("a", 4, 4, guarantee=1), begun=True))
    world.turn()
    assert world.own == {"a": 4}


def test_idle_devices_are_lent_although_a_job_has_a_claim_on_them() -> None:
    world = World(3)
    world.add(job("a", 1, 1), job("wide", 3, 3, created=1.0))
    world.turn()
    world.add(job("spare", 2, 2, guarantee=0, created=2.0), job("late", 1, 1, created=3.0))
    world.settle()
    assert world.own == {"a": 1, "wide": 0, "spare": 2, "late": 0}
    del world.jobs["a"]
    world.settle()
    assert world.own == {"wide": 3, "spare": 0, "late": 0}


def test_a_job_that_lost_a_device_continues_on_a_useful_number() -> None:
    world = World(4)
    lost = replace(
        job("a", 4, 4, guarantee=1), own=(0, 1, 3), placed=4, on_devices=True, begun=True
    )
    world.members = [(0, 1, 3)]
    world.add(lost)
    decision = world.decide()["a"]
    assert decision.devices == (0, 1) and decision.cause == "fault"


# ---- properties


@st.composite
def worlds(draw: st.DrawFn, scheduler: str) -> World:
    """Jobs of two groups that have arrived one after the other, and may have left."""
    world = World(draw(st.integers(1, 6)), draw(st.integers(0, 4)), scheduler=scheduler)
    if draw(st.booleans()):
        world.host_memory = draw(st.integers(0, 12)) * GIB
    for number in range(draw(st.integers(1, 6))):
        ranks = draw(st.integers(1, 6))
        devices = draw(st.integers(1, ranks))
        each = job(
            f"j{number}",
            ranks,
            devices,
            draw(st.one_of(st.none(), st.integers(0, devices))),
            float(draw(st.integers(0, 2))),
        )
        world.add(replace(each, groups=draw(st.sampled_from([(0,), (1,), (0, 1)]))))
        for _ in range(draw(st.integers(0, 3))):
            world.turn()
        if len(world.jobs) > 2 and draw(st.booleans()):
            del world.jobs[draw(st.sampled_from(sorted(world.jobs)))]
    return world


def check(world: World, decisions: dict[str, Decision]) -> None:
    """Decisions on all jobs that can be carried out."""
    free = [set(group.free) for group in world.fleet().groups]
    given_away: list[int] = []
    for name, each in world.jobs.items():
        decision = decisions[name]
        if decision.devices is None:
            assert not each.on_devices
            continue
        number = len(decision.devices)
        given_away += decision.devices
        assert set(decision.devices) <= set(each.own).union(*(free[at] for at in each.groups))
        if each.guarantee is None:
            assert number in (each.devices, len(each.own))
        else:
            assert number == 0 or max(1, each.guarantee) <= number <= each.devices
            assert number >= min(len(each.own), each.guarantee), "its guarantee holds"
    assert len(given_away) == len(set(given_away))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_no_guarantee_is_broken_and_a_fixed_point_is_reached(
    scheduler: str, data: st.DataObject
) -> None:
    world = data.draw(worlds(scheduler))
    check(world, world.decide())
    world.settle()
    check(world, world.decide())
    needs = sum(each.need for each in world.jobs.values())
    assert needs <= world.host_memory or not any(world.own.values())


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_a_job_is_disturbed_only_if_that_places_another_one(
    scheduler: str, data: st.DataObject
) -> None:
    """A job that waits for others to give up devices has them in the next turn; without any one of
    these jobs it would not."""
    world = data.draw(worlds(scheduler))
    decisions, before = world.decide(), world.own
    borrowers = [name for name, each in decisions.items() if "give up some" in each.reason]
    lent = [name for name, each in decisions.items() if "gives up" in each.reason]
    assert bool(borrowers) == bool(lent)
    # Free devices that these decisions give to a job before it in line do not help a borrower.
    others = {at for each in decisions.values() for at in each.devices or ()}
    free = sum(at not in others for group in world.fleet().groups for at in group.free)
    world.turn()
    given_up = {name: before[name] - world.own[name] for name in lent}
    world.turn()
    for name in borrowers:
        assert world.own[name] > before[name], "others were disturbed for nothing"
    if len(borrowers) == 1 and not world.members[1]:  # all devices are equivalent
        missing = world.own[borrowers[0]] - before[borrowers[0]] - free
        assert all(sum(given_up.values()) - each < missing for each in given_up.values())


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(data=st.data())
def test_no_device_is_idle_that_an_elastic_job_could_use(
    scheduler: str, data: st.DataObject
) -> None:
    world = data.draw(worlds(scheduler))
    world.host_memory = 1 << 60
    world.settle()
    for each in world.jobs.values():
        if each.guarantee is not None:
            free = sum(len(world.fleet().groups[at].free) for at in each.groups)
            sizes = useful(each.world_size, max(1, each.guarantee), each.devices)
            if each.own or each.guarantee == 0:
                assert largest(sizes, len(each.own) + free) <= len(each.own)


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
