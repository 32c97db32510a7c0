"""Decisions of a policy are within the fleet and the same for the same input."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.policy.decide import decide
from rankfold.policy.vocabulary import Decision, Fleet, Group, Job, Rules

pytestmark = pytest.mark.unit

GIB = 1 << 30
RULES = Rules(ranks_on_a_device=4)


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


def decided(fleet: Fleet, jobs: Sequence[Job]) -> dict[str, Decision]:
    return decide(fleet, jobs, RULES, now=0.0)


@given(fleets_and_jobs())
def test_no_device_is_given_twice_and_none_that_is_not_free(case: tuple[Fleet, list[Job]]) -> None:
    fleet, jobs = case
    decisions = decided(fleet, jobs)
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


@given(fleets_and_jobs(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(
    case: tuple[Fleet, list[Job]], random: Random
) -> None:
    fleet, jobs = case
    shuffled = list(jobs)
    random.shuffle(shuffled)
    assert decided(fleet, shuffled) == decided(fleet, jobs)


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
