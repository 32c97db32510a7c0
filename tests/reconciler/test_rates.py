"""The reconciler measures how fast a job is on each number of devices, and records it; a job that
has become slower moves back, and a restarted reconciler decides the same."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from rankfold.policy.rates import RETRY_S, is_slower
from rankfold.policy.vocabulary import Rate
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import Desired
from rankfold.reconciler.model.observed import JobOnDevice, Observed, ObservedDevice, RankOnDevice
from rankfold.reconciler.model.recorded import Record, Save
from rankfold.reconciler.rates import BLOCK_MAX_S, BLOCK_S, BLOCKS, FRESH_S, SETTLE_S, Rates, Window
from rankfold.reconciler.report.status import rates_of
from rankfold.reconciler.report.text import _rate_lines

from .test_ranges import fleet, job, on, reasons

pytestmark = pytest.mark.unit

FIRST_S = SETTLE_S + BLOCK_S * (BLOCKS + 1)  # a rate is known by then


class Place:
    """One job that makes steps, and the part of the reconciler that measures it."""

    def __init__(self, state: Path, **fields: Any):
        self.journal = Journal(state)
        self.desired = Desired(jobs={"a": job("a", 4, 4, 1, **fields)})
        self.rates = Rates(self.journal)
        self.now, self.steps, self.epoch = 1e9, 0.0, 0
        self.state, self.save = "running", None

    def place(self, devices: int) -> None:
        self.epoch += 1
        self.placement = tuple(f"d{rank * devices // 4}" for rank in range(4))
        record = self.journal.record("a") or Record("a")
        placed = replace(
            record,
            step="placed",
            epoch=self.epoch,
            placement=self.placement,
            placed_since=self.now,
            fixed=self.desired.jobs["a"],
        )
        self.journal.save(placed)

    def observed(self) -> Observed:
        found = {}
        for device in dict.fromkeys(self.placement):
            ranks = tuple(
                RankOnDevice(rank, "attached", {"collectives": int(self.steps) + rank})
                for rank, at in enumerate(self.placement)
                if at == device
            )
            there = JobOnDevice("a", self.epoch, self.state, ranks=ranks)
            found[device] = ObservedDevice(device, jobs=(there,))
        return Observed(found)

    def run(self, seconds: float, per_s: float, turn: float = 0.5) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += turn
            self.steps += per_s * turn
            self.rates.update(self.desired, self.journal.records(), self.observed(), self.now)

    @property
    def found(self) -> dict[int, Rate]:
        record = self.journal.record("a")
        assert record is not None
        return {each.devices: each for each in record.rates}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_rate_on_each_number_of_devices_is_recorded(place: Place) -> None:
    place.place(2)
    place.run(FIRST_S, 10)
    assert place.found[2].per_s == pytest.approx(10, rel=0.01)
    assert place.found[2].before is None
    place.place(4)
    place.run(FIRST_S, 19)
    assert list(place.found) == [2, 4]
    assert place.found[4].per_s == pytest.approx(19, rel=0.01)
    assert place.found[4].before == place.found[2] and not is_slower(place.found[4])
    assert place.journal.events("Job/a") == []


def test_a_rate_that_is_not_as_estimated_is_reported_once(place: Place) -> None:
    """Twice the devices are estimated to give twice the rate."""
    place.place(2)
    place.run(FIRST_S, 10)
    place.place(4)
    place.run(FIRST_S, 15)
    place.run(10 * FIRST_S, 12)
    (event,) = place.journal.events("Job/a")
    assert (event.reason, event.message) == (
        "Corrected",
        "15 steps per s on 4 devices, not 20 as estimated: estimates for other numbers of devices "
        "follow from it, too",
    )


def test_a_job_that_became_slower_is_reported_once(place: Place) -> None:
    place.place(2)
    place.run(FIRST_S, 10)
    place.place(4)
    place.run(FIRST_S, 8)
    slower = place.found[4]
    assert is_slower(slower)
    place.run(200, 30)
    assert place.found[4] == slower, "it will have moved by then"
    (event,) = place.journal.events("Job/a")
    assert (event.reason, event.message) == (
        "Slower",
        "it was slower on 4 devices (8 steps per s) than on 2 (10): it gets at most 2 devices for "
        "an hour",
    )


def test_the_time_before_the_first_steps_and_pauses_do_not_count(place: Place) -> None:
    place.place(4)
    place.run(60, 0)
    place.run(SETTLE_S, 1)  # it loads code
    for _ in range(8):
        place.run(BLOCK_S + 1, 10)
        place.state = "stopping"
        place.run(5, 0)
        place.state = "running"
        record = place.journal.record("a")
        assert record is not None
        place.journal.save(replace(record, save=Save(1, "interval", place.now)))
        place.run(5, 0)
        place.journal.save(replace(record, save=None))
    place.run(BLOCK_S * 2, 10)
    assert place.found[4].per_s == pytest.approx(10, rel=0.02)


def test_a_job_without_collectives_has_no_rate(place: Place) -> None:
    place.place(4)
    place.run(600, 0)
    assert place.found == {}


def test_a_job_goes_back_to_a_checkpoint_and_is_measured_again(place: Place) -> None:
    place.place(4)
    place.run(FIRST_S - 5, 10)
    place.steps = 0
    place.place(4)
    place.run(FIRST_S, 12)
    assert place.found[4].per_s == pytest.approx(12, rel=0.01)


def test_rates_that_were_measured_long_ago_are_not_compared(place: Place) -> None:
    place.place(2)
    place.run(FIRST_S, 10)
    place.now += FRESH_S
    place.place(4)
    place.run(FIRST_S, 1)
    assert place.found[4].before is None
    place.place(2)
    place.run(FIRST_S, 10)
    place.place(4)
    place.run(FRESH_S, 10)
    place.run(BLOCK_MAX_S * BLOCKS * 2, 1)  # it does something else by now
    assert place.found[4].per_s < 2 and not is_slower(place.found[4])


def test_a_fixed_number_of_devices_is_measured_and_not_compared(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.desired = Desired(jobs={"a": job("a", 4, 4)})
    place.place(2)
    place.run(FIRST_S, 10)
    place.place(4)
    place.run(FIRST_S, 1)
    assert list(place.found) == [2, 4] and place.found[4].before is None


def test_a_new_rate_is_recorded_less_and_less_often(place: Place) -> None:
    """Each record renews the plan of the whole fleet."""
    place.place(4)
    recorded = set()
    for _ in range(36):
        place.run(100, 10)
        recorded |= {each.at for each in place.found.values()}
    assert 10 <= len(recorded) <= 22


def test_a_restarted_reconciler_measures_again_and_decides_the_same(place: Place) -> None:
    place.place(2)
    place.run(FIRST_S, 10)
    place.place(4)
    place.run(SETTLE_S, 8)
    place.rates = Rates(place.journal)
    place.run(FIRST_S, 8)
    assert is_slower(place.found[4])


def test_bursts_of_steps_are_not_mistaken_for_a_difference() -> None:
    """A training step has twelve collectives at its end, and takes up to a minute: as fast after
    the growth as before it."""
    random = Random(1)

    def measured(every: float) -> list[Rate]:
        window, found, now = Window(1), [], random.uniform(0, every)
        for _ in range(1000):
            now += 0.5
            if window.note(12 * int(now / every), now):
                found.append(window.rate(4, now))
        return [each for each in found if each is not None]

    compared = 0
    for _ in range(100):
        every = random.choice([random.uniform(0.3, 5), random.uniform(5, 60)])
        for fewer in measured(every):
            for rate in measured(every):
                compared += 1
                assert not is_slower(replace(rate, before=replace(fewer, devices=2))), every
    assert compared > 1000


def test_a_job_that_grew_and_became_slower_moves_back() -> None:
    a = job("a", 4, 4, 1)
    place = fleet(4, a)
    place.converge()
    assert on(place) == {"a": 4}
    before = Rate(2, 10.0, 0.1, place.now - 100, 16.0)
    rate = Rate(4, 8.0, 0.1, place.now, 16.0, before)
    place.records["a"] = replace(place.records["a"], rates=(before, rate))
    assert reasons(place, "a")["Converging"] == (
        "growth: it was slower on 4 devices (8 steps per s) than on 2 (10); step: placed"
    )
    assert place.plan().causes == {"a": "growth"}
    assert place.converge().converged == {"a"} and on(place) == {"a": 2}
    assert place.records["a"].epoch == 2, "it moved once"
    place.now += RETRY_S
    place.converge()
    assert on(place) == {"a": 4}


def test_rates_survive_in_the_journal(tmp_path: Path) -> None:
    rate = Rate(4, 8.0, 0.1, 5.0, 16.0, Rate(2, 10.0, 0.1, 1.0, 16.0))
    with Journal(tmp_path) as journal:
        journal.save(Record("a", rates=(rate,)))
    with Journal(tmp_path) as journal:
        assert journal.records()["a"].rates == (rate,)


def test_rates_are_shown_with_estimates_of_the_others() -> None:
    rate = Rate(2, 10.0, 0.1, 5.0, 16.0)
    record = Record("a", rates=(rate,))
    shown = [
        (each["devices"], each["perSecond"], each["basis"])
        for each in rates_of(job("a", 4, 4, 0), record, ())
    ]
    assert shown == [(1, 5.0, "estimated"), (2, 10.0, "measured"), (4, 20.0, "estimated")]
    assert [each["devices"] for each in rates_of(job("a", 4, 4), record, ())] == [2, 4]
    assert rates_of(job("a", 4, 4, 0), Record("a"), ()) == []
    (one, two, _) = rates_of(job("a", 4, 4, 0), record, (Rate(2, 15.0, 0.1, 5.0, 16.0),))
    assert (one["perSecond"], two["perSecond"], two["estimate"]) == (5.0, 10.0, 15.0)
    slower = {"devices": 4, "than": 2, "until": 3600.0}

    def shape(line: str) -> str:
        """Without times of day."""
        return line.split("measured")[0].split("until")[0].rstrip()

    entry = {"devices": 2, "perSecond": 10.0, "basis": "measured", "at": 5.0, "estimate": 15.0}
    guess = {"devices": 4, "perSecond": 20.0, "basis": "estimated", "at": None, "estimate": 20.0}
    lines = _rate_lines([entry, guess], slower)
    assert lines[0].endswith("; estimated: 15") and "; " not in lines[1]
    assert [shape(line) for line in lines] == [
        "rates:        10 steps per s on 2 devices,",
        "              20 steps per s on 4 devices, estimated",
        "              slower on 4 than on 2 devices: at most 2",
    ]
