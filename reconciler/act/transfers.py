"""Executes uploads to the store and fetches from it, for executor.py: each is a process of its own,
which the node starts."""

from __future__ import annotations

from msgspec import structs

from rankfold import switches
from rankfold.reconciler import actions, clock
from rankfold.reconciler.act.inflight import Call, Steps, agreed
from rankfold.reconciler.act.jobs import JobActions
from rankfold.reconciler.act.saves import Saves
from rankfold.reconciler.faults import point
from rankfold.reconciler.model.recorded import Restore, Save
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.durable import Damaged
from rankfold.reconciler.node.launchers import CannotLaunch


class Transfers(JobActions):
    """Starts the processes that upload a save or fetch a checkpoint."""

    def __init__(self, saves: Saves):
        super().__init__(saves.layout, saves.journal, saves.node)
        self.saves = saves

    def upload(self, action: actions.Upload) -> Steps:
        record = self._record(action.job)
        local, save = record.local_snapshot, record.save
        if save is None and local is not None:
            why, token, cut = self.saves.resting(action.job), record.requested, record.rested_at
            save = Save(
                local.number, why, clock.now(), "uploading", token, clock.wall(cut), cut=cut
            )
            self._update(action.job, save=save, requested="")
        if save is None or save.number != action.number:
            return
        if local is not None and local.number == save.number:  # it may have been stored for long
            (error,) = yield [lambda: self.node.check(action.job, action.number)]
            if error:
                self.saves.failed(action.job, save, str(error), not isinstance(error, Damaged))
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
            yield from self.saves.drop_local_snapshot(action.job)
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
