"""A job ends when it has run for its time limit, on however many devices it did."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.report.text import describe_lines
from rankfold.reconciler.source.revision import differences
from support.simulated import Fleet

from .test_queue import SHOWN
from .test_ranges import fleet, job, on, wish

pytestmark = pytest.mark.unit


def passed(place: Fleet, seconds: float) -> dict[str, str]:
    """Let time pass; returns how each job has ended."""
    place.now += seconds
    place.converge()
    return {name: record.ending.reason for name, record in place.records.items() if record.ending}


def test_a_job_ends_after_its_time_limit() -> None:
    place = fleet(2, job("a", 2, 2, time_limit_s=10_000), job("b", 1, 1, created=1.0))
    place.converge()
    assert passed(place, 9000.0) == {} and on(place)["a"] == 2
    assert passed(place, 1000.0) == {"a": "TimeLimit"}
    record = place.records["a"]
    assert (record.phase, on(place)) == ("Failed", {"a": 0, "b": 1})
    assert record.ending is not None and record.ending.message == (
        "it ran for its timeLimit: 10000 seconds on 2 devices; a run that takes longer needs a "
        "larger one"
    )


def test_on_fewer_devices_it_may_run_longer() -> None:
    a = job("a", 4, 4, least=1, time_limit_s=10_000)
    place, other = fleet(4, a), job("other", 2, 2, created=-1.0, tier="premium")
    place.converge()
    assert passed(place, 4000.0) == {}
    wish(place, a, other)
    place.converge()
    assert on(place) == {"a": 2, "other": 2}, "each of its devices has two ranks"
    assert passed(place, 11_000.0) == {}
    assert place.records["a"].ran_so_far(place.now) == pytest.approx(9500.0, abs=100.0)
    assert passed(place, 1000.0) == {"a": "TimeLimit"}


def test_the_limit_is_for_the_most_devices_that_it_requests() -> None:
    a = job("a", 4, 2, time_limit_s=10_000)
    place = fleet(4, a)
    place.converge()
    assert passed(place, 9000.0) == {}
    left = place.records["a"].time_left(a, place.now)
    assert left == pytest.approx(500.0, abs=100.0), "with one rank on a device"
    assert passed(place, 1000.0) == {"a": "TimeLimit"}


def test_time_without_devices_does_not_count() -> None:
    a = job("a", 1, 1, time_limit_s=10_000)
    place = fleet(1, a)
    place.converge()
    assert passed(place, 6000.0) == {}
    wish(place, replace(a, suspend=True))
    place.converge()
    assert passed(place, 100_000.0) == {}
    wish(place, a)
    assert passed(place, 0.0) == {} and on(place) == {"a": 1}
    assert passed(place, 3000.0) == {}
    wish(place, replace(a, time_limit_s=20_000))
    assert passed(place, 5000.0) == {}, "the limit was raised while it ran"
    assert passed(place, 6000.0) == {"a": "TimeLimit"}


def test_a_job_that_exceeds_its_limit_is_not_restarted() -> None:
    a = replace(job("a", 1, 1, time_limit_s=10), max_restarts=3)
    place = fleet(1, a)
    place.converge()
    assert passed(place, 1000.0) == {"a": "TimeLimit"} and place.records["a"].restarts == 0


def test_a_plan_and_describe_show_the_limit() -> None:
    before, after = fleet(1, job("a", 1, 1)).desired, fleet(1, job("a", 1, 1, time_limit_s=60))
    (found,) = differences(before, after.desired, {"a": Record("a")})
    assert found.fields == (("spec.timeLimit", 0, 60),) and not found.disturbs
    lines = describe_lines({**SHOWN, "timeLimit": 60, "timeLeft": 12.25})
    assert "time limit:   60 s; 12.2 s left on devices with one rank each" in lines
    assert not any(line.startswith("time limit") for line in describe_lines(SHOWN))
