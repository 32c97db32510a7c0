"""The background reconciler: one per state directory, the loop observe → plan → act.

`apply`, `run`, `watch`, `scale` … are its clients and start it when it does not run. It holds the
state directory's lock, listens on its own control socket, and ends when no job and no source is
left. It may be killed at any moment: proxies and launchers live on, and the next reconciler
continues from the journal and from what they report. One thread makes all decisions and waits for
no process: an unresponsive process costs an observation no more time than any other (prober.py),
and what an action has to wait for runs concurrently (inflight.py).

operations.py lists the requests that it accepts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from rankfold import __version__, control, service, switches
from rankfold.legible import legible
from rankfold.log import area, set_up
from rankfold.messages import Operation
from rankfold.reconciler import actions, clock, operations, overrides, plan, reserve
from rankfold.reconciler.act import recovery
from rankfold.reconciler.act.executor import Executor, JobFailed, Permanent, Temporary
from rankfold.reconciler.act.inflight import WORKERS, InFlight, Landed
from rankfold.reconciler.deadlines import LOOK_WITHIN_S, REQUEST_S, STARTING_S
from rankfold.reconciler.findings import record_conditions, record_findings
from rankfold.reconciler.journal import retention
from rankfold.reconciler.journal.journal import Journal, JournalError, database
from rankfold.reconciler.journal.rows import Object
from rankfold.reconciler.layout import is_locked
from rankfold.reconciler.model.desired import Job, Origin
from rankfold.reconciler.model.observed import Observed, StoreQuery
from rankfold.reconciler.model.recorded import RESTARTING, Answer, Ending, Record
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.observe import changes
from rankfold.reconciler.observe.fleet import host_memory, known_devices, observe
from rankfold.reconciler.observe.prober import Prober
from rankfold.reconciler.observe.processes import Processes
from rankfold.reconciler.observe.progress import Progress
from rankfold.reconciler.observe.restarts import (
    STABLE_AFTER_S,
    AlreadyRunning,
    Claim,
    claimed,
    report,
)
from rankfold.reconciler.pacing import LastPlan, sleep_after
from rankfold.reconciler.plan import Plan
from rankfold.reconciler.plan.memory import hopeless
from rankfold.reconciler.source.followed import Sources, storage_error
from rankfold.reconciler.wording import count

log, of_plan = area(__file__), area(plan.__file__)

FAST_S, BUSY_S, IDLE_S = 0.01, 0.1, 0.5  # seconds between two turns of the loop
FAST_FOR_S = 10.0  # a step that takes longer is no longer polled at FAST_S
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 30.0
SIGNAL_AGAIN_S = 1.0
# Types of the conditions that explain why a job is not as desired.
WAITING = ("Stalled", "Progressing", "Waiting", "Degraded", "NotSaved")
ACT_FOR_S = 0.05  # then a turn begins no further action, because clients wait for it to end
JOURNAL_ONLY = (actions.End, actions.Release, actions.Forget)  # they send no requests


class Backoff(Struct):
    """When to try something again that has failed."""

    delay: float = 0.0
    due: float = 0.0

    def failed(self, now: float, permanent: bool = False) -> None:
        self.delay = (
            BACKOFF_MAX_S if permanent else min(BACKOFF_MAX_S, max(BACKOFF_MIN_S, self.delay * 2))
        )
        self.due = now + self.delay


class Unwritten:
    """Catches the error of a journal write that failed (full disk), so that the turn continues."""

    def __init__(self) -> None:
        self.error: sqlite3.Error | None = None  # the first one

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, sqlite3.Error):
            return False
        self.error = self.error or error
        return True


class Daemon:
    """The reconciler of one state directory: its loop, and the requests that it serves."""

    def __init__(self, claim: Claim):
        self.claim, self.layout = claim, claim.layout
        booted_after = clock.follow(self.layout.clock)
        with contextlib.suppress(OSError):  # the disk may be full
            reserve.keep(self.layout)
        self.journal = Journal(self.layout.state)
        if booted_after is not None:
            recovery.count_until(self.journal, booted_after)
        self.prober = Prober()
        self.progress = Progress()
        self.executor = Executor(self.layout, self.journal)
        self.executor.node.fleet()  # the name must exist before any request needs it
        self.no_saves = self.executor.node.no_saves()
        self.journal.set("no_saves", self.no_saves)  # for `status`
        self.in_flight = InFlight()
        self.observed = Observed()
        self.store_query = StoreQuery()
        self.unrecorded: dict[str, actions.End] = {}  # by job: ends not recorded yet (full disk)
        self.processes = Processes(self.layout, self.journal)
        self.last_plan = LastPlan()
        self.stopping = False
        self.fresh = False  # whether `plan` includes the last change of desired state
        self.backoff: dict[str, Backoff] = {}
        self.signalled: dict[tuple[str, int], float] = {}
        self.progress_at = self.idle_since = time.monotonic()
        self.linger_s = switches.linger_s()
        handlers: dict[type[Operation], service.Handler] = {
            operations.Hello: self._hello,
            operations.Attach: self._attach,
            operations.Run: self._run,
            operations.Override: self._override,
            operations.Checkpoint: self._checkpoint,
            operations.RollBack: self._roll_back,
            operations.State: self._state,
            operations.Stop: self._stop,
            operations.Unwatch: self._unwatch,
            operations.CancelAll: self._cancel_all,
        }
        self.server = service.Server(
            self.layout.socket,
            {kind: self._reporting(each) for kind, each in handlers.items()},
            serves=self.layout.state,
        )
        self.server.add(self.in_flight.fd, self._collect)
        self.sources = Sources(
            self.server, self.journal, self.layout.state, self._open_change, self._changed
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

    @property
    def plan(self) -> Plan:
        return self.last_plan.plan

    # ---- life

    def serve(self, cancel: bool = False) -> None:
        """Run until nothing is left to do. cancel: first cancel every job, before a turn starts
        one."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.server.stop())
        self.claim.report(self.journal)
        if cancel:
            self._cancel_live()
        self.server.after(0, self._turn)
        self.server.after(retention.MORE_S, self._forget)
        self.server.after(STABLE_AFTER_S, self.claim.stable)
        self._record_time()
        try:
            self.server.run()
        finally:
            self.sources.close()
            self.prober.close()
            self.journal.close()

    def _turn(self) -> None:
        wait = IDLE_S
        if self.stopping:
            return  # a turn would start the proxies again
        if not self.claim.is_there():
            log.error("%s was removed while in use: exiting", self.layout.state)
            self.server.stop()
            return
        try:
            if self.journal.rewrite_if_missing():
                path = database(self.layout.state)
                text = f"{path} was removed or replaced while in use; it is put back"
                log.error("%s", text)
                self.journal.event("Reconciler", "JournalRemoved", text, "Warning")
            self.sources.poll()
            wait = self.reconcile()
            if self._idle():
                self._shutdown_proxies()
                self.server.stop()
        except Exception as error:  # a bug must not end the only process that manages the fleet
            log.exception("a turn failed")
            self.claim.trouble(error, self.journal)
        else:
            self.claim.trouble(None, self.journal)
        self.server.after(wait, self._turn)

    def _record_time(self) -> None:
        with contextlib.suppress(OSError):  # the disk may be full
            if self.claim.is_there():
                clock.note(self.layout.clock)
                reserve.keep(self.layout)
        self.server.after(clock.NOTE_S, self._record_time)

    def _forget(self) -> None:
        wait = retention.AGAIN_S
        try:
            if self.claim.is_there():
                wait = retention.forget(self.journal, self.layout)
        except (sqlite3.Error, JournalError, OSError) as error:
            log.warning("finished jobs are kept for now: %s", error)
        except Exception:  # as above
            log.exception("removing finished jobs failed")
        self.server.after(wait, self._forget)

    def _idle(self) -> bool:
        """Whether there has been no source, live job, action or request for `linger_s`."""
        live = any(not self._ended(name) for name in self.journal.desired().jobs)
        now = time.monotonic()
        if live or self.sources.busy or self.plan.actions or self.in_flight.subjects():
            self.idle_since = now
        return now - self.idle_since > self.linger_s

    def _ended(self, name: str) -> bool:
        record = self.journal.record(name)
        return record is not None and record.step == "ended"

    def _shutdown_proxies(self) -> dict[str, str]:
        """Request all proxies to end; return each device whose proxy did not accept, and why."""
        devices = sorted({*known_devices(self.layout), *self.observed.devices})
        with ThreadPoolExecutor(WORKERS) as pool:
            errors = dict(zip(devices, pool.map(self._shutdown_proxy, devices), strict=True))
        left = {name: error for name, error in errors.items() if error}
        for name, error in left.items():
            log.warning("cannot request the proxy of %s to exit: %s", name, error)
        with contextlib.suppress(sqlite3.Error):
            self.processes.all_requested_to_end(left)
        return left

    def _shutdown_proxy(self, device: str) -> str:
        """Request a proxy to end; wait for one that was just started, which would outlive us
        otherwise.

        Returns "", or why the proxy did not accept the request."""
        deadline = time.monotonic() + STARTING_S
        patience = LOOK_WITHIN_S if device in self.processes.silent else REQUEST_S
        while True:
            try:
                control.call(self.layout.proxy_socket(device), "shutdown", timeout=patience)
                return ""
            except control.ControlError as error:
                if error.code != "unreachable" or time.monotonic() > deadline:
                    return error.message
            if not is_locked(self.layout.proxy_file(device, ".lock")):
                return ""
            time.sleep(FAST_S)

    # ---- the loop

    def reconcile(self) -> float:
        """Run one turn; return the seconds until the next one."""
        begun = time.thread_time()
        desired, records = self.journal.desired(), self.journal.records()
        devices = {*desired.devices(), *known_devices(self.layout)}
        observed = observe(
            self.layout,
            sorted(devices),
            records,
            self.prober,
            LOOK_WITHIN_S,
            self.processes.silent,
            self.no_saves,
        )
        for end in list(self.unrecorded.values()):
            self._kill_unrecorded(end.job)
        unwritten = Unwritten()
        with unwritten:
            self.processes.update(observed, desired.devices())
        observed = self.observed = structs.replace(
            observed,
            failing=self.processes.failing,
            transfers=self.progress.note(observed.transfers),
            store_query=self.store_query,
        )
        busy = self.in_flight.subjects() | self.unrecorded.keys()
        for end in list(self.unrecorded.values()):
            self._try(end)
        before, version = self.plan.actions, self.journal.version
        new = self.last_plan.renew(version, desired, records, observed, clock.now(), busy)
        if self.plan.actions != before:
            for action in self.plan.actions:  # without its fields, which may be secret
                of_plan.debug("%s: %s", actions.subject(action), type(action).__name__)
        self.fresh = True
        for name, seen in observed.devices.items():
            if seen.ready:
                self.backoff.pop(name, None)
        with unwritten:
            record_findings(self.journal, records, observed)
        with unwritten:
            self._follow_changes(records, observed)
        with unwritten:
            if new:
                record_conditions(self.journal, self.plan)
        all_begun = self._act(unwritten)
        if unwritten.error:
            self.last_plan.outdate()  # its conditions may have to be written again
            raise unwritten.error
        if not all_begun:
            return 0.0
        wait = self._pace(records, time.monotonic())
        if wait == FAST_S or (new and self.plan.actions):
            return wait
        return sleep_after(time.thread_time() - begun, wait)

    def _act(self, unwritten: Unwritten) -> bool:
        """Begin as many planned actions as one turn may; False if the next turn has to continue.

        Actions that only write the journal share a transaction: each commit waits for the disk, and
        a thousand jobs may end at once."""
        quiet = [each for each in self.plan.actions if isinstance(each, JOURNAL_ONLY)]
        others = [each for each in self.plan.actions if not isinstance(each, JOURNAL_ONLY)]
        all_begun = True
        with unwritten:
            if quiet:
                with self.journal.transaction():
                    all_begun = self._try_all(quiet)
        return self._try_all(others) and all_begun

    def _try_all(self, planned: Sequence[actions.Action]) -> bool:
        last = time.monotonic() + ACT_FOR_S
        for action in planned:
            if time.monotonic() > last:
                return False
            self._try(action)
        return True

    def _pace(self, records: dict[str, Record], now: float) -> float:
        live = [r for r in records.values() if r.step != "ended"]
        at_rest = self.plan.converged | self.plan.degraded
        moving = [
            r
            for r in live
            if r.name not in at_rest and (r.epoch > 0 or r.ending or r.step == "new")
        ]
        if moving and now - self.progress_at < FAST_FOR_S:
            return FAST_S
        return BUSY_S if live or self.plan.actions or self.sources.busy else IDLE_S

    def _try(self, action: actions.Action) -> None:
        """Begin an action, unless its subject is busy or waits after a failure."""
        now, name = time.monotonic(), actions.subject(action)
        wait = self.backoff.get(name)
        if name in self.in_flight.subjects() or (wait and now < wait.due):
            return
        if self._due(action, now):
            self._begin(action)

    def _begin(self, action: actions.Action) -> None:
        landed = self.in_flight.begin(action, self.executor.steps(action, self.observed))
        self._void_answers(action)
        if landed:
            self._landed(landed)

    def _collect(self) -> None:
        """Continue the actions whose calls have returned."""
        for action, landed in self.in_flight.collect():
            self._void_answers(action)
            if landed:
                try:
                    self._landed(landed)
                except sqlite3.Error as error:  # the server calls this method, too
                    log.error("%s: %s", actions.subject(action), error)
                except Exception:  # a bug in one action must not end the loop
                    log.exception("%s: an internal error after an action", actions.subject(action))

    def _void_answers(self, action: actions.Action) -> None:
        """A process gets a request or has answered: what it reported before is out of date."""
        if isinstance(action, (actions.Upload, actions.Fetch)):
            self.progress.ended(action.job)
        if not isinstance(action, (actions.Signal, actions.Discard, actions.QueryStore)):
            self.progress_at = time.monotonic()
        self.prober.void(self.layout.proxy_socket(name) for name in actions.devices_of(action))
        if ranks := actions.ranks_of(action):
            job = actions.job_of(action)
            self.prober.void(self.executor.node.door(job, rank) for rank in ranks)

    def _landed(self, landed: Landed) -> None:
        """Record how an action ended, and when to try it again after a failure."""
        action, error, now = landed.action, landed.error, time.monotonic()
        name = actions.subject(action)
        wait = self.backoff.setdefault(name, Backoff())
        if isinstance(action, actions.QueryStore):
            self.store_query = self.store_query.again(clock.now(), error is None)
        if isinstance(error, JobFailed):
            assert isinstance(action, (actions.Place, actions.Barrier, actions.Detach))
            ending = Ending("Failed", "DeviceReported", str(error), clock.now())
            record = self.journal.record(action.job) or Record(action.job)
            job = self.journal.desired().jobs.get(action.job)
            ending = plan.or_restart(job, record, ending)
            self.unrecorded[action.job] = actions.End(action.job, ending)
            self._begin(self.unrecorded[action.job])
        elif isinstance(error, (Temporary, Permanent)):
            permanent = isinstance(error, Permanent)
            wait.failed(now, permanent)
            if isinstance(action, actions.StartProxy):
                self.processes.tried(name, str(error))
            self._record_error(action, str(error), permanent)
        elif error is not None:
            wait.failed(now)
            log.error("%s: an internal error in %s", name, type(action).__name__, exc_info=error)
        elif isinstance(action, actions.StartProxy):
            wait.failed(now)  # do not restart a proxy at full speed if it ends at once
            self.processes.started(name)
        else:
            del self.backoff[name]
            self._record_error(action, "", False)
            if isinstance(action, actions.End):
                self.unrecorded.pop(action.job, None)
            elif isinstance(action, actions.StopProxy):
                self.processes.requested_to_end(name)

    def _due(self, action: actions.Action, now: float) -> bool:
        if not isinstance(action, actions.Signal):
            return True
        key = (action.job, action.signum)
        if now - self.signalled.get(key, -1e9) < SIGNAL_AGAIN_S:
            return False
        self.signalled[key] = now
        return True

    def _record_error(self, action: actions.Action, message: str, permanent: bool) -> None:
        message = legible(message)  # it may contain file names
        if isinstance(action, (actions.StartProxy, actions.StopProxy)):
            name = actions.subject(action)
            if message:
                self.journal.event(f"Device/{name}", "ActionFailed", message, "Warning")
            return
        if isinstance(action, actions.QueryStore):
            if message:
                log.warning("it is unknown whether jobs were taken over: %s", message)
            return
        if isinstance(action, actions.Look):  # its failure must not replace another error
            return
        name = actions.job_of(action)
        record = self.journal.record(name) or Record(name)
        if (record.error, record.error_permanent) != (message, permanent):
            self.journal.save(structs.replace(record, error=message, error_permanent=permanent))
        if message:
            self.journal.event(f"Job/{name}", "ActionFailed", message, "Warning")

    def _follow_changes(self, records: dict[str, Record], observed: Observed) -> None:
        for change in self.journal.changes(only_open=True):
            record = records.get(change.job)
            if record is None or record.step == "ended":
                self.journal.save_change(structs.replace(change, superseded=True), open=False)
                continue
            converged = change.job in self.plan.converged
            now = changes.follow(change, record, observed, converged, clock.now())
            if now == change:
                continue
            self.journal.save_change(now, open=now.converged_at is None)
            if now.converged_at is not None:
                pause = "" if now.pause_s is None else f", paused {now.pause_s:.3f} s"
                devices = f"{now.from_gpus} → {count(now.to_gpus, 'device')}"
                text = f"{devices} in {now.converge_s:.3f} s{pause}"
                self.journal.event(f"Job/{change.job}", "Converged", text)

    def _open_change(self, job: Job | None, commit: str, wanted_at: float) -> None:
        record = self.journal.record(job.name) if job else None
        if job is None or record is None:
            return
        wanted = clock.of_wall(wanted_at)
        change = changes.requested(job, record, commit, wanted_at, wanted)
        if change:
            self.journal.open_change(change)
        self.backoff.pop(job.name, None)

    def _changed(self) -> None:
        """Desired state has changed: plan again, immediately."""
        self.fresh = False
        self.server.expedite(self._turn)

    # ---- operations

    def _hello(self, _request: service.Request[operations.Hello]) -> Json:
        return {
            "kind": "reconciler",
            "version": __version__,
            "pid": os.getpid(),
            "source": self.sources.identity,
            "trouble": report(self.layout) or self.sources.trouble,
        }

    def _attach(self, request: service.Request[operations.Attach]) -> None:
        self.idle_since = time.monotonic()
        self.sources.attach(request)

    def _unwatch(self, request: service.Request[operations.Unwatch]) -> Json:
        self.sources.unwatch(request.channel)
        return {}

    def _run(self, request: service.Request[operations.Run]) -> Json:
        job, pool, token = request.message.job, request.message.pool, request.message.token
        existing = self.journal.object("Job", job.name)
        if existing and existing.source is None and existing.revision == token:
            return {}  # repeated request: its first receiver did the work, then was killed
        if existing and (existing.source or not self._ended(job.name)):
            where = f" ({existing.origin})" if existing.source else ""
            raise control.ControlError(
                "exists", f"there is a job {job.name!r} already{where}: choose another --name"
            )
        devices = pool.devices if pool else self.journal.desired().devices().values()
        kinds = job.device_types
        fit = [
            d for d in devices if d.only_for in (None, job.name) and d.type in (kinds or [d.type])
        ]
        if why := hopeless(job, fit, host_memory()):
            raise control.ControlError("refused", why)
        if existing:
            self.executor.node.forget_logs(job.name)
        with self.journal.transaction():
            if existing:
                self.journal.forget("Job", job.name)
            if pool:
                self.journal.put(pool, None, Origin("run", 0), "")
            self.journal.put(job, None, Origin("run", 0), token)
        self._changed()
        self.idle_since = time.monotonic()
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
        overrides.check_save(record, self.no_saves)
        if id := overrides.saved_already(each, record):
            self.journal.save(structs.replace(record, answer=Answer(wanted.token, id=id)))
            return {"token": wanted.token}
        self.journal.save(structs.replace(record, requested=wanted.token))
        self.journal.event(f"Job/{wanted.name}", "SaveRequested", "by hand")
        self._changed()
        return {"token": wanted.token}

    def _roll_back(self, request: service.Request[operations.RollBack]) -> Json:
        wanted = request.message
        each = self.journal.object("Job", wanted.name)
        if each is None:
            raise control.ControlError("unknown_job", f"there is no job {wanted.name!r}")
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
        self._changed()
        return {}

    def _override(self, request: service.Request[operations.Override]) -> Json:
        wanted = request.message
        each = self.journal.object("Job", wanted.name)
        if each is None:
            raise control.ControlError("unknown_job", f"there is no job {wanted.name!r}")
        fields = wanted.fields.given()
        overrides.check(self.journal, each, fields, wanted.force, self.no_saves)
        self._check_memory(each, fields)
        if fields.get("cancelled"):
            return {"unrecorded": self._cancel([each])}
        self._set_by_hand([each], fields)
        self._changed()
        return {}

    def _set_by_hand(self, objects: list[Object], fields: Json) -> None:
        words = ", ".join(f"{k}: {v}" for k, v in fields.items())
        with self.journal.transaction():
            for each in objects:
                self.journal.override(each.name, fields)
                self.journal.event(f"Job/{each.name}", "ChangedByHand", words)
            desired = self.journal.desired()
            for each in objects:
                self._open_change(desired.jobs[each.name], "", time.time())

    def _cancel(self, objects: list[Object]) -> str:
        """Cancel jobs in one transaction, so that the loop never sees some of them cancelled and
        others about to start. If the journal cannot record it, cancel them anyway and return the
        reason."""
        self._changed()
        try:
            self._set_by_hand(objects, {"cancelled": True})
            return ""
        except sqlite3.Error as error:
            for each in objects:  # at once: the jobs' output must not fill the reserve, too
                self._cancel_unrecorded(each.name)
            if reserve.give_up(self.layout):
                with contextlib.suppress(sqlite3.Error):
                    self._set_by_hand(objects, {"cancelled": True})
                    return ""
            return str(storage_error(self.layout.state, error))

    def _cancel_unrecorded(self, name: str) -> None:
        """Kill a job's ranks although the journal cannot record it yet: this job may fill the disk.
        Its end is recorded as soon as there is space; until then the job gets no other action."""
        ending = Ending("Failed", "Cancelled", "cancelled while the disk was full", clock.now())
        self.unrecorded[name] = actions.End(name, ending)
        self._kill_unrecorded(name)

    def _kill_unrecorded(self, name: str) -> None:
        record = self.journal.record(name)
        if record and record.fixed and self.unrecorded[name].ending.reason == "Cancelled":
            self._try(actions.Signal(name, tuple(range(record.fixed.world_size)), signal.SIGKILL))

    def _cancel_all(self, _request: service.Request[operations.CancelAll]) -> Json:
        return {"unrecorded": self._cancel_live()}

    def _cancel_live(self) -> str:
        """Cancel every job that has not ended; returns as `_cancel`."""
        return self._cancel(
            [
                each
                for each in self.journal.objects()
                if each.kind == "Job" and not self._ended(each.name)
            ]
        )

    def _check_memory(self, each: Object, fields: Json) -> None:
        """Refuse a change that host memory does not allow now, because a person waits for the
        reply. Raises ControlError."""
        if not {"suspend", "gpus"} & fields.keys() or fields.get("suspend") is False:
            return
        self.reconcile()  # a job that has just been placed is not in an earlier observation
        desired, records = self.journal.desired(), self.journal.records()
        job = each.effective()
        assert isinstance(job, Job)
        job = structs.replace(job, **fields)
        wanted = structs.replace(desired, jobs={**desired.jobs, job.name: job})
        planned = plan.plan(wanted, records, self.observed, clock.now())
        for condition in planned.conditions.get(job.name, ()):
            if condition.reason in ("HostMemory", "TooManyRanks"):
                raise control.ControlError("memory", f"{job.name}: {condition.message}")

    def _state(self, _request: service.Request[operations.State]) -> Json:
        if not self.fresh:
            self.reconcile()
        self.idle_since = time.monotonic()
        jobs = {}
        for name in self.journal.desired().jobs:
            record = self.journal.record(name) or Record(name)
            conditions = self.plan.conditions.get(name, ())
            jobs[name] = {
                "step": record.step,
                "phase": record.phase,
                "converged": name in self.plan.converged,
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
                "answer": structs.asdict(record.answer) if record.answer else None,
                "saving": [t for t in (record.requested, record.save and record.save.token) if t],
                "again": self._again(record),
            }
        return {
            "fleet_ready": self.plan.fleet_ready,
            "devices_failing": dict(sorted(self.observed.failing.items())),
            "jobs": jobs,
            "faults": [str(f) for f in self.sources.faults],
            "source": self.sources.identity,
        }

    def _again(self, record: Record) -> str:
        """Why a save that was requested has to be tried again; empty: it does not."""
        if record.requested and record.request_tries:
            return record.save_error
        return plan.delayed(self.observed, record) if record.restore is None else ""

    def _stop(self, _request: service.Request[operations.Stop]) -> Json:
        live = [n for n in self.journal.desired().jobs if not self._ended(n)]
        left = {} if live else self._shutdown_proxies()
        self.stopping = True
        self.sources.stops()
        self.server.after(0, self.server.stop)
        return {"jobs": live, "left": left}


def _create_daemon(claim: Claim, cancel: bool) -> Daemon:
    """Create the daemon; if it is to cancel all jobs, on a full disk, too. Raises JournalError,
    sqlite3.Error."""
    try:
        return Daemon(claim)
    except (JournalError, sqlite3.Error):
        if not cancel or not reserve.give_up(claim.layout):
            raise
    return Daemon(claim)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rankfold.reconciler.daemon", description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--cancel", action="store_true", help="every job, before any is started")
    options: Any = parser.parse_args(arguments)
    set_up()
    try:
        switches.check()
        with claimed(options.state.absolute()) as claim:
            _create_daemon(claim, options.cancel).serve(options.cancel)
    except (AlreadyRunning, JournalError, PermissionError, switches.BadSwitch) as error:
        print(f"rankfold: {legible(str(error))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
