"""A forecast follows the policy from the present state on, and says what it does not know."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rankfold.policy.vocabulary import Fleet, Group, Job, Quota, Rules
from rankfold.simulator import forecast as module
from rankfold.simulator.forecast import Expected, Forecast, forecast
from rankfold.simulator.whole import RULES

pytestmark = pytest.mark.unit

NOW = 1e9
HOUR = 3600.0


def job(name: str, devices: int, *own: int, created: float = 0.0, **more: Any) -> Job:
    """A job that has `own` devices since an hour, or waits."""
    more = {"world_size": devices, "groups": (0,), **more}
    if own:
        more |= {"on_devices": True, "begun": True, "placed": len(own), "since": NOW - HOUR}
    return Job(name, devices=devices, created=NOW - 1000.0 + created, own=own, **more)


def found(devices: int, *jobs: Job, rules: Rules = RULES, **left: float) -> Forecast:
    group = Group(tuple(range(devices)), devices, members=tuple(range(devices)))
    return forecast(Fleet((group,), 1 << 62), jobs, rules, NOW, left)


def starts(of: Forecast) -> dict[str, float | None]:
    return {name: each.start for name, each in of.jobs.items()}


def test_a_job_starts_when_those_before_it_reach_their_time_limits() -> None:
    jobs = [job("a", 1, 0), job("b", 1, 1), job("c", 2), job("d", 1, created=1.0)]
    of = found(2, *jobs, a=100.0, b=300.0, c=50.0)
    assert starts(of) == {"a": 0, "b": 0, "c": 300, "d": 350}
    assert of.jobs["c"] == Expected((0, 1), 300.0, 350.0)
    assert of.jobs["d"].end is None and of.until is None


def test_a_job_whose_end_is_not_known_frees_no_device() -> None:
    of = found(2, job("a", 1, 0), job("b", 1, 1), job("c", 1), job("d", 1, created=1.0), a=100.0)
    assert starts(of) == {"a": 0, "b": 0, "c": 100, "d": None} and of.until is None


def test_a_job_takes_longer_where_devices_have_several_ranks() -> None:
    of = found(2, job("a", 2, 0, 1, world_size=4), job("b", 1), a=100.0)
    assert of.jobs["a"].end == 200.0 and starts(of)["b"] == 200.0


def test_a_suspended_job_continues_with_what_it_had_left() -> None:
    low, high = job("low", 1, 0, tier="basic"), job("high", 1, tier="premium")
    of = found(1, low, high, low=100.0, high=40.0)
    assert of.jobs["high"] == Expected((0,), 0.0, 40.0, before=0, now=1)
    low_now = of.jobs["low"]
    assert (low_now.before, low_now.now, low_now.cause) == (1, 0, "tier")
    assert low_now.reason == "gives up 1 device for high (premium)"
    assert (low_now.start, low_now.end) == (40.0, 140.0)


def test_a_job_that_is_suspended_later_continues_with_what_it_has_left() -> None:
    rules = replace(RULES, preemption_delay=60.0)
    low, high = job("low", 1, 0, tier="basic"), job("high", 1, tier="premium", created=1000.0)
    of = found(1, low, high, rules=rules, low=100.0, high=30.0)
    assert starts(of) == {"low": 0, "high": 60}
    last = job("last", 1, tier="basic", created=1.0)
    of = found(1, low, high, last, rules=rules, low=100.0, high=30.0)
    assert starts(of) == {"low": 0, "high": 60, "last": 130} and of.jobs["low"].end == 130.0


def test_an_elastic_job_that_shrinks_ends_later() -> None:
    wide, new = job("wide", 2, 0, 1, guarantee=1), job("new", 1)
    of = found(2, wide, new, wide=100.0, new=30.0)
    shrunk = of.jobs["wide"]
    assert (shrunk.before, shrunk.now, shrunk.start) == (2, 1, 0.0)
    # It has one device for 200 s, or grows again when `new` has ended; nothing waits for that.
    assert shrunk.end == 200.0 and starts(of)["new"] == 0.0


def test_a_job_that_is_suspended_by_hand_does_not_wait() -> None:
    of = found(1, job("a", 1, 0), job("s", 1, wants="none"))
    assert starts(of) == {"a": 0, "s": None} and of.until is None


def test_a_job_beyond_its_limit_ends_at_once() -> None:
    of = found(1, job("a", 1, 0), job("b", 1), a=-5.0)
    assert of.jobs["a"].end == 0.0 and starts(of)["b"] == 0.0
    assert of.jobs["b"].now == 0, "it has no device at this moment"


def test_devices_in_use_count_for_their_quota_from_now_on() -> None:
    """Quotas take turns by what they have used; a job without devices waits for that long."""
    rules = Rules(1 << 30, quotas=(Quota("x", 0, used=0.0), Quota("y", 0, used=0.0)))
    x, y = job("x", 1, 0, quota="x"), job("y", 1, quota="y")
    turn = starts(found(1, x, y, rules=rules))["y"]
    assert turn is not None and 1200.0 <= turn <= HOUR


def test_it_stops_after_some_events_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MIN", 1)
    monkeypatch.setattr(module, "WORK_MAX", 0)
    jobs = [job("a", 1, 0), job("b", 1), job("c", 1, created=1.0)]
    of = found(1, *jobs, a=100.0, b=100.0, c=100.0)
    assert starts(of) == {"a": 0, "b": 100, "c": None} and of.until == 200.0
