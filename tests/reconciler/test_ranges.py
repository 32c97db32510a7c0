"""Jobs with ranges of devices grow into idle devices and give them up, by the steps that move any
job: at a consistent cut, and no device serves two jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.reconciler.journal.rows import overridden
from rankfold.reconciler.model.desired import Desired, Device, Job, Pool
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.observe.changes import requested
from rankfold.reconciler.source.revision import differences
from support.simulated import Fleet

pytestmark = pytest.mark.unit

GIB = 1 << 30


def job(
    name: str, ranks: int, gpus: int, least: int | None = None, created: float = 0.0, **fields: Any
) -> Job:
    return Job(
        name,
        ("true",),
        "/",
        ranks,
        gpus,
        gpus_min=least,
        created=created,
        save_every_s=0,
        max_restarts=0,
        **fields,
    )


def fleet(devices: int, *jobs: Job, delay: float = 0.0) -> Fleet:
    pool = Pool("local", tuple(Device(f"local/soft-{at}", "soft", GIB) for at in range(devices)))
    return Fleet(Desired({"local": pool}, {each.name: each for each in jobs}, growth_delay_s=delay))


def wish(place: Fleet, *jobs: Job) -> None:
    place.desired = replace(place.desired, jobs={each.name: each for each in jobs})


def on(place: Fleet) -> dict[str, int]:
    """How many devices serve each job."""
    return {name: len(record.holds()) for name, record in sorted(place.records.items())}


def reasons(place: Fleet, name: str) -> dict[str, str]:
    return {each.reason: each.message for each in place.plan().conditions[name]}


def test_a_job_grows_shrinks_for_another_one_and_grows_again() -> None:
    a, b = job("a", 4, 4, 1), job("b", 2, 2, created=1.0)
    place = fleet(4, a)
    assert place.converge().converged == {"a"} and on(place) == {"a": 4}
    wish(place, a, b)
    assert reasons(place, "b")["WaitingForDevices"] == (
        "needs 2 devices; waits until these jobs give up some: a"
    )
    assert place.converge().converged == {"a", "b"} and on(place) == {"a": 2, "b": 2}
    assert place.records["a"].epoch == 2, "it moved once"
    wish(place, a, replace(b, suspend=True))
    place.converge()
    assert on(place) == {"a": 4, "b": 0} and place.records["a"].epoch == 3


def test_a_job_without_a_guarantee_is_suspended_and_waits() -> None:
    spare, b = job("spare", 1, 1, 0), job("b", 1, 1, created=1.0)
    place = fleet(1, spare)
    place.converge()
    wish(place, spare, b)
    planned = place.converge()
    assert on(place) == {"b": 1, "spare": 0} and planned.converged == {"b"}
    assert (
        reasons(place, "spare")["WaitingForDevices"]
        == "needs 1 device of any kind; free for it now: 0"
    )
    wish(place, spare, replace(b, suspend=True))
    assert place.converge().converged == {"b", "spare"} and on(place) == {"b": 0, "spare": 1}


def test_a_job_that_goes_away_meanwhile_leaves_the_other_one_as_it_was() -> None:
    """The barrier is withdrawn: `a` has not moved."""
    a, b = job("a", 2, 2, 1), job("b", 1, 1, created=1.0)
    place = fleet(2, a)
    place.converge()
    wish(place, a, b)
    place.turn()
    assert "stopping" in {there.state for each in place.devices.values() for there in each.jobs}
    wish(place, a)
    place.converge()
    assert on(place)["a"] == 2 and place.records["a"].epoch == 1


def test_a_job_moves_to_grow_only_after_the_delay() -> None:
    a, b = job("a", 2, 2, 1), job("b", 1, 1)
    place = fleet(2, a, b, delay=50.0)
    place.converge()
    assert on(place) == {"a": 1, "b": 1}
    wish(place, a, replace(b, suspend=True))
    place.converge()
    assert on(place) == {"a": 1, "b": 0}
    place.now += 50.0
    place.converge()
    assert on(place) == {"a": 2, "b": 0}


def test_a_number_given_by_hand_replaces_the_range() -> None:
    found = overridden(job("a", 4, 4, 1, demand=2), {"gpus": 3})
    assert (found.gpus, found.gpus_min, found.demand, found.elastic) == (3, None, None, False)


def test_a_plan_shows_both_ends_of_a_range_and_which_jobs_are_disturbed() -> None:
    place = fleet(4, job("a", 4, 2))
    place.converge()
    before = place.desired

    def changed(to: Job) -> tuple[Any, bool]:
        after = replace(before, jobs={"a": to})
        (found,) = differences(before, after, place.records)
        return found.fields, found.disturbs

    assert changed(job("a", 4, 4, 1)) == ((("spec.gpus", 2, "1 to 4"),), False)
    assert changed(job("a", 4, 4, 3)) == ((("spec.gpus", 2, "3 to 4"),), True)
    (new,) = differences(Desired(), Desired(jobs={"b": job("b", 4, 4, 0)}), {})
    assert new.note == "4 ranks on 0 to 4 devices"
    slower = replace(before, growth_delay_s=5.0)
    (policy,) = differences(before, slower, place.records)
    assert policy.fields == (("spec.growthDelay", "0s", "5s"),)
    assert requested(job("a", 4, 4, 1), place.records["a"], "", 0.0, 0.0) is None


@st.composite
def wishes(draw: st.DrawFn) -> list[list[Job]]:
    """Several desired states of jobs, some with ranges."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))

    def one(number: int, ranks: int) -> Job:
        gpus = draw(st.integers(1, ranks))
        least = draw(st.one_of(st.none(), st.integers(0, gpus - 1)))
        suspend = draw(st.sampled_from([False, False, True]))
        return job(f"j{number}", ranks, gpus, least, float(number), suspend=suspend)

    return [[one(n, size) for n, size in enumerate(sizes)] for _ in range(draw(st.integers(1, 4)))]


@settings(max_examples=60)
@given(st.integers(1, 6), wishes(), st.lists(st.integers(0, 12), min_size=4, max_size=4))
def test_any_sequence_of_wishes_converges(
    devices: int, rounds: list[list[Job]], turns: list[int]
) -> None:
    """Wishes may change in the middle of a move; `Fleet` checks the invariants at every action."""
    place = fleet(devices)
    for jobs, patience in zip(rounds, turns, strict=False):
        wish(place, *jobs)
        for _ in range(patience):
            place.turn()
    planned = place.converge(120)
    for each in rounds[-1]:
        held = len(place.records.get(each.name, Record(each.name)).holds())
        if each.suspend:
            assert held == 0
        elif each.name in planned.converged:
            assert each.least <= held <= each.gpus
        else:
            assert held < each.least, "it waits to start, or for its new number of devices"
