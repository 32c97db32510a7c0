"""The requests of commands: each is checked, changes desired state or a record, and gets a reply.

operations.py lists them. A handler writes its changes to the journal before it replies; the next
turn of the loop acts on them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from typing import Any, cast

from msgspec import structs

from rankfold import __version__, control, service
from rankfold.messages import Operation
from rankfold.reconciler import clock, operations, overrides, plan, reserve
from rankfold.reconciler.journal.journal import JournalError
from rankfold.reconciler.journal.rows import Object, Override, overridden
from rankfold.reconciler.loop import Loop
from rankfold.reconciler.model.desired import Job, Origin
from rankfold.reconciler.model.fitting import may_use
from rankfold.reconciler.model.recorded import RESTARTING, Answer, Ending, Record
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.observe.fleet import host_memory
from rankfold.reconciler.observe.restarts import report
from rankfold.reconciler.plan.memory import hopeless
from rankfold.reconciler.source.followed import Sources, storage_error
from rankfold.reconciler.wording import no_job

# Types of the conditions that explain why a job is not as desired.
WAITING = ("Stalled", "Progressing", "Waiting", "Degraded", "NotSaved")


class Requests:
    """Serves the control socket, with the sources that requests attach.

    changed: called when desired state has changed, so that a turn follows at once. used: called for
    each request that keeps the reconciler from ending. stop: serves `Stop`.
    """

    def __init__(
        self,
        loop: Loop,
        changed: Callable[[], None],
        used: Callable[[], None],
        stop: service.Handler,
    ):
        self.loop, self.changed, self.used = loop, changed, used
        self.layout, self.journal = loop.layout, loop.journal
        handlers: dict[type[Operation], service.Handler] = {
            operations.Hello: self._hello,
            operations.Attach: self._attach,
            operations.Run: self._run,
            operations.Override: self._override,
            operations.Checkpoint: self._checkpoint,
            operations.RollBack: self._roll_back,
            operations.State: self._state,
            operations.Stop: stop,
            operations.Unwatch: self._unwatch,
            operations.CancelAll: self._cancel_all,
        }
        self.server = service.Server(
            self.layout.socket,
            {kind: self._reporting(each) for kind, each in handlers.items()},
            serves=self.layout.state,
        )
        self.sources = Sources(
            self.server, self.journal, self.layout.state, loop.open_change, changed
        )
        self.server.on_close = self.sources.closed

    def _reporting(self, operation: service.Handler) -> service.Handler:
        """Report to the requester that the journal cannot be written (full disk)."""

        def handle(request: service.Request[Any]) -> Json | None:
            try:
                return operation(request)
            except sqlite3.Error as error:
                raise storage_error(self.layout.state, error) from error
            except JournalError as error:
                raise control.ControlError("storage", str(error)) from error

        return handle

    def _hello(self, _request: service.Request[operations.Hello]) -> Json:
        return {
            "kind": "reconciler",
            "version": __version__,
            "pid": os.getpid(),
            "source": self.sources.identity,
            "trouble": report(self.layout) or self.sources.trouble,
        }

    def _attach(self, request: service.Request[operations.Attach]) -> None:
        self.used()
        self.sources.attach(request)

    def _unwatch(self, request: service.Request[operations.Unwatch]) -> Json:
        self.sources.unwatch(request.channel)
        return {}

    def _run(self, request: service.Request[operations.Run]) -> Json:
        job, pool, token = request.message.job, request.message.pool, request.message.token
        existing = self.journal.object("Job", job.name)
        if existing and existing.source is None and existing.revision == token:
            return {}  # repeated request: its first receiver did the work, then was killed
        if existing and (existing.source or not self.loop.ended(job.name)):
            where = f" ({existing.origin})" if existing.source else ""
            raise control.ControlError(
                "exists", f"there is a job {job.name!r} already{where}: choose another --name"
            )
        devices = pool.devices if pool else self.journal.desired().devices().values()
        fit = [each for each in devices if may_use(each, job, Record(job.name))]
        if why := hopeless(job, fit, host_memory()):
            raise control.ControlError("refused", why)
        if existing:
            self.loop.executor.node.forget_logs(job.name)
        with self.journal.transaction():
            if existing:
                self.journal.forget("Job", job.name)
            if pool:
                self.journal.put(pool, None, Origin("run", 0), "")
            self.journal.put(job, None, Origin("run", 0), token)
        self.changed()
        self.used()
        return {}

    def _checkpoint(self, request: service.Request[operations.Checkpoint]) -> Json:
        wanted = request.message
        each, record = self.journal.object("Job", wanted.name), self.journal.record(wanted.name)
        if record is None or each is None:
            raise control.ControlError("unknown_job", f"there is no started job {wanted.name!r}")
        answer = record.answer.token if record.answer else ""
        if wanted.token in (answer, record.save.token if record.save else ""):
            return {"token": wanted.token}  # repeated request: its first receiver was killed
        if record.requested:  # that save has not begun, so it serves this request, too
            return {"token": record.requested}
        overrides.check_save(each, record, self.loop.no_saves)
        if id := overrides.saved_already(each, record):
            self.journal.save(structs.replace(record, answer=Answer(wanted.token, id=id)))
            return {"token": wanted.token}
        self.journal.save(structs.replace(record, requested=wanted.token))
        self.journal.event(f"Job/{wanted.name}", "SaveRequested", "by hand")
        self.changed()
        return {"token": wanted.token}

    def _roll_back(self, request: service.Request[operations.RollBack]) -> Json:
        wanted = request.message
        each = self.journal.object("Job", wanted.name)
        if each is None:
            raise control.ControlError("unknown_job", no_job(wanted.name))
        record = self.journal.record(wanted.name) or Record(wanted.name)
        if wanted.checkpoint in (record.stored, record.back_to):
            return {}
        overrides.check_roll_back(each, record, wanted)
        text = f"goes back to checkpoint {wanted.checkpoint}, as requested"
        if record.step == "new" and wanted.begun is not None:
            record = overrides.record_of_other_owner(each, record, wanted.checkpoint, wanted.begun)
            text = f"continues from checkpoint {wanted.checkpoint}, made elsewhere"
        elif record.step == "stored":
            more = overrides.takeover_fields(record, wanted.begun)
            record = structs.replace(record, stored=wanted.checkpoint, restore=None, **more)
        else:  # discards the state that rests in memory
            ending = Ending(RESTARTING, "WentBack", text, clock.now())
            more = overrides.takeover_fields(record, wanted.begun)
            record = structs.replace(record, back_to=wanted.checkpoint, ending=ending, **more)
        self.journal.save(record)
        self.journal.event(f"Job/{wanted.name}", "WentBack", text)
        self.changed()
        return {}

    def _override(self, request: service.Request[operations.Override]) -> Json:
        wanted = request.message
        each = self.journal.object("Job", wanted.name)
        if each is None:
            raise control.ControlError("unknown_job", no_job(wanted.name))
        fields = wanted.fields.given()
        overrides.check(self.journal, each, fields, wanted.force, self.loop.no_saves)
        self._check_memory(each, fields)
        if fields.get("cancelled"):
            return {"unrecorded": self._cancel([each])}
        self._set_by_hand([each], fields)
        self.changed()
        return {}

    def _set_by_hand(self, objects: list[Object], fields: Json) -> None:
        words = ", ".join(f"{k}: {v}" for k, v in fields.items())
        with self.journal.transaction():
            for each in objects:
                self.journal.override(each.name, fields)
                self.journal.event(f"Job/{each.name}", "ChangedByHand", words)
            desired = self.journal.desired()
            for each in objects:
                self.loop.open_change(desired.jobs[each.name], "", time.time())

    def _cancel(self, objects: list[Object]) -> str:
        """Cancel jobs in one transaction, so that the loop never sees some of them cancelled and
        others about to start. If the journal cannot record it, cancel them anyway and return the
        reason."""
        self.changed()
        try:
            self._set_by_hand(objects, {"cancelled": True})
            return ""
        except sqlite3.Error as error:
            for each in objects:  # at once: the jobs' output must not fill the reserve, too
                self.loop.cancel_unrecorded(each.name)
            if reserve.give_up(self.layout):
                with contextlib.suppress(sqlite3.Error):
                    self._set_by_hand(objects, {"cancelled": True})
                    return ""
            return str(storage_error(self.layout.state, error))

    def _cancel_all(self, _request: service.Request[operations.CancelAll]) -> Json:
        return {"unrecorded": self.cancel_live()}

    def cancel_live(self) -> str:
        """Cancel every job that has not ended; returns as `_cancel`."""
        return self._cancel(
            [
                each
                for each in self.journal.objects()
                if each.kind == "Job" and not self.loop.ended(each.name)
            ]
        )

    def _check_memory(self, each: Object, fields: Json) -> None:
        """Refuse a change that host memory does not allow now, because a person waits for the
        reply. Raises ControlError."""
        if not {"suspend", "gpus"} & fields.keys() or fields.get("suspend") is False:
            return
        self.loop.reconcile()  # an earlier observation lacks a job that has just been placed
        desired, records = self.journal.desired(), self.journal.records()
        job = each.effective()
        assert isinstance(job, Job)
        job = overridden(job, cast(Override, fields))
        wanted = structs.replace(desired, jobs={**desired.jobs, job.name: job})
        planned = plan.plan(wanted, records, self.loop.observed, clock.now())
        for condition in planned.conditions.get(job.name, ()):
            if condition.reason in ("HostMemory", "TooManyRanks"):
                raise control.ControlError("memory", f"{job.name}: {condition.message}")

    def _state(self, _request: service.Request[operations.State]) -> Json:
        if not self.loop.fresh:
            self.loop.reconcile()
        self.used()
        jobs = {}
        for name in self.journal.desired().jobs:
            record = self.journal.record(name) or Record(name)
            conditions = self.loop.plan.conditions.get(name, ())
            jobs[name] = {
                "step": record.step,
                "phase": record.phase,
                "converged": name in self.loop.plan.converged,
                "message": record.ending.message if record.ending else "",
                "reason": record.ending.reason if record.ending else "",
                "stalled": record.error if record.error_permanent else "",
                "silent": [c.message for c in conditions if c.reason == "DoesNotAnswer"],
                "standing": [c.message for c in conditions if c.type == "Waiting"],
                "waiting": [c.message for c in conditions if c.type in WAITING],
                "exits": list(record.exits),
                "races": list(record.races),
                "rank": record.ending.rank if record.ending else None,
                "restarts": record.restarts,
                "restart_cost": record.restart_cost,
                "answer": structs.asdict(record.answer) if record.answer else None,
                "saving": [t for t in (record.requested, record.save and record.save.token) if t],
                "again": self._why_retried(record),
            }
        return {
            "fleet_ready": self.loop.plan.fleet_ready,
            "devices_failing": dict(sorted(self.loop.observed.failing.items())),
            "jobs": jobs,
            "faults": [str(f) for f in self.sources.faults],
            "source": self.sources.identity,
        }

    def _why_retried(self, record: Record) -> str:
        """Why a save that was requested has to be tried again; empty: it does not."""
        if record.requested and record.request_tries:
            return record.save_error
        return plan.delayed(self.loop.observed, record) if record.restore is None else ""
