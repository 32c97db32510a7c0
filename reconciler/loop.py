"""The loop observe → plan → act of one state directory, one turn at a time.

One thread makes all decisions and waits for no process: an unresponsive process costs an
observation no more time than any other (prober.py), and what an action has to wait for runs
concurrently (inflight.py).
"""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Sequence

from msgspec import Struct, structs

from rankfold.legible import legible
from rankfold.log import area
from rankfold.reconciler import actions, clock, plan
from rankfold.reconciler.act.executor import Executor, JobFailed, Permanent, Temporary
from rankfold.reconciler.act.inflight import InFlight, Outcome
from rankfold.reconciler.deadlines import LOOK_WITHIN_S
from rankfold.reconciler.findings import (
    record_conditions,
    record_disturbance,
    record_findings,
    record_grants,
    record_guarantees,
)
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.observed import Observed, StoreQuery
from rankfold.reconciler.model.recorded import Change, Ending, Record
from rankfold.reconciler.observe import changes
from rankfold.reconciler.observe.fleet import known_devices, observe
from rankfold.reconciler.observe.prober import Prober
from rankfold.reconciler.observe.processes import Processes
from rankfold.reconciler.observe.progress import Progress
from rankfold.reconciler.pacing import LastPlan, sleep_after
from rankfold.reconciler.plan import Plan
from rankfold.reconciler.rates import Rates
from rankfold.reconciler.services import Services
from rankfold.reconciler.wording import count

log, of_plan = area(__file__), area(plan.__file__)

FAST_S, BUSY_S, IDLE_S = 0.01, 0.1, 0.5  # seconds between two turns
FAST_FOR_S = 10.0  # a step that takes longer is no longer polled at FAST_S
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 30.0
SIGNAL_AGAIN_S = 1.0
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


class Loop:
    """The state of the loop. fresh: `plan` includes the last change of desired state."""

    def __init__(self, layout: Layout, journal: Journal):
        self.layout, self.journal = layout, journal
        self.prober = Prober()
        self.progress = Progress()
        self.executor = Executor(layout, journal)
        self.executor.node.fleet()  # the name must exist before any request needs it
        self.no_saves = self.executor.node.no_saves()
        journal.set("no_saves", self.no_saves)  # for `status`
        self.in_flight = InFlight()
        self.observed = Observed()
        self.store_query = StoreQuery()
        self.unrecorded: dict[str, actions.End] = {}  # by job: ends not recorded yet (full disk)
        self.processes = Processes(layout, journal)
        self.services = Services(journal)
        self.rates = Rates(journal)
        self.last_plan = LastPlan()
        self.fresh = False
        self.backoff: dict[str, Backoff] = {}
        self.signalled: dict[tuple[str, int], float] = {}
        self.progress_at = time.monotonic()

    @property
    def plan(self) -> Plan:
        return self.last_plan.plan

    def ended(self, name: str) -> bool:
        """Whether a job has ended."""
        record = self.journal.record(name)
        return record is not None and record.step == "ended"

    def reconcile(self, followed: bool = False) -> float:
        """Run one turn; return the seconds until the next one. followed: a source is."""
        begun = time.thread_time()
        unwritten = Unwritten()
        with unwritten:
            self.services.update()
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
        with unwritten:
            self.processes.update(observed, desired.devices())
        observed = self.observed = structs.replace(
            observed,
            failing=self.processes.failing,
            transfers=self.progress.note(observed.transfers),
            store_query=self.store_query,
            measured=self.journal.get("measured", ()),
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
        for name, device in observed.devices.items():
            if device.ready:
                self.backoff.pop(name, None)
        with unwritten:
            record_findings(self.journal, records, observed)
        with unwritten:
            self.rates.update(desired, records, observed, clock.now())
        with unwritten:
            self._open_decided(records)
            self._follow_changes(records, observed)
        with unwritten:
            if new:
                record_guarantees(self.journal, self.plan)
                record_grants(self.journal, self.plan)
                record_conditions(self.journal, self.plan)
        all_begun = self._act(unwritten)
        if unwritten.error:
            self.last_plan.outdate()  # its conditions may have to be written again
            raise unwritten.error
        if not all_begun:
            return 0.0
        wait = self._pace(records, time.monotonic(), followed)
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

    def _pace(self, records: dict[str, Record], now: float, followed: bool) -> float:
        live = [r for r in records.values() if r.step != "ended"]
        at_rest = self.plan.converged | self.plan.degraded
        moving = [
            r
            for r in live
            if r.name not in at_rest and (r.epoch > 0 or r.ending or r.step == "new")
        ]
        if moving and now - self.progress_at < FAST_FOR_S:
            return FAST_S
        return BUSY_S if live or self.plan.actions or followed else IDLE_S

    def _try(self, action: actions.Action) -> None:
        """Begin an action, unless its subject is busy or waits after a failure."""
        now, name = time.monotonic(), actions.subject(action)
        wait = self.backoff.get(name)
        if name in self.in_flight.subjects() or (wait and now < wait.due):
            return
        if self._due(action, now):
            self._begin(action)

    def _begin(self, action: actions.Action) -> None:
        outcome = self.in_flight.begin(action, self.executor.steps(action, self.observed))
        self._void_answers(action)
        if outcome:
            self._record_outcome(outcome)

    def collect(self) -> None:
        """Continue the actions whose calls have returned."""
        for action, outcome in self.in_flight.collect():
            self._void_answers(action)
            if outcome:
                try:
                    self._record_outcome(outcome)
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
        devices = actions.devices_of(action)
        self.prober.invalidate(self.layout.proxy_socket(device) for device in devices)
        if ranks := actions.ranks_of(action):
            job = actions.job_of(action)
            self.prober.invalidate(self.executor.node.door(job, rank) for rank in ranks)

    def _record_outcome(self, outcome: Outcome) -> None:
        """Record how an action ended, and when to try it again after a failure."""
        action, error, now = outcome.action, outcome.error, time.monotonic()
        name = actions.subject(action)
        wait = self.backoff.setdefault(name, Backoff())
        if isinstance(action, actions.QueryStore):
            self.store_query = self.store_query.repeated(clock.now(), error is None)
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

    def _open_decided(self, records: dict[str, Record]) -> None:
        """Follow each move that the policy requests."""
        moving = [
            action.job
            for action in self.plan.actions
            if isinstance(action, actions.Place)
            or (isinstance(action, actions.Barrier) and action.action == "request")
        ]
        if not moving:
            return
        earlier = {change.job: change for change in self.journal.changes(only_open=True)}
        for name in moving:
            target, cause = self.plan.targets.get(name), self.plan.causes.get(name)
            if name in records and target is not None and cause:
                gpus, now = len(set(target)), clock.now()
                last = earlier.get(name) or next(reversed(self.journal.changes(name)), None)
                change = changes.decided(records[name], gpus, cause, last, time.time(), now)
                if change:
                    self.journal.open_change(change)

    def _follow_changes(self, records: dict[str, Record], observed: Observed) -> None:
        for change in self.journal.changes(only_open=True):
            record = records.get(change.job)
            target = self.plan.targets.get(change.job)
            gpus = None if target is None else len(set(target))
            over = record is None or record.step == "ended"
            if record is not None and not over:
                elsewhere = target is not None and set(target) != set(record.placement)
                over = changes.is_withdrawn(change, record, gpus, elsewhere)
            if record is None or over:
                self.journal.save_change(structs.replace(change, superseded=True), open=False)
                continue
            converged = change.job in self.plan.converged
            now = changes.follow(change, record, observed, converged, clock.now())
            if now == change:
                continue
            self.journal.save_change(now, open=now.converged_at is None)
            if now.converged_at is not None:
                self._record_pause(now)
                record_disturbance(self.journal, now, clock.now())
                pause = "" if now.pause_s is None else f", paused {now.pause_s:.3f} s"
                devices = f"{now.from_gpus} → {count(now.to_gpus, 'device')}"
                if now.from_gpus == now.to_gpus:
                    devices = "moved to other devices"
                text = f"{devices} in {now.converge_s:.3f} s{pause}"
                self.journal.event(f"Job/{change.job}", "Converged", text)

    def _record_pause(self, change: Change) -> None:
        record = self.journal.record(change.job)
        if record is not None and change.pause_s is not None:
            pauses = {**record.pauses, change.kind: change.pause_s}
            self.journal.save(structs.replace(record, pauses=pauses))

    def open_change(self, job: Job | None, commit: str, wanted_at: float) -> None:
        """Follow a change of a job that has begun, until the job is as desired. wanted_at: wall
        clock."""
        record = self.journal.record(job.name) if job else None
        if job is None or record is None:
            return
        wanted = clock.of_wall(wanted_at)
        change = changes.requested(job, record, commit, wanted_at, wanted)
        if change:
            self.journal.open_change(change)
        self.backoff.pop(job.name, None)

    def cancel_unrecorded(self, name: str) -> None:
        """Kill a job's ranks although the journal cannot record it yet: this job may fill the disk.
        Its end is recorded as soon as there is space; until then the job gets no other action."""
        ending = Ending("Failed", "Cancelled", "cancelled while the disk was full", clock.now())
        self.unrecorded[name] = actions.End(name, ending)
        self._kill_unrecorded(name)

    def _kill_unrecorded(self, name: str) -> None:
        record = self.journal.record(name)
        if record and record.fixed and self.unrecorded[name].ending.reason == "Cancelled":
            self._try(actions.Signal(name, tuple(range(record.fixed.world_size)), signal.SIGKILL))
