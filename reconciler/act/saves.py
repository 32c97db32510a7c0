"""Executes saves of jobs, for executor.py.

As there, an action journals before it acts and afterwards, and yields what may block. A save never
leaves a job paused, whatever fails: its ranks are thawed and its barrier is withdrawn before a
failure is recorded. The planner requests again what was not done because a process ended.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Sequence
from typing import Any

from msgspec import structs

from rankfold import control
from rankfold.reconciler import actions, clock
from rankfold.reconciler.act.inflight import Call, Steps, agreed
from rankfold.reconciler.act.jobs import JobActions, answer
from rankfold.reconciler.deadlines import DETACH_S, FREEZE_S, REQUEST_S, SNAPSHOT_S
from rankfold.reconciler.faults import point
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import NODE, LocalSnapshot, Save
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.plan import saving
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.wording import count, size

FOR_GOOD = ("undumpable", "unavailable", "snapshot")  # a save would fail so again


class Saves(JobActions):
    """Makes the snapshots of jobs at a cut or at rest, and records how their saves ended."""

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
            self.failed(action.job, save, error, again)
            yield [lambda: self.node.drop(action.job, action.number)]
            return
        with self.journal.transaction():
            self._update(action.job, save=structs.replace(save, stage="uploading"))
            self.journal.end_action(action.job, action.epoch, f"save-{action.number}")
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
            agreed((yield [lambda: self.node.sync_snapshots(job, number)]))
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
            self.journal.end_action(job, action.epoch, f"dump-{number}")
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
            why = self.resting(action.job)
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

    def resting(self, job: str) -> str:
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

    def failed(self, job: str, save: Save, error: str, again: bool) -> None:
        """Record that a save failed. again: the reason may pass, so a requested save is tried
        again."""
        record = self._record(job)
        tries = record.request_tries + 1
        if save.token and again and tries < saving.REQUEST_TRIES and not record.requested:
            reply: dict[str, Any] = {"requested": save.token, "request_tries": tries}
        else:
            text = f"{error}; tried {count(tries, 'time')}" if tries > 1 else error
            reply = {"request_tries": 0, **answer(save, error=text)}
        with self.journal.transaction():
            self._update(job, save=None, save_error=error, saved_at=clock.now(), **reply)
            self._event(job, "SaveFailed", f"save {save.number}: {error}", "Warning")

    def conclude(self, action: actions.Conclude) -> Steps:
        record, checkpoint = self._record(action.job), action.checkpoint
        save = record.save
        if save is None or save.number != action.number:
            return
        if checkpoint is None:
            self.failed(action.job, save, action.error, action.again)
        else:
            moved = (
                {"step": "vacating", "stored": checkpoint.id, "local_snapshot": None}
                if action.rest
                else {}
            )
            before = [each for each in record.checkpoints if each.id != checkpoint.id]
            with self.journal.transaction():
                self._update(
                    action.job,
                    save=None,
                    save_error="",
                    save_obstacle="",
                    request_tries=0,
                    known=max(record.known, int(checkpoint.id.partition("-")[0])),
                    checkpoints=(*before, checkpoint)[-action.keep :],
                    **answer(save, id=checkpoint.id),
                    **moved,
                )
                text = f"checkpoint {checkpoint.id}: {size(checkpoint.bytes)}"
                self._event(action.job, "CheckpointSaved", text)
        point("conclude.journalled")
        local = self._record(action.job).local_snapshot
        if local is None or local.number != action.number:
            yield [lambda: self.node.drop(action.job, action.number)]
        elif checkpoint is None:  # it still rests in it, and another upload may follow
            yield [lambda: self.node.forget_transfer(action.job, action.number)]

    def thaw(self, action: actions.Thaw) -> Steps:
        agreed((yield [self._request(action.job, rank, "thaw", FREEZE_S) for rank in action.ranks]))

    def look(self, action: actions.Look) -> Steps:
        """Record what cannot be saved. Raises nothing: launchers that do not answer, or do not know
        the request, are ignored."""
        incarnation = self._record(action.job).incarnation
        replies = yield [
            self._request(action.job, rank, "examine", REQUEST_S) for rank in action.ranks
        ]
        obstacles = [
            f"rank {rank}: {'; '.join(each['hindrances'])}"
            for rank, each in zip(action.ranks, replies, strict=True)
            if isinstance(each, dict) and each.get("hindrances")
        ]
        before = self._record(action.job)
        if before.incarnation != incarnation or before.step != "placed":  # ended, or even removed
            return
        more = f" (and {count(len(obstacles) - 1, 'more rank')})" if len(obstacles) > 1 else ""
        text = obstacles[0] + more if obstacles else ""
        with self.journal.transaction():
            self._update(
                action.job,
                obstacle_checked=incarnation,
                obstacle_checked_at=clock.now(),
                save_obstacle=text,
            )
            if text and text != before.save_obstacle:
                self._event(action.job, "CannotBeSaved", text, "Warning")


def _seconds_since_cut(action: actions.Save, observed: Observed) -> float:
    """Seconds for which all of a job's devices have been at their cut."""
    reports = (seen.job(action.job) for d in action.devices if (seen := observed.devices.get(d)))
    cuts = [each.cut_at for each in reports if each and each.cut_at and each.epoch == action.epoch]
    return max(0.0, clock.now() - max(cuts)) if cuts else 0.0
