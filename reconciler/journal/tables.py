"""The file of the journal: its tables, their version, and how a new file is made.

journal.py reads and writes the rows.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

SCHEMA_VERSION = 1

TABLES = """
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

INDICES = """
CREATE INDEX IF NOT EXISTS changes_open ON changes (id) WHERE open;
CREATE INDEX IF NOT EXISTS changes_of ON changes (job);
CREATE INDEX IF NOT EXISTS events_of ON events (object, id);
"""


def database(state: Path) -> Path:
    """The journal of a state directory."""
    return state / "rankfold.db"


def make_tables(db: sqlite3.Connection) -> None:
    """Create the tables of an empty journal."""
    db.executescript(f"BEGIN; {TABLES} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")


def create(path: Path, fill: Callable[[sqlite3.Connection], None] = make_tables) -> None:
    """Create a journal at `path` atomically: a concurrent reader sees none, or all of it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_suffix(".new")
    for left in path.parent.glob(f"{new.name}*"):  # left by a process that was killed here
        left.unlink()
    new.touch(0o600)  # it has the environments of jobs
    with contextlib.closing(sqlite3.connect(new)) as db:
        db.execute("PRAGMA synchronous=FULL")
        fill(db)
        db.execute("PRAGMA journal_mode=WAL")
    new.rename(path)  # this file only: once closed, the database has no -wal file
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
