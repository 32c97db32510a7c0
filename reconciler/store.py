"""The journal: desired objects, records of jobs, actions, changes and events, in SQLite.

One writer (the background reconciler, which holds the state directory's lock) and any number of
readers (`status` works while nothing runs). Every write is one transaction, made before an action
starts and after it ended, so that a reconciler which is killed finds what it was about to do.
Records and specs are JSON: they are read whole, never queried. What is read is decoded into its
class and checked; a row that does not hold what it should is refused by table and name
(StoreError), and a reconciler does not start on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rankfold.reconciler.desired import Desired, Job, Origin, Pool
from rankfold.reconciler.recorded import Change, Record, to_json
from rankfold.reconciler.rows import META, ActionRow, Event, Object, ObjectRow, Override, desired_of
from rankfold.reconciler.spec import Loaded
from rankfold.reconciler.values import Json

SCHEMA_VERSION = 1
EVENTS_KEPT = 10_000
OF_JOB_KEPT = 256  # actions, and changes

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE objects (
    kind TEXT NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL,
    source TEXT,               -- NULL: made by `run`
    file TEXT NOT NULL, line INTEGER NOT NULL, revision TEXT NOT NULL,
    generation INTEGER NOT NULL, created REAL NOT NULL,
    removed INTEGER NOT NULL DEFAULT 0,
    override TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (kind, name));
CREATE TABLE records (job TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE actions (
    job TEXT NOT NULL, epoch INTEGER NOT NULL, kind TEXT NOT NULL,
    detail TEXT NOT NULL, begun_at REAL NOT NULL, done_at REAL,
    PRIMARY KEY (job, epoch, kind));
CREATE TABLE changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, open INTEGER NOT NULL,
    change TEXT NOT NULL);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, object TEXT NOT NULL,
    type TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL);
CREATE TABLE conditions (
    job TEXT PRIMARY KEY, conditions TEXT NOT NULL, generation INTEGER NOT NULL);
"""

_INDICES = """
CREATE INDEX IF NOT EXISTS changes_open ON changes (id) WHERE open;
CREATE INDEX IF NOT EXISTS changes_of ON changes (job);
"""

T = TypeVar("T")


class StoreError(Exception):
    """The journal cannot be used; the message says what to do."""


def _columns(kind: type[T]) -> tuple[str, ...]:
    return tuple(kind.__annotations__)


def _text(value: Any) -> str:
    """JSON that will be read again: raises for what is no text (half a character)."""
    return msgspec.json.encode(value, order="sorted").decode()


def database(state: Path) -> Path:
    return state / "rankfold.db"


def _create(path: Path) -> None:
    """An empty journal at `path`, all at once: who looks meanwhile sees none, or all of it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_suffix(".new")
    for left in path.parent.glob(f"{new.name}*"):  # by one that was killed here
        left.unlink()
    new.touch(0o600)  # it holds the environments of jobs
    with contextlib.closing(sqlite3.connect(new)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
    new.rename(path)  # alone: closed, it has no log beside it
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Store:
    """Open with `Store(state)`; `readonly` for everyone but the background reconciler."""

    def __init__(self, state: Path, readonly: bool = False):
        self.state = state
        self._kept: dict[Hashable, tuple[tuple[int, int], Any]] = {}  # see `_unchanged`
        path = database(state)
        try:
            if readonly:
                self.db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
            else:
                if not path.exists():
                    _create(path)
                self.db = sqlite3.connect(path, timeout=10)
                self.db.execute("PRAGMA synchronous=FULL")
            self.db.isolation_level = None
            self._check_version()
            if not readonly:
                with contextlib.suppress(sqlite3.OperationalError):  # a full disk: it goes without
                    self.db.executescript(_INDICES)
                self.check()
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}") from error

    def _check_version(self) -> None:
        (version,) = self.db.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{database(self.state)} has format {version}, this rankfold knows "
                f"{SCHEMA_VERSION}: use the version that wrote it, or another --state"
            )

    def check(self) -> None:
        """Read every row. Raises StoreError for the first that cannot be used."""
        self.objects(), self.records(), self.changes(), self.events()
        for (job,) in self.db.execute("SELECT DISTINCT job FROM actions").fetchall():
            self.actions(job)
        for (job,) in self.db.execute("SELECT job FROM conditions").fetchall():
            self.conditions(job)
        for (key,) in self.db.execute("SELECT key FROM meta").fetchall():
            self.get(key)

    def _decode(self, text: Any, kind: Any, table: str, row: Any) -> Any:
        """The JSON of a column."""
        try:
            if not isinstance(text, str):
                raise msgspec.ValidationError(f"no text, but {type(text).__name__}")
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise self._bad_row(table, row, error) from error

    def _row(self, values: Iterable[Any], kind: type[T], table: str) -> T:
        """A whole row; its columns are the fields of `kind`, in order."""
        row = dict(zip(_columns(kind), values, strict=True))
        try:
            return msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            raise self._bad_row(table, row.get("name") or row.get("id"), error) from error

    def _bad_row(self, table: str, row: Any, error: Exception | str) -> StoreError:
        return StoreError(
            f"{database(self.state)}: table {table}, row {row!r:.100} holds what rankfold does not "
            f"write there: {error}. Restore the file, delete that row, or use another --state"
        )

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; nested ones join the outermost."""
        if self.db.in_transaction:
            yield
            return
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")  # may fail too: the disk is full
        except BaseException:
            if self.db.in_transaction:  # some errors end it by themselves
                self.db.execute("ROLLBACK")
            raise

    def _unchanged(self, what: Hashable, read: Callable[[], T]) -> T:
        """What was read before, as long as nobody has written anything: who has nothing to do does
        not decode all that ever was. Never in a transaction, which may be undone."""
        if self.db.in_transaction:
            return read()
        (others,) = self.db.execute("PRAGMA data_version").fetchone()  # what others wrote
        now = (others, self.db.total_changes)
        if what not in self._kept or self._kept[what][0] != now:
            self._kept[what] = (now, read())
        value: T = self._kept[what][1]
        return value

    # ---- meta

    def get(self, key: str, default: Any = None) -> Any:
        row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return self._decode(row[0], META.get(key, Any), "meta", key) if row else default

    def set(self, key: str, value: Any) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, _text(value)))

    # ---- objects

    def objects(self) -> list[Object]:
        return list(self._unchanged("objects", self._objects))

    def _objects(self) -> list[Object]:
        rows = self.db.execute(
            "SELECT kind, name, spec, source, file, line, revision, generation, created, removed,"
            " override FROM objects ORDER BY created, name"
        )
        return [self._object(self._row(row, ObjectRow, "objects")) for row in rows]

    def _object(self, row: ObjectRow) -> Object:
        name = f"{row.kind} {row.name}"
        spec = self._decode(row.spec, Job if row.kind == "Job" else Pool, "objects", name)
        if spec.name != row.name:
            raise self._bad_row("objects", name, f"its spec is of {spec.name!r}")
        return Object(
            row.kind, row.name, spec, row.source, Origin(row.file, row.line), row.revision,
            row.generation, row.created, bool(row.removed),
            self._decode(row.override, Override, "objects", name),
        )  # fmt: skip

    def object(self, kind: str, name: str) -> Object | None:
        return next((o for o in self.objects() if (o.kind, o.name) == (kind, name)), None)

    def desired(self) -> Desired:
        url = self.get("checkpoint_store", "")
        return dataclasses.replace(desired_of(self.objects()), checkpoint_store=url)

    def put(self, spec: Job | Pool, source: str | None, origin: Origin, revision: str) -> bool:
        """Create or update one object. True if its spec is new or another than before."""
        kind = "Job" if isinstance(spec, Job) else "Pool"
        text = _text(to_json(spec))
        old = self.object(kind, spec.name)
        if old and old.spec == spec:
            self.db.execute(
                "UPDATE objects SET source = ?, file = ?, line = ?, removed = 0"
                " WHERE kind = ? AND name = ?",
                (source, origin.file, origin.line, kind, spec.name),
            )
            return old.removed
        self.db.execute(
            "INSERT OR REPLACE INTO objects (kind, name, spec, source, file, line, revision,"
            " generation, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (kind, spec.name, text, source, origin.file, origin.line, revision,
             old.generation + 1 if old else 1, old.created if old else time.time()),
        )  # fmt: skip
        return True

    def accept(self, loaded: Loaded, source: str, revision: str) -> list[str]:
        """Take a whole revision of a source; gives the jobs whose object changed."""
        changed: list[str] = []
        specs: list[Job | Pool] = [*loaded.desired.pools.values(), *loaded.desired.jobs.values()]
        kept = {("Job" if isinstance(s, Job) else "Pool", s.name) for s in specs}
        with self.transaction():
            for old in self.objects():
                if old.source is None or ((old.kind, old.name) in kept and old.source == source):
                    continue
                if self._retire(old):
                    changed.append(old.name)
            for spec in specs:
                kind = "Job" if isinstance(spec, Job) else "Pool"
                if (
                    self.put(spec, source, loaded.origins[kind, spec.name], revision)
                    and kind == "Job"
                ):
                    changed.append(spec.name)
            self.set("source", source)
            self.set("revision", revision)
            self.set("checkpoint_store", loaded.desired.checkpoint_store)
        return changed

    def _retire(self, old: Object) -> bool:
        """A source does not name this object any longer. True: a live job lost its file."""
        record = self.record(old.name) if old.kind == "Job" else None
        if record is None or record.step in ("new", "ended"):
            self.forget(old.kind, old.name)
            return False
        if not old.removed:
            self.db.execute(
                "UPDATE objects SET removed = 1 WHERE kind = 'Job' AND name = ?", (old.name,)
            )
        return not old.removed

    def forget(self, kind: str, name: str) -> None:
        """Remove an object; of a job, its record too. Events stay, and which incarnations it had:
        the store may know the next job of this name by them."""
        with self.transaction():
            if kind == "Job" and (record := self.record(name)):
                had = self.get("incarnations", {})
                self.set("incarnations", had | {name: record.incarnation})
            self.db.execute("DELETE FROM objects WHERE kind = ? AND name = ?", (kind, name))
            if kind == "Job":
                for table in ("records", "actions", "changes", "conditions"):
                    self.db.execute(f"DELETE FROM {table} WHERE job = ?", (name,))

    def override(self, name: str, fields: Mapping[str, Any]) -> None:
        old = self.object("Job", name)
        assert old is not None
        merged = _text({**old.override, **fields})
        self.db.execute(
            "UPDATE objects SET override = ? WHERE kind = 'Job' AND name = ?", (merged, name)
        )

    # ---- records and actions

    def record(self, job: str) -> Record | None:
        return self._unchanged(("record", job), lambda: self._read_record(job))

    def _read_record(self, job: str) -> Record | None:
        row = self.db.execute("SELECT record FROM records WHERE job = ?", (job,)).fetchone()
        return self._record(job, row[0]) if row else None

    def records(self) -> dict[str, Record]:
        return dict(self._unchanged("records", self._records))

    def _records(self) -> dict[str, Record]:
        rows = self.db.execute("SELECT job, record FROM records")
        return {job: self._record(job, text) for job, text in rows}

    def _record(self, job: str, text: str) -> Record:
        record: Record = self._decode(text, Record, "records", job)
        if record.name != job:
            raise self._bad_row("records", job, f"it is the record of {record.name!r}")
        return record

    def save(self, record: Record) -> None:
        text = _text(to_json(record))
        self.db.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (record.name, text))

    def begin(self, job: str, epoch: int, kind: str, detail: Json) -> None:
        """Journal that an action starts; called twice (after a kill) it stays one action."""
        self.db.execute(
            "INSERT OR IGNORE INTO actions VALUES (?, ?, ?, ?, ?, NULL)",
            (job, epoch, kind, _text(detail), time.time()),
        )
        self._keep_last("actions", job)

    def done(self, job: str, epoch: int, kind: str) -> None:
        self.db.execute(
            "UPDATE actions SET done_at = coalesce(done_at, ?)"
            " WHERE job = ? AND epoch = ? AND kind = ?",
            (time.time(), job, epoch, kind),
        )

    def _keep_last(self, table: str, job: str) -> None:
        """A job may live for months. What is older decides nothing: people look at it. (A change
        that is not over is its job's last.)"""
        self.db.execute(
            f"DELETE FROM {table} WHERE job = ? AND rowid <="
            f" (SELECT rowid FROM {table} WHERE job = ? ORDER BY rowid DESC LIMIT 1 OFFSET ?)",
            (job, job, OF_JOB_KEPT),
        )

    def actions(self, job: str) -> list[ActionRow]:
        rows = self.db.execute(
            "SELECT epoch, kind, begun_at, done_at FROM actions WHERE job = ? ORDER BY begun_at",
            (job,),
        )
        return [self._row(row, ActionRow, f"actions of {job}") for row in rows]

    # ---- changes

    def open_change(self, change: Change) -> None:
        """Note a wish; an earlier one of the same job that is still open is superseded."""
        with self.transaction():
            for earlier in self.changes(change.job, only_open=True):
                self.save_change(dataclasses.replace(earlier, superseded=True), open=False)
            self.db.execute(
                "INSERT INTO changes (job, open, change) VALUES (?, 1, ?)",
                (change.job, _text(to_json(change))),
            )

    def save_change(self, change: Change, open: bool) -> None:
        self.db.execute(
            "UPDATE changes SET open = ?, change = ? WHERE id = ?",
            (int(open), _text(to_json(change)), change.id),
        )
        if not open:
            self._keep_last("changes", change.job)

    def changes(self, job: str | None = None, only_open: bool = False) -> list[Change]:
        """only_open: looked for in each turn, so they have an index."""
        rows = self.db.execute(
            f"SELECT id, change FROM changes WHERE (? IS NULL OR job = ?)"
            f"{' AND open' if only_open else ''} ORDER BY id",
            (job, job),
        )
        return [
            dataclasses.replace(self._decode(text, Change, "changes", number), id=number)
            for number, text in rows
        ]

    # ---- events and conditions

    def event(self, object: str, reason: str, message: str, type: str = "Normal") -> None:
        """Append to the history; the same twice in a row is noted once."""
        last = self.db.execute(
            "SELECT reason, message FROM events WHERE object = ? ORDER BY id DESC LIMIT 1",
            (object,),
        ).fetchone()
        if last == (reason, message):
            return
        self.db.execute(
            "INSERT INTO events (time, object, type, reason, message) VALUES (?, ?, ?, ?, ?)",
            (time.time(), object, type, reason, message),
        )
        self.db.execute(
            "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (EVENTS_KEPT,)
        )

    def events(self, object: str | None = None, after: int = 0) -> list[Event]:
        rows = self.db.execute(
            "SELECT id, time, object, type, reason, message FROM events"
            " WHERE (? IS NULL OR object = ? OR object LIKE '%/' || ?) AND id > ? ORDER BY id",
            (object, object, object, after),
        )
        return [self._row(row, Event, "events") for row in rows]

    def conditions(self, job: str) -> tuple[list[Json], int]:
        return self._unchanged(("conditions", job), lambda: self._conditions(job))

    def _conditions(self, job: str) -> tuple[list[Json], int]:
        row = self.db.execute(
            "SELECT conditions, generation FROM conditions WHERE job = ?", (job,)
        ).fetchone()
        if row is None:
            return [], 0
        if not isinstance(row[1], int):
            raise self._bad_row("conditions", job, f"generation {row[1]!r}")
        return self._decode(row[0], list[dict[str, str]], "conditions", job), row[1]

    def save_conditions(self, job: str, conditions: Iterable[Json], generation: int) -> None:
        text = _text(list(conditions))
        self.db.execute(
            "INSERT OR REPLACE INTO conditions VALUES (?, ?, ?)", (job, text, generation)
        )
