"""A job that waits has its place in the queue; a job that was disturbed as often as its tier allows
keeps its devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from rankfold.policy.vocabulary import BUDGET_S
from rankfold.reconciler.findings import record_disturbance
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import Desired
from rankfold.reconciler.model.recorded import Change, Record
from rankfold.reconciler.report.differences import plan_json, plan_lines
from rankfold.reconciler.report.status import change_status
from rankfold.reconciler.report.text import describe_lines, job_rows
from rankfold.reconciler.source.revision import differences

from .test_ranges import fleet, job, on, wish

pytestmark = pytest.mark.unit

QUEUE = {"position": 2, "waiting": 3, "since": 0.0, "firstAt": None}
CONDITION = {"type": "Progressing", "status": "True", "reason": "x", "message": "needs 1"}
SHOWN = {
    "name": "a", "phase": "Pending", "suspendedIn": None, "worldSize": 1, "gpus": 1,
    "gpusMin": None, "devices": 0, "tier": "basic", "quota": None, "locality": "any", "rates": [],
    "slower": None, "priority": 0,
    "minRuntime": 0, "timeLimit": None, "timeLeft": None, "queue": QUEUE,
    "guaranteed": None, "determinism": "D1", "command": ["x"], "settings": {},
    "source": {"file": "", "line": 0, "revision": ""},
    "gpuSeconds": 0.0, "sharing": None, "guard": None, "collectives": None, "overhead": None,
    "conditions": [CONDITION], "ranks": [], "changes": [], "events": [],
}  # fmt: skip


def test_a_job_that_waits_has_its_place() -> None:
    a, b, c = job("a", 1, 1), job("b", 1, 1, created=1.0), job("c", 1, 1, created=2.0, priority=1)
    place = fleet(1, a, b, c)
    place.converge()
    assert dict(place.plan().queue) == {"a": 1, "b": 2} and on(place)["c"] == 1
    wish(place, a, b, replace(c, suspend=True))
    place.converge()
    assert dict(place.plan().queue) == {"b": 1}, "a suspended job does not wait"


def test_the_place_is_shown() -> None:
    assert job_rows({"jobs": [SHOWN]})[0][4] == "2 of 3 in the queue: needs 1"
    lines = describe_lines(SHOWN)
    (line,) = (each for each in lines if each.startswith("queue:"))
    assert "place 2 of 3, since " in line and "goes first" not in line
    lines = describe_lines({**SHOWN, "queue": {**QUEUE, "firstAt": 60.0}})
    assert any("; goes first from " in each for each in lines)
    assert not any(each.startswith("queue:") for each in describe_lines({**SHOWN, "queue": None}))


def test_describe_counts_one_thing_as_one() -> None:
    rank = {"rank": 0, "state": "attached", "exitStatus": None, "device": "a/soft-0", "pid": 7}
    counted = {"kernels": 1, "collectives": 2, "squashed": 0, "copies": 1, "unforeseen": 0}
    (line,) = [
        each
        for each in describe_lines({**SHOWN, "ranks": [{**rank, "counters": counted}]})
        if "attached" in each
    ]
    assert line.endswith("pid 7  1 kernel, 2 collectives, 1 copy")


def test_describe_says_why_a_job_was_moved() -> None:
    moved = Change(1, "a", 2, 1, "c0ffee", 0.0, wanted=0.0, converged_at=1.5, cause="tier")
    lines = describe_lines({**SHOWN, "changes": [change_status(moved)]})
    assert lines[lines.index("changes:") + 1].split()[:5] == ["2", "→", "1", "device", "tier"]
    edited = change_status(replace(moved, cause=""))
    assert "  2 → 1 device  spec  in 1.500 s" in "\n".join(
        describe_lines({**SHOWN, "changes": [edited]})
    )


def test_a_job_whose_budget_is_spent_is_not_moved() -> None:
    b, p = job("b", 1, 1, tier="basic"), job("p", 1, 1, created=1.0, tier="premium")
    place = fleet(1, b)
    place.desired = replace(place.desired, disturbances={"basic": 1})
    place.converge()
    wish(place, b, p)
    place.desired = replace(place.desired, disturbances={"basic": 1})
    place.records["b"] = replace(place.records["b"], disturbed=(place.now - 10.0,))
    place.converge()
    assert on(place) == {"b": 1}
    place.now += BUDGET_S
    place.converge()
    assert on(place) == {"b": 0, "p": 1}


def test_a_plan_names_the_jobs_that_others_disturb() -> None:
    b, p = job("b", 2, 2, tier="basic"), job("p", 1, 1, created=1.0, tier="premium")
    wide = job("wide", 3, 3, 1, tier="basic")
    place = fleet(4, b, wide)
    place.converge()
    assert plan_json([], place.plan(), "r", place.records)["disturbed"] == []
    place.records["wide"] = replace(place.records["wide"], pauses={"resize": 1.5})
    wish(place, b, wide, p)
    data = plan_json([], place.plan(), "r", place.records)
    assert data["disturbed"] == [
        {
            "job": "wide",
            "from": 2,
            "to": 1,
            "cause": "tier",
            "reason": "tier: gives up 1 device for p (premium)",
            "seconds": 1.5,
            "resumes": None,
            "message": "",
        }
    ]
    assert plan_lines(data)[-1] == (
        "! Job/wide: 2 → 1 device (tier: gives up 1 device for p (premium)); it stands still for "
        "1.5 s"
    )
    data["disturbed"][0] |= {"to": 0, "seconds": None}
    assert plan_lines(data)[-1].endswith("(premium)), and waits until devices are idle")


def test_a_disturbance_is_recorded(tmp_path: Path) -> None:
    shrunk = Change(1, "a", 4, 2, "", 0.0, cut_at=5000.0, cause="tier")
    with Journal(tmp_path) as journal:
        journal.save(Record("a", "placed", disturbed=(1000.0, 2000.0)))
        record_disturbance(journal, replace(shrunk, cause="spec"), 5001.0)
        record_disturbance(journal, replace(shrunk, from_gpus=0), 5001.0)
        record_disturbance(journal, shrunk, 5001.0)
        record_disturbance(journal, replace(shrunk, cut_at=None, cause="growth"), 5002.0)
    with Journal(tmp_path) as journal:
        found = journal.record("a")
    assert found is not None and found.disturbed == (2000.0, 5000.0, 5002.0)


def test_the_budgets_are_kept_and_their_changes_are_shown(tmp_path: Path) -> None:
    new = Desired(disturbances={"basic": 4, "premium": 0})
    with Journal(tmp_path) as journal:
        journal.accept(new, {}, "dir", "r1")
    with Journal(tmp_path) as journal:
        assert journal.desired().disturbances == new.disturbances
    (shown,) = differences(Desired(), new, {})
    assert shown.fields == (("spec.disturbances", "none", "basic 4, premium 0"),)
