"""`rankfold usage` shows what each job used, by the tier and the cause of its placements."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from msgspec.structs import replace

from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import QuotaRule
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.report.usage import csv_of, rows_of, usage_of

from .test_ranges import fleet, job, wish

pytestmark = pytest.mark.unit

PLACED = Record(
    "a", "placed", placement=("x", "y", "y"), placed_since=100.0, placed_for="premium/spec"
)


def test_device_seconds_continue_after_a_restart_of_the_reconciler(tmp_path: Path) -> None:
    """The job grows at 110, and the reconciler ends at 115, 120 and 125."""
    with Journal(tmp_path) as journal:
        journal.save(PLACED)
    with Journal(tmp_path) as journal:
        before = journal.record("a")
        assert before is not None
        counted = replace(before, **before.counted(110.0))
        grown = {"placed_since": 110.0, "placement": ("x", "y", "z"), "placed_for": "basic/growth"}
        journal.save(replace(counted, **grown))
    for _ in range(3):
        with Journal(tmp_path) as journal:
            found = usage_of(journal.records(), 120.0)
    assert found["jobs"] == [
        {"job": "a", "quota": "", "tier": "basic", "cause": "growth", "deviceSeconds": 30.0},
        {"job": "a", "quota": "", "tier": "premium", "cause": "spec", "deviceSeconds": 20.0},
    ]
    assert found["tiers"] == {"basic": 30.0, "premium": 20.0}
    assert found["causes"] == {"growth": 30.0, "spec": 20.0}
    assert found["deviceSeconds"] == 50.0
    rests = replace(PLACED, **PLACED.counted(110.0), placed_since=None)
    assert rests.usage_so_far(999.0) == {"premium/spec": 20.0}


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    used = replace(PLACED, gpu_seconds=5.0, usage={"basic/spec": 5.0})
    found = used.counted(90.0)
    assert (found["gpu_seconds"], found["usage"]) == (5.0, {"basic/spec": 5.0})


def test_a_journal_of_an_earlier_version_has_only_the_sum() -> None:
    (row,) = usage_of({"a": Record("a", "ended", gpu_seconds=7.0)}, 1.0)["jobs"]
    assert row == {
        "job": "a",
        "quota": "",
        "tier": "standard",
        "cause": "spec",
        "deviceSeconds": 7.0,
    }


def test_a_placement_has_the_tier_and_the_cause_of_its_decision() -> None:
    a = job("a", 4, 4, 1, tier="basic")
    place = fleet(4, a)
    place.converge()
    assert place.records["a"].placed_for == "basic/spec"
    p = job("p", 2, 2, created=1.0, tier="premium")
    wish(place, a, p)
    place.converge()
    assert place.records["a"].placed_for == "basic/tier"
    assert place.records["p"].placed_for == "premium/spec"
    wish(place, a, replace(p, suspend=True))
    place.converge()
    assert place.records["a"].placed_for == "basic/growth"


def test_the_text_and_the_csv_have_what_the_json_has() -> None:
    found = usage_of({"a": PLACED}, 110.0)
    assert rows_of(found) == [
        ("a", "", "premium", "spec", "20.0"),
        ("", "", "premium", "", "20.0"),
        ("", "", "", "", "20.0"),
    ]
    (row,) = csv.DictReader(io.StringIO(csv_of(found)))
    assert row == {
        "job": "a",
        "quota": "",
        "tier": "premium",
        "cause": "spec",
        "deviceSeconds": "20.0",
    }
    nothing = {"jobs": [], "quotas": {}, "tiers": {}, "causes": {}, "deviceSeconds": 0}
    assert usage_of({}, 0.0) == nothing


def test_a_placement_counts_for_the_quota_that_its_job_had() -> None:
    a = job("a", 2, 2, quota="research")
    place = fleet(4, a)
    place.desired = replace(place.desired, quotas={"research": QuotaRule(2)})
    place.converge()
    assert place.records["a"].placed_for == "standard/spec/research"
    found = usage_of(place.records, place.now + 10.0)
    (row,) = found["jobs"]
    assert (row["quota"], row["tier"], row["cause"]) == ("research", "standard", "spec")
    assert found["quotas"] == {"research": row["deviceSeconds"]} and row["deviceSeconds"] >= 20.0
    assert rows_of(found)[1][:2] == ("", "research")
