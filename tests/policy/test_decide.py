"""Decisions of a policy are within the fleet and the same for the same input."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.policy.decide import decide
from rankfold.policy.vocabulary import Decision, Disturbance, Fleet, Group, Job, Rules

pytestmark = pytest.mark.unit

GIB = 1 << 30
RULES = Rules(ranks_on_a_device=4)
BACKFILL = Rules(ranks_on_a_device=4, scheduler="backfill")
SRTF = Rules(ranks_on_a_device=4, scheduler="srtf")


@st.composite
def fleets_and_jobs(draw: st.DrawFn) -> tuple[Fleet, list[Job]]:
    """A fleet in which each device is free, in one job, or in none and not free."""
    size = draw(st.integers(0, 12))
    states = draw(
        st.lists(st.sampled_from(["free", "gone", "j0", "j1"]), min_size=size, max_size=size)
    )
    half = draw(st.integers(0, size))
    groups = tuple(
        Group(
            tuple(at for at in part if states[at] == "free"),
            draw(st.integers(0, len(part))),
            draw(st.integers(0, 2)),
        )
        for part in (range(half), range(half, size))
    )
    jobs = []
    for name in ("j0", "j1", "j2", "j3"):
        world = draw(st.integers(1, 8))
        own = tuple(at for at in range(size) if states[at] == name)
        jobs.append(
            Job(
                name,
                world_size=world,
                devices=draw(st.integers(1, world)),
                created=draw(st.sampled_from([1.0, 2.0])),
                groups=draw(st.sampled_from([(0,), (1,), (0, 1), ()])),
                own=own,
                placed=len(own),
                wants=draw(st.sampled_from(["devices", "devices", "none", "nothing", "end"])),
                on_devices=bool(own) and draw(st.booleans()),
                begun=bool(own) or draw(st.booleans()),
                shrinks=draw(st.booleans()),
                blocked=draw(st.booleans()),
                rank_memory=GIB,
                need=draw(st.sampled_from([0, GIB])),
            )
        )
    return Fleet(groups, draw(st.sampled_from([0, 4 * GIB, 100 * GIB]))), jobs


def decided(fleet: Fleet, jobs: Sequence[Job], rules: Rules = RULES) -> dict[str, Decision]:
    return decide(fleet, jobs, rules, now=0.0)


@pytest.mark.parametrize("rules", [RULES, BACKFILL])
@given(case=fleets_and_jobs())
def test_no_device_is_given_twice_and_none_that_is_not_free(
    rules: Rules, case: tuple[Fleet, list[Job]]
) -> None:
    fleet, jobs = case
    decisions = decided(fleet, jobs, rules)
    assert set(decisions) == {job.name for job in jobs if job.wants != "end"} - {
        job.name for job in jobs if job.wants == "nothing" and not job.on_devices
    }
    given_away: list[int] = []
    for job in jobs:
        decision = decisions.get(job.name)
        if decision is None or decision.devices is None:
            continue
        allowed = {at for group in job.groups for at in fleet.groups[group].free}
        assert set(decision.devices) <= allowed | set(job.own)
        given_away += decision.devices
        if not decision.stays and decision.devices:
            assert len(decision.devices) <= job.devices
            assert job.world_size <= len(decision.devices) * RULES.ranks_on_a_device
    assert len(given_away) == len(set(given_away))


@pytest.mark.parametrize("rules", [RULES, BACKFILL])
@given(case=fleets_and_jobs(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(
    rules: Rules, case: tuple[Fleet, list[Job]], random: Random
) -> None:
    fleet, jobs = case
    shuffled = list(jobs)
    random.shuffle(shuffled)
    assert decided(fleet, shuffled, rules) == decided(fleet, jobs, rules)


def test_a_later_job_does_not_overtake_one_that_waits() -> None:
    fleet = Fleet((Group(free=(2, 3), to_come=4),), 100 * GIB)
    jobs = [
        Job("later", 1, 1, created=2.0, groups=(0,)),
        Job("first", 4, 4, created=1.0, groups=(0,)),
    ]
    decisions = decided(fleet, jobs)
    assert decisions["first"].outcome == "devices" and decisions["first"].free == 2
    assert decisions["later"].devices is None and decisions["later"].free == 0


def test_two_jobs_get_different_devices() -> None:
    fleet = Fleet((Group(free=(0, 1), to_come=2),), 100 * GIB)
    jobs = [Job(name, 1, 1, created=1.0, groups=(0,)) for name in ("a", "b")]
    decisions = decided(fleet, jobs)
    assert (decisions["a"].devices, decisions["b"].devices) == ((0,), (1,))


def test_a_fleet_may_list_devices_of_jobs_as_free() -> None:
    fleet = Fleet((Group((0, 1, 2), 3),), 100 * GIB)
    holder = Job("holder", 2, 2, 1.0, (0,), own=(0, 1), placed=2, on_devices=True, begun=True)
    found = decided(fleet, [holder, Job("new", 1, 1, 2.0, (0,)), Job("late", 1, 1, 3.0, (0,))])
    given = {name: decision.devices for name, decision in found.items()}
    assert given == {"holder": (0, 1), "new": (2,), "late": None}


def test_backfill_passes_a_job_that_does_not_fit() -> None:
    fleet = Fleet((Group(free=(2, 3), to_come=4),), 100 * GIB)
    jobs = [
        Job("later", 1, 1, created=2.0, groups=(0,)),
        Job("first", 4, 4, created=1.0, groups=(0,)),
    ]
    decisions = decided(fleet, jobs, BACKFILL)
    assert decisions["first"].reason == "needs 4 devices; free for it now: 2"
    assert decisions["later"].devices == (2,)


def test_a_change_has_a_cause_and_disturbs_a_job_that_runs() -> None:
    """One job starts, one grows, one lost a device and another waits for its growth."""
    fleet = Fleet((Group(free=(4, 5, 6), to_come=7, bad=1),), 100 * GIB)

    def job(name: str, created: float, devices: int, own: tuple[int, ...], placed: int) -> Job:
        there = bool(placed)
        return Job(
            name,
            devices,
            devices,
            created,
            groups=(0,),
            own=own,
            placed=placed,
            on_devices=there,
            begun=there,
            shrinks=there,
            pause=3.0,
        )

    jobs = [
        job("starts", 4.0, 1, (), 0),
        job("grows", 1.0, 2, (0,), 1),
        job("lost", 2.0, 3, (1, 2), 3),
        job("stays", 3.0, 1, (3,), 1),
    ]
    decisions = decided(fleet, jobs)
    assert {name: decision.cause for name, decision in decisions.items()} == {
        "grows": "spec",
        "lost": "fault",
        "stays": None,
        "starts": "spec",
    }
    assert decisions["grows"].disturbs == (Disturbance("grows", 3.0),)
    assert decisions["stays"].disturbs == () == decisions["starts"].disturbs
    assert decisions["lost"].devices == (1, 2, 5)


# ---- shortest remaining time first


@st.composite
def gangs(draw: st.DrawFn) -> tuple[Fleet, list[Job]]:
    """Two groups; each job is for one, and has all of its devices or none."""
    size = draw(st.integers(0, 12))
    half = draw(st.integers(0, size))
    left = [list(range(half)), list(range(half, size))]
    jobs = []
    for number in range(draw(st.integers(0, 6))):
        devices, group = draw(st.integers(1, 5)), draw(st.integers(0, 1))
        own: tuple[int, ...] = ()
        if draw(st.booleans()) and len(left[group]) >= devices:
            own = tuple(
                left[group].pop(draw(st.integers(0, len(left[group]) - 1))) for _ in range(devices)
            )
        remaining = draw(st.one_of(st.none(), st.integers(0, 3)))
        jobs.append(
            Job(
                f"j{number}",
                devices,
                devices,
                created=float(draw(st.integers(0, 1))),
                groups=(group,),
                own=own,
                placed=len(own),
                on_devices=bool(own),
                remaining=None if remaining is None else float(remaining),
            )
        )
    return Fleet(tuple(Group(tuple(each), size) for each in left), 0), jobs


@given(gangs())
def test_no_device_is_given_twice_by_srtf(case: tuple[Fleet, list[Job]]) -> None:
    fleet, jobs = case
    all_devices = {at for group in fleet.groups for at in group.free}
    all_devices |= {at for job in jobs for at in job.own}
    decisions = decided(fleet, jobs, SRTF)
    given_away = [at for each in decisions.values() for at in each.devices or ()]
    assert len(given_away) == len(set(given_away)) and set(given_away) <= all_devices
    for job in jobs:
        devices = decisions[job.name].devices
        assert not devices or len(devices) == job.devices
        assert not devices or not job.own or set(devices) == set(job.own), "it keeps its devices"


@given(gangs())
def test_srtf_serves_jobs_in_the_order_of_their_ends(case: tuple[Fleet, list[Job]]) -> None:
    """Each job in turn gets its devices if those before it leave enough."""
    fleet, jobs = case
    decisions = decided(fleet, jobs, SRTF)
    sizes = [
        len(group.free) + sum(len(job.own) for job in jobs if job.groups == (at,))
        for at, group in enumerate(fleet.groups)
    ]
    never = float("inf")
    ends = {job.name: never if job.remaining is None else job.remaining for job in jobs}
    for job in sorted(jobs, key=lambda job: (ends[job.name], job.created, job.name)):
        served = job.devices <= sizes[job.groups[0]]
        assert bool(decisions[job.name].devices) == served
        sizes[job.groups[0]] -= job.devices * served


@given(gangs(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter_to_srtf(
    case: tuple[Fleet, list[Job]], random: Random
) -> None:
    fleet, jobs = case
    shuffled = list(jobs)
    random.shuffle(shuffled)
    assert decided(fleet, shuffled, SRTF) == decided(fleet, jobs, SRTF)


def test_the_shortest_jobs_run_and_disturb_longer_ones() -> None:
    fleet = Fleet((Group(free=(), to_come=2),), 0)

    def job(name: str, remaining: float, own: tuple[int, ...]) -> Job:
        return Job(
            name,
            1,
            1,
            created=1.0,
            groups=(0,),
            own=own,
            placed=len(own),
            on_devices=bool(own),
            remaining=remaining,
            pause=3.0,
        )

    jobs = [
        job("long", 50.0, (0,)),
        job("middle", 20.0, (1,)),
        job("short", 10.0, ()),
        job("longest", 60.0, ()),
    ]
    decisions = decided(fleet, jobs, SRTF)
    assert decisions["short"].devices == (0,)
    assert decisions["short"].disturbs == (Disturbance("long", 3.0),)
    assert decisions["long"].devices == () and decisions["long"].cause == "order"
    assert decisions["long"].reason == "needs 1 device; jobs that end sooner leave 0"
    assert decisions["middle"].devices == (1,) and decisions["middle"].cause is None
    assert decisions["longest"].devices is None


def test_srtf_refuses_a_job_of_several_groups() -> None:
    fleet = Fleet((Group((0,), 1), Group((1,), 1)), 0)
    with pytest.raises(ValueError, match="both is for 2 groups"):
        decided(fleet, [Job("both", 1, 1, created=0.0, groups=(0, 1))], SRTF)
