"""How saves and restores are carried out: whatever fails, no rank is left standing, and the journal
says what is so. Launchers and transfers are played by `Ranks`."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from rankfold import control
from rankfold.checkpoint import store as stores
from rankfold.reconciler import actions, clock
from rankfold.reconciler.act import saves
from rankfold.reconciler.act.executor import Executor, Temporary
from rankfold.reconciler.act.inflight import Call, Steps
from rankfold.reconciler.act.restores import Restores
from rankfold.reconciler.act.saves import Saves
from rankfold.reconciler.act.takeover import Takeover
from rankfold.reconciler.act.transfers import Transfers
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import Job, Origin
from rankfold.reconciler.model.observed import JobOnDevice, Observed, ObservedDevice, RankOnDevice
from rankfold.reconciler.model.recorded import (
    NODE,
    Answer,
    Checkpoint,
    Ending,
    LocalSnapshot,
    Record,
    Restore,
    Save,
)
from rankfold.reconciler.model.states import declared
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.launchers import CannotLaunch, Node
from rankfold.reconciler.plan import saving

JOB = Job("a", ("true",), "/", 2, 2)
DEVICES = ("p/soft-0", "p/soft-1")
STATUS: Json = {"device": DEVICES[0], "type": "soft", "memory": 1, "used": 0, "jobs": []}
AT_A_CUT = actions.Save("a", 1, DEVICES, (0, 1), 1)


class Ranks(Node):
    """Launchers that do as messages.py says. `fails`: (operation, rank) that is refused."""

    def __init__(self, layout: Layout):
        super().__init__(layout)
        self.state = {0: "running", 1: "running"}
        self.fails: set[tuple[str, int]] = set()
        self.told: list[tuple[str, int]] = []
        self.incarnations: set[int] = set()  # of the incarnations that were recorded
        self.tasks: list[tuple[str, Json]] = []
        self.no_transfer = ""
        self.hindrances: list[str] = []

    def request(self, job: str, rank: int, op: str, timeout: float, **more: Any) -> Json:
        self.told.append((op, rank))
        self.incarnations.add(more.get("incarnation", 1))
        if (op, rank) in self.fails:
            raise control.ControlError("undumpable", f"rank {rank}: a process has an io_uring")
        if op == "examine":
            return {"hindrances": self.hindrances}
        if op == "signal":
            return {}
        if op == "snapshot":
            folder = Path(more["folder"])
            assert self.state[rank] == "frozen" and folder.parent.is_dir()
            folder.mkdir()
            (folder / "about.json").write_text('{"logs": {"out": 7, "err": 0}}')
            return {"bytes": 10}
        after = {
            "freeze": "frozen",
            "thaw": "running",
            "vacate": "empty",
            "restore": "frozen",
            "end": "gone",
        }
        if op == "restore":
            assert self.state[rank] == "empty"
        self.state[rank] = after[op]
        return {}

    def launch(self, configs: Sequence[Json]) -> None:
        for config in configs:
            if ("launch", config["rank"]) not in self.fails:
                assert self.state[config["rank"]] == "gone"
                self.state[config["rank"]] = "empty" if config.get("empty") else "running"
        if any(("launch", config["rank"]) in self.fails for config in configs):
            raise CannotLaunch("no more processes")

    def lives(self, job: str, rank: int) -> bool:
        return self.state[rank] != "gone"

    def transfer(self, kind: str, job: str, number: int, task: Json) -> None:
        if self.no_transfer:
            raise CannotLaunch(self.no_transfer)
        self.tasks.append((kind, task))


class Scene:
    """A placed job, its journal, and devices that note what they are requested."""

    def __init__(self, state: Path, monkeypatch: pytest.MonkeyPatch):
        layout = Layout(state)
        self.journal, self.ranks = Journal(state), Ranks(layout)
        self.journal.put(JOB, None, Origin("run", 0), "")
        save = Save(1, "request", 5.0, token="t")
        self.journal.save(Record("a", "placed", 1, DEVICES, fixed=JOB, save=save, saves=1))
        logs = layout.logs("a")
        logs.mkdir(parents=True)
        for rank in range(2):
            (logs / f"rank-{rank}.out").write_text("before\nafter\n")
            (logs / f"rank-{rank}.err").write_text("")
        self.devices: list[str] = []
        self.device_fails = ""
        self.status: Json = {}
        self.executor = Executor(layout, self.journal)
        self.saves = Saves(layout, self.journal, self.ranks)
        self.transfers = Transfers(self.saves)
        takeover = Takeover(layout, self.journal, self.ranks)
        self.restores = Restores(takeover, lambda _, rank: {"rank": rank})
        executor = self.executor
        executor.node, executor.saves, executor.transfers = self.ranks, self.saves, self.transfers
        executor.restores, executor.takeover = self.restores, takeover
        monkeypatch.setattr(control, "call", self.device)

    def device(self, _path: Path, op: str, **more: Any) -> Json:
        self.devices.append(more.get("action", op))
        if op == self.device_fails:
            raise control.ControlError("failed", "the image is full")
        return self.status if op == "status" else {}

    @property
    def record(self) -> Record:
        found = self.journal.record("a")
        assert found is not None
        return found

    def update(self, **fields: Any) -> None:
        self.journal.save(replace(self.record, **fields))

    def fetched(self, number: int) -> None:
        """A checkpoint has been brought here."""
        for rank in range(2):
            folder = self.ranks.snapshot("a", number, rank)
            (folder / "logs").mkdir(parents=True, exist_ok=True)
            (folder / "about.json").write_text('{"logs": {"out": 7, "err": 0}}')
            (folder / "logs/out").write_text("before\n")

    def events(self) -> list[str]:
        return [each.reason for each in self.journal.events()]

    def do(self, steps: Steps) -> None:
        """Carry out an action, its calls in another thread as inflight.py does: the journal is
        ours."""
        results: list[Any] | None = None
        while True:
            before = self.journal.records()
            try:
                calls = steps.send(results) if results is not None else next(steps)
            except StopIteration:
                return
            finally:
                self.check(before)
            results = self.called(calls)

    def check(self, before: dict[str, Record]) -> None:
        """Whether jobs have only taken transitions of the table since."""
        for name, record in self.journal.records().items():
            source = before[name].step if name in before else "new"
            assert declared(source, record.step), f"{source} → {record.step} is not declared"

    def called(self, calls: Sequence[Call]) -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            done = [pool.submit(call) for call in calls]
            results = [each.exception() or each.result() for each in done]
        for each in results:
            assert not isinstance(each, sqlite3.ProgrammingError), each
        return results


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path / "state", monkeypatch)
    yield made
    made.journal.close()


def test_all_are_frozen_before_the_first_snapshot_and_let_go_after_the_last(scene: Scene) -> None:
    scene.do(scene.saves.save(AT_A_CUT, Observed()))
    ops = [op for op, _ in scene.ranks.told]
    assert ops == ["freeze"] * 2 + ["snapshot"] * 2 + ["thaw"] * 2
    assert scene.devices == ["save"] * 2 + ["withdraw"] * 2
    save = scene.record.save
    assert save is not None and save.stage == "uploading"
    assert abs(scene.record.saved_at - save.at) < 1


FAILURES: dict[str, Callable[[Scene], object]] = {
    "a proxy cannot save": lambda s: setattr(s, "device_fails", "save"),
    "a rank cannot be frozen": lambda s: s.ranks.fails.add(("freeze", 1)),
    "a rank cannot be saved": lambda s: s.ranks.fails.add(("snapshot", 0)),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_save_that_fails_lets_everybody_go_and_says_why(failure: str, scene: Scene) -> None:
    FAILURES[failure](scene)
    scene.do(scene.saves.save(AT_A_CUT, Observed()))
    assert scene.ranks.state == {0: "running", 1: "running"}
    assert scene.devices[-2:] == ["withdraw"] * 2
    record = scene.record
    assert record.save is None and record.save_error
    if scene.device_fails:  # that may pass
        assert (record.requested, record.request_tries, record.answer) == ("t", 1, None)
    else:
        assert record.answer is not None and not record.requested
        assert record.answer.token == "t" and record.answer.error == record.save_error
    assert scene.events() == ["SaveFailed"]
    assert not scene.ranks.layout.save("a", 1).exists(), "what was written is gone"


def test_repeated_failures_are_reported_with_their_number(scene: Scene) -> None:
    scene.device_fails = "save"
    for tries in range(saving.REQUEST_TRIES):
        assert scene.record.request_tries == tries
        scene.update(save=Save(1 + tries, "request", 5.0, token="t"), requested="")
        scene.do(scene.saves.save(replace(AT_A_CUT, number=1 + tries), Observed()))
    answer = scene.record.answer
    assert answer is not None and answer.error == "the image is full; tried 3 times"
    assert (scene.record.requested, scene.record.request_tries) == ("", 0)


def test_a_save_stands_from_the_cut_and_not_from_its_beginning(scene: Scene) -> None:
    cut = JobOnDevice("a", 1, "cut", cut_at=clock.now() - 50)
    seen = {name: ObservedDevice(name, jobs=(cut,)) for name in DEVICES}
    scene.do(scene.saves.save(AT_A_CUT, Observed(seen)))
    (told,) = [each.message for each in scene.journal.events() if each.reason == "Snapshot"]
    assert float(told.split("paused for ")[1].split()[0]) >= 50


def test_a_fault_of_ours_leaves_no_rank_frozen(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise KeyError("fault")

    monkeypatch.setattr(saves, "agreed", fault)
    with pytest.raises(KeyError):
        scene.do(scene.saves.save(AT_A_CUT, Observed()))
    assert scene.devices[-2:] == ["withdraw"] * 2
    assert [op for op, _ in scene.ranks.told[-2:]] == ["thaw", "thaw"]


def test_a_journal_that_cannot_be_written_does_not_hold_the_job(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_record: Record) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(scene.journal, "save", full)
    with pytest.raises(sqlite3.Error):
        scene.do(scene.saves.save(AT_A_CUT, Observed()))
    assert scene.devices == ["withdraw"] * 2


def test_a_job_that_rests_stays_frozen_until_it_is_stored(scene: Scene) -> None:
    scene.update(step="detached", placement=(), save=None)
    scene.journal.override("a", {"suspend": True, "store": True})
    scene.do(scene.saves.save(actions.Save("a", 1, (), (0, 1), 2), Observed()))
    assert scene.ranks.state == {0: "frozen", 1: "frozen"} and scene.devices == []
    save = scene.record.save
    assert save is not None and (save.number, save.why, save.stage) == (2, "rest", "uploading")
    found = Checkpoint("1-1", save.at, 10)
    scene.do(scene.saves.conclude(actions.Conclude("a", 2, found, keep=3, rest=True)))
    assert (scene.record.step, scene.record.stored) == ("vacating", "1-1")
    scene.do(scene.restores.vacate(actions.Vacate("a", (0, 1))))
    assert set(scene.ranks.state.values()) == {"gone"}
    scene.restores.rest(actions.Rest("a", "1-1"))
    assert (scene.record.step, scene.record.stored) == ("stored", "1-1")


def test_an_uploader_gets_all_it_has_to_know(scene: Scene) -> None:
    scene.update(save=Save(1, "interval", 5.0, "uploading", at=6.0))
    scene.do(scene.transfers.upload(actions.Upload("a", 1, 3)))
    ((kind, task),) = scene.ranks.tasks
    assert kind == "upload" and task["url"].endswith("/state/checkpoints")
    assert (task["job"], task["incarnation"], task["ranks"], task["keep"], task["id"]) == (
        "a",
        1,
        [0, 1],
        3,
        None,
    )
    assert len(task["fleet"]) == 32 and task["fleet"] == scene.ranks.fleet(), "made once"
    scene.ranks.no_transfer = "the store is another fleet's"
    scene.do(scene.transfers.upload(actions.Upload("a", 1, 3)))
    save = scene.record.save
    assert save is not None and (save.tries, save.error) == (2, "the store is another fleet's")


def test_remains_of_others_are_removed_before_an_upload(scene: Scene) -> None:
    """Snapshots take gigabytes, and a reconciler may be killed before it removes them."""
    for number in range(1, 7):
        scene.fetched(number)
    save = Save(3, "request", 5.0, "uploading")
    # Another action makes number 6 now.
    scene.update(save=save, local_snapshot=LocalSnapshot(2, whole=True), saves=5)
    scene.do(scene.transfers.upload(actions.Upload("a", 3, 3)))
    folder = scene.ranks.layout.save("a", 3).parent
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3", "6"]
    assert [kind for kind, _ in scene.ranks.tasks] == ["upload"]


def test_a_damaged_local_snapshot_is_not_uploaded_and_stays(scene: Scene) -> None:
    scene.update(
        step="stored",
        stored=NODE,
        local_snapshot=LocalSnapshot(1, whole=True),
        save=None,
        requested="u",
    )
    folder = scene.ranks.snapshot("a", 1, 0)
    folder.mkdir(parents=True)
    (folder / "pages").write_text("as it was")
    scene.ranks.sync_snapshots("a", 1)
    (folder / "pages").write_text("as it is now")
    scene.do(scene.transfers.upload(actions.Upload("a", 1, 3)))
    record = scene.record
    assert (
        not scene.ranks.tasks
        and record.save is None
        and record.local_snapshot == LocalSnapshot(1, whole=True)
    )
    assert record.answer is not None and "pages has" in record.answer.error
    (folder / "pages").write_text("as it was")
    scene.update(requested="v")
    scene.do(scene.transfers.upload(actions.Upload("a", 1, 3)))
    assert [kind for kind, _ in scene.ranks.tasks] == ["upload"] and not scene.record.requested
    new = Checkpoint("1-1", 3.0, 1)
    scene.do(scene.saves.conclude(actions.Conclude("a", 1, new, keep=2)))
    assert scene.record.answer == Answer("v", id="1-1") and folder.exists()


def test_the_last_checkpoints_are_known_and_a_request_is_answered(scene: Scene) -> None:
    old = tuple(Checkpoint(f"1-{n}", float(n), 1) for n in range(3))
    scene.update(checkpoints=old, save_error="before")
    new = Checkpoint("1-3", 3.0, 1)
    scene.do(scene.saves.conclude(actions.Conclude("a", 1, new, keep=2)))
    record = scene.record
    assert record.checkpoints == (old[2], new) and record.save is None and not record.save_error
    assert record.answer is not None and record.answer.id == "1-3" and record.step == "placed"
    scene.do(scene.saves.conclude(actions.Conclude("a", 1, new, keep=2)))
    assert scene.record == record, "done twice is done once"


def test_output_before_the_cut_is_saved_and_restored(scene: Scene) -> None:
    scene.do(scene.saves.save(AT_A_CUT, Observed()))
    assert (scene.ranks.snapshot("a", 1, 1) / "logs/out").read_text() == "before\n"
    log = scene.ranks.layout.logs("a") / "rank-1.out"
    scene.ranks.bring_logs("a", 1, 1)
    assert log.read_text() == "before\nafter\n", "it is here, and cut back by the launcher"
    log.unlink()
    scene.ranks.bring_logs("a", 1, 1)
    assert log.read_text() == "before\n"


def stored(scene: Scene) -> None:
    scene.ranks.state = {0: "gone", 1: "gone"}
    scene.update(step="stored", placement=(), save=None, stored="1-1")


def test_a_restore_is_another_incarnation_and_leaves_its_ranks_frozen(scene: Scene) -> None:
    stored(scene)
    scene.fetched(2)
    scene.do(scene.transfers.fetch(actions.Fetch("a", 2, "1-1")))
    scene.fetched(2)
    scene.do(scene.transfers.fetch(actions.Fetch("a", 2, "1-1")))
    assert [(kind, t["incarnation"], t["id"]) for kind, t in scene.ranks.tasks] == [
        ("fetch", 2, "1-1")
    ] * 2
    scene.do(scene.restores.restore(actions.Restore("a", 2, (0, 1), (0, 1))))
    record = scene.record
    assert scene.ranks.state == {0: "frozen", 1: "frozen"}
    assert (record.step, record.incarnation, record.restore) == ("detached", 2, None)


def test_launchers_get_the_incarnation_of_a_request(scene: Scene) -> None:
    """Each operation, so that one of another incarnation can refuse it."""
    scene.update(incarnation=4)
    scene.do(scene.saves.save(AT_A_CUT, Observed()))
    scene.do(scene.restores.vacate(actions.Vacate("a", (0, 1))))
    assert {op for op, _ in scene.ranks.told} == {"freeze", "snapshot", "thaw", "vacate", "end"}
    assert scene.ranks.incarnations == {4}
    scene.ranks.incarnations.clear()
    scene.update(step="stored", placement=(), save=None, stored="1-1", restore=Restore(2, "1-1"))
    scene.fetched(2)
    scene.do(scene.restores.restore(actions.Restore("a", 2, (0, 1), (0, 1))))
    assert scene.ranks.told[-1] == ("restore", 1) and scene.ranks.incarnations == {4}


@pytest.mark.parametrize("failure", [("launch", 1), ("restore", 0)])
def test_a_restore_that_fails_is_ended_and_may_be_tried_again(
    failure: tuple[str, int], scene: Scene
) -> None:
    stored(scene)
    scene.update(restore=Restore(2, "1-1"))
    scene.fetched(2)
    scene.ranks.fails.add(failure)
    scene.do(scene.restores.restore(actions.Restore("a", 2, (0, 1), (0, 1))))
    restore = scene.record.restore
    assert restore is not None and restore.failed and restore.error and restore.tries == 1
    scene.do(scene.restores.vacate(actions.Vacate("a", (0, 1))))
    scene.restores.rest(actions.Rest("a", "1-1"))
    restore = scene.record.restore
    assert scene.record.step == "stored" and restore is not None and not restore.failed
    assert restore.error and scene.events() == ["RestoreFailed"]


def test_nothing_begins_anew_before_the_old_launchers_are_seen_gone(scene: Scene) -> None:
    scene.update(save=None, ending=Ending("Restarting", "RankFailed", "rank 0 failed", 9.0))
    scene.ranks.state = {0: "gone", 1: "running"}
    with pytest.raises(control.ControlError, match="the launcher of rank 1 has not exited"):
        scene.restores.rest(actions.Rest("a", "", restart=True))
    assert scene.record.restarts == 0
    scene.ranks.state[1] = "gone"
    scene.restores.rest(actions.Rest("a", "", restart=True))
    record = scene.record
    assert (record.step, record.restarts, record.incarnation) == ("new", 1, 2)
    assert (
        record.restart_cost
        == "rank 0 failed: restarted from the beginning, since there is no checkpoint yet"
    )


@pytest.mark.parametrize("looks", [3, 1000])
def test_launchers_that_end_right_now_are_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Launchers that do not end are named."""
    monkeypatch.setattr("rankfold.reconciler.act.restores.LAUNCHERS_END_S", 0.2)
    scene.update(save=None, ending=Ending("Restarting", "RankFailed", "rank 0 failed", 9.0))
    looked = itertools.count()
    monkeypatch.setattr(scene.ranks, "lives", lambda job, rank: next(looked) < looks)
    steps = scene.executor.steps(actions.Rest("a", "", restart=True), Observed())
    if looks == 3:
        scene.do(steps)
        assert scene.record.step == "new"
    else:
        with pytest.raises(Temporary, match="the launcher of rank 0 has not exited"):
            scene.do(steps)
        assert scene.record.step == "placed"


def test_a_job_that_is_over_is_brought_back_from_nothing(scene: Scene) -> None:
    stored(scene)
    ending = Ending("Failed", "NoCheckpoint", "it cannot be restored", 9.0)
    scene.update(restore=Restore(2, "1-1"), ending=ending)
    scene.do(scene.executor.finish(actions.Finish("a", "Failed")))
    assert (scene.record.step, scene.record.restore) == ("ended", None)


def test_processes_that_were_killed_with_a_job_are_an_event(scene: Scene) -> None:
    for rank, killed in enumerate([[], ["daemon (pid 17)"]]):
        path = scene.ranks.layout.rank_file("a", rank, ".exit")
        path.write_text(json.dumps({"exit_status": 0, "killed": killed}))
    scene.update(save=None, ending=Ending("Succeeded", "Completed", "2 ranks exited with 0", 9.0))
    scene.do(scene.executor.finish(actions.Finish("a", "Succeeded")))
    warnings = [each for each in scene.journal.events() if each.type == "Warning"]
    assert [(each.reason, each.message) for each in warnings] == [
        ("ProcessesKilled", "still running at that time, and killed: daemon (pid 17) of rank 1")
    ]


def test_a_requested_save_is_answered_with_a_restart(scene: Scene) -> None:
    scene.ranks.state = {0: "gone", 1: "gone"}
    scene.update(
        save=Save(1, "request", 5.0, token="t"),
        ending=Ending("Restarting", "RankFailed", "rank 0 failed", 9.0),
    )
    scene.restores.rest(actions.Rest("a", "", restart=True))
    assert scene.record.answer == Answer("t", error="rank 0 failed")


def test_a_restart_says_what_is_done_again(scene: Scene) -> None:
    scene.ranks.state = {0: "gone", 1: "gone"}
    scene.update(
        save=None,
        checkpoints=(Checkpoint("1-1", 5.0, 1),),
        ending=Ending("Restarting", "RankFailed", "rank 0 failed", 9.0),
    )
    exits = scene.ranks.layout.rank_file("a", 0, ".exit")
    exits.parent.mkdir(parents=True, exist_ok=True)
    exits.write_text('{"exit_status": 1}')
    scene.restores.rest(actions.Rest("a", "1-1", restart=True))
    record = scene.record
    assert (record.step, record.stored, record.ending) == ("stored", "1-1", None)
    assert "back to checkpoint 1-1" in record.restart_cost and "4.0 s" in record.restart_cost
    assert not exits.exists()


def test_a_checkpoint_that_cannot_be_used_is_named_with_the_reason(scene: Scene) -> None:
    stored(scene)
    scene.update(checkpoints=(Checkpoint("1-1", 5.0, 1), Checkpoint("1-2", 6.0, 1)))
    again = actions.Rest("a", "1-1", unusable="1-2", error="a unit is damaged")
    scene.restores.rest(again)
    record = scene.record
    assert record.stored == "1-1" and record.unusable == ("1-2",)
    assert record.restart_cost.startswith("checkpoint 1-2 cannot be restored (a unit is damaged)")
    assert scene.events() == ["CheckpointUnusable"]


def test_a_restored_rank_is_let_go_and_one_that_is_gone_is_no_error(scene: Scene) -> None:
    scene.ranks.state = {0: "frozen", 1: "frozen"}
    scene.do(scene.saves.thaw(actions.Thaw("a", (0, 1))))
    assert scene.ranks.state == {0: "running", 1: "running"}


# ---- what cannot be saved ----------------------------------------------------------------------


def test_launchers_reports_are_recorded_and_unresponsive_ones_ignored(
    scene: Scene,
) -> None:
    scene.ranks.hindrances = ["process 10 uses io_uring", "process 11 is traced"]
    scene.ranks.fails = {("examine", 0)}
    for _ in range(2):  # killed in between, it is asked again
        scene.do(scene.saves.look(actions.Look("a", (0, 1))))
        record = scene.record
        assert record.obstacle_checked == record.incarnation and record.obstacle_checked_at
        assert record.save_obstacle == "rank 1: process 10 uses io_uring; process 11 is traced"
    told = [each.message for each in scene.journal.events() if each.reason == "CannotBeSaved"]
    assert told == [record.save_obstacle], "once"
    scene.ranks.fails = {("examine", 0), ("examine", 1)}
    scene.do(scene.saves.look(actions.Look("a", (0, 1))))
    assert scene.record.save_obstacle == ""


def test_a_job_that_is_forgotten_while_it_is_looked_at_stays_forgotten(scene: Scene) -> None:
    steps = scene.saves.look(actions.Look("a", (0, 1)))
    results = scene.called(next(steps))
    scene.journal.forget("Job", "a")
    with pytest.raises(StopIteration):
        steps.send(results)
    assert scene.journal.record("a") is None


# ---- the end of a job --------------------------------------------------------------------------


def test_last_work_of_ranks_counts_though_it_is_seen_after_their_end(scene: Scene) -> None:
    """A device answers, a rank does its last collective and exits, its launcher says so."""
    counted = [RankOnDevice(rank, "attached", {"collectives": 8}) for rank in range(2)]
    there = [JobOnDevice("a", 1, "running", ranks=(each,)) for each in counted]
    seen = {
        device: ObservedDevice(device, jobs=(job,))
        for device, job in zip(DEVICES, there, strict=True)
    }
    over = Ending("Succeeded", "Completed", "all ranks exited with 0", 9.0)
    scene.do(scene.executor.steps(actions.End("a", over), Observed(seen)))
    assert scene.record.counters == {"0": {"collectives": 8}, "1": {"collectives": 8}}

    for rank, device, epoch in ((0, DEVICES[0], 1), (1, DEVICES[1], 2)):
        ranks = [{"rank": rank, "state": "attached", "collectives": 9}]
        job = {"job": "a", "epoch": epoch, "state": "running", "ranks": ranks}
        other = job | {"job": "b", "ranks": [ranks[0] | {"collectives": 70}]}
        scene.status = STATUS | {"device": device, "jobs": [job, other]}
        scene.do(scene.executor.steps(actions.Discard("a", epoch, device), Observed(seen)))
    told = {rank: each["collectives"] for rank, each in scene.record.counters.items()}
    assert told == {"0": 9, "1": 8}, "what a device says of another epoch does not count"
    assert scene.devices == ["status", "detach"] * 2


def test_discarding_a_job_unknown_to_the_journal_records_nothing(scene: Scene) -> None:
    scene.do(scene.executor.steps(actions.Discard("unknown", 1, DEVICES[0]), Observed()))
    assert scene.journal.record("unknown") is None and scene.devices == ["detach"]


# ---- results of actions concurrent with the loop -----------------------------------------------

STORED: Json = {"step": "stored", "placement": (), "save": None}
RESTS: Json = {"step": "detached", "placement": (), "save": None, "known": 1}
ON_DISK: Json = {
    "step": "stored",
    "placement": (),
    "save": None,
    "stored": NODE,
    "known": 1,
    "local_snapshot": LocalSnapshot(2, whole=True),
}
STARTS: Json = {"step": "new", "placement": (), "save": None, "fixed": None}
OVER: Json = {"ending": Ending("Failed", "RankFailed", "rank 0 failed", 9.0, 0)}
UPLOADING: Json = {"save": Save(1, "rest", 5.0, "uploading", at=6.0)}
DEVICE: Json = {"cc_major": 8, "cc_minor": 0}
CALLING: list[tuple[Json, actions.Action]] = [
    (STARTS, actions.Start(JOB, DEVICE, "soft", (0, 1))),
    (RESTS, actions.Place("a", 2, DEVICES)),
    (ON_DISK | {"step": "detached"}, actions.Place("a", 2, DEVICES)),
    ({}, actions.Barrier("a", 1, DEVICES, save="interval")),
    ({}, actions.Detach("a", 1, DEVICES)),
    ({}, actions.Discard("a", 1, DEVICES[0])),
    (OVER, actions.Discard("a", 1, DEVICES[0])),
    ({}, actions.Signal("a", (0, 1), 15)),
    (OVER, actions.Finish("a", "Failed")),
    ({}, actions.StopProxy(DEVICES[0], "it is in no pool")),
    ({}, AT_A_CUT),
    (ON_DISK, AT_A_CUT),
    (RESTS, actions.Save("a", 1, (), (0, 1), 2, node=True)),
    (UPLOADING, actions.Upload("a", 1, 3, stuck=True)),
    (ON_DISK, actions.Upload("a", 2, 3)),
    (UPLOADING, actions.Conclude("a", 1, error="the store is full")),
    (RESTS | UPLOADING, actions.Conclude("a", 1, Checkpoint("1-1", 6.0, 10), rest=True)),
    (ON_DISK | {"save": Save(2, "rest", 5.0, "uploading")}, actions.Conclude("a", 2, error="no")),
    ({}, actions.Thaw("a", (0, 1))),
    ({}, actions.Look("a", (0, 1))),
    ({"known": 1}, actions.QueryStore(("a",))),
    ({}, actions.Vacate("a", (0, 1))),
    (ON_DISK, actions.Fetch("a", 3, "1-1")),
    (ON_DISK | {"restore": Restore(3, "1-1")}, actions.Fetch("a", 3, "1-1", stuck=True)),
    (
        ON_DISK | {"previous_owner": "elsewhere:/state/jobs/a"},
        actions.Restore("a", 2, (0, 1), (0, 1)),
    ),
    (STORED | {"restore": Restore(2, "1-1")}, actions.Restore("a", 2, (0, 1), (0, 1))),
]


@pytest.mark.parametrize(
    ("waits_for", "said"),
    [("", "{url}: no progress"), ("the launchers that still copy", "waits for the launchers that")],
)
def test_the_process_that_hangs_is_named(waits_for: str, said: str, scene: Scene) -> None:
    """The store, or a launcher that copies device memory."""
    scene.update(**UPLOADING)
    folder = scene.ranks.layout.save("a", 1)
    folder.mkdir(parents=True)
    told = {"state": "working", "bytes": 5, "waits_for": waits_for}
    (folder / "state.json").write_text(json.dumps(told))
    scene.do(scene.transfers.upload(actions.Upload("a", 1, 3, stuck=True)))
    save = scene.record.save
    assert save is not None and scene.events() == ["UploadFailed"]
    assert save.error.startswith(said.format(url=scene.ranks.layout.checkpoints)), save.error


WITHOUT_CALLS = {
    actions.StartProxy,
    actions.Release,
    actions.End,
    actions.Forget,
    actions.Rest,
}


@pytest.mark.parametrize(("fields", "action"), CALLING)
def test_no_call_of_an_action_needs_the_journal(
    fields: Json, action: actions.Action, scene: Scene
) -> None:
    """The callee runs in a thread that may not read it: `Scene.do` makes sure of that."""
    scene.update(device=DEVICE, **fields)
    if isinstance(action, actions.Start | actions.Restore):
        scene.ranks.state = {0: "gone", 1: "gone"}
    if isinstance(action, actions.Restore) or "local_snapshot" in fields:
        scene.fetched(2)
        scene.ranks.sync_snapshots("a", 2)
    if isinstance(action, actions.QueryStore):
        stores.open(scene.ranks.layout.checkpoints, scene.ranks.fleet())
    scene.status = STATUS
    seen = {name: ObservedDevice(name, pid=7) for name in DEVICES}
    scene.do(scene.executor.steps(action, Observed(seen)))


def test_that_is_shown_of_every_action() -> None:
    calling = {type(action) for _, action in CALLING}
    assert calling | WITHOUT_CALLS == set(get_args(actions.Action))
    assert not calling & WITHOUT_CALLS
