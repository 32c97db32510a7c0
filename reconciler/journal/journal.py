"""The journal: desired objects, records of jobs, actions, changes and events, in SQLite.

There is one writer (the background reconciler, which holds the state directory's lock) and any
number of readers (`status` works while no reconciler runs). Every write is one transaction, made
before an action starts and after it has ended, so that the next reconciler after a kill finds what
was in progress. Records and specs are JSON: they are read whole, never queried. Each row that is
read is decoded into its class and checked. A row with unexpected content is refused with its table
and name (JournalError), and a reconciler does not start with it. A decoded row stays cached until
this or another process writes it (cache.py): a turn of the loop costs what has changed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from rankfold.legible import legible
from rankfold.policy.serving import Replicas
from rankfold.reconciler import clock
from rankfold.reconciler.journal.cache import Table
from rankfold.reconciler.journal.rows import (
    META,
    ActionRow,
    Event,
    Object,
    ObjectRow,
    Override,
    desired_of,
)
from rankfold.reconciler.journal.tables import INDICES, SCHEMA_VERSION, create, database
from rankfold.reconciler.model.desired import (
    GROWTH_DELAY_S,
    Defragmentation,
    Desired,
    Job,
    Origin,
    Pool,
)
from rankfold.reconciler.model.recorded import Change, Record
from rankfold.reconciler.model.states import declared
from rankfold.reconciler.model.values import Json

EVENTS_MAX = 10_000
MEASURED_MAX = 200  # jobs whose rates are kept when their records are removed
EVENTS_PER_JOB_MAX = 256  # most actions, and most changes, kept of a job

POLICY: dict[str, Any] = {  # fields of `Desired` that Policy documents give, and their defaults
    "checkpoint_store": "",
    "growth_delay_s": GROWTH_DELAY_S,
    "preemption_delay_s": 0.0,
    "max_wait_s": 0.0,
    "disturbances": {},
    "tiers": {},
    "quotas": {},
    "defragmentation": Defragmentation(),
}

T = TypeVar("T")


class JournalError(Exception):
    """The journal cannot be used; the message explains what to do."""


class NotAccepted(Exception):
    """Accepting an object raised the cause of this exception."""

    def __init__(self, kind: str, name: str):
        super().__init__(f"{kind}/{name}")
        self.key = kind, name


def _columns(kind: type[T]) -> tuple[str, ...]:
    return tuple(kind.__annotations__)


def _text(value: Any) -> str:
    """Encode as JSON that can be decoded again; raises for text that is not valid (a surrogate)."""
    return msgspec.json.encode(value, order="sorted").decode()


def _key(spec: Job | Pool) -> tuple[str, str]:
    """Kind and name of an object."""
    return ("Job" if isinstance(spec, Job) else "Pool"), spec.name


class Journal:
    """Open with `Journal(state)`; all but the reconciler and `store adopt` pass `readonly`."""

    def __init__(self, state: Path, readonly: bool = False):
        self.state = state
        self._rewrites = 0  # how often the file was
        self._clear_caches()
        path = database(state)
        try:
            if readonly:
                self.db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
            else:
                if not path.exists():
                    create(path)
                self._open()
            self.db.isolation_level = None
            self._check_version()
            if not readonly:
                with contextlib.suppress(sqlite3.OperationalError):  # full disk: no indices
                    self.db.executescript(INDICES)
                self.check()
        except sqlite3.Error as error:
            raise JournalError(f"{path}: {error}") from error

    def _open(self) -> None:
        """Open the database for writing."""
        path = database(self.state)
        self.db = sqlite3.connect(path, timeout=10, isolation_level=None)
        self.db.execute("PRAGMA synchronous=FULL")
        self._file = os.stat(path)

    def rewrite_if_missing(self) -> bool:
        """Write the database file again if it was removed or replaced; a replacement is renamed.
        The writer still has its own file open. Returns whether the file had to be written. Raises
        OSError, sqlite3.Error."""
        path, old = database(self.state), self.db
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._file, os.stat(path)):
                return False
            path.rename(path.with_name(f"{path.name}.replaced"))
        for log in ("-wal", "-shm"):  # of the file that is gone; SQLite would apply it
            path.with_name(path.name + log).unlink(missing_ok=True)
        create(path, old.backup)
        self._open()
        old.close()
        self._rewrites += 1
        self._clear_caches()
        return True

    def _clear_caches(self) -> None:
        """Start with empty caches."""
        self._objects = Table(self._read_objects)
        self._records = Table(self._read_records)
        self._conditions = Table(self._read_conditions)
        self._meta = Table(self._read_meta)
        self._tables: tuple[Table[Any, Any], ...] = (
            self._objects,
            self._records,
            self._conditions,
            self._meta,
        )
        self._seen = (0, 0)  # see `_look`
        self._direct_writes = False  # whether this transaction includes writes through `db` itself
        self._listed: tuple[int, list[Object]] = (-1, [])  # `objects()`, and its version
        self._desired: tuple[object, Desired] = (None, Desired())

    def _check_version(self) -> None:
        (version,) = self.db.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise JournalError(
                f"{database(self.state)} has format {version}, this rankfold knows "
                f"{SCHEMA_VERSION}: use the version that wrote it, or another --state"
            )

    def check(self) -> None:
        """Read every row. Raises JournalError for the first one that cannot be used."""
        self.objects(), self.records(), self.changes(), self.events()
        for (job,) in self.db.execute("SELECT DISTINCT job FROM actions").fetchall():
            self.actions(job)
        self._conditions.all(), self._meta.all()

    def _decode(self, text: Any, kind: Any, table: str, row: Any) -> Any:
        """Decode the JSON of a column. Raises JournalError."""
        try:
            if not isinstance(text, str):
                raise msgspec.ValidationError(f"not text, but {type(text).__name__}")
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise self._bad_row(table, row, error) from error

    def _row(self, values: Iterable[Any], kind: type[T], table: str) -> T:
        """Decode a whole row; its columns are the fields of `kind`, in order. Raises
        JournalError."""
        row = dict(zip(_columns(kind), values, strict=True))
        try:
            return msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            raise self._bad_row(table, row.get("name") or row.get("id"), error) from error

    def _bad_row(self, table: str, row: Any, error: Exception | str) -> JournalError:
        return JournalError(
            f"{database(self.state)}: table {table}, row {row!r:.100} contains what rankfold does "
            f"not write there: {error}. Restore the file, delete that row, or use another --state"
        )

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction. A nested one can be rolled back alone, and commits with the
        outermost."""
        nested = self.db.in_transaction
        self.db.execute("SAVEPOINT nested" if nested else "BEGIN IMMEDIATE")
        try:
            if not nested:
                self._drop_outdated_caches()
            yield
            self.db.execute("RELEASE nested" if nested else "COMMIT")  # fails on a full disk
        except BaseException:
            if self.db.in_transaction:  # some errors end the transaction themselves
                self.db.execute("ROLLBACK TO nested" if nested else "ROLLBACK")
                if nested:
                    self.db.execute("RELEASE nested")
            for table in self._tables:
                if self._direct_writes:
                    table.forget()
                table.roll_back()
            raise
        finally:
            if not nested:
                self._direct_writes = False
                for table in self._tables:
                    table.end_transaction()

    def _drop_outdated_caches(self) -> None:
        """Drop the caches if there were other writes: by another process, or through `db`
        itself."""
        if self.db.in_transaction and self._seen[1] == self.db.total_changes:
            return  # no other process can write now
        (others,) = self.db.execute("PRAGMA data_version").fetchone()
        if self._seen != (now := (others, self.db.total_changes)):
            self._seen = now
            self._direct_writes = self.db.in_transaction
            for table in self._tables:
                table.forget()

    def _write(
        self, table: Table[Any, Any], key: Any, statement: str, values: Sequence[Any]
    ) -> None:
        """Write or remove the row of a key."""
        self._drop_outdated_caches()
        table.note_write(key, self.db.in_transaction)
        try:
            self.db.execute(statement, values)
        finally:
            self._seen = (self._seen[0], self.db.total_changes)

    def _write_other(self, statement: str, values: Sequence[Any]) -> None:
        """Write rows of tables that are not cached."""
        self._drop_outdated_caches()
        try:
            self.db.execute(statement, values)
        finally:
            self._seen = (self._seen[0], self.db.total_changes)

    @property
    def version(self) -> object:
        """Differs whenever `desired` or `records` may return something else than before."""
        policy = self._policy(), self._replicas()
        return self._rewrites, self._objects.version, self._records.version, policy

    def _policy(self) -> dict[str, Any]:
        """The fields of `Desired` that Policy documents give."""
        return {name: self.get(name, default) for name, default in POLICY.items()}

    def _replicas(self) -> dict[str, Replicas]:
        found: dict[str, Replicas] = self.get("replicas", {})
        return found

    # ---- meta

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key. The caller must not change it."""
        self._drop_outdated_caches()
        value = self._meta.get(key)
        return default if value is None else value[0]

    def _read_meta(self, key: str | None) -> Iterator[tuple[str, tuple[Any]]]:
        rows = self._select("SELECT key, value FROM meta", "key", key)
        for name, text in rows:
            yield name, (self._decode(text, META.get(name, Any), "meta", name),)

    def set(self, key: str, value: Any) -> None:
        statement = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
        self._write(self._meta, key, statement, (key, _text(value)))

    def _select(self, statement: str, column: str, value: str | None) -> Iterable[Any]:
        """All rows, or those with `value` in a column."""
        if value is None:
            return self.db.execute(statement)
        return self.db.execute(f"{statement} WHERE {column} = ?", (value,))

    # ---- objects

    def objects(self) -> list[Object]:
        """All objects in the order of their creation."""
        self._drop_outdated_caches()
        rows, version = self._objects.all(), self._objects.version
        if self._listed[0] != version:
            self._listed = version, sorted(rows.values(), key=lambda o: (o.created, o.name))
        return list(self._listed[1])

    def _read_objects(
        self, key: tuple[str, str] | None
    ) -> Iterator[tuple[tuple[str, str], Object]]:
        statement = (
            "SELECT kind, name, spec, source, file, line, revision, generation, created, removed,"
            " override FROM objects"
        )
        if key is None:
            rows = self.db.execute(statement)
        else:
            rows = self.db.execute(f"{statement} WHERE kind = ? AND name = ?", key)
        for row in rows:
            read = self._object(self._row(row, ObjectRow, "objects"))
            yield (read.kind, read.name), read

    def _object(self, row: ObjectRow) -> Object:
        name = f"{row.kind} {row.name}"
        spec = self._decode(row.spec, Job if row.kind == "Job" else Pool, "objects", name)
        if spec.name != row.name:
            raise self._bad_row("objects", name, f"its spec is of {spec.name!r}")
        return Object(
            row.kind,
            row.name,
            spec,
            row.source,
            Origin(row.file, row.line),
            row.revision,
            row.generation,
            row.created,
            bool(row.removed),
            self._decode(row.override, Override, "objects", name),
        )

    def object(self, kind: str, name: str) -> Object | None:
        self._drop_outdated_caches()
        return self._objects.get((kind, name))

    def desired(self) -> Desired:
        """The desired state; the same object as long as nothing changes."""
        objects = self.objects()
        policy, replicas = self._policy(), self._replicas()
        now = self._objects.version, policy, replicas
        if self._desired[0] != now:
            desired = desired_of(objects, replicas)
            self._desired = (
                now,
                structs.replace(desired, **policy),
            )
        return self._desired[1]

    def put(self, spec: Job | Pool, source: str | None, origin: Origin, revision: str) -> bool:
        """Create or update an object. True if its spec is new or different, or if it was
        removed."""
        key = _key(spec)
        old = self.object(*key)
        if old and old.spec == spec:
            if (old.source, old.origin, old.removed) != (source, origin, False):
                self._write(
                    self._objects,
                    key,
                    "UPDATE objects SET source = ?, file = ?, line = ?, removed = 0"
                    " WHERE kind = ? AND name = ?",
                    (source, origin.file, origin.line, *key),
                )
            return old.removed
        self._write(
            self._objects,
            key,
            "INSERT OR REPLACE INTO objects (kind, name, spec, source, file, line, revision,"
            " generation, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *key,
                _text(spec),
                source,
                origin.file,
                origin.line,
                revision,
                old.generation + 1 if old else 1,
                old.created if old else clock.now(),
            ),
        )
        return True

    def rename_source(self, old: str, new: str) -> None:
        """Record that a source has another name. Its objects stay unchanged."""
        with self.transaction():
            for each in self.objects():
                if each.source == old:
                    key = each.kind, each.name
                    sql = "UPDATE objects SET source = ? WHERE kind = ? AND name = ?"
                    self._write(self._objects, key, sql, (new, *key))
            self.set("source", new)

    def accept(
        self,
        desired: Desired,
        origins: Mapping[tuple[str, str], Origin],
        source: str,
        revision: str,
    ) -> list[str]:
        """Accept a whole revision of a source; return the jobs whose object changed. Raises
        NotAccepted if a bug prevents an object from being accepted."""
        changed: list[str] = []
        specs: list[Job | Pool] = [*desired.pools.values(), *desired.jobs.values()]
        kept = {_key(spec) for spec in specs}
        with self.transaction():
            for old in self.objects():
                if old.source is None or ((old.kind, old.name) in kept and old.source == source):
                    continue
                if self._retire(old):
                    changed.append(old.name)
            for spec in specs:
                try:
                    changes = self.put(spec, source, origins[_key(spec)], revision)
                except (sqlite3.Error, JournalError):
                    raise
                except Exception as error:
                    raise NotAccepted(*_key(spec)) from error
                if changes and isinstance(spec, Job):
                    changed.append(spec.name)
            self.set("source", source)
            self.set("revision", revision)
            for name, before in self._policy().items():
                if getattr(desired, name) != before:
                    self.set(name, getattr(desired, name))
        return changed

    def _retire(self, old: Object) -> bool:
        """Handle an object that is no longer in a source. True if a live job has lost its file."""
        record = self.record(old.name) if old.kind == "Job" else None
        if record is None or record.step in ("new", "ended"):
            self.forget(old.kind, old.name)
            return False
        if not old.removed:
            statement = "UPDATE objects SET removed = 1 WHERE kind = ? AND name = ?"
            key = old.kind, old.name
            self._write(self._objects, key, statement, key)
        return not old.removed

    def forget(self, kind: str, name: str) -> None:
        """Remove an object and, for a job, its record. Its events stay, and so do its rates, and
        its last incarnation: the next job of this name must not repeat it."""
        with self.transaction():
            if kind == "Job" and (record := self.record(name)):
                had = self.get("incarnations", {})
                self.set("incarnations", had | {name: record.incarnation})
                if record.rates:
                    self._keep_rates(record)
            key = kind, name
            self._write(self._objects, key, "DELETE FROM objects WHERE kind = ? AND name = ?", key)
            if kind == "Job":
                self._write(self._records, name, "DELETE FROM records WHERE job = ?", (name,))
                self._write(self._conditions, name, "DELETE FROM conditions WHERE job = ?", (name,))
                for table in ("actions", "changes"):
                    self._write_other(f"DELETE FROM {table} WHERE job = ?", (name,))

    def _keep_rates(self, record: Record) -> None:
        from rankfold.reconciler.model.history import measured_of  # here: for one command only

        if (measured := measured_of(record)) is not None:
            known = self.get("measured", ())
            self.set("measured", [*known, measured][-MEASURED_MAX:])

    def override(self, name: str, fields: Mapping[str, Any]) -> None:
        old = self.object("Job", name)
        assert old is not None
        merged = _text({**old.override, **fields})
        self._write(
            self._objects,
            ("Job", name),
            "UPDATE objects SET override = ? WHERE kind = 'Job' AND name = ?",
            (merged, name),
        )

    # ---- records and actions

    def record(self, job: str) -> Record | None:
        self._drop_outdated_caches()
        return self._records.get(job)

    def records(self) -> dict[str, Record]:
        self._drop_outdated_caches()
        return dict(self._records.all())

    def _read_records(self, name: str | None) -> Iterator[tuple[str, Record]]:
        for job, text in self._select("SELECT job, record FROM records", "job", name):
            record: Record = self._decode(text, Record, "records", job)
            if record.name != job:
                raise self._bad_row("records", job, f"it is the record of {record.name!r}")
            yield job, record

    def save(self, record: Record) -> None:
        before = self.record(record.name)
        if before is not None and not declared(before.step, record.step):
            self._report(record.name, before.step, record.step)
        statement = "INSERT OR REPLACE INTO records VALUES (?, ?)"
        self._write(self._records, record.name, statement, (record.name, _text(record)))

    def _report(self, job: str, source: str, target: str) -> None:
        """Log a transition that states.py does not have: a bug, for which no job must stop."""
        from rankfold.log import area  # here: few processes log

        text = "%s: an internal error of rankfold: no transition is declared from %s to %s"
        area(__file__).error(text, job, source, target)

    def begin(self, job: str, epoch: int, kind: str, detail: Json) -> None:
        """Record that an action starts. Repeated calls (after a kill) record one action."""
        self._write_other(
            "INSERT OR IGNORE INTO actions VALUES (?, ?, ?, ?, ?, NULL)",
            (job, epoch, kind, _text(detail), time.time()),
        )
        self._keep_last("actions", job)

    def end_action(self, job: str, epoch: int, kind: str) -> None:
        self._write_other(
            "UPDATE actions SET done_at = coalesce(done_at, ?)"
            " WHERE job = ? AND epoch = ? AND kind = ?",
            (time.time(), job, epoch, kind),
        )

    def _keep_last(self, table: str, job: str) -> None:
        """Remove old rows: a job may live for months. Old rows decide nothing, they are for people.
        (A change that has not ended is its job's last.)"""
        self._write_other(
            f"DELETE FROM {table} WHERE job = ? AND rowid <="
            f" (SELECT rowid FROM {table} WHERE job = ? ORDER BY rowid DESC LIMIT 1 OFFSET ?)",
            (job, job, EVENTS_PER_JOB_MAX),
        )

    def actions(self, job: str) -> list[ActionRow]:
        rows = self.db.execute(
            "SELECT epoch, kind, begun_at, done_at FROM actions WHERE job = ? ORDER BY begun_at",
            (job,),
        )
        return [self._row(row, ActionRow, f"actions of {job}") for row in rows]

    # ---- changes

    def open_change(self, change: Change) -> None:
        """Record a requested change; an earlier one of the job that is still open is superseded."""
        with self.transaction():
            for earlier in self.changes(change.job, only_open=True):
                self.save_change(structs.replace(earlier, superseded=True), open=False)
            self._write_other(
                "INSERT INTO changes (job, open, change) VALUES (?, 1, ?)",
                (change.job, _text(change)),
            )

    def save_change(self, change: Change, open: bool) -> None:
        self._write_other(
            "UPDATE changes SET open = ?, change = ? WHERE id = ?",
            (int(open), _text(change), change.id),
        )
        if not open:
            self._keep_last("changes", change.job)

    def changes(self, job: str | None = None, only_open: bool = False) -> list[Change]:
        """only_open: these have an index, because every turn queries them."""
        rows = self.db.execute(
            f"SELECT id, change FROM changes WHERE (? IS NULL OR job = ?)"
            f"{' AND open' if only_open else ''} ORDER BY id",
            (job, job),
        )
        return [
            structs.replace(self._decode(text, Change, "changes", number), id=number)
            for number, text in rows
        ]

    # ---- events and conditions

    def event(self, object: str, reason: str, message: str, type: str = "Normal") -> None:
        """Append an event, unless it repeats the last one of its object. `message` may contain text
        from elsewhere."""
        message = legible(message)
        last = self.db.execute(
            "SELECT reason, message FROM events WHERE object = ? ORDER BY id DESC LIMIT 1",
            (object,),
        ).fetchone()
        if last == (reason, message):
            return
        with self.transaction():
            self._write_other(
                "INSERT INTO events (time, object, type, reason, message) VALUES (?, ?, ?, ?, ?)",
                (time.time(), object, type, reason, message),
            )
            self._write_other(
                "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (EVENTS_MAX,)
            )

    def events(self, object: str | None = None, after: int = 0) -> list[Event]:
        rows = self.db.execute(
            "SELECT id, time, object, type, reason, message FROM events"
            " WHERE (? IS NULL OR object = ? OR object LIKE '%/' || ?) AND id > ? ORDER BY id",
            (object, object, object, after),
        )
        return [self._row(row, Event, "events") for row in rows]

    def last_event(self) -> int:
        """The number of the newest event; 0: there is none."""
        (number,) = self.db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        return int(number)

    def conditions(self, job: str) -> tuple[list[Json], int]:
        self._drop_outdated_caches()
        return self._conditions.get(job) or ([], 0)

    def all_conditions(self) -> Mapping[str, tuple[list[Json], int]]:
        """`conditions` of every job that has some. The caller must neither change nor keep them."""
        self._drop_outdated_caches()
        return self._conditions.all()

    def _read_conditions(self, name: str | None) -> Iterator[tuple[str, tuple[list[Json], int]]]:
        rows = self._select("SELECT job, conditions, generation FROM conditions", "job", name)
        for job, text, generation in rows:
            if not isinstance(generation, int):
                raise self._bad_row("conditions", job, f"generation {generation!r}")
            yield job, (self._decode(text, list[dict[str, str]], "conditions", job), generation)

    def save_conditions(self, job: str, conditions: Iterable[Json], generation: int) -> None:
        text = _text(list(conditions))
        statement = "INSERT OR REPLACE INTO conditions VALUES (?, ?, ?)"
        self._write(self._conditions, job, statement, (job, text, generation))
