"""How fast other jobs with a job's program were is what is known of it before it is measured, also
after a restart of the reconciler."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.vocabulary import Rate
from rankfold.reconciler.journal.journal import MEASURED_MAX, Journal, JournalError
from rankfold.reconciler.model.desired import Device
from rankfold.reconciler.model.history import History, measured_of
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.rates import Rates

from .test_ranges import fleet, job, on
from .test_rates import FIRST_S, Place

pytestmark = pytest.mark.unit

GIB = 1 << 30
NOW = 1e9
SOFT = Device("local/soft-0", "soft", GIB)
SLOW = Device("local/slow-0", "slow", GIB, speed=0.5)


def rate(devices: int, per_s: float, at: float = NOW) -> Rate:
    return Rate(devices, per_s, 0.0, at, 16.0)


def record(name: str, *rates: Rate, on: str = "soft", **fields: Any) -> Record:
    fixed = replace(job(name, 4, 4, 1), **fields)
    return Record(name, "ended", fixed=fixed, device_type=on, rates=rates)


def known(*records: Record, name: str = "new", on: str = "soft", **fields: Any) -> list[float]:
    """Steps per second that are known of a job, on the fewest devices first."""
    wanted = replace(job(name, 4, 4, 1), **fields)
    return [each.per_s for each in History(records, (), [SOFT, SLOW]).of(wanted, Record(name), on)]


def test_a_job_has_the_rates_of_others_with_its_program() -> None:
    old = record("old", rate(1, 10.0), rate(2, 18.0, NOW - 9))
    assert known(old) == [10.0, 18.0]
    assert known(old, name="old") == [], "its own are none of others"
    assert known(old, record("later", rate(2, 12.0))) == [10.0, 12.0]
    assert known(old, record("later", rate(2, 12.0)), name="later") == [10.0, 18.0]


@pytest.mark.parametrize(
    "other",
    [{"command": ("false",)}, {"workdir": "/tmp"}, {"env": (("SIZE", "2"),)}, {"world_size": 8}],
)
def test_another_program_is_none(other: dict[str, Any]) -> None:
    assert known(record("old", rate(1, 10.0)), **other) == []
    assert known(record("old", rate(1, 10.0), **other), **other) == [10.0]


def test_another_type_of_device_counts_as_the_speeds_of_the_types_say() -> None:
    old = record("old", rate(1, 10.0), rate(2, 18.0))
    assert known(old, on="slow") == [5.0, 9.0]
    assert known(old, record("there", rate(2, 7.0), on="slow"), on="slow") == [7.0]


def test_a_job_does_not_get_devices_that_made_another_one_slower() -> None:
    """With the same program; the record of the other one has its rates."""
    place = fleet(4, job("new", 4, 4, 1))
    old = replace(job("old", 4, 4, 1), suspend=True)
    place.desired = replace(place.desired, jobs={**place.desired.jobs, "old": old})
    place.records["old"] = record("old", rate(1, 10.0), rate(2, 16.0), rate(4, 15.0))
    place.converge()
    assert on(place) == {"new": 2, "old": 0}
    place.records["old"] = replace(place.records["old"], rates=(rate(1, 10.0), rate(2, 16.0)))
    place.converge()
    assert on(place) == {"new": 4, "old": 0}


def test_the_first_rate_of_a_job_is_compared_with_those_of_others(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.place(2)
    ours = place.journal.record("a")
    assert ours is not None and ours.fixed is not None
    place.journal.save(replace(ours, device_type="soft"))
    old = Record("old", "ended", fixed=ours.fixed, device_type="soft", rates=(rate(2, 20.0),))
    place.journal.save(old)
    place.run(FIRST_S, 10)
    (event,) = place.journal.events("Job/a")
    assert (event.reason, event.message.split(":")[0]) == (
        "Corrected",
        "10 steps per s on 2 devices, not 20 as estimated",
    )


SPEEDS = st.floats(0.1, 100.0)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), SPEEDS), max_size=6), st.integers(0, 6))
def test_a_reconciler_that_is_killed_and_restarted_decides_the_same(
    measured: list[tuple[bool, int, float]], killed: int
) -> None:
    """Two jobs with the same program; of what was measured, the next one has the journal only."""
    left, restarted = (
        fleet(5, job("a", 4, 4, 1), job("b", 4, 4, 1, created=1.0)) for _ in range(2)
    )
    for at, (first, devices, per_s) in enumerate([*measured, (True, 1, 1.0)]):
        for place in (left, restarted):
            place.converge()
            name = "a" if first else "b"
            ours = place.records[name]
            rates = {each.devices: each for each in ours.rates}
            rates[devices] = rate(devices, per_s, place.now)
            place.records[name] = replace(ours, rates=tuple(rates[n] for n in sorted(rates)))
        if at == killed:
            with tempfile.TemporaryDirectory() as folder:
                with Journal(Path(folder)) as journal, journal.transaction():
                    for each in restarted.records.values():
                        journal.save(each)
                with Journal(Path(folder)) as journal:
                    restarted.records = journal.records()
        assert restarted.plan() == left.plan()


def test_rates_that_cannot_be_are_not_followed() -> None:
    """A journal may have them; the plan is as without them."""
    place = fleet(4, job("new", 4, 4, 1))
    old = measured_of(record("old", rate(2, 0.0), rate(4, 1e300), rate(3, -1.0)))
    assert old is not None
    place.measured = (old,)
    place.converge()
    assert on(place)["new"] == 4


def test_the_rates_of_jobs_that_are_removed_stay(tmp_path: Path) -> None:
    """Those of the newest: also for a job of the same name."""
    number = MEASURED_MAX + 3
    with Journal(tmp_path) as journal, journal.transaction():
        for at in range(number):
            journal.save(record("old", rate(2, 1.0 + at, NOW + at), command=(f"x{at // 2}",)))
            journal.forget("Job", "old")
        journal.save(Record("plain", "ended"))
        journal.forget("Job", "plain")
    with Journal(tmp_path, readonly=True) as journal:
        measured = journal.get("measured")
    assert len(measured) == MEASURED_MAX
    history = History((), measured, [SOFT])
    last = (number - 1) // 2
    for command, per_s in ((last, [float(number)]), (last - 1, [float(2 * last)]), (0, [])):
        new = replace(job("old", 4, 4, 1), command=(f"x{command}",))
        assert [each.per_s for each in history.of(new, Record("old"), "soft")] == per_s
    place = fleet(4, replace(job("new", 4, 4, 1), command=("true",)))
    old = record("old", rate(1, 10.0), rate(2, 16.0), rate(4, 15.0))
    kept = measured_of(old)
    assert kept is not None
    place.measured = (kept,)
    place.converge()
    assert on(place) == {"new": 2}


def test_damaged_rates_of_removed_jobs_are_refused_by_name(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.set(
            "measured", [{"program": "x", "device_type": "soft", "rates": [{"devices": 1}]}]
        )
    with (
        pytest.raises(JournalError, match="table meta, row 'measured'"),
        Journal(tmp_path) as journal,
    ):
        journal.check()


def test_rates_are_read_by_the_next_reconciler(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.place(2)
    place.run(FIRST_S, 10)
    found = place.found
    place.journal.close()
    place.journal = Journal(tmp_path)
    place.rates = Rates(place.journal)
    assert place.found == found and found[2].per_s == pytest.approx(10, rel=0.01)
