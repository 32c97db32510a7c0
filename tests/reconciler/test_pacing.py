"""A fleet at rest costs next to nothing: it is planned when its input has changed or time is due,
and the conditions of a thousand jobs are one write."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.reconciler import pacing, plan
from rankfold.reconciler.daemon import Daemon
from rankfold.reconciler.findings import record_conditions
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import Desired, Device, Job, Origin, Pool
from rankfold.reconciler.model.observed import (
    JobOnDevice,
    Observed,
    ObservedDevice,
    ObservedRank,
    RankOnDevice,
    Spent,
)
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.observe.restarts import claimed
from rankfold.reconciler.pacing import SLEEP_MAX_S, TURN_SHARE, LastPlan, sleep_after
from support.leaks import State
from support.simulated import Fleet

MANY = 300
CHANGES = ("wish", "pool", "hang", "lose", "exit", "save", "wait", "wait", "wait")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """`now` of each plan that was made."""
    made: list[float] = []
    real = plan.plan

    def counting(*arguments: object) -> plan.Plan:
        made.append(arguments[3])  # type: ignore[arg-type]
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(plan, "plan", counting)
    monkeypatch.setattr(pacing, "PLAN_SHARE", 1e-9)  # time is never due
    return made


def seen(counted: int, state: str = "running", races: tuple[str, ...] = ()) -> Observed:
    """A device with a rank, and its counters."""
    rank = RankOnDevice(0, "attached", {"kernels": counted}, quiet_s=float(counted))
    job = JobOnDevice("a", 1, state, ranks=(rank,), races=races, shared=counted)
    return Observed({"d": ObservedDevice("d", used=counted, swap=counted, jobs=(job,))})


def test_a_plan_is_made_again_when_something_has_changed_and_only_then(plans: list[float]) -> None:
    job = Job("a", ("true",), "/", 1, 1, save_every_s=0)
    fleet = Desired({"local": Pool("local", (Device("d", "soft", 0),))}, {"a": job})
    placed = Record(
        "a",
        "placed",
        epoch=1,
        placement=("d",),
        proxies={"d": 0},
        fixed=job,
        device={"memory_bytes": 0},
    )
    ranks, last = {("a", 0): ObservedRank("a", 0, "running")}, LastPlan()

    def again(version: int, observed: Observed, now: float, *busy: str) -> bool:
        there = replace(observed, ranks=ranks)
        return last.renew(version, fleet, {"a": placed}, there, now, frozenset(busy))

    assert again(1, seen(1), 1.0)
    assert not again(1, seen(2), 2.0), "counters and time alone"
    assert not again(1, seen(2), 3.0)
    assert again(2, seen(2), 4.0), "the journal"
    assert again(2, seen(2, "cut"), 5.0), "what a device says"
    assert again(2, seen(2, "cut", ("a race",)), 6.0)
    assert again(2, seen(2, "cut", ("a race",)), 7.0, "a"), "what is in flight"
    assert plans == [1.0, 4.0, 5.0, 6.0, 7.0]


def measured(observed: Observed, count: int) -> Observed:
    """The same fleet with other measurements."""

    def of(there: JobOnDevice) -> JobOnDevice:
        counters = {"collectives": count, "kernels": count}
        ranks = (RankOnDevice(r, "attached", counters, quiet_s=float(count)) for r in (0, 1))
        return replace(there, ranks=tuple(ranks), shared=count, spent=Spent(float(count)))

    devices = {
        name: replace(seen, used=count, swap=count, jobs=tuple(map(of, seen.jobs)))
        for name, seen in observed.devices.items()
    }
    return replace(observed, devices=devices)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_kept_plan_is_what_planning_anew_gives(data: st.DataObject) -> None:
    """Jobs, devices, ranks, proxies and measurements change in any order; only time stands still
    as long as the plan is kept. Every action of the kept plan is taken, as the loop does."""
    integer, some = st.integers(0, 3), st.integers(0, 2)
    place, last, planned_at, kept = Fleet(Desired()), LastPlan(), 0.0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pacing, "PLAN_SHARE", 1e-9)
        patch.setattr(pacing, "KEPT_MAX_S", 1e9)
        for _ in range(data.draw(st.integers(5, 25))):
            what = data.draw(st.sampled_from(CHANGES))
            change(place, what, data.draw(some), data.draw(integer))
            observed = measured(place.observed(), data.draw(st.integers(0, 1000)))
            version = place.desired, dict(place.records)
            arguments = place.desired, place.records, observed
            if last.renew(version, *arguments, place.now, frozenset()):
                planned_at = place.now
            else:
                kept += 1
            assert last.plan == plan.plan(*arguments, planned_at)
            for action in last.plan.actions:
                place.act(action)
            place.now += 1.0
            place.proceed()
    event(f"plans kept: {min(kept, 3)}")


def change(place: Fleet, what: str, which: int, number: int) -> None:
    name, device = f"j{which}", f"local/soft-{which}"
    jobs, pools = dict(place.desired.jobs), dict(place.desired.pools)
    if what == "wish":
        jobs[name] = Job(
            name,
            ("true",),
            "/",
            2,
            1 + number % 2,
            created=float(which),
            suspend=number == 3,
            save_every_s=3 * which,
            save_every_steps=100 * number,
        )
    elif what == "pool":
        devices = (Device(f"local/soft-{i}", "soft", 1 << 30) for i in range(number))
        pools["local"] = Pool("local", tuple(devices))
    elif what == "hang":
        place.silent = place.silent ^ {device} if device in place.devices else frozenset()
    elif what == "lose":
        place.lose(device)
    elif what == "exit" and name in place.records and place.works(name):
        for rank in (0, 1):
            place.exit(name, rank, number)
    elif what == "save" and name in place.records and place.records[name].step == "placed":
        place.update(name, requested=f"token-{number}")
    place.desired = replace(place.desired, jobs=jobs, pools=pools)


def test_the_version_of_a_journal_differs_whenever_its_fleet_does(tmp_path: Path) -> None:
    def accept(url: str) -> tuple[object, Desired]:
        journal.accept(Desired(checkpoint_store=url), {}, "source", "revision")
        return journal.version, journal.desired()

    with Journal(tmp_path) as journal:
        first, again, other = accept("file:///a"), accept("file:///a"), accept("file:///b")
    assert first == again
    assert first[0] != other[0], "another checkpoint store is a change"


def test_a_plan_is_renewed_for_time_alone(
    plans: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = LastPlan()
    monkeypatch.setattr(pacing, "KEPT_MAX_S", 0.0)
    for now in (1.0, 2.0):
        assert last.renew(1, Desired(), {}, Observed(), now, frozenset())
    assert plans == [1.0, 2.0]


def test_a_plan_with_actions_is_never_kept(plans: list[float]) -> None:
    """An action holds the time at which it was planned, and may wait for its turn."""
    last = LastPlan()
    for now in (1.0, 2.0):
        assert last.renew(1, Desired(), {}, seen(1), now, frozenset())
        assert last.plan.actions
    assert plans == [1.0, 2.0]


def test_a_plan_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    last = LastPlan()
    assert last.renew(1, Desired(), {}, seen(1), 1.0, frozenset())
    monkeypatch.setattr(plan, "plan", None)
    with pytest.raises(TypeError):
        last.renew(2, Desired(), {}, seen(1), 2.0, frozenset())
    monkeypatch.undo()
    assert last.renew(1, Desired(), {}, seen(1), 3.0, frozenset())


def test_conditions_that_could_not_be_written_are_written_when_they_can_be(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, for one turn: the plan stays the same and must be written nevertheless."""
    monkeypatch.setattr(pacing, "PLAN_SHARE", 1e-9)  # time is never due

    def no_conditions(action: int, table: str | None, *_: object) -> int:
        denied = action == sqlite3.SQLITE_INSERT and table == "conditions"
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    with claimed(state.path) as claim:
        one = Daemon(claim)
        with one.journal as journal, contextlib.closing(one.loop.prober):
            one.server.stop()
            one.server.run()  # closes its sockets
            journal.put(Job("queued", ("true",), "/", 1, 1), None, Origin(), "")
            journal.db.set_authorizer(no_conditions)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                one.loop.reconcile()
            journal.db.set_authorizer(None)
            assert journal.all_conditions() == {}
            one.loop.reconcile()
            assert journal.all_conditions()["queued"]


def test_the_loop_sleeps_longer_when_looking_takes_longer_up_to_a_bound() -> None:
    assert sleep_after(0.0, 0.1) == 0.1
    assert sleep_after(0.4 * TURN_SHARE, 0.1) == pytest.approx(0.4)
    assert sleep_after(60.0, 0.1) == SLEEP_MAX_S


def test_conditions_of_many_jobs_are_one_write_and_none_when_nothing_changed(
    tmp_path: Path,
) -> None:
    with Journal(tmp_path) as journal:
        with journal.transaction():
            for number in range(MANY):
                journal.put(Job(f"j{number}", ("true",), "/", 1, 1), None, Origin(), "")
        planned = plan.plan(journal.desired(), journal.records(), Observed(), 1.0)
        statements: list[str] = []
        journal.db.set_trace_callback(statements.append)
        record_conditions(journal, planned)
        assert len([each for each in statements if each == "COMMIT"]) == 1
        assert len([each for each in statements if "INTO conditions" in each]) == MANY
        journal.all_conditions()
        statements.clear()
        record_conditions(journal, planned)
        assert [each for each in statements if not each.startswith("PRAGMA")] == []
        ended = replace(planned, conditions={**planned.conditions, "j7": ()})
        record_conditions(journal, ended)
        assert len([each for each in statements if "INTO conditions" in each]) == 1
