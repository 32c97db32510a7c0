"""The reconciler records to which jobs their tier's fraction is guaranteed, and what they have had
of it: one that is restarted decides the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from rankfold.policy.vocabulary import Guaranteed
from rankfold.reconciler.findings import record_guarantees
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import Desired, Origin, TierRule
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.plan import Plan
from support.simulated import Fleet

from .test_ranges import fleet, job, on, reasons, wish

pytestmark = pytest.mark.unit

RULE = TierRule(0.7, 3600.0)


def guarding(place: Fleet) -> Fleet:
    place.desired = replace(place.desired, tiers={"standard": RULE})
    return place


def admitted(place: Fleet) -> set[str]:
    return {name for name, record in place.records.items() if record.guaranteed is not None}


def restarted(place: Fleet, folder: Path) -> None:
    """The records, as a journal returns them."""
    with Journal(folder) as journal:
        for record in place.records.values():
            journal.save(record)
    with Journal(folder) as journal:
        place.records = dict(journal.records())


def test_a_job_is_admitted_and_another_one_says_that_it_is_not() -> None:
    a, b = job("a", 2, 2), job("b", 1, 1, created=1.0)
    place = guarding(fleet(2, a, b))
    place.converge()
    assert admitted(place) == {"a"} and on(place) == {"a": 2}
    message = reasons(place, "b")["NoCapacity"]
    assert message.startswith("the fraction of standard is not guaranteed to it")
    assert "NoCapacity" not in reasons(place, "a")
    wish(place, replace(a, suspend=True), b)
    place.converge()
    assert admitted(place) == {"b"} and "NoCapacity" not in reasons(place, "b")
    place.desired = replace(place.desired, tiers={})
    place.converge()
    assert admitted(place) == set()


def test_a_rule_that_changes_is_guaranteed_anew() -> None:
    place = guarding(fleet(2, job("a", 2, 2)))
    place.converge()
    place.desired = replace(place.desired, tiers={"standard": TierRule(0.5, 3600.0)})
    place.converge()
    found = place.records["a"].guaranteed
    assert found is not None and (found.fraction, found.begun) == (0.5, found.admitted)


def turns_of(folder: Path | None) -> list[dict[str, int]]:
    """Five jobs take turns on four devices for two hours. folder: there is a new reconciler every
    half minute."""
    jobs = [job(f"j{at}", 1, 1, created=float(at)) for at in range(5)]
    place = guarding(fleet(4, *jobs))
    history = []
    while place.now < 1e9 + 7300:
        place.converge()
        if folder is not None:
            restarted(place, folder)
        place.now += 30.0
        history.append(on(place))
    assert admitted(place) == {each.name for each in jobs}
    for record in place.records.values():
        found = record.guaranteed_so_far(place.now)
        assert found is not None and found.periods == 2 and found.violated == 0
    return history


def test_a_restarted_reconciler_decides_the_same(tmp_path: Path) -> None:
    history = turns_of(None)
    assert len({tuple(sorted(each.items())) for each in history[20:]}) > 3, "they take turns"
    assert turns_of(tmp_path) == history


def test_time_without_devices_counts_and_time_after_the_end_does_not() -> None:
    found = Guaranteed(0.7, 3600.0, 1, 0.0, 0.0, 0.0)
    placed = Record(
        "a", "placed", placement=("x",), placed_since=100.0, guaranteed=found,
        fixed=job("a", 1, 1),
    )  # fmt: skip
    so_far = placed.guaranteed_so_far(150.0)
    assert so_far is not None and (so_far.progress, so_far.until) == (50.0, 150.0)
    rests = replace(placed, step="detached", **placed.counted(150.0), placed_since=None)
    so_far = rests.guaranteed_so_far(200.0)
    assert so_far is not None and (so_far.progress, so_far.until) == (50.0, 200.0)
    ended = replace(rests, step="ended")
    assert ended.guaranteed_so_far(9999.0) == rests.guaranteed


def test_admissions_are_events_and_the_tiers_are_kept(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        before = journal.version
        policy = Desired(tiers={"standard": RULE}, preemption_delay_s=7.0)
        journal.accept(policy, {}, "dir", "r1")
        assert journal.version != before
        journal.put(job("a", 1, 1), None, Origin(), "r1")
        found = Guaranteed(0.7, 3600.0, 2, 5.0, 5.0, 5.0)
        record_guarantees(journal, Plan(guaranteed={"a": found}))
        record_guarantees(journal, Plan(guaranteed={"a": None}))
    with Journal(tmp_path) as journal:
        assert journal.desired().tiers == {"standard": RULE}
        assert journal.desired().preemption_delay_s == 7.0
        events = [(each.reason, each.message) for each in journal.events("Job/a")]
    assert ("Guaranteed", "0.7 of its progress on 2 devices") in events
    assert any(reason == "NotGuaranteed" for reason, _ in events)
