"""The figures in reports are those of what happened: pauses, convergence, device-seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rankfold.reconciler.journal.journal import EVENTS_MAX, Journal
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.observed import (
    JobOnDevice,
    Observed,
    ObservedDevice,
    ObservedRank,
    RankOnDevice,
)
from rankfold.reconciler.model.recorded import Change, Ending, Record
from rankfold.reconciler.observe import changes

TWO = ("local/soft-0", "local/soft-0", "local/soft-1", "local/soft-1")
ONE = ("local/soft-0",) * 4


def wanted(**fields: Any) -> Change:
    return replace(Change(7, "gpt", 2, 1, "abc", 1000.0, epoch=1), **fields)


def record(placement: tuple[str, ...], epoch: int, step: str = "placed", **fields: Any) -> Record:
    return Record("gpt", step=step, epoch=epoch, placement=placement, **fields)


def observed(**jobs: JobOnDevice) -> Observed:
    """The observation that the devices soft-0, soft-1 … serve the job."""
    devices = {}
    for name, there in jobs.items():
        device = f"local/{name.replace('_', '-')}"
        devices[device] = ObservedDevice(device, jobs=(there,))
    return Observed(devices)


def cut(at: float | None, epoch: int = 1) -> JobOnDevice:
    return JobOnDevice("gpt", epoch, "cut", cut_at=at)


def running(released: float | None, epoch: int = 2) -> JobOnDevice:
    return JobOnDevice("gpt", epoch, "running", released_at=released)


# ---- what is wished --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gpus, suspend, to",
    [(1, False, 1), (4, False, 4), (2, True, 0), (2, False, None)],
)
def test_a_wish_is_a_change_of_devices(gpus: int, suspend: bool, to: int | None) -> None:
    job = Job("gpt", ("true",), "/", 4, gpus, suspend=suspend)
    change = changes.requested(job, record(TWO, 3), "abc", 12.5, 7.5)
    if to is None:
        assert change is None
    else:
        assert change == Change(0, "gpt", 2, to, "abc", 12.5, epoch=3, wanted=7.5)


def test_a_job_that_never_started_or_is_over_has_no_change() -> None:
    job = Job("gpt", ("true",), "/", 4, 1)
    over = record(TWO, 3, ending=Ending("Failed", "RankFailed", "", 9.0))
    for each in (record((), 0, "new"), record(TWO, 3, "ended"), over):
        assert changes.requested(job, each, "abc", 1.0, 1.0) is None


def test_a_decision_of_the_policy_is_a_change_until_another_one_is_followed() -> None:
    def decided(record: Record, gpus: int, last: Change | None = None) -> Change | None:
        return changes.decided(record, gpus, "tier", last, 12.5, 7.5)

    change = decided(record(TWO, 3), 1)
    assert change == Change(0, "gpt", 2, 1, "", 12.5, epoch=3, wanted=7.5, cause="tier")
    assert decided(record(TWO, 3), 1, change) is None, "it is followed already"
    assert decided(record(TWO, 3), 0, change) is not None
    assert decided(record(TWO, 3), 1, wanted(to_gpus=4)) is None, "a person's change comes first"
    assert decided(record(TWO, 3), 2) is None
    assert decided(record((), 0, "started"), 2) is None, "its first start is no change"
    suspended = replace(wanted(to_gpus=0), converged_at=9.0)
    assert decided(record((), 3, "detached"), 2, suspended) is not None
    assert decided(record((), 3, "detached"), 2) is None, "it lost its devices and restarts"
    resized = replace(wanted(to_gpus=1), converged_at=9.0)
    assert decided(record((), 3, "detached"), 2, resized) is None, "it restarts"
    assert decided(record(TWO, 3), 1, resized) is not None, "that one is over"
    assert decided(record(TWO, 3, ending=Ending("Failed", "RankFailed", "", 9.0)), 1) is None


def test_a_decision_that_is_taken_back_is_no_longer_followed() -> None:
    change = wanted(cause="order")
    assert changes.is_withdrawn(change, record(TWO, 1), 2)
    assert changes.is_withdrawn(change, record(TWO, 1), None)
    assert not changes.is_withdrawn(change, record(TWO, 1), 1)
    assert not changes.is_withdrawn(change, record(ONE, 2), 1)
    assert not changes.is_withdrawn(wanted(), record(TWO, 1), 2), "a person's change stays"


def test_a_move_to_as_many_other_devices_is_a_change() -> None:
    change = changes.decided(record(ONE, 3), 1, "defragmentation", None, 12.5, 7.5)
    assert change is not None and (change.from_gpus, change.to_gpus) == (1, 1)
    assert changes.decided(record(ONE, 3), 1, "defragmentation", change, 13.5, 8.5) is None
    assert changes.decided(record(ONE, 3), 1, "fault", None, 12.5, 7.5) is None
    assert not changes.is_withdrawn(change, record(ONE, 3), 1, elsewhere=True)
    assert changes.is_withdrawn(change, record(ONE, 3), 1)
    assert not changes.is_withdrawn(change, record(ONE, 4), 1), "it has moved"


def test_a_job_that_waits_without_devices_has_been_suspended_as_decided() -> None:
    """It is not as its spec requests, so it has not converged."""
    change = replace(wanted(cause="tier"), to_gpus=0, cut_at=50.0)
    done = changes.follow(change, record((), 2, "detached"), Observed({}), False, 51.5)
    assert (done.converged_at, done.pause_s, done.kind) == (51.5, 1.5, "suspend")
    own = replace(change, cause="")
    assert changes.follow(own, record((), 2, "detached"), Observed({}), False, 51.5).freed_at


def test_pauses_of_a_job_are_those_of_its_last_moves() -> None:
    assert [Change(0, "a", *each, "", 0.0).kind for each in ((2, 1), (1, 0), (0, 1))] == [
        "resize",
        "suspend",
        "resume",
    ]
    assert Record("a").pause_s == 0.0
    assert Record("a", pauses={"suspend": 1.0, "resume": 2.0, "resize": 2.5}).pause_s == 3.0
    assert Record("a", pauses={"resize": 2.5}).pause_s == 2.5


# ---- how it goes -----------------------------------------------------------------------------


def test_a_pause_lasts_from_the_first_device_s_cut_to_the_last_one_s_release() -> None:
    at_cut = observed(soft_0=cut(50.25), soft_1=cut(50.0))
    change = changes.follow(wanted(), record(TWO, 1), at_cut, False, 0.0)
    assert change.cut_at == 50.0 and change.pause_s is None
    grown = replace(change, to_gpus=2)
    there = observed(soft_0=running(51.5), soft_1=running(51.75))
    done = changes.follow(grown, record(TWO, 2), there, True, 1003.5)
    assert done.pause_s == 1.75 and done.converge_s == 3.5


@pytest.mark.parametrize(
    "seen",
    [
        observed(soft_0=cut(50.0)),
        observed(soft_0=cut(50.0), soft_1=running(49.0, epoch=1)),
        observed(soft_0=cut(50.0), soft_1=cut(None)),
        observed(soft_0=cut(50.0, epoch=3), soft_1=cut(50.0, epoch=3)),
    ],
    ids=["not seen", "runs", "no time", "other epoch"],
)
def test_a_cut_is_a_cut_of_all_devices(seen: Observed) -> None:
    assert changes.follow(wanted(), record(TWO, 1), seen, False, 0.0).cut_at is None


def test_a_job_continues_when_all_of_its_new_devices_have_released_it() -> None:
    change = wanted(to_gpus=2, cut_at=50.0)
    for seen in (
        observed(soft_0=running(51.0)),
        observed(soft_0=running(51.0), soft_1=running(None)),
        observed(soft_0=running(51.0), soft_1=running(40.0, epoch=1)),
    ):
        now = changes.follow(change, record(TWO, 2), seen, True, 1003.0)
        assert now.released_at is None and now.converged_at is None


def test_the_old_placement_s_release_does_not_end_a_change() -> None:
    before = observed(soft_0=running(10.0, epoch=1), soft_1=running(10.0, epoch=1))
    now = changes.follow(wanted(to_gpus=2), record(TWO, 1), before, True, 1001.0)
    assert now.released_at is None and now.converged_at is None


def test_a_change_has_not_converged_on_another_number_of_devices() -> None:
    there = observed(soft_0=running(51.0), soft_1=running(51.0))
    now = changes.follow(wanted(cut_at=50.0), record(TWO, 2), there, True, 1003.0)
    assert now.converged_at is None


def test_an_observed_but_different_object_has_not_converged() -> None:
    there = observed(soft_0=running(51.0))
    now = changes.follow(wanted(cut_at=50.0), record(ONE, 2), there, False, 1003.0)
    assert now.released_at == 51.0 and now.converged_at is None


def test_a_suspended_job_s_pause_ends_when_its_devices_are_seen_free() -> None:
    change, resting = wanted(to_gpus=0, cut_at=50.0), record((), 1, "detached")
    held = observed(soft_0=cut(50.0))
    assert changes.follow(change, resting, held, True, 1001.0).freed_at is None
    saved = observed(soft_0=JobOnDevice("gpt", 1, "saved"))
    done = changes.follow(change, resting, saved, True, 1002.0)
    assert (done.freed_at, done.pause_s, done.converge_s) == (1002.0, 952.0, 2.0)


def test_a_resumed_job_s_pause_begins_with_its_placement() -> None:
    change = wanted(from_gpus=0, cut_at=1.0, placed_at=60.0, released_at=60.5)
    assert change.pause_s == 0.5


def test_no_figure_is_negative() -> None:
    """A wall clock may be set back."""
    assert wanted(converged_at=999.0).converge_s == 0.0
    assert wanted(cut_at=50.0, released_at=49.0).pause_s == 0.0


# ---- device-seconds --------------------------------------------------------------------------


def test_device_seconds_count_devices_and_not_ranks() -> None:
    held: dict[str, Any] = {"gpu_seconds": 5.0, "placed_since": 100.0}
    assert record(TWO, 1, **held).used_so_far(now=110.0) == 5.0 + 2 * 10.0
    assert record(ONE, 1, **held).used_so_far(now=110.0) == 5.0 + 10.0
    assert record((), 1, gpu_seconds=5.0).used_so_far(now=110.0) == 5.0
    assert record(TWO, 1, **held).used_so_far(now=90.0) == 5.0


# ---- events ----------------------------------------------------------------------------------


def test_events_are_bounded_and_repetitions_noted_once(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, journal.transaction():
        for number in range(EVENTS_MAX + 50):
            journal.event("Job/a", "Turn", f"number {number}")
        kept = journal.events()
        assert len(kept) == EVENTS_MAX
        assert (kept[0].message, kept[-1].message) == ("number 50", f"number {EVENTS_MAX + 49}")
        for _ in range(3):
            journal.event("Job/b", "Waits", "for devices")
        journal.event("Job/b", "Runs", "")
        journal.event("Job/b", "Waits", "for devices")
        assert [event.reason for event in journal.events("b")] == ["Waits", "Runs", "Waits"]
        after = journal.events("b")[0].id
        assert [event.reason for event in journal.events("b", after)] == ["Runs", "Waits"]


def test_a_change_of_a_job_that_never_touches_a_device_ends() -> None:
    """No program has requested a device, so no device will ever report a release."""
    there = observed(soft_0=replace(running(None), ranks=(RankOnDevice(0, "waiting"),)))
    grown = replace(wanted(), to_gpus=1)
    for channel in (True, False):
        seen = replace(
            there, ranks={("gpt", 0): ObservedRank("gpt", 0, "running", channel=channel)}
        )
        done = changes.follow(grown, record(ONE, 2), seen, True, 60.0)
        assert (done.converge_s is None) == channel
    assert done.released_at == 60.0 and done.pause_s is None
