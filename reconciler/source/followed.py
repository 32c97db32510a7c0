"""The source that the fleet follows: which clients requested it, its content, and what was
accepted.

This is the reconciler's half of `watch`. A thread reads the source (reader.Reader); this module
runs in the loop, accepts or refuses each revision as a whole, and reports what cannot be read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from rankfold import control, service
from rankfold.log import area
from rankfold.reconciler.faults import point
from rankfold.reconciler.journal.journal import Journal, NotAccepted
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import Job, Origin
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.launchers import Node
from rankfold.reconciler.operations import Attach
from rankfold.reconciler.source import spec
from rankfold.reconciler.source.git import masked
from rankfold.reconciler.source.invalid import Fault
from rankfold.reconciler.source.reader import Reader, Reading, Revision, record_fault, same_source
from rankfold.reconciler.source.revision import (
    cut_files,
    emptied_files,
    revision_faults,
    save_faults,
    store_faults,
)

log = area(__file__)

CLOSING_S = 3.0  # for git to end when the reconciler ends


@dataclasses.dataclass
class _Attaching:
    """A client that requested a source that has not been read yet."""

    request: service.Request[Attach]
    reader: Reader


class Sources:
    """`wish` is called for each job that a revision changes (job or None, revision, wall clock),
    within the journal's transaction; `accepted` is called after it."""

    def __init__(
        self,
        server: service.Server,
        journal: Journal,
        state: Path,
        open_change: Callable[[Job | None, str, float], None],
        accepted: Callable[[], None],
    ):
        self.server, self.journal, self.state = server, journal, state
        self.open_change, self.accepted = open_change, accepted
        self.node = Node(Layout(state))
        self.source: Reader | None = None
        self.watchers: list[control.Channel] = []  # the source is followed while there is one
        self.attaching: list[_Attaching] = []
        self.faults: list[Fault] = []
        self.trouble = ""  # why the source's content is not desired state now; for watchers
        # The source that lost its last watcher unintentionally, and when that happened.
        self._unwatched: Json | None = journal.get("unwatched")
        if lost := journal.get("watching"):
            self._is_unwatched(lost)
        self._on_purpose = False  # the reconciler ends because a client requested it
        self._pending_revision: Revision | None = (
            None  # a revision that could not be journalled yet
        )
        self._last = Reading()
        self._journalled_status: Json | None = None  # the same as in the journal; None: not known
        self._checkpoint_store = journal.get("checkpoint_store", "")  # for `_examine`
        self._journal_status()

    @property
    def busy(self) -> bool:
        return self.source is not None or bool(self.attaching)

    @property
    def identity(self) -> str | None:
        return self.source.identity if self.source else None

    # ---- clients

    def attach(self, request: service.Request[Attach]) -> None:
        """Attach a source. The reply is sent once the source has been read, or could not be."""
        source = request.message.source.given()
        attaching = _Attaching(request, Reader(source, self.state, self._examine))
        self.attaching.append(attaching)
        self.server.add(attaching.reader.wake, lambda: self._first(attaching))

    def _first(self, attaching: _Attaching) -> None:
        request, reader = attaching.request, attaching.reader
        reading = reader.take()
        if reading is None:
            return
        self.server.remove(reader.wake)
        self.attaching.remove(attaching)
        try:
            reply = self._attached(request, reader, reading)
        except control.ControlError as error:
            reader.close()
            request.refuse(error)
        except sqlite3.Error as error:
            reader.close()
            request.refuse(storage_error(self.state, error))
        except Exception as error:  # noqa: BLE001 - it must not end the loop
            if self.source is reader:
                self._unfollow()
            else:
                reader.close()
            record_fault("attaching a source", error)
            text = f"attaching it failed ({type(error).__name__}); see the reconciler's log"
            request.refuse(control.ControlError("internal", text))
        else:
            request.reply(**reply)

    def _attached(self, request: service.Request[Attach], reader: Reader, reading: Reading) -> Json:
        """The reply. `again`: follow the source whatever is wrong with it, as it was followed
        before."""
        watch, again = request.message.watch, request.message.again
        self._refuse_other_source(reader.identity)
        if watch and again:
            self._follow(reader, request.channel)
            self._handle(reading)
        elif reading.revision is None:
            raise control.ControlError("unreadable", reading.error)
        else:
            self._consider(reader, reading.revision, watch)
            if watch:
                self._follow(reader, request.channel)
            else:
                if self.source is None:
                    self.forget_unwatched()
                reader.close()
        revision = reading.revision
        return {
            "revision": revision.id if revision else None,
            "faults": [str(f) for f in self.faults],
            "warnings": [str(w) for w in revision.loaded.warnings] if revision else [],
        }

    def _refuse_other_source(self, identity: str) -> None:
        if self.source and not same_source(self.source.identity, identity):
            raise control.ControlError(
                "source", f"this fleet follows {self.source.identity}; stop that first"
            )
        live = sorted(
            o.name
            for o in self.journal.objects()
            if o.kind == "Job"
            and o.source
            and not same_source(masked(o.source), identity)
            and not self._ended(o.name)
        )
        if live:
            known = masked(self.journal.get("source") or "")
            raise control.ControlError(
                "source",
                f"this fleet belongs to {known}, whose jobs still run ({', '.join(live)}): cancel "
                "them first, or use another --state",
            )

    def closed(self, channel: control.Channel) -> None:
        """A client has disconnected. A source is followed while one of its watchers stays."""
        for attaching in [each for each in self.attaching if each.request.channel is channel]:
            self.attaching.remove(attaching)
            self.server.remove(attaching.reader.wake)
            attaching.reader.close()
        if channel in self.watchers:
            if self.source and self.watchers == [channel] and not self._on_purpose:
                self._is_unwatched(self.source.identity)
            self._stop_watching(channel)

    def unwatch(self, channel: control.Channel) -> None:
        """A client ends its watching deliberately."""
        if channel in self.watchers:
            self._stop_watching(channel)

    def _stop_watching(self, channel: control.Channel) -> None:
        self.watchers.remove(channel)
        if not self.watchers:
            self._unfollow()

    def stops(self) -> None:
        """A client has requested the reconciler to end; watchers get to know that."""
        self._on_purpose = True
        self.forget_unwatched()

    def close(self) -> None:
        """End all reading, because the reconciler ends."""
        for attaching in self.attaching:
            attaching.reader.close()
        if self.source and not self._on_purpose:
            self._is_unwatched(self.source.identity)
        self._unfollow(CLOSING_S)

    # ---- following

    def _follow(self, reader: Reader, channel: control.Channel) -> None:
        watchers = [*self.watchers, channel]
        if self.source:
            self.server.remove(self.source.wake)
            self.source.close()
        self.source, self.watchers = reader, watchers
        self._unwatched = None
        self._forget()
        self.server.add(reader.wake, self.poll)

    def _unfollow(self, wait_s: float = 0.0) -> None:
        if self.source is None:
            return
        self.server.remove(self.source.wake)
        self.source.close(wait_s)
        self.source, self.watchers = None, []
        self._forget()

    def _is_unwatched(self, identity: str) -> None:
        self._unwatched = {"source": identity, "since": time.time()}

    def forget_unwatched(self) -> None:
        """Clear the warning: whoever applies files by hand, or stops us, knows that no watcher is
        left."""
        self._unwatched = None
        self._journal_status()

    def _forget(self) -> None:
        self._pending_revision, self._last, self.trouble = None, Reading(), ""
        self._journal_status()

    def poll(self) -> None:
        """Process news. Called by the loop, and when the reader has some. Never raises."""
        try:
            self._poll()
        except Exception as error:  # noqa: BLE001 - it must not end the loop
            self.trouble = f"following it failed ({type(error).__name__}); see the log"
            record_fault("following a source", error)

    def _poll(self) -> None:
        if self.source is None:
            return
        reading = self.source.take()
        if reading is None and self._pending_revision:
            reading = dataclasses.replace(self._last, revision=self._pending_revision)
        if reading is not None:
            self._handle(reading)
        else:
            self._journal_status()

    def _handle(self, reading: Reading) -> None:
        assert self.source is not None
        self._last, trouble = reading, reading.error
        if reading.revision:
            try:
                self._consider(self.source, reading.revision, True)
                self._pending_revision = None
            except sqlite3.Error as error:  # reported to watchers, and tried again
                self._pending_revision = reading.revision
                trouble = trouble or storage_error(self.state, error).message
                if trouble != self.trouble:
                    log.warning("%s waits: %s", reading.revision.id[:19], error)
        self.trouble = trouble
        self._journal_status()

    def _journal_status(self) -> None:
        """Journal for readers what is followed, and since when it cannot be read."""
        last = self._last
        unreachable = {"message": last.error, "since": last.since} if last.error else None
        now: Json = {
            "watching": self.identity,
            "unreachable": unreachable,
            "unwatched": self._unwatched,
        }
        if now == self._journalled_status:
            return
        with contextlib.suppress(sqlite3.Error), self.journal.transaction():  # the disk may be full
            for key, value in now.items():
                self.journal.set(key, value)
            if last.error:
                self.journal.event("Source", "Unreachable", last.error, "Warning")
            if (
                self._unwatched
                and self._journalled_status
                and not self._journalled_status["unwatched"]
            ):
                text = f"nothing follows {self._unwatched['source']}: its `rankfold watch` exited"
                self.journal.event("Source", "Unwatched", text, "Warning")
            self._journalled_status = now

    # ---- revisions

    def _consider(self, reader: Reader, revision: Revision, followed: bool) -> None:
        """Accept a revision as a whole, or refuse it as a whole and leave the fleet unchanged. An
        exception while it is accepted refuses it, too: another try would raise it again. Raises
        sqlite3.Error."""
        try:
            faults = self._faults(revision.loaded, reader.in_parts and followed)
            if not faults:
                self._accept(reader, revision)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            faults = [_failed(revision, error)]
        self.faults = faults
        self._record_attempt(reader, revision)

    def _accept(self, reader: Reader, revision: Revision) -> None:
        loaded = revision.loaded
        with self.journal.transaction():
            known = self.journal.get("source") or ""
            if known != reader.identity and same_source(known, reader.identity):
                self.journal.rename_source(known, reader.identity)
            changed_jobs = self.journal.accept(
                loaded.desired, loaded.origins, reader.identity, revision.id
            )
            never_ended = [file.path for file in loaded.files.values() if not file.ended]
            self.journal.set("never_ended", never_ended)
            after = self.journal.desired().jobs
            for name in changed_jobs:
                self.open_change(after.get(name), revision.id, _saved_at(revision, name))
        self._checkpoint_store = loaded.desired.checkpoint_store

    def _record_attempt(self, reader: Reader, revision: Revision) -> None:
        faults = self.faults
        self.journal.set(
            "attempted",
            {
                "revision": revision.id,
                "time": time.time(),
                "faults": [str(f) for f in faults],
            },
        )
        if faults:
            text = f"{revision.id[:19]} is refused, the fleet stays as it was: {faults[0]}"
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            self.journal.event("Source", "RevisionRefused", text + more, "Warning")
            return
        text = f"{revision.id[:19]} from {reader.identity}"
        self.journal.event("Source", "RevisionAccepted", text)
        point("revision.accepted")
        self.accepted()

    def _faults(self, loaded: spec.Loaded, in_parts: bool) -> list[Fault]:
        if loaded.faults:
            return list(loaded.faults)
        objects = self.journal.objects()
        faults = revision_faults(loaded, self.journal.records(), self._live_by_hand())
        faults += emptied_files(loaded, objects)
        faults += save_faults(loaded, self.node.no_saves())
        faults += store_faults(loaded, self.journal.desired(), self.journal.records())
        if in_parts:
            faults += cut_files(loaded, objects, self.journal.get("never_ended", []))
        return sorted(faults)

    def _examine(self, loaded: spec.Loaded) -> None:
        """Check a new store; runs in the reader's thread, because stores may be remote. If the
        fleet's present store cannot be reached, that does not refuse a revision: saves report
        it."""
        url = loaded.desired.checkpoint_store
        known = url in ("", self._checkpoint_store)
        if not known and not loaded.faults and (why := self.node.store_trouble(url)):
            loaded.faults.append(loaded.policy_fault("spec.checkpointStore", why))

    def _live_by_hand(self) -> frozenset[str]:
        objects = self.journal.objects()
        return frozenset(
            o.name
            for o in objects
            if o.kind == "Job" and o.source is None and not self._ended(o.name)
        )

    def _ended(self, name: str) -> bool:
        record = self.journal.record(name)
        return record is not None and record.step == "ended"


def _saved_at(revision: Revision, name: str) -> float:
    origin = revision.loaded.origins.get(("Job", name), Origin())
    return revision.loaded.saved_at.get(origin.file, revision.saved_at)


def _failed(revision: Revision, error: Exception) -> Fault:
    """A bug, reported at the object that it concerns if that is known."""
    place = Origin("-", 1)
    if isinstance(error, NotAccepted):
        place = revision.loaded.origins[error.key]
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    record_fault(f"accepting {revision.id[:19]}", error)
    kind = type(error).__name__  # without its message, which may contain a value of `env`
    reason = (
        f"accepting it failed: an internal error of rankfold ({kind}); see the reconciler's log"
    )
    return Fault(place.file, place.line, "-", reason)


def storage_error(state: Path, error: sqlite3.Error) -> control.ControlError:
    """The error that the requester gets if the journal cannot be written (full disk)."""
    return control.ControlError("storage", f"the journal in {state} cannot be written: {error}")
