"""Brings a job to its target: returns at most its next step, whatever was done before.

A target is a placement, () for none, or None while there is no place for the job.
"""

from __future__ import annotations

import signal

from rankfold.reconciler.actions import (
    Action,
    Barrier,
    Conclude,
    Detach,
    End,
    Forget,
    Look,
    Place,
    Release,
    Signal,
    Start,
    Thaw,
    Vacate,
)
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.recorded import NODE, Record
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.plan import ending, restoring, saving
from rankfold.reconciler.plan.allocation import Allocation
from rankfold.reconciler.plan.index import Index

Target = tuple[str, ...] | None


class Steps:
    """The next step of every job.

    actions: the next action of each job.
    converged: jobs that are as desired.
    degraded: jobs that run as well as they can, on fewer devices than desired.
    """

    def __init__(self, index: Index, allocation: Allocation, now: float):
        self.index, self.allocation, self.now = index, allocation, now
        self.actions: list[Action] = []
        self.converged: set[str] = set()
        self.degraded: set[str] = set()
        self._running: list[Record] = []
        for name in index.order:
            self._job(name, index.records[name])
        if query := saving.querying(index, self._running, now):
            self.actions.append(query)

    def _job(self, name: str, record: Record) -> None:
        index, job = self.index, self.index.desired.jobs.get(name)
        if record.step == "ended":
            self._after_the_end(name, job)
        elif record.ending:
            self.actions += ending.release(index, job, record, record.ending, self.now)
        elif over := ending.find_ending(index, job, record, self.now):
            self.actions.append(End(name, over))
        elif job is not None and name in index.silent:
            self._continue_unresponsive(job, record)
        elif job is not None and not index.not_answering(record):
            self._advance(job, record, self.allocation.targets.get(name))

    def _continue_unresponsive(self, job: Job, record: Record) -> None:
        """Let a job continue although one of its proxies or launchers is unresponsive: no save may
        pause the others. An upload of an earlier save needs neither, and continues."""
        save, why = record.save, self.index.silent[job.name].message
        action: Action | None = None
        if save is not None and save.stage == "uploading":
            if save.why != "rest":
                action = saving.upload(self.index, record, job.keep, False, self.now)
        elif record.step == "placed" and save is not None:
            action = Conclude(job.name, save.number, error=why, again=True)
        if action is None and record.step == "placed" and save is None:
            states = {d: self.index.state(d, record) for d in dict.fromkeys(record.placement)}
            stand = tuple(d for d, state in states.items() if state in ("stopping", "cut"))
            if stand and "lost" not in states.values():
                action = Barrier(job.name, record.epoch, tuple(states), "withdraw")
            elif frozen := self._frozen(job.name):
                action = Thaw(job.name, frozen)
        self.actions += [action] if action else []

    def _after_the_end(self, name: str, job: Job | None) -> None:
        self.converged.add(name)
        if job is None:
            self.actions.append(Forget("Job", name))
        self.actions += [Forget("Pool", pool) for pool in self.index.pools_only_for(name)]

    def _advance(self, job: Job, record: Record, target: Target) -> None:
        if old := self._old_ranks(record):  # nothing else is done before they are gone
            self.actions.append(old)
            return
        if (
            target == ()
            and record.step not in ("new", "detached", "vacating", "stored", "restoring")
            and not self._suspend_fits(job, record)
        ):
            target = record.placement or None
        on_disk = (record.step, record.stored) == ("stored", NODE)
        rests = target == () and job.store and (on_disk or record.step in ("started", "detached"))
        if uploaded := saving.upload(self.index, record, job.keep, rests, self.now):
            self.actions.append(uploaded)
            if isinstance(uploaded, Conclude | End):
                return
        if record.step in ("new", "started"):
            self._begin(job, record, target)
        elif record.step == "placing":
            self.actions.append(Place(job.name, record.epoch, record.placement))
        elif record.step == "placed":
            self._serve(job, record, target)
        elif record.step == "detaching":
            self.actions.append(self._detach(job, record, target))
        elif record.step == "detached":
            if target:
                self._place(job, record, target)
            elif record.placement:
                self.actions.append(Release(job.name))
            elif target == ():
                self._rest(job, record)
        else:
            self._store(job, record, target)

    def _old_ranks(self, record: Record) -> Action | None:
        """The action that ends ranks of an earlier incarnation that still live, if there are
        any."""
        if record.step == "new":
            return None
        old = {
            rank: observed.state
            for rank, observed in sorted(self.index.ranks(record.name).items())
            if observed.incarnation != record.incarnation
        }
        if running := tuple(rank for rank, state in old.items() if state == "running"):
            return Signal(record.name, running, int(signal.SIGKILL))
        without_signals = tuple(rank for rank, state in old.items() if state in ("frozen", "empty"))
        return Vacate(record.name, without_signals) if without_signals else None

    def _rest(self, job: Job, record: Record) -> None:
        """The next step of a job that is to rest and holds no device: it rests in memory, or is
        saved."""
        action = saving.resting(self.index, job, record, self.now)
        if not job.store:
            self.converged.add(job.name)
            action = action or saving.dumping(self.index, job, record, self.now)
        self.actions += [action] if action else []

    def _store(self, job: Job, record: Record, target: Target) -> None:
        """The next step of a job on its way into the store, or out of it."""
        action = None
        if target == () and record.stored == NODE and not job.store:
            self.converged.add(job.name)  # it holds no device, uploaded or not
        if record.step == "vacating":
            action = restoring.vacating(self.index, record)
        elif record.step == "restoring":
            action = restoring.restoring(self.index, record, self.now)
        elif target:
            action = restoring.fetching(self.index, record, self.now)
        elif target == () and record.stored == NODE:
            action = saving.sending(job, record, self.now)
        elif target == ():
            self.converged.add(job.name)
        if action:
            self.actions.append(action)

    def _next_epoch(self, record: Record) -> int:
        """An epoch above all that any device has seen: it may remember an earlier job of this
        name."""
        there = self.index.on_devices(record.name).values()
        return 1 + max([record.epoch, *(each.epoch for each in there)])

    def _suspend_fits(self, job: Job, record: Record) -> bool:
        return record.step == "started" or self.allocation.memory_allows(job, record, 0)

    def _begin(self, job: Job, record: Record, target: Target) -> None:
        if record.step == "new":
            if target:
                virtual = self._device(job, record)
                kind = self.index.devices[target[0]].type
                self.actions.append(Start(job, virtual, kind, tuple(range(job.world_size))))
            elif target == ():
                self.converged.add(job.name)
            return
        ranks = self.index.ranks(job.name)
        missing = tuple(r for r in range(job.world_size) if r not in ranks)
        if missing:
            self.actions.append(Start(job, dict(record.device), record.device_type, missing))
        elif any(ranks[r].state == "starting" for r in range(job.world_size)):
            return
        elif target:
            self._place(job, record, target)
        elif target == ():
            self._rest(job, record)

    def _device(self, job: Job, record: Record) -> Json:
        """The device that the job's ranks will see, for good: the least of all that it may get."""
        groups = self.allocation.groups
        kind = groups.kind(job, record)
        found = [
            self.index.facts(group.positions)
            for group in groups.fitting(job, record)
            if group.device.type == kind
        ]
        names = {name for facts in found for name in facts}
        least = {name: min(f[name] for f in found if name in f) for name in sorted(names)}
        return groups.virtual(job, record) | least

    def _place(self, job: Job, record: Record, target: tuple[str, ...]) -> None:
        purpose = self.allocation.purposes.get(job.name) or record.placed_for
        self.actions.append(Place(job.name, self._next_epoch(record), target, purpose))

    def _serve(self, job: Job, record: Record, target: Target) -> None:
        """A placed job: leave it running, or bring it to a cut and detach it from its devices."""
        devices = tuple(dict.fromkeys(record.placement))
        states = {d: self.index.state(d, record) for d in devices}
        stays = target is None or target == record.placement
        if record.save is not None and record.save.stage != "uploading":
            action = saving.stopping(self.index, job, record, states, self.now)
            self.actions += [action] if action else []
        elif stays and any(state in ("stopping", "cut") for state in states.values()):
            self.actions.append(Barrier(job.name, record.epoch, devices, "withdraw"))
        elif frozen := self._frozen(job.name):
            self.actions.append(Thaw(job.name, frozen))
        elif stays:
            running = all(state == "running" for state in states.values())
            why = saving.due(self.index, job, record, self.now)
            if why and running:
                self.actions.append(Barrier(job.name, record.epoch, devices, save=why))
            elif running and saving.unknown(self.index, job, record, self.now):
                self.actions.append(Look(job.name, tuple(range(job.world_size))))
            if running:
                self._running.append(record)
            if running and job.name in self.allocation.degraded:
                self.degraded.add(job.name)
            elif running and job.name not in self.allocation.waiting:
                self.converged.add(job.name)
        elif all(state == "cut" for state in states.values()):
            self.actions.append(self._detach(job, record, target))
        elif not all(state in ("stopping", "cut") for state in states.values()):
            self.actions.append(Barrier(job.name, record.epoch, devices))

    def _frozen(self, name: str) -> tuple[int, ...]:
        ranks = sorted(self.index.ranks(name).items())
        return tuple(rank for rank, observed in ranks if observed.state == "frozen")

    def _detach(self, job: Job, record: Record, target: Target) -> Detach:
        devices = tuple(d for d in dict.fromkeys(record.placement) if d not in record.detached)
        return Detach(job.name, record.epoch, devices, suspend=target == ())
