"""Promise: the journal's decoded copy equals its file, whichever process wrote it and whatever
failed; a reader decodes only what has changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.reconciler.journal.cache import Table
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.model.desired import Desired, Job, Origin
from rankfold.reconciler.model.recorded import Record

NAMES = ("a", "b", "c")


def job(name: str, gpus: int = 1) -> Job:
    return Job(name, ("true",), "/", 4, gpus)


def loaded(jobs: dict[str, int]) -> tuple[Desired, dict[tuple[str, str], Origin]]:
    """A revision with these jobs and their numbers of devices."""
    return (
        Desired({}, {name: job(name, gpus) for name, gpus in jobs.items()}),
        {("Job", name): Origin(f"{name}.yaml", 1) for name in jobs},
    )


# ---- what it says ------------------------------------------------------------------------------


def everything_in(journal: Journal) -> dict[str, Any]:
    """Everything that the journal keeps, through each way of asking."""
    records = journal.records()
    assert records == {n: r for n in NAMES if (r := journal.record(n))}
    objects = journal.objects()
    assert objects == sorted(objects, key=lambda each: (each.created, each.name))
    by_key = {(each.kind, each.name): each for each in objects}
    assert by_key == {("Job", n): o for n in NAMES if (o := journal.object("Job", n))}
    conditions = {name: journal.conditions(name) for name in NAMES}
    assert {n: c for n, c in conditions.items() if c != ([], 0)} == journal.all_conditions()
    return {
        "objects": by_key,
        "records": records,
        "conditions": conditions,
        "desired": journal.desired(),
        "meta": {name: journal.get(name) for name in NAMES},
        "incarnations": journal.get("incarnations"),
    }


def fresh(journal: Journal) -> Journal:
    """On the same connection, so that it sees what is not committed; nothing has been read."""
    twin = object.__new__(Journal)
    twin.state, twin.db = journal.state, journal.db
    twin._clear_caches()
    return twin


class Connection:
    """A connection on which one statement fails, as on a full disk. SQLite undoes the statement, or
    the whole transaction (`all_undone`)."""

    def __init__(self, db: sqlite3.Connection):
        self.db, self.left, self.all_undone = db, -1, False

    def fail_after(self, statements: int, all_undone: bool) -> None:
        self.left, self.all_undone = statements, all_undone

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        if not statement.startswith(("SELECT", "PRAGMA", "ROLLBACK")):
            self.left -= 1
            if self.left == -1:
                if self.all_undone and self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise sqlite3.OperationalError("database or disk is full")
        return self.db.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)


class Undo(Exception):
    """Ends a transaction that is to be undone."""


NAME, SMALL = st.sampled_from(NAMES), st.integers(1, 3)
WRITE = st.one_of(
    st.tuples(st.just("put"), NAME, SMALL),
    st.tuples(st.just("save"), NAME, SMALL),
    st.tuples(st.just("override"), NAME, SMALL),
    st.tuples(st.just("forget"), NAME),
    st.tuples(st.just("conditions"), NAME, SMALL),
    st.tuples(st.just("set"), NAME, SMALL),
    st.tuples(st.just("accept"), st.dictionaries(NAME, SMALL)),
    st.tuples(st.just("around"), NAME),
    st.tuples(st.just("look")),
)
# A transaction: what is in it, whether it is undone.
STEP = st.recursive(
    WRITE, lambda step: st.tuples(st.just("all"), st.lists(step, max_size=4), st.booleans())
)
FAULT = st.none() | st.tuples(st.integers(0, 8), st.booleans())


def do(journal: Journal, step: Any) -> None:
    """One step of a life, with a look after each of its parts."""
    kind, *rest = step
    match kind:
        case "all":
            with contextlib.suppress(Undo), journal.transaction():
                for each in rest[0]:
                    do(journal, each)
                if rest[1]:
                    raise Undo
        case "put":
            journal.put(job(rest[0], rest[1]), None, Origin("f", rest[1]), "r")
        case "save":
            journal.save(Record(rest[0], "ended", epoch=rest[1], incarnation=rest[1]))
        case "override":
            if journal.object("Job", rest[0]):
                journal.override(rest[0], {"gpus": rest[1]})
        case "forget":
            journal.forget("Job", rest[0])
        case "conditions":
            journal.save_conditions(rest[0], [{"type": "Ready"}] * rest[1], rest[1])
        case "set":
            journal.set(rest[0], rest[1])
        case "accept":
            journal.accept(*loaded(rest[0]), "here", "r")
        case "around":  # not through the store, as tests and people do
            journal.db.execute("DELETE FROM records WHERE job = ?", rest)
    assert everything_in(journal) == everything_in(fresh(journal))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a journal in which nothing is written."""
    state = tmp_path_factory.mktemp("empty")
    Journal(state).close()
    return database(state)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.booleans(), STEP, FAULT), max_size=12))
def test_cached_records_equal_freshly_decoded_ones(
    empty: Path, life: list[tuple[bool, Any, Any]]
) -> None:
    """Two processes write by turns; statements fail; transactions are nested, and undone."""
    state = Path(tempfile.mkdtemp(dir=empty.parent))
    shutil.copy(empty, database(state))
    with Journal(state) as one, Journal(state) as two:
        for each in (one, two):
            each.db.execute("PRAGMA synchronous=OFF")
        lines = Connection(one.db), Connection(two.db)
        one.db, two.db = lines  # type: ignore[assignment]
        for first, step, fault in life:
            writer, line = (one, lines[0]) if first else (two, lines[1])
            line.fail_after(*(fault or (-1, False)))
            with contextlib.suppress(sqlite3.OperationalError):
                do(writer, step)
            line.fail_after(-1, False)
            now = everything_in(one)
            assert now == everything_in(two) == everything_in(fresh(one))
    with Journal(state) as later:
        assert everything_in(later) == now if life else True


# ---- killed in the middle ----------------------------------------------------------------------


def killed_at(state: Path, statement: int) -> bool:
    """A process accepts a revision and is killed before this statement; False: it had fewer."""
    pid = os.fork()
    if pid == 0:
        journal, left = Journal(state), statement

        class Mortal(Connection):
            def execute(self, text: str, values: Any = ()) -> sqlite3.Cursor:
                nonlocal left
                left -= 1
                if left < 0:
                    os._exit(9)
                return self.db.execute(text, values)

        journal.db = Mortal(journal.db)  # type: ignore[assignment]
        journal.accept(*loaded({"b": 2, "c": 1}), "here", "r2")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_killed_at_any_statement_it_has_all_of_a_revision_or_nothing(tmp_path: Path) -> None:
    statement, new = 0, False
    while not new:
        state = tmp_path / str(statement)
        with Journal(state) as journal:
            journal.accept(*loaded({"a": 1, "b": 1}), "here", "r1")
            journal.save(Record("a", "placed", fixed=job("a")))
            assert everything_in(journal) == everything_in(fresh(journal))
        killed = killed_at(state, statement)
        with Journal(state) as journal:
            found = {each.name: each.spec for each in journal.objects()}
            orphaned = [each.name for each in journal.objects() if each.removed]
            revision = journal.get("revision")
            assert everything_in(journal) == everything_in(fresh(journal))
        new = revision == "r2"
        if new:
            assert orphaned == ["a"] and found["b"] == job("b", 2) and found["c"] == job("c", 1)
        else:
            assert killed and (found, orphaned) == ({"a": job("a"), "b": job("b")}, [])
        statement += 1
    assert statement > 7


# ---- how much it reads -------------------------------------------------------------------------


@contextlib.contextmanager
def counted(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Statements that write, statements that read, and columns of JSON that were decoded."""
    counts = {"writes": 0, "reads": 0, "decoded": 0}

    def note(statement: str) -> None:
        if not statement.startswith("PRAGMA data_version"):
            counts["reads" if statement.startswith("SELECT") else "writes"] += 1

    decode = Journal._decode

    def decoding(self: Journal, *arguments: Any) -> Any:
        counts["decoded"] += 1
        return decode(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_decode", decoding)
        journal.db.set_trace_callback(note)
        yield counts
        journal.db.set_trace_callback(None)


@pytest.mark.parametrize("many", [10, 1000])
def test_a_changed_file_costs_what_has_changed_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    jobs = {f"j{number}": 1 for number in range(many)}
    with Journal(tmp_path) as journal:
        with counted(journal, monkeypatch) as first:
            journal.accept(*loaded(jobs), "here", "r1")
            journal.desired(), journal.records()
        assert first["writes"] < many + 10 and first["decoded"] < 2 * many + 10
        with counted(journal, monkeypatch) as rest:
            journal.desired(), journal.records(), journal.objects(), journal.all_conditions()
            journal.record("j3"), journal.object("Job", "j3"), journal.conditions("j3")
        assert rest == {"writes": 0, "reads": 0, "decoded": 0}
        with counted(journal, monkeypatch) as edit:
            assert journal.accept(*loaded(jobs | {"j3": 2}), "here", "r2") == ["j3"]
            assert journal.desired().jobs["j3"].gpus == 2 and len(journal.objects()) == many
        assert edit == {"writes": 5, "reads": edit["reads"], "decoded": edit["decoded"]}
        assert edit["reads"] <= 6 and edit["decoded"] <= 6
        with counted(journal, monkeypatch) as moved:
            journal.save(Record("j5", "placed"))
            journal.event("Job/j5", "Placed", "epoch 1")
            assert len(journal.records()) == 1
        assert moved["reads"] <= 3 and moved["decoded"] == 1


def test_the_history_of_an_object_is_not_looked_for_in_that_of_the_others(tmp_path: Path) -> None:
    """`event` looks for the object's last one."""
    with Journal(tmp_path) as journal:
        rows = journal.db.execute(
            "EXPLAIN QUERY PLAN SELECT reason, message FROM events WHERE object = ?"
            " ORDER BY id DESC LIMIT 1",
            ("Job/a",),
        ).fetchall()
        assert "events_of" in rows[0][-1] and len(rows) == 1


def test_a_row_that_was_absent_is_found_when_it_is_there() -> None:
    rows = {"a": 1}
    table = Table(lambda key: [(k, v) for k, v in rows.items() if key in (None, k)])
    assert (table.get("a"), table.get("b")) == (1, None)
    table.note_write("b", uncommitted=False)
    rows["b"] = 2
    assert table.get("b") == 2 and table.all() == rows
