"""Decisions on jobs that are alike are found once, and are those that each of them would get on its
own."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy import fifo
from rankfold.policy.decide import decide
from rankfold.policy.precedence import Alike, AlikeJobs
from rankfold.policy.vocabulary import TIERS, Decision, Fleet, Group, Job, Rules

pytestmark = pytest.mark.unit


class Alone(AlikeJobs):
    """No job is like another one, so that nothing is found for several."""

    def of(self, job: Job) -> Alike:
        return AlikeJobs().of(job)


@st.composite
def kinds(draw: st.DrawFn, groups: int) -> Job:
    """A job without a name and tier."""
    devices = draw(st.integers(1, 4))
    return Job(
        "",
        devices * draw(st.integers(1, 2)),
        devices,
        0.0,
        draw(st.sampled_from([(0,), (groups - 1,), tuple(range(groups))])),
        guarantee=draw(st.sampled_from([None, None, 0, 1, devices])),
        priority=draw(st.sampled_from([0, 0, 1])),
        min_runtime=draw(st.sampled_from([0.0, 0.0, 25.0])),
        blocked=draw(st.sampled_from([False, False, False, True])),
        rank_memory=draw(st.sampled_from([0, 0, 1])),
        pause=draw(st.sampled_from([0.0, 1.0])),
    )


def carried_out(job: Job, decision: Decision, now: float) -> Job:
    devices = decision.devices or ()
    if devices == job.own:
        return job
    return replace(
        job,
        own=devices,
        placed=len(devices),
        on_devices=bool(devices),
        begun=job.begun or bool(devices),
        since=now,
        waits_since=now if job.own else job.waits_since,
    )


@given(data=st.data())
def test_jobs_that_are_alike_are_decided_on_as_if_they_were_alone(data: st.DataObject) -> None:
    """Jobs of few kinds arrive and leave; each decision is carried out."""
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=2))
    first = [sum(sizes[:at]) for at in range(len(sizes))]
    members = [tuple(range(at, at + size)) for at, size in zip(first, sizes, strict=True)]
    few = data.draw(st.lists(kinds(len(sizes)), min_size=1, max_size=3))
    rules = Rules(
        data.draw(st.sampled_from([2, 100])),
        data.draw(st.sampled_from(["fifo", "backfill"])),
        preemption_delay=data.draw(st.sampled_from([0.0, 15.0])),
        disturbances=data.draw(st.sampled_from([(None, None, None), (0, 1, None)])),
    )
    memory = data.draw(st.sampled_from([3, 1000]))
    jobs: dict[str, Job] = {}
    for turn in range(data.draw(st.integers(1, 6))):
        now = turn * 10.0
        for _ in range(data.draw(st.integers(0, 6))):
            name = f"j{len(jobs)}-{turn}"
            kind, tier = data.draw(st.sampled_from(few)), data.draw(st.sampled_from(TIERS))
            jobs[name] = replace(kind, name=name, created=now, tier=tier)
        leaves = data.draw(st.booleans())
        if jobs and leaves:
            names = sorted(jobs)
            del jobs[names[data.draw(st.integers(0, len(names) - 1))]]
        taken = {at for job in jobs.values() for at in job.own}
        groups = (
            Group(tuple(at for at in each if at not in taken), len(each), members=each)
            for each in members
        )
        fleet = Fleet(tuple(groups), memory)
        decisions = decide(fleet, jobs.values(), rules, now)
        with patch.object(fifo, "AlikeJobs", Alone):
            assert decide(fleet, jobs.values(), rules, now) == decisions
        jobs = {name: carried_out(job, decisions[name], now) for name, job in jobs.items()}


def test_a_job_that_waits_is_not_like_one_of_another_tier() -> None:
    """Only the lowest tier could use the free device meanwhile: the others have a claim on it."""
    holder = Job("h", 2, 2, 0.0, (0,), (0, 1), 2, on_devices=True, begun=True, tier="premium")
    wait = [Job(f"j{at}", 2, 2, 1.0 + at, (0,), tier="premium") for at in range(3)]
    wait.append(Job("last", 2, 2, 5.0, (0,), tier="basic"))
    fleet = Fleet((Group((2,), 3, members=(0, 1, 2)),), 0)
    decisions = decide(fleet, [holder, *wait], Rules(1), 2.0)
    assert [decisions[job.name].free for job in wait] == [1, 0, 0, 1]
