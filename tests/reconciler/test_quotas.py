"""A quota gets back what it has lent; what its jobs have used is recorded; a job that waits says
why."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from rankfold.policy.quotas import HALF_LIFE_S
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import Desired, QuotaRule
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.source.revision import differences
from support.simulated import Fleet

from .test_ranges import fleet, job, on, reasons, wish

pytestmark = pytest.mark.unit

HALVES = {"a": QuotaRule(2), "b": QuotaRule(2)}


def sharing(place: Fleet, rules: dict[str, QuotaRule]) -> Fleet:
    place.desired = replace(place.desired, quotas=rules)
    return place


def test_a_quota_gets_back_what_it_lent() -> None:
    first, more = job("first", 2, 2, quota="a"), job("more", 2, 2, created=1.0, quota="a")
    place = sharing(fleet(4, first, more), HALVES)
    place.converge()
    wish(place, first, replace(more, gpus=1))
    assert place.plan().causes == {"more": "spec"}
    wish(place, first, more)
    place.converge()
    assert on(place) == {"first": 2, "more": 2}
    wish(place, first, more, job("other", 1, 1, created=2.0, quota="b"))
    place.converge()
    assert on(place) == {"first": 2, "more": 0, "other": 1}
    assert reasons(place, "more")["BeyondQuota"] == (
        "needs 2 devices of any kind; free for it now: 1; jobs before it need the 2 devices of its "
        "quota a: it waits for devices that are idle"
    )
    assert place.records["more"].placed_for == "standard/spec/a"


def test_the_quota_that_used_less_borrows() -> None:
    a, b = job("a", 1, 1, quota="a"), job("b", 1, 1, created=1.0, quota="b")
    place = fleet(1, a, b)
    place.records["a"] = Record("a", recent=9e5, recent_at=place.now)
    sharing(place, {"a": QuotaRule(0), "b": QuotaRule(0), "owner": QuotaRule(1)})
    place.converge()
    assert on(place) == {"a": 0, "b": 1}


def test_uses_of_a_quota_are_kept(tmp_path: Path) -> None:
    placed = Record("a", "placed", placement=("x", "y", "y"), placed_since=100.0)
    now = 100.0 + HALF_LIFE_S
    used = placed.recent_so_far(now)
    assert used == pytest.approx(HALF_LIFE_S / math.log(2))
    with Journal(tmp_path) as journal:
        journal.save(replace(placed, **placed.counted(now), placed_since=None, placement=()))
    with Journal(tmp_path) as journal:
        kept = journal.record("a")
    assert kept is not None and kept.recent_so_far(now) == pytest.approx(used)
    assert kept.recent_so_far(now + HALF_LIFE_S) == pytest.approx(used / 2)
    assert kept.recent_so_far(now - 10.0) == pytest.approx(used), "the clock was set back"
    assert Record("new").recent_so_far(now) == 0.0


def test_the_quotas_are_kept_and_their_changes_are_shown(tmp_path: Path) -> None:
    rules = {"a": QuotaRule(2, 2.0, borrow=1, lend=0), "b": QuotaRule(1)}
    new = Desired(quotas=rules, max_wait_s=60.0)
    with Journal(tmp_path) as journal:
        journal.accept(new, {}, "dir", "r1")
    with Journal(tmp_path) as journal:
        assert journal.desired().quotas == rules and journal.desired().max_wait_s == 60.0
    shown = [each.fields for each in differences(Desired(), new, {})]
    assert shown == [
        (("spec.maxWait", "0s", "60s"),),
        (("spec.quotas", "none", "a 2 weight 2 borrow 1 lend 0, b 1"),),
    ]
