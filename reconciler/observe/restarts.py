"""Records whether the background reconciler stays up: how often it ended unexpectedly, and why.

A running reconciler holds the state directory (`claimed`) and keeps a note in it. It removes the
note when it ends normally, and resets it after running for a while. From the note, the process that
starts the next reconciler knows how many have ended early in a row, and waits longer each time. The
note is not in the journal, because the journal may be the cause.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rankfold.legible import legible
from rankfold.reconciler import clock
from rankfold.reconciler.journal.journal import Journal, JournalError
from rankfold.reconciler.layout import Layout, is_locked, try_lock
from rankfold.reconciler.wording import count

STABLE_AFTER_S = 10.0  # after running this long, earlier unexpected ends no longer count
LOOP_AFTER = 3  # this many unexpected ends in a row are a crash loop
WAIT_MIN_S, WAIT_MAX_S = 0.5, 30.0  # before the next start in a crash loop


class AlreadyRunning(Exception):
    """Another reconciler holds the state directory."""


class Note(msgspec.Struct):
    """The note of a reconciler for the next one."""

    ends: int = 0  # how many before it ended unexpectedly in a row
    reason: str = ""  # why the last of these ended
    began: clock.Reading | None = None
    failed: str = ""  # why this one ends, if it knows
    trouble: str = ""  # why it does nothing although it runs


class Claim:
    """A state directory that this process holds as its reconciler."""

    def __init__(self, layout: Layout, lock: int):
        self.layout, self._lock = layout, lock
        before = _last_note(layout)
        self.ended_before = before.reason  # empty: it ended normally
        self.crash_loop = _message(before)
        self._note = Note(before.ends, before.reason, clock.reading())
        self._write()
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)  # names us until we listen

    def is_there(self) -> bool:
        """Whether the state directory is still ours: if it was removed and created again, it is
        another fleet's."""
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self.layout.lock))
        except FileNotFoundError:
            return False

    def stable(self) -> None:
        """Forget earlier ends: the reconciler has run for `STABLE_AFTER_S`."""
        self.crash_loop = ""
        self._note.ends, self._note.reason = 0, ""
        self._write()

    def report(self, journal: Journal) -> None:
        """Record an event if the previous reconciler ended unexpectedly."""
        if self.crash_loop:
            _event(journal, "CrashLoop", self.crash_loop)
        elif self.ended_before:
            text = f"the previous reconciler exited unexpectedly, because: {self.ended_before}"
            _event(journal, "Restarted", text)

    def trouble(self, error: BaseException | None, journal: Journal) -> None:
        """Record that turns fail, or succeed again (None)."""
        now = cause(error) if error else ""
        if now == self._note.trouble:
            return
        self._note.trouble = now
        self._write()
        if now:
            _event(journal, "TurnFailed", _failing(now))

    def failed(self, error: BaseException) -> None:
        self._note.failed = cause(error)
        self._write()

    def ended(self) -> None:
        with contextlib.suppress(OSError):
            if self.is_there():
                _file(self.layout).unlink(missing_ok=True)

    def _write(self) -> None:
        """Write the note atomically, ignoring errors: a reconciler must run on a full disk, too."""
        new = _file(self.layout).with_suffix(".new")
        with contextlib.suppress(OSError):
            if self.is_there():
                new.write_bytes(msgspec.json.encode(self._note))
                new.replace(_file(self.layout))


@contextlib.contextmanager
def claimed(state: Path) -> Iterator[Claim]:
    """Hold a state directory during the context, and note how it ends. Raises AlreadyRunning."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    layout = Layout(state)
    lock = try_lock(layout.lock)
    if lock is None:
        raise AlreadyRunning(f"another reconciler runs on {state}")
    claim = Claim(layout, lock)
    try:
        yield claim
    except BaseException as error:
        claim.failed(error)
        raise
    claim.ended()


def cause(error: BaseException) -> str:
    """Kind and place of an error. Its text is left out: it may contain a value of an
    environment."""
    if isinstance(error, JournalError):
        return legible(str(error))
    import traceback  # here: every command imports this module

    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


# ---- for clients that start or query a reconciler ------------------------------------------------


def report(layout: Layout) -> str:
    """A sentence if the reconciler crashes repeatedly or does nothing; empty if neither."""
    if not is_locked(layout.lock):
        return _message(_last_note(layout))
    note = _read(layout)
    return _failing(note.trouble) if note.trouble else _message(note)


def wait_s(layout: Layout) -> float:
    """Seconds to wait before the next reconciler is started."""
    left = _last_note(layout)
    if left.ends < LOOP_AFTER or left.began is None or is_locked(layout.lock):
        return 0.0
    delay = min(WAIT_MAX_S, WAIT_MIN_S * 2.0 ** min(left.ends - LOOP_AFTER, 16))
    return max(0.0, delay - clock.age(left.began))


def _event(journal: Journal, reason: str, text: str) -> None:
    with contextlib.suppress(sqlite3.Error):  # the disk may be full
        journal.event("Reconciler", reason, text, "Warning")


def _file(layout: Layout) -> Path:
    return layout.state / "reconciler.running"


def _read(layout: Layout) -> Note:
    try:
        return msgspec.json.decode(_file(layout).read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError):
        return Note()


def _last_note(layout: Layout) -> Note:
    """The note of the last reconciler, which runs no more, with its own end counted."""
    note = _read(layout)
    if note.began:
        note.ends += 1
        note.reason = note.failed or "it was killed"
    return note


def _failing(reason: str) -> str:
    return f"every turn of the reconciler fails because: {reason}. {_MORE}"


def _message(note: Note) -> str:
    if note.ends < LOOP_AFTER:
        return ""
    return (
        f"the reconciler exited unexpectedly {count(note.ends, 'time')} in a row, the last time "
        f"because: {note.reason}. {_MORE}"
    )


_MORE = "Its log, reconciler.log in the state directory, has the details"
