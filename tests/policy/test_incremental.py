"""The schedulers that follow a simulated fleet decide what `decide` decides on all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.decide import decide
from rankfold.policy.incremental import INCREMENTAL, incremental
from rankfold.policy.ranked import LENGTH_MAX, Ranked
from rankfold.policy.vocabulary import Fleet, Group, Job, Rules

pytestmark = pytest.mark.unit

RESUMES_S = 2.0  # how long a job stands still when it gets devices again


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[tuple[int, int], list[tuple[float, int, int, float, float]]]:
    """Sizes of two groups, and jobs: seconds since the one before, group, devices, seconds to run,
    and seconds after its arrival when it leaves, whether or not it has ended."""
    sizes = (draw(st.integers(1, 6)), draw(st.integers(1, 6)))
    jobs = []
    for _ in range(draw(st.integers(1, 14))):
        group = draw(st.integers(0, 1))
        devices = draw(st.integers(1, sizes[group] + 1))
        wait, runs = draw(st.integers(0, 3)), draw(st.integers(1, 9))
        leaves = draw(st.one_of(st.just(1000), st.integers(1, 30)))
        jobs.append((float(wait), group, devices, float(runs), float(leaves)))
    return sizes, jobs


class Followed:
    """A simulated fleet, shown in the same state to `decide` and to the incremental scheduler."""

    def __init__(self, sizes: tuple[int, int], scheduler: str):
        first = tuple(range(sizes[0])), tuple(range(sizes[0], sum(sizes)))
        self.all = [set(each) for each in first]
        self.to_come = sizes
        fleet = Fleet(tuple(Group(each, len(each)) for each in first), 0)
        self.rules = Rules(100, scheduler)
        self.fast = incremental(fleet, self.rules)
        self.jobs: dict[str, Job] = {}
        self.leaves: dict[str, float] = {}
        self.updated: dict[str, float] = {}  # when `remaining` was true, for jobs that run

    def seen(self, now: float) -> list[Job]:
        """The jobs with what remains of them at `now`."""
        found = []
        for name, job in self.jobs.items():
            if job.own and job.remaining is not None:
                job = replace(job, remaining=job.remaining - (now - self.updated[name]))
            found.append(job)
        return found

    def next_end(self) -> float:
        ends = [
            self.updated[job.name] + (job.remaining or 0.0) for job in self.jobs.values() if job.own
        ]
        return min([*ends, *self.leaves.values()], default=float("inf"))

    def end_jobs(self, now: float) -> None:
        for job in self.seen(now):
            if self.leaves[job.name] <= now or (job.own and job.remaining == 0.0):
                self.fast.end(job.name, now)
                del self.jobs[job.name], self.leaves[job.name]

    def turn(self, now: float) -> None:
        jobs = self.seen(now)
        taken = {at for job in jobs for at in job.own}
        free = [tuple(sorted(each - taken)) for each in self.all]
        fleet = Fleet(
            tuple(Group(*each) for each in zip(free, self.to_come, strict=True)), host_memory=0
        )
        wanted = decide(fleet, jobs, self.rules, now)
        changes = self.fast.changes(now)
        for job in jobs:
            target = wanted[job.name].devices or ()
            if job.name in changes:
                assert changes[job.name].devices == target
                assert changes[job.name].cause == wanted[job.name].cause
                assert changes[job.name].disturbs == wanted[job.name].disturbs
            else:
                assert target == job.own, "an unreported change"
            if target != job.own:
                stopped = job.remaining or 0.0
                left = stopped + RESUMES_S if not target else stopped
                job = replace(
                    job, own=target, placed=len(target), on_devices=bool(target), remaining=left
                )
                self.updated[job.name] = now
                self.jobs[job.name] = job
                self.fast.expect(job.name, left, now)


@pytest.mark.parametrize("scheduler", INCREMENTAL)
@given(case=histories())
def test_they_decide_the_same(
    scheduler: str,
    case: tuple[tuple[int, int], list[tuple[float, int, int, float, float]]],
) -> None:
    sizes, jobs = case
    followed, now = Followed(sizes, scheduler), 0.0
    for number, (wait, group, devices, runs, leaves) in enumerate(jobs):
        arrives = now + wait
        while (end := followed.next_end()) < arrives:
            now = end
            followed.end_jobs(now)
            followed.turn(now)
        now = arrives
        followed.end_jobs(now)
        job = Job(f"j{number}", 1, devices, now, (group,), remaining=runs, pause=RESUMES_S)
        followed.jobs[job.name], followed.leaves[job.name] = job, now + leaves
        followed.fast.arrive(job)
        followed.turn(now)
    while followed.jobs:
        now = followed.next_end()
        followed.end_jobs(now)
        followed.turn(now)


def test_a_job_that_still_fits_is_not_stopped() -> None:
    """`new` needs devices of `wide`, which leaves more than `new` needs: `last` keeps its own."""
    shortest = incremental(Fleet((Group(tuple(range(9)), 9),), 0), Rules(100, "srtf"))
    for name, devices, remaining in (("wide", 5, 20.0), ("last", 1, 30.0), ("next", 3, 10.0)):
        shortest.arrive(Job(name, 1, devices, 0.0, (0,), remaining=remaining))
    assert set(shortest.changes(0.0)) == {"wide", "last", "next"}
    shortest.arrive(Job("new", 1, 3, 1.0, (0,), remaining=5.0))
    changes = shortest.changes(1.0)
    assert {name: len(each.devices or ()) for name, each in changes.items()} == {
        "wide": 0,
        "new": 3,
    }


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), max_size=1500), st.data())
def test_sizes_before_a_key_are_added_up(
    entries: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Each entry is added, or removed if it is there; blocks are divided and dropped meanwhile."""
    ranked, there = Ranked(), dict[int, int]()
    entries = [*((key * 3, 1) for key in range(LENGTH_MAX + 40)), *entries]
    for key, size in entries:
        if key in there:
            assert ranked.remove((key,)) == there.pop(key)
        else:
            there[key] = size
            ranked.add((key,), size)
    from_the_end = data.draw(st.booleans())
    for key in sorted(there, reverse=from_the_end)[: data.draw(st.integers(0, len(there)))]:
        assert ranked.remove((key,)) == there.pop(key)
    probe = data.draw(st.integers(-1, 1200))
    assert ranked.before((probe,)) == sum(size for key, size in there.items() if key < probe)
    if there:
        assert ranked.last() == ((max(there),), there[max(there)])
    with pytest.raises(KeyError):
        ranked.remove((-1,))
