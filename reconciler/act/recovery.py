"""Executes saves, and the steps that bring a job into the store and back, for executor.py.

As there, an action journals before it acts and afterwards, and yields what may block. A save never
leaves a job paused, whatever fails: its ranks are thawed and its barrier is withdrawn before a
failure is recorded. The planner requests again what was not done because a process ended.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from msgspec import structs

from rankfold import control, switches
from rankfold.messages import of_incarnation
from rankfold.reconciler import actions, clock
from rankfold.reconciler.act.inflight import Call, Steps, agreed
from rankfold.reconciler.act.takeover import Takeover
from rankfold.reconciler.deadlines import (
    DETACH_S,
    FREEZE_S,
    LAUNCHERS_END_S,
    LAUNCHERS_POLL_S,
    REQUEST_S,
    SNAPSHOT_S,
)
from rankfold.reconciler.faults import point
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import NODE, Answer, LocalSnapshot, Record, Restore, Save
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.durable import Damaged
from rankfold.reconciler.node.launchers import CannotLaunch, Node
from rankfold.reconciler.plan import saving
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.wording import count, file_problems, named, size, time_of_day

FOR_GOOD = ("undumpable", "unavailable", "snapshot")  # a save would fail so again


class Recovery:
    """config: returns the configuration of a rank's launcher, as `Node.launch` takes it."""

    def __init__(
        self, layout: Layout, journal: Journal, node: Node, config: Callable[[Record, int], Json]
    ):
        self.layout, self.journal, self.node, self.config = layout, journal, node, config
        self.takeover = Takeover(journal, node, self._url)

    def _record(self, job: str) -> Record:
        return self.journal.record(job) or Record(job)

    def _update(self, job: str, **fields: Any) -> Record:
        record = structs.replace(self._record(job), **fields)
        self.journal.save(record)
        return record

    def _event(self, job: str, reason: str, text: str, kind: str = "Normal") -> None:
        self.journal.event(f"Job/{job}", reason, text, kind)

    # ---- saves

    def begin(self, job: str, why: str) -> None:
        """Record that a save begins, with the barrier that is being journalled."""
        record = self._record(job)
        if record.save is None:
            number = record.saves + 1
            save = Save(number, why, clock.now(), token=record.requested)
            self._update(job, save=save, saves=number, requested="")

    def save(self, action: actions.Save, observed: Observed) -> Steps:
        """Save a job. A save that fails raises nothing; the job's record has the error."""
        yield from self.drop_local_snapshot(action.job)
        try:
            save = self._journal_cut(action, observed)
        except sqlite3.Error:  # the job is paused at a cut, and must not wait for disk space
            yield from self._resume_ranks(action)
            raise
        cut = time.monotonic() - _seconds_since_cut(action, observed)
        point("save.journalled")
        error, again, written = "", True, 0
        try:
            written = yield from self._snapshots(action)
        except (control.ControlError, OSError) as failure:
            error, again = str(failure), getattr(failure, "code", "") not in FOR_GOOD
        except Exception:  # a bug must not leave the job paused either
            yield from self._resume_ranks(action)
            raise
        if error or action.devices or save.why != "rest":
            yield from self._resume_ranks(action)
        if not error:
            kept = yield [self._copy_logs(action, rank) for rank in action.ranks]
            error = next((f"its logs: {each}" for each in kept if each), "")
        if error:
            self._failed(action.job, save, error, again)
            yield [lambda: self.node.drop(action.job, action.number)]
            return
        with self.journal.transaction():
            self._update(action.job, save=structs.replace(save, stage="uploading"))
            self.journal.done(action.job, action.epoch, f"save-{action.number}")
            pause = (
                f"; its ranks were paused for {time.monotonic() - cut:.3f} s"
                if action.devices
                else ""
            )
            text = f"save {action.number}: {size(written)} of its processes and devices{pause}"
            self._event(action.job, "Snapshot", text)

    def save_on_node(self, action: actions.Save) -> Steps:
        """Make the local snapshot of a job that rests in memory. If it fails, the job continues to
        rest in memory, and its record has the error.

        Raises ControlError ("busy") while a launcher still works on an earlier request.
        """
        job, number = action.job, action.number
        with self.journal.transaction():
            record = self._record(job)
            self.journal.begin(job, action.epoch, f"dump-{number}", {"ranks": action.ranks})
            self._update(job, local_snapshot=LocalSnapshot(number), saves=max(record.saves, number))
        point("local_snapshot.journalled")
        error, written = "", 0
        try:
            written = yield from self._snapshots(action)
            agreed((yield [self._copy_logs(action, rank) for rank in action.ranks]))
            agreed((yield [lambda: self.node.settle(job, number)]))
        except (control.ControlError, OSError) as failure:
            if getattr(failure, "code", "") == "busy":  # the launcher may be using the folder
                raise
            error = str(failure)
        except Exception:
            yield from self._resume_ranks(action)
            raise
        if error:
            yield from self._resume_ranks(action)
            yield [lambda: self.node.drop(job, number)]
            with self.journal.transaction():
                self._update(job, local_snapshot=None, rest_failed_at=clock.now(), rest_error=error)
                self._event(job, "DumpFailed", f"it rests in memory: {error}", "Warning")
            return
        point("local_snapshot.written")
        with self.journal.transaction():
            wanted = self.journal.desired().jobs.get(job)
            stays = wanted is not None and wanted.suspended and not wanted.store
            moved = {"step": "vacating", "stored": NODE} if stays else {}  # unless it was resumed
            self._update(
                job, local_snapshot=LocalSnapshot(number, whole=True), rest_error="", **moved
            )
            self.journal.done(job, action.epoch, f"dump-{number}")
            self._event(job, "Dumped", f"{size(written)} of its processes and devices")

    def drop_local_snapshot(self, job: str) -> Steps:
        """Remove the local snapshot of a job that continues, from it or from elsewhere. If it is
        being uploaded, it is removed after that."""
        record = self._record(job)
        if local := record.local_snapshot:
            if record.save is None or record.save.number != local.number:
                yield [lambda: self.node.drop(job, local.number)]
            self._update(job, local_snapshot=None)

    def _journal_cut(self, action: actions.Save, observed: Observed) -> Save:
        record, since_cut = self._record(action.job), _seconds_since_cut(action, observed)
        save, token = record.save, record.requested
        if save is None or save.number != action.number:  # it rests already
            why = self._resting(action.job)
            save, token = Save(action.number, why, clock.now(), token=token), ""
        cut = clock.now() - since_cut
        save = structs.replace(save, stage="saving", at=clock.wall(cut), cut=cut)
        index = Index(self.journal.desired(), {action.job: record}, observed, frozenset())
        with self.journal.transaction():
            detail: Json = {"ranks": action.ranks, "why": save.why}
            self.journal.begin(action.job, action.epoch, f"save-{action.number}", detail)
            self._update(
                action.job,
                save=save,
                saves=max(record.saves, action.number),
                requested=token,
                saved_at=cut,
                saved_steps=saving.steps(index, record) or record.saved_steps,
            )
        return save

    def _resting(self, job: str) -> str:
        """The reason (Save.why) for a save of a resting job."""
        wanted = self.journal.desired().jobs.get(job)
        return "rest" if wanted is not None and wanted.store else "request"

    def _snapshots(self, action: actions.Save) -> Generator[Sequence[Call], list[Any], int]:
        """Make the snapshots; return their bytes. Raises ControlError or OSError."""
        job, node = action.job, self.node
        saves = self._proxies(action, "save", DETACH_S, {}) if action.devices else []
        freezes = [self._request(job, rank, "freeze", FREEZE_S) for rank in action.ranks]
        agreed((yield [*saves, *freezes]))  # at a cut, proxies and launchers do not need each other
        point("save.frozen")
        agreed((yield [lambda: node.free_space(job, action.number)]))

        def snapshot(rank: int) -> Call:
            folder = str(node.snapshot(job, action.number, rank))
            in_background = bool(action.devices)  # if not, the ranks rest, and may be ended next
            return self._request(
                job, rank, "snapshot", SNAPSHOT_S, folder=folder, beside=in_background
            )

        replies = yield [snapshot(rank) for rank in action.ranks]
        agreed(replies)
        point("save.written")
        return sum(int(each["bytes"]) for each in replies)

    def _copy_logs(self, action: actions.Save, rank: int) -> Call:
        return lambda: self.node.keep_logs(action.job, action.number, rank)

    def _resume_ranks(self, action: actions.Save) -> Steps:
        """Withdraw the barrier and thaw the ranks, all at once, so that none waits for an
        unresponsive process. The planner repeats requests that fail now."""
        thaws = [self._request(action.job, rank, "thaw", FREEZE_S) for rank in action.ranks]
        yield [*self._proxies(action, "barrier", REQUEST_S, {"action": "withdraw"}), *thaws]

    def _proxies(self, action: actions.Save, op: str, timeout: float, more: Json) -> list[Call]:
        request = {"job": action.job, "epoch": action.epoch, **more}

        def request_to(device: str) -> Call:
            path = self.layout.proxy_socket(device)
            return lambda: control.call(path, op, timeout=timeout, **request)

        return [request_to(device) for device in action.devices]

    def _request(self, job: str, rank: int, op: str, timeout: float, **more: Any) -> Call:
        arguments = more | of_incarnation(self._record(job).incarnation)
        return lambda: self.node.request(job, rank, op, timeout, **arguments)

    def _failed(self, job: str, save: Save, error: str, again: bool) -> None:
        """Record that a save failed. again: the reason may pass, so a requested save is tried
        again."""
        record = self._record(job)
        tries = record.request_tries + 1
        if save.token and again and tries < saving.REQUEST_TRIES and not record.requested:
            answer: dict[str, Any] = {"requested": save.token, "request_tries": tries}
        else:
            text = f"{error}; tried {count(tries, 'time')}" if tries > 1 else error
            answer = {"request_tries": 0, **self._answer(save, error=text)}
        with self.journal.transaction():
            self._update(job, save=None, save_error=error, saved_at=clock.now(), **answer)
            self._event(job, "SaveFailed", f"save {save.number}: {error}", "Warning")

    def _answer(self, save: Save, **fields: str) -> dict[str, Answer]:
        return {"answer": Answer(save.token, **fields)} if save.token else {}

    def conclude(self, action: actions.Conclude) -> Steps:
        record, found = self._record(action.job), action.checkpoint
        save = record.save
        if save is None or save.number != action.number:
            return
        if found is None:
            self._failed(action.job, save, action.error, action.again)
        else:
            moved = (
                {"step": "vacating", "stored": found.id, "local_snapshot": None}
                if action.rest
                else {}
            )
            before = [each for each in record.checkpoints if each.id != found.id]
            with self.journal.transaction():
                self._update(
                    action.job,
                    save=None,
                    save_error="",
                    save_obstacle="",
                    request_tries=0,
                    known=max(record.known, int(found.id.partition("-")[0])),
                    checkpoints=(*before, found)[-action.keep :],
                    **self._answer(save, id=found.id),
                    **moved,
                )
                text = f"checkpoint {found.id}: {size(found.bytes)}"
                self._event(action.job, "CheckpointSaved", text)
        point("conclude.journalled")
        local = self._record(action.job).local_snapshot
        if local is None or local.number != action.number:
            yield [lambda: self.node.drop(action.job, action.number)]
        elif found is None:  # it still rests in it, and another upload may follow
            yield [lambda: self.node.forget_transfer(action.job, action.number)]

    # ---- the way into the store and out of it

    def upload(self, action: actions.Upload) -> Steps:
        record = self._record(action.job)
        local, save = record.local_snapshot, record.save
        if save is None and local is not None:
            why, token, cut = self._resting(action.job), record.requested, record.rested_at
            save = Save(
                local.number, why, clock.now(), "uploading", token, clock.wall(cut), cut=cut
            )
            self._update(action.job, save=save, requested="")
        if save is None or save.number != action.number:
            return
        if local is not None and local.number == save.number:  # it may have been stored for long
            (error,) = yield [lambda: self.node.check(action.job, action.number)]
            if error:
                self._failed(action.job, save, str(error), not isinstance(error, Damaged))
                return
        task = self._task(action.job, action.keep, None, self._about(action.job, save))
        tried = structs.replace(save, tries=save.tries + 1, tried_at=clock.now())
        self._update(action.job, save=tried)
        point("upload.journalled")
        yield [self._tidying(action.job)]
        (trouble,) = yield [self._transfer("upload", action, task)]
        self._record_start(action, trouble, "UploadFailed")

    def fetch(self, action: actions.Fetch) -> Steps:
        record = self._record(action.job)
        restore = record.restore
        if restore is None:  # from here on it is another incarnation
            yield from self.drop_local_snapshot(action.job)
            restore = Restore(action.number, action.id)
            with self.journal.transaction():
                record = self._update(
                    action.job,
                    restore=restore,
                    incarnation=record.incarnation + 1,
                    saves=max(record.saves, action.number),
                )
                text = f"checkpoint {action.id}, for incarnation {record.incarnation}"
                self._event(action.job, "Fetching", text)
            point("fetch.journalled")
            yield [self._tidying(action.job)]
            agreed((yield [lambda: self.node.free_space(action.job, action.number)]))
        else:
            tried = structs.replace(restore, tries=restore.tries + 1, tried_at=clock.now())
            self._update(action.job, restore=tried)
        task = self._task(action.job, 1, action.id, {})
        (trouble,) = yield [self._transfer("fetch", action, task)]
        self._record_start(action, trouble, "FetchFailed")

    def _tidying(self, job: str) -> Call:
        """Remove snapshots that are no longer used, which a killed reconciler may have left. A
        snapshot made meanwhile has a number above all that the record has."""
        record = self._record(job)
        used = {
            each.number for each in (record.save, record.restore, record.local_snapshot) if each
        }
        return lambda: self.node.tidy(job, used, record.saves)

    def _transfer(self, kind: str, action: actions.Upload | actions.Fetch, task: Json) -> Call:
        """Start an upload or fetch. If one is stuck, end it first, and return a description of
        it."""

        def begin() -> str:
            stuck = ""
            if action.stuck:
                whom = self.node.transferred(action.job, action.number).waits_for
                where = f"waits for {whom}" if whom else task["url"]
                after = f"{switches.stuck_s():.0f} s"
                stuck = f"{where}: no progress for {after}; its process was killed"
                self.node.end_transfer(action.job, action.number)
            self.node.transfer(kind, action.job, action.number, task)
            return stuck

        return begin

    def _task(self, job: str, keep: int, id: str | None, about: Json) -> Json:
        record = self._record(job)
        assert record.fixed is not None
        return {
            "url": self._url(),
            "fleet": self.node.fleet(),
            "job": job,
            "incarnation": record.incarnation,
            "ranks": list(range(record.fixed.world_size)),
            "about": about,
            "keep": keep,
            "id": id,
            "known": record.known,
        }

    def _url(self) -> str:
        return self.journal.desired().checkpoint_store or self.layout.checkpoints

    def _about(self, job: str, save: Save) -> Json:
        """The facts that another state directory needs to continue a job: operations.SavedJob."""
        record = self._record(job)
        assert record.fixed is not None
        return {
            "time": save.at,
            "why": save.why,
            "world_size": record.fixed.world_size,
            "device": record.device,
            "device_type": record.device_type,
            "master_port": record.master_port,
            "epoch": record.epoch,
        }

    def _record_start(
        self, action: actions.Upload | actions.Fetch, trouble: object, reason: str
    ) -> None:
        """Record the error, if any, of starting an upload or fetch; it is tried again later."""
        job, record = action.job, self._record(action.job)
        if isinstance(trouble, Exception) and not isinstance(trouble, (CannotLaunch, OSError)):
            raise trouble
        text = str(trouble)
        if record.save is not None and record.save.error != text:
            self._update(job, save=structs.replace(record.save, error=text))
        elif record.restore is not None and record.restore.error != text:
            self._update(job, restore=structs.replace(record.restore, error=text))
        if text:
            self._event(job, reason, text, "Warning")

    def restore(self, action: actions.Restore) -> Steps:
        job, record = action.job, self._record(action.job)
        restore, incarnation = record.restore, record.incarnation
        if restore is None:  # a local snapshot: as for a fetch, another incarnation begins here
            yield from self.takeover.need_own(job)
            restore, incarnation = Restore(action.number, NODE), incarnation + 1
        if record.step != "restoring":
            yield from self.takeover.need_other_owner_ended(job)
            with self.journal.transaction():
                detail: Json = {"id": restore.id, "incarnation": incarnation}
                self.journal.begin(job, record.epoch, f"restore-{action.number}", detail)
                record = self._update(
                    job, step="restoring", restore=restore, incarnation=incarnation
                )
            point("restore.journalled")
        try:
            problems = yield from self._bring_back(action, record)
        except (control.ControlError, CannotLaunch, OSError, ValueError, KeyError) as error:
            self._not_restored(job, str(error), isinstance(error, Damaged))
            return
        with self.journal.transaction():
            self._update(
                job,
                step="detached",
                placement=(),
                proxies={},
                detached=(),
                restore=None,
                stored="",
                error="",
                error_permanent=False,
                rested_at=clock.now(),
                known=record.known if restore.id == NODE else incarnation,
                previous_owner="",
                file_problems=problems or record.file_problems,
            )
            self.journal.done(job, record.epoch, f"restore-{action.number}")
            self._event(job, "Restored", named(restore.id))
            if problems:
                self._event(job, "FilesDiffer", problems, "Warning")
        point("restore.done")
        if restore.id != NODE:  # a local snapshot is removed before its ranks are thawed
            yield [lambda: self.node.drop(job, action.number)]

    def _bring_back(
        self, action: actions.Restore, record: Record
    ) -> Generator[Sequence[Call], list[Any], str]:
        """Restore the ranks; return problems with their files. Raises ControlError, CannotLaunch,
        OSError."""

        if record.stored == NODE:
            agreed((yield [lambda: self.node.check(action.job, action.number)]))

        empty = [self.config(record, rank) | {"empty": True} for rank in action.missing]

        def restoring(rank: int) -> Call:
            folder = str(self.node.snapshot(action.job, action.number, rank))
            return self._request(action.job, rank, "restore", SNAPSHOT_S, folder=folder)

        def logging(rank: int) -> Call:
            return lambda: self.node.bring_logs(action.job, action.number, rank)

        agreed((yield [logging(rank) for rank in action.missing]))
        agreed((yield [lambda: self.node.launch(empty)] if empty else []))
        point("restore.launched")
        replies = yield [restoring(rank) for rank in action.ranks]
        agreed(replies)
        point("restore.sent")
        return file_problems(replies)

    def _not_restored(self, job: str, error: str, damaged: bool) -> None:
        restore = self._record(job).restore
        assert restore is not None
        now = structs.replace(
            restore,
            failed=True,
            error=error,
            tries=restore.tries + 1,
            tried_at=clock.now(),
            damaged=damaged,
        )
        with self.journal.transaction():
            self._update(job, restore=now)
            self._event(job, "RestoreFailed", f"{named(restore.id)}: {error}", "Warning")

    # ---- ranks

    def thaw(self, action: actions.Thaw) -> Steps:
        agreed((yield [self._request(action.job, rank, "thaw", FREEZE_S) for rank in action.ranks]))

    def look(self, action: actions.Look) -> Steps:
        """Record what cannot be saved. Raises nothing: launchers that do not answer, or do not know
        the request, are ignored."""
        incarnation = self._record(action.job).incarnation
        replies = yield [
            self._request(action.job, rank, "examine", REQUEST_S) for rank in action.ranks
        ]
        found = [
            f"rank {rank}: {'; '.join(each['hindrances'])}"
            for rank, each in zip(action.ranks, replies, strict=True)
            if isinstance(each, dict) and each.get("hindrances")
        ]
        before = self._record(action.job)
        if before.incarnation != incarnation or before.step != "placed":  # ended, or even removed
            return
        more = f" (and {count(len(found) - 1, 'more rank')})" if len(found) > 1 else ""
        text = found[0] + more if found else ""
        with self.journal.transaction():
            self._update(
                action.job,
                obstacle_checked=incarnation,
                obstacle_checked_at=clock.now(),
                save_obstacle=text,
            )
            if text and text != before.save_obstacle:
                self._event(action.job, "CannotBeSaved", text, "Warning")

    def vacate(self, action: actions.Vacate) -> Steps:
        def ending(rank: int) -> Call:
            vacate = self._request(action.job, rank, "vacate", FREEZE_S)
            end_empty = self._request(action.job, rank, "end", REQUEST_S)

            def end() -> None:
                vacate()
                end_empty()

            return end

        point("vacate.before")
        replies = yield [ending(rank) for rank in action.ranks]
        agreed([each for each in replies if getattr(each, "code", "") != "unreachable"])

    def wait_launchers_ended(self, job: str) -> Steps:
        """Wait until the launchers of a job have ended, for GONE_S at most."""
        record = self._record(job)
        ranks = range(record.fixed.world_size if record.fixed else 0)

        def wait() -> None:
            last = time.monotonic() + LAUNCHERS_END_S
            while any(self.node.lives(job, r) for r in ranks) and time.monotonic() < last:
                time.sleep(LAUNCHERS_POLL_S)

        yield [wait]

    def rest(self, action: actions.Rest) -> None:
        """Record that a job rests. Raises ControlError while a launcher lives: it must be *seen*
        gone."""
        job, record = action.job, self._record(action.job)
        ranks = range(record.fixed.world_size if record.fixed else 0)
        for rank in ranks:
            if self.node.lives(job, rank):
                raise control.ControlError("busy", f"the launcher of rank {rank} has not exited")
        self.node.sweep(job, ranks)
        self.node.forget_ends(job, ranks)
        point("rest.before")
        with self.journal.transaction():
            if action.restart:
                self._restart(record, action.stored)
            elif action.unusable:
                self._roll_back(record, action)
            else:
                answered: Json = {}
                if record.requested and action.stored not in ("", NODE) and record.restore is None:
                    answered = {
                        "requested": "",
                        "answer": Answer(record.requested, id=action.stored),
                    }
                self._update(
                    job,
                    step="stored",
                    stored=action.stored,
                    placement=(),
                    **answered,
                    restore=_tried_again(record.restore),
                    error="",
                    error_permanent=False,
                )
                if record.restore is None:
                    self._event(job, "Stored", f"it rests as {named(action.stored)}")

    def _roll_back(self, record: Record, action: actions.Rest) -> None:
        older = next(each for each in record.checkpoints if each.id == action.stored)
        cost = (
            f"{named(action.unusable)} cannot be restored ({action.error}): back to checkpoint "
            f"{older.id} of {time_of_day(older.time)}"
        )
        bad = () if action.unusable == NODE else (action.unusable,)
        self._update(
            record.name,
            step="stored",
            restore=None,
            stored=older.id,
            restart_cost=cost,
            file_problems="",
            unusable=(*record.unusable, *bad),
        )
        self._event(record.name, "CheckpointUnusable", cost, "Warning")

    def _restart(self, record: Record, stored: str) -> None:
        ending = record.ending
        assert ending is not None
        found = next((each for each in record.checkpoints if each.id == stored), None)
        cost = f"{ending.message}: restarted from the beginning, since there is no checkpoint yet"
        if record.back_to:
            cost = ending.message
        elif found:
            cut = clock.of_wall(found.time) if found.cut is None else found.cut
            age = max(0.0, ending.since - cut)
            cost = (
                f"{ending.message}: back to checkpoint {stored} of {time_of_day(found.time)}; "
                f"what was done in the {age:.1f} s since then is repeated"
            )
        self._update(
            record.name,
            step="stored" if stored else "new",
            stored=stored,
            ending=None,
            placement=(),
            proxies={},
            detached=(),
            counters={},
            restore=None,
            save=None,
            restarts=record.restarts + (0 if record.back_to else 1),
            restart_cost=cost,
            back_to="",
            file_problems="",
            error="",
            error_permanent=False,
            incarnation=record.incarnation + (0 if stored else 1),
            saved_at=record.saved_at if stored else 0.0,
            saved_steps=record.saved_steps if stored else 0,
            gpu_seconds=record.used_so_far(clock.now()),
            placed_since=None,
            request_tries=0,
            **(self._answer(record.save, error=ending.message) if record.save else {}),
        )
        self._event(record.name, "Restarted", cost, "Warning")


# ---- helpers -----------------------------------------------------------------------------------


def _seconds_since_cut(action: actions.Save, observed: Observed) -> float:
    """Seconds for which all of a job's devices have been at their cut."""
    there = (seen.job(action.job) for d in action.devices if (seen := observed.devices.get(d)))
    cuts = [each.cut_at for each in there if each and each.cut_at and each.epoch == action.epoch]
    return max(0.0, clock.now() - max(cuts)) if cuts else 0.0


def _tried_again(restore: Restore | None) -> Restore | None:
    """The restore, to be tried again: all processes of the failed try are gone."""
    if restore is None:
        return None
    error = restore.error or "a rank exited while it was being restored"
    tried_at = restore.tried_at if restore.failed else clock.now()
    tries = restore.tries if restore.failed else restore.tries + 1
    return structs.replace(restore, failed=False, error=error, tries=tries, tried_at=tried_at)


def count_until(journal: Journal, booted_after: float) -> None:
    """Correct the device-seconds after a boot: since `booted_after` (fleet time) no device has
    served a job, although records say so."""
    with journal.transaction():
        for record in journal.records().values():
            if record.placed_since is not None:
                held = max(0.0, booted_after - record.placed_since) * len(set(record.placement))
                journal.save(
                    structs.replace(
                        record,
                        gpu_seconds=record.gpu_seconds + held,
                        placed_since=clock.now(),
                    )
                )
