"""Executes rests, restarts and restores of jobs, for executor.py: what ends the ranks of a job on
this machine, and what brings them back."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from msgspec import structs

from rankfold import control
from rankfold.reconciler import actions, clock
from rankfold.reconciler.act.inflight import Call, Steps, agreed
from rankfold.reconciler.act.jobs import JobActions, answer
from rankfold.reconciler.act.takeover import Takeover
from rankfold.reconciler.deadlines import (
    FREEZE_S,
    LAUNCHERS_END_S,
    LAUNCHERS_POLL_S,
    REQUEST_S,
    SNAPSHOT_S,
)
from rankfold.reconciler.faults import point
from rankfold.reconciler.model.recorded import NODE, Answer, Record, Restore
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.durable import Damaged
from rankfold.reconciler.node.launchers import CannotLaunch
from rankfold.reconciler.wording import file_problems, restore_source, time_of_day


class Restores(JobActions):
    """config: returns the configuration of a rank's launcher, as `Node.launch` takes it."""

    def __init__(self, takeover: Takeover, config: Callable[[Record, int], Json]):
        super().__init__(takeover.layout, takeover.journal, takeover.node)
        self.takeover, self.config = takeover, config

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
                    self._event(job, "Stored", f"it rests as {restore_source(action.stored)}")

    def _roll_back(self, record: Record, action: actions.Rest) -> None:
        older = next(each for each in record.checkpoints if each.id == action.stored)
        cost = (
            f"{restore_source(action.unusable)} cannot be restored ({action.error}): back to "
            f"checkpoint {older.id} of {time_of_day(older.time)}"
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
        checkpoint = next((each for each in record.checkpoints if each.id == stored), None)
        cost = f"{ending.message}: restarted from the beginning, since there is no checkpoint yet"
        if record.back_to:
            cost = ending.message
        elif checkpoint:
            cut = clock.of_wall(checkpoint.time) if checkpoint.cut is None else checkpoint.cut
            age = max(0.0, ending.since - cut)
            cost = (
                f"{ending.message}: back to checkpoint {stored} of {time_of_day(checkpoint.time)}; "
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
            **record.counted(clock.now()),
            placed_since=None,
            request_tries=0,
            **(answer(record.save, error=ending.message) if record.save else {}),
        )
        self._event(record.name, "Restarted", cost, "Warning")

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
            self.journal.end_action(job, record.epoch, f"restore-{action.number}")
            self._event(job, "Restored", restore_source(restore.id))
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
            self._event(job, "RestoreFailed", f"{restore_source(restore.id)}: {error}", "Warning")


def _tried_again(restore: Restore | None) -> Restore | None:
    """The restore, to be tried again: all processes of the failed try are gone."""
    if restore is None:
        return None
    error = restore.error or "a rank exited while it was being restored"
    tried_at = restore.tried_at if restore.failed else clock.now()
    tries = restore.tries if restore.failed else restore.tries + 1
    return structs.replace(restore, failed=False, error=error, tries=tries, tried_at=tried_at)
