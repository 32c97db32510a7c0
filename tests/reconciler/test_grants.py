"""Devices on which a job does not start in time go to others, and the job gets them again later."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rankfold.policy.vocabulary import TIERS
from rankfold.reconciler.model.desired import Desired, Device, Pool
from rankfold.reconciler.model.observed import Observed, ObservedDevice, Transfer
from rankfold.reconciler.model.recorded import Record, Save
from rankfold.reconciler.plan.grants import AGAIN_S, START_WITHIN_S, granted_at
from rankfold.reconciler.plan.index import Index
from support.decided import World
from support.decided import job as decided
from support.simulated import Fleet

from .test_ranges import GIB, job, on, reasons, wish

pytestmark = pytest.mark.unit

NONE: frozenset[str] = frozenset()


class Stuck(Fleet):
    """A fleet in which ranks of `starting` never get ready, and `computing` reaches no cut."""

    starting = ""
    computing = ""

    def proceed(self) -> None:
        held = {
            name: device
            for name, device in self.devices.items()
            if any(j.job == self.computing and j.state == "stopping" for j in device.jobs)
        }
        super().proceed()
        self.devices.update(held)
        for (name, rank), each in self.ranks.items():
            if name == self.starting and each.state == "running":
                self.ranks[name, rank] = replace(each, state="starting")

    def wait(self, seconds: float) -> None:
        """Some turns, at the end of that time at the latest."""
        self.now += seconds
        for _ in range(20):
            self.turn()


def fleet(devices: int, *jobs: Any) -> Stuck:
    pool = Pool("local", tuple(Device(f"local/soft-{at}", "soft", GIB) for at in range(devices)))
    return Stuck(Desired({"local": pool}, {each.name: each for each in jobs}, growth_delay_s=0.0))


def test_devices_go_to_others_if_a_job_does_not_start_there() -> None:
    first, second = job("first", 2, 2, tier="premium"), job("second", 2, 2, created=1.0)
    place = fleet(2, first, second)
    place.starting = "first"
    place.wait(0)
    assert on(place) == {"first": 0}, "its launchers work on it"
    place.wait(START_WITHIN_S)
    assert on(place) == {"first": 0, "second": 2}
    assert reasons(place, "first")["GrantWithdrawn"] == (
        "it was given devices and did not start there within 120 s: for 10 min other jobs get them "
        "first; `describe` shows its ranks"
    )
    place.wait(AGAIN_S / 2)
    assert on(place) == {"first": 0, "second": 2}, "it takes nothing from others"
    place.starting = ""
    for rank in range(2):
        place.ranks["first", rank] = replace(place.ranks["first", rank], state="running")
    place.wait(AGAIN_S / 2)
    assert on(place) == {"first": 2, "second": 0}, "it has its place again"
    assert "GrantWithdrawn" not in reasons(place, "first")


def test_a_job_that_starts_late_starts_if_no_other_one_wants_its_devices() -> None:
    place = fleet(2, job("first", 2, 2))
    place.starting = "first"
    place.wait(0)
    place.wait(START_WITHIN_S)
    place.starting = ""
    for rank in range(2):
        place.ranks["first", rank] = replace(place.ranks["first", rank], state="running")
    place.converge()
    assert on(place) == {"first": 2} and "GrantWithdrawn" not in reasons(place, "first")


def test_growth_that_reaches_no_cut_is_withdrawn() -> None:
    """The job continues where it is, and another one grows instead."""
    a, b, c = job("a", 2, 2, 1), job("b", 2, 2, 1, created=1.0), job("c", 1, 1, created=2.0)
    place = fleet(3, a, b, c)
    place.converge()
    assert on(place) == {"a": 1, "b": 1, "c": 1}
    place.computing = "a"
    wish(place, a, b)
    place.wait(0)
    held = [d for d in place.devices.values() if d.job("a")]
    assert [d.job("a").state for d in held] == ["stopping"]  # type: ignore[union-attr]
    place.wait(START_WITHIN_S)
    place.computing = ""
    place.wait(0)
    assert on(place) == {"a": 1, "b": 2}
    assert place.records["a"].epoch == 1, "it has not moved"


def test_a_fetch_that_makes_progress_is_a_start() -> None:
    place = fleet(1)
    index = Index(place.desired, {}, Observed(transfers={"a": Transfer(1, "working", True)}), NONE)
    record = Record("a", step="stored", stored="1-1", granted_at=5.0)
    assert granted_at(index, record, ("local/soft-0",), 6.0) == 0.0
    stuck = Observed(transfers={"a": Transfer(1, "working", True, stuck=True)})
    index = Index(place.desired, {}, stuck, NONE)
    assert granted_at(index, record, ("local/soft-0",), 6.0) is None


def test_saves_and_restores_are_starts() -> None:
    index = Index(fleet(1).desired, {}, Observed(), NONE)
    record = Record("a", step="placed", placement=("local/soft-0",), granted_at=5.0)
    target = ("local/soft-1",)
    assert granted_at(index, record, target, 6.0) is None
    saved = replace(record, save=Save(1, "interval", 1.0, "saving"))
    for each in (saved, replace(record, step="restoring"), replace(record, step="placing")):
        assert granted_at(index, each, target, 6.0) == 0.0


def test_a_job_that_was_suspended_is_not_late() -> None:
    first = job("first", 2, 2)
    place = fleet(2, first)
    place.starting = "first"
    place.wait(0)
    assert place.records["first"].granted_at
    wish(place, replace(first, suspend=True))
    place.wait(0)
    assert not place.records["first"].granted_at


def test_a_job_waits_for_devices_without_being_late() -> None:
    place = fleet(1, job("a", 2, 2))
    place.devices["other"] = ObservedDevice("other")
    place.wait(0)
    place.wait(START_WITHIN_S)
    assert not place.records.get("a") or not place.records["a"].granted_at
    assert "GrantWithdrawn" not in reasons(place, "a")


def test_a_late_job_goes_last_takes_nothing_and_does_not_grow() -> None:
    for tier in TIERS:
        world = World(2)
        late = replace(decided("late", 2, 2, guarantee=1), tier="premium", late=True)
        world.add(late, replace(decided("other", 2, 2, created=1.0), tier=tier))
        world.settle()
        assert world.own == {"late": 0, "other": 2}, tier
        world.jobs["other"] = replace(world.jobs["other"], guarantee=1)
        assert not world.turn(), "it does not shrink another one"
    world = World(2)
    world.add(replace(decided("late", 2, 2, guarantee=1), late=True))
    world.add(decided("other", 1, 1, created=1.0))
    world.settle()
    assert world.own == {"late": 1, "other": 1}
    del world.jobs["other"]
    assert not world.turn(), "it would have to stop in order to grow"
