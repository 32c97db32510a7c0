"""A job that another state directory has taken over is neither woken nor run on, and who takes one
over waits for the copy that runs. Journal and other directory are real, launchers are `Ranks`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rankfold import control, owners
from rankfold.checkpoint import store as stores
from rankfold.reconciler import actions
from rankfold.reconciler.act.executor import Temporary
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout, try_lock
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import NODE, LocalSnapshot, Record, Restore
from rankfold.reconciler.node import launchers
from rankfold.reconciler.node.launchers import Node
from support import leaks

from .test_recovery_actions import DEVICES, JOB, Scene, stored


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path / "state", monkeypatch)
    yield made
    made.journal.close()


def test_a_local_snapshot_is_not_restored_where_its_job_continues_elsewhere(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real store is queried. While it is unreachable, the local snapshot is used."""
    store = stores.open(scene.ranks.layout.checkpoints, scene.ranks.fleet())
    store.begin_incarnation("a", 1, owner="here")
    stored(scene)
    scene.fetched(2)
    scene.update(known=1, stored=NODE, local_snapshot=LocalSnapshot(2, whole=True))
    monkeypatch.setattr(Node, "check", lambda *_: None)
    store.begin_incarnation("a", 2, owner="there:/state/jobs/a")
    wake = actions.Restore("a", 2, (0, 1), (0, 1))
    with pytest.raises(control.ControlError, match="incarnation 2, begun by there:/state/jobs/a"):
        scene.do(scene.restores.restore(wake))
    record = scene.record
    assert (record.step, record.incarnation, record.restore) == ("stored", 1, None)
    assert not scene.ranks.told
    Path(scene.ranks.layout.checkpoints.removeprefix("file://")).rename(
        scene.ranks.layout.state / "away"
    )
    scene.do(scene.restores.restore(wake))
    assert scene.record.step == "detached" and scene.record.known == 1
    assert "StoreNotAsked" in scene.events()


def test_jobs_that_run_end_when_the_store_reports_that_they_continue_elsewhere(
    scene: Scene,
) -> None:
    """The real store is queried once about all jobs. A job that came back does not end."""
    others = [f"a{number}" for number in range(40)]
    for other in others:
        scene.journal.save(replace(scene.record, name=other, save=None, known=1))
    ask = actions.QueryStore(("a", *others))
    scene.update(save=None, known=1)
    store = stores.open(scene.ranks.layout.checkpoints, scene.ranks.fleet())
    scene.do(scene.executor.steps(ask, Observed()))
    assert scene.record.ending is None
    for job in ("a", "a7"):
        store.begin_incarnation(job, 1, owner="here")
        store.begin_incarnation(job, 2, owner="there:/state/jobs/a")
    steps = scene.executor.steps(ask, Observed())
    (call,) = next(steps)
    told = scene.called([call])
    scene.update(known=3)
    with pytest.raises(StopIteration):
        steps.send(told)
    assert scene.record.ending is None
    scene.update(known=1)
    scene.do(scene.executor.steps(ask, Observed()))
    ends = {each.name: each.ending for each in scene.journal.records().values() if each.ending}
    assert ends.keys() == {"a", "a7"}
    for ending in ends.values():
        assert (ending.phase, ending.reason) == ("Failed", "TakenOver")
        assert "incarnation 2, begun by there:/state/jobs/a" in ending.message


def test_a_store_that_cannot_be_asked_ends_nothing_and_that_is_said(scene: Scene) -> None:
    scene.update(save=None, known=1)
    with pytest.raises(Temporary, match="has no checkpoints"):
        scene.do(scene.executor.steps(actions.QueryStore(("a",)), Observed()))
    assert scene.record.ending is None


def test_one_job_without_an_answer_of_the_store_does_not_delay_the_others(scene: Scene) -> None:
    store = stores.open(scene.ranks.layout.checkpoints, scene.ranks.fleet())
    for job in ("a", "b"):
        store.begin_incarnation(job, 1, owner="here")
        store.begin_incarnation(job, 2, owner="there:/state/jobs/a")
    folder = Path(scene.ranks.layout.checkpoints.removeprefix("file://"))
    for life in folder.glob("jobs/b/incarnations/*"):
        life.write_bytes(b"?")
    answers = scene.ranks.ownership(scene.ranks.layout.checkpoints, {"a": 1, "b": 1})
    assert answers["a"][0] and not answers["b"][0] and answers["b"][1]


def when_it_queries(
    do: Callable[[int], None], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[str]]:
    """Calls `do` with the pid of the process that queries the store, as soon as it has begun.
    Returns that pid, and what the fleet then knows of the jobs; none are taken over."""
    found: list[int] = []

    class Process(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__(command, **options)
            assert "rankfold.checkpoint.ownership" in command
            do(self.pid)
            found.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Process)
    known = {f"a{number}": 1 for number in range(20)}
    answers = Node(scene.ranks.layout).ownership(scene.ranks.layout.checkpoints, known)
    assert answers.keys() == known.keys() and not any(taken for taken, _ in answers.values())
    return found[0], [why for _, why in answers.values()]


def test_a_stopped_query_of_the_store_is_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running jobs are asked about again and again, and no alarm ends who is stopped; even when it
    has not read what it is asked."""
    monkeypatch.setattr(launchers, "KILLED_S", 1.0)
    monkeypatch.setattr(launchers, "OWNERSHIP_ANSWERS_S", 1.0)
    monkeypatch.setattr(launchers, "OWNERSHIP_EACH_S", 0.0)
    pid, whys = when_it_queries(lambda pid: os.kill(pid, signal.SIGSTOP), scene, monkeypatch)
    assert all("timed out: no answer within 1 s" in why for why in whys)
    assert leaks.has_ended(pid, 10)


def test_a_killed_query_of_the_store_has_not_answered(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whys = when_it_queries(lambda pid: os.kill(pid, signal.SIGKILL), scene, monkeypatch)
    assert all("the process that queried it exited (-9)" in why for why in whys)


def by_the_host_name(job: Path) -> str:
    """As stores have it from before there were marks."""
    return f"{socket.gethostname()}:{job}"


@pytest.mark.parametrize("named", [owners.owner_of, by_the_host_name])
def test_nothing_is_restored_while_a_copy_runs_on_this_machine(
    named: Callable[[Path], str], scene: Scene, tmp_path: Path
) -> None:
    other = Layout(tmp_path / "other")
    other.logs("a").mkdir(parents=True)
    with Journal(other.state) as journal:
        journal.save(Record("a", "placed", 1, DEVICES, fixed=JOB))
        lock = try_lock(other.launcher_lock("a", 1))
        assert lock is not None
        stored(scene)
        scene.fetched(2)
        owner = named(other.job("a"))
        scene.update(restore=Restore(2, "1-1"), incarnation=2, previous_owner=owner)
        again = actions.Restore("a", 2, (0, 1), (0, 1))
        with pytest.raises(control.ControlError, match=f"still runs under {other.state}"):
            scene.do(scene.restores.restore(again))
        assert scene.record.step == "stored" and not scene.ranks.told
        journal.save(Record("a", "detached", 1, DEVICES, fixed=JOB))  # it moves
        with pytest.raises(control.ControlError, match="still runs"):
            scene.do(scene.restores.restore(again))
        journal.save(Record("a", "placed", 1, DEVICES, fixed=JOB))
        os.close(lock)  # it has ended
        scene.do(scene.restores.restore(again))
    assert scene.record.step == "detached" and not scene.record.previous_owner


def test_a_job_that_rests_in_memory_elsewhere_is_not_waited_for(
    scene: Scene, tmp_path: Path
) -> None:
    other = Layout(tmp_path / "other")
    other.logs("a").mkdir(parents=True)
    lock = try_lock(other.launcher_lock("a", 0))
    assert lock is not None
    with Journal(other.state) as journal:
        journal.save(Record("a", "detached", 1, fixed=JOB))
    stored(scene)
    scene.fetched(2)
    owner = owners.owner_of(other.job("a"))
    scene.update(restore=Restore(2, "1-1"), incarnation=2, previous_owner=owner)
    scene.do(scene.restores.restore(actions.Restore("a", 2, (0, 1), (0, 1))))
    assert scene.record.step == "detached"
    os.close(lock)
