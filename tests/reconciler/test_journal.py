"""The journal's file."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from rankfold.reconciler.journal.journal import EVENTS_PER_JOB_MAX, Journal, JournalError
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.model.desired import Device, Job, Origin, Pool
from rankfold.reconciler.model.recorded import Change, Ending, LocalSnapshot, Record
from support.leaks import UNDECLARED, State


def test_a_reader_sees_nothing_or_all_of_it_while_it_is_made(tmp_path: Path) -> None:
    """A user runs `status` when the fleet's first command has just begun."""
    for attempt in range(30):
        state = tmp_path / str(attempt)
        path, looked = database(state), 0
        writer = threading.Thread(target=lambda: Journal(state).close())  # noqa: B023
        writer.start()
        while writer.is_alive() or not looked:
            if path.exists():
                with Journal(state, readonly=True) as journal:
                    assert journal.records() == {}
                looked += 1
        writer.join()
        assert [file.name for file in state.glob("*.new*")] == []


def test_a_file_that_was_removed_or_replaced_while_in_use_is_put_back(tmp_path: Path) -> None:
    path, other = database(tmp_path), tmp_path / "other"
    with Journal(other) as another:
        another.event("Source", "Other", "of another journal")
    with Journal(tmp_path) as journal:
        journal.event("Source", "First", "a")
        assert not journal.rewrite_if_missing()
        version = journal.version
        path.unlink()  # its log stays
        assert journal.rewrite_if_missing() and not journal.rewrite_if_missing()
        assert journal.version != version  # although its counters start over
        journal.event("Source", "Second", "b")
        database(other).rename(path)
        assert journal.rewrite_if_missing()
        journal.event("Source", "Third", "c")
        for each in (journal, Journal(tmp_path, readonly=True)):
            assert [event.reason for event in each.events()] == ["First", "Second", "Third"]
        each.close()
        assert path.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(f"{path}.replaced")) as db:
        assert db.execute("SELECT reason FROM events").fetchall() == [("Other",)]


def test_remains_of_a_killed_reconciler_are_not_used(tmp_path: Path) -> None:
    for name in ("rankfold.new", "rankfold.new-wal", "rankfold.new-shm"):
        (tmp_path / name).write_bytes(b"torn")
    with Journal(tmp_path) as journal:
        assert journal.records() == {}
    assert list(tmp_path.glob("*.new*")) == []


def test_a_file_of_another_version_is_left_as_it_is(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.db.execute("PRAGMA user_version=7")
    for readonly in (False, True):
        with pytest.raises(JournalError, match="has format 7, this rankfold knows 1"):
            Journal(tmp_path, readonly=readonly)


def filled(state: Path) -> None:
    """A journal with a row in each table."""
    job = Job("gpt", ("true",), "/", 4, 2, env=(("SECRET", "hush"),))
    device = Device("local/soft-0", "soft", 1 << 26)
    with Journal(state) as journal:
        journal.put(Pool("local", (device,)), "here", Origin("pool.yaml", 1), "r1")
        journal.put(job, "here", Origin("job.yaml", 1), "r1")
        journal.override("gpt", {"gpus": 1})
        journal.save(Record("gpt", "placed", 3, ("local/soft-0",) * 4, fixed=job))
        journal.begin("gpt", 3, "place", {"placement": ["local/soft-0"]})
        journal.open_change(Change(0, "gpt", 2, 1, "r2", 1.5))
        journal.event("Job/gpt", "Placed", "epoch 3")
        journal.save_conditions("gpt", [{"type": "Ready", "status": "True"}], 1)
        journal.set("source", "here")
        journal.set("attempted", {"revision": "r1", "time": 1.0, "faults": []})


def test_an_idle_turn_reads_nothing_again(tmp_path: Path) -> None:
    """The writer may be this process, another one, or a transaction that is undone."""
    statements: list[str] = []
    with Journal(tmp_path) as journal, Journal(tmp_path) as other:
        journal.put(Job("a", ("true",), "/", 1, 1), None, Origin(), "")
        journal.save(Record("a", "ended"))
        journal.db.set_trace_callback(statements.append)

        def read() -> list[str]:
            """A turn of the loop; gives the step of each record, and notes what was asked."""
            statements.clear()
            journal.objects(), journal.conditions("a")
            assert {"a": journal.record("a")}.items() <= journal.records().items()
            return [record.step for record in journal.records().values()]

        assert read() == ["ended"] and statements
        assert read() == ["ended"]
        assert [each for each in statements if not each.startswith("PRAGMA")] == []
        journal.save(Record("b"))
        assert read() == ["ended", "new"]
        other.save(Record("b", "started"))
        assert read() == ["ended", "started"]
        with contextlib.suppress(KeyError), journal.transaction():
            journal.save(Record("b", "placing"))
            assert read() == ["ended", "placing"]
            raise KeyError
        assert read() == ["ended", "started"]


def test_a_long_lived_job_keeps_its_past_for_a_while(tmp_path: Path) -> None:
    """The data of other jobs stays."""
    journal, many = Journal(tmp_path), 2 * EVENTS_PER_JOB_MAX
    with journal.transaction():
        journal.begin("gpt", 0, "start", {})  # begun, and never done
        journal.begin("other", 0, "start", {})
        journal.end_action("other", 0, "start")
        journal.open_change(Change(0, "other", 2, 1, "", 0.5))
        for epoch in range(1, many + 1):
            journal.begin("gpt", epoch, "place", {})
            journal.end_action("gpt", epoch, "place")
            journal.open_change(Change(0, "gpt", epoch % 2, (epoch + 1) % 2, f"r{epoch}", 1.5))
    last = range(many - EVENTS_PER_JOB_MAX + 1, many + 1)
    assert {row["epoch"] for row in journal.actions("gpt")} == {*last}
    assert [row["epoch"] for row in journal.actions("other")] == [0]
    assert {change.commit for change in journal.changes("gpt")} <= {
        f"r{e}" for e in (last[0] - 1, *last)
    }
    assert len(journal.changes("gpt")) >= EVENTS_PER_JOB_MAX
    assert [change.job for change in journal.changes(only_open=True)] == ["other", "gpt"]
    assert journal.changes(only_open=True)[1].commit == f"r{many}"
    journal.close()


def test_the_record_of_a_journal_that_does_not_know_which_rank_failed_is_read(
    tmp_path: Path,
) -> None:
    ending = Ending("Failed", "RankFailed", "rank 1 exited with status 3", 5.0, rank=1)
    with Journal(tmp_path) as journal:
        journal.save(Record("a", "ended", ending=ending))
        (text,) = journal.db.execute("SELECT record FROM records").fetchone()
        assert '"rank":1,' in text
        journal.db.execute("UPDATE records SET record = ?", (text.replace('"rank":1,', ""),))
        record = journal.record("a")
    assert record and record.ending == replace(ending, rank=None)


def test_a_record_is_read_and_written_with_the_names_of_the_first_journals(tmp_path: Path) -> None:
    stored = {
        "amiss": "rank 0: /tmp/a is missing",
        "asked": "t",
        "asked_tries": 2,
        "dump": {"number": 4, "whole": True},
        "held_since": 7.5,
        "hindered": "rank 1: process 10 uses io_uring",
        "looked": 3,
        "looked_at": 8.5,
        "lost": "back to checkpoint 1-1",
        "rival": "elsewhere:/state/jobs/a",
    }
    expected = Record(
        "a",
        "detached",
        file_problems="rank 0: /tmp/a is missing",
        requested="t",
        request_tries=2,
        local_snapshot=LocalSnapshot(4, whole=True),
        placed_since=7.5,
        save_obstacle="rank 1: process 10 uses io_uring",
        obstacle_checked=3,
        obstacle_checked_at=8.5,
        restart_cost="back to checkpoint 1-1",
        previous_owner="elsewhere:/state/jobs/a",
    )
    with Journal(tmp_path) as journal:
        journal.save(Record("a"))
        old = json.dumps({"name": "a", "step": "detached"} | stored)
        journal.db.execute("UPDATE records SET record = ?", (old,))
    with Journal(tmp_path) as journal:
        assert journal.record("a") == expected
        journal.save(replace(expected, epoch=1))
        (new,) = journal.db.execute("SELECT record FROM records").fetchone()
        assert {name: json.loads(new)[name] for name in stored} == stored


def test_an_undeclared_transition_is_carried_out_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path) as journal:
        for step in ("new", "started", "started", "placing", "new"):
            journal.save(Record("a", step))
        assert caplog.records == []
        journal.save(Record("a", "placed"))
        assert UNDECLARED in caplog.text and "from new to placed" in caplog.text
        assert journal.records()["a"].step == "placed"


def test_written_records_are_read_back(tmp_path: Path) -> None:
    filled(tmp_path)
    with Journal(tmp_path) as journal:
        job = journal.desired().jobs["gpt"]
        assert (job.gpus, job.drifted, job.env) == (1, True, (("SECRET", "hush"),))
        assert journal.desired().pools["local"].devices[0].memory == 1 << 26
        record = journal.record("gpt")
        assert record is not None and record.fixed is not None
        assert (record.epoch, record.placement[0], record.fixed.world_size) == (
            3,
            "local/soft-0",
            4,
        )
        assert journal.changes()[0].wanted_at == 1.5
        assert journal.actions("gpt")[0]["kind"] == "place"
        assert journal.events()[0].message == "epoch 3"
        assert journal.get("source") == "here"


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("records", "record = json_set(record, '$.epoch', 'three')"),
        ("records", "record = json_set(record, '$.epoch', -1)"),
        ("records", "record = json_set(record, '$.step', 'somewhere')"),
        ("records", "record = json_set(record, '$.placement', 5)"),
        ("records", "record = json_set(record, '$.proxies', json('{\"local/soft-0\": \"x\"}'))"),
        ("records", "record = json_set(record, '$.fixed.world_size', 1e9)"),
        ("records", "record = json_set(record, '$.fixed.env', json('[[\"SECRET\", 5]]'))"),
        ("records", "record = json_set(record, '$.name', 'other')"),
        ("records", "record = json_remove(record, '$.name')"),
        ("records", "record = substr(record, 1, 20)"),
        ("records", "record = CAST(record AS BLOB)"),
        ("records", "record = replace(record, '3', 'Infinity')"),
        ("objects", "spec = json_set(spec, '$.gpus', 0) WHERE kind = 'Job'"),
        ("objects", "spec = json_set(spec, '$.workdir', 'relative') WHERE kind = 'Job'"),
        ("objects", "spec = json_set(spec, '$.devices[0].memory', 'much') WHERE kind = 'Pool'"),
        ("objects", "kind = 'Policy' WHERE kind = 'Pool'"),
        ("objects", "line = 'first'"),
        ("objects", "removed = 7"),
        ("objects", "override = '{\"gpus\": \"all\"}' WHERE kind = 'Job'"),
        ("objects", "name = 'other' WHERE kind = 'Job'"),
        ("actions", "begun_at = 'yesterday'"),
        ("actions", "epoch = 1.5"),
        ("changes", "change = json_set(change, '$.from_gpus', 'two')"),
        ("changes", "change = '[]'"),
        ("events", "message = x'00ff'"),
        ("events", "time = 'now'"),
        ("conditions", "conditions = '{}'"),
        ("conditions", "generation = 'first'"),
        ("meta", "value = '5' WHERE key = 'source'"),
        ("meta", "value = '{}' WHERE key = 'attempted'"),
    ],
)
def test_a_row_that_does_not_hold_what_it_should_is_named(
    tmp_path: Path, table: str, change: str
) -> None:
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(database(tmp_path))) as db:
        db.execute("PRAGMA ignore_check_constraints=ON")
        assert db.execute(f"UPDATE {table} SET {change}").rowcount > 0
        db.commit()
    with pytest.raises(JournalError, match=f"table {table}.*, row .*Restore the file") as caught:
        Journal(tmp_path)
    assert "hush" not in str(caught.value)


def test_a_reconciler_says_which_row_it_cannot_use(state: State) -> None:
    filled(state.path)
    with contextlib.closing(sqlite3.connect(database(state.path))) as db:
        db.execute("UPDATE records SET record = '[' || record || ']'")
        db.commit()
    done = subprocess.run(
        [sys.executable, "-m", "rankfold.reconciler.daemon", "--state", str(state.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "table records, row 'gpt'" in done.stderr and "Traceback" not in done.stderr
