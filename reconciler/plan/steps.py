"""What brings one job to its target: at most its next step, whatever was done before.

A target is a placement, () for none, or None while there is no place for the job.
"""

from __future__ import annotations

from rankfold.reconciler.actions import (
    Action,
    Barrier,
    Detach,
    End,
    Forget,
    Place,
    Release,
    Start,
)
from rankfold.reconciler.model import Job, Record
from rankfold.reconciler.plan import ending
from rankfold.reconciler.plan.allocation import Allocation
from rankfold.reconciler.plan.index import Index

Target = tuple[str, ...] | None


class Steps:
    """actions: the next of each job; converged: jobs that are as desired."""

    def __init__(self, index: Index, allocation: Allocation, now: float):
        self.index, self.allocation, self.now = index, allocation, now
        self.actions: list[Action] = []
        self.converged: set[str] = set()
        for name in index.order:
            self._job(name, index.records[name])

    def _job(self, name: str, record: Record) -> None:
        index, job = self.index, self.index.desired.jobs.get(name)
        if record.step == "ended":
            self._after_the_end(name, job)
        elif record.ending:
            self.actions += ending.let_go(index, record, record.ending, self.now)
        elif over := ending.of(index, job, record, self.now):
            self.actions.append(End(name, over))
        elif job is not None and name not in index.silent and not index.unheard(record):
            self._advance(job, record, self.allocation.targets.get(name))

    def _after_the_end(self, name: str, job: Job | None) -> None:
        self.converged.add(name)
        if job is None:
            self.actions.append(Forget("Job", name))
        self.actions += [Forget("Pool", pool) for pool in self.index.pools_only_for(name)]

    def _advance(self, job: Job, record: Record, target: Target) -> None:
        if (
            target == ()
            and record.step not in ("new", "detached")
            and not self._suspend_fits(job, record)
        ):
            target = record.placement or None
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
                self.actions.append(Place(job.name, self._next_epoch(record), target))
            elif record.placement:
                self.actions.append(Release(job.name))
            elif target == ():
                self.converged.add(job.name)

    def _next_epoch(self, record: Record) -> int:
        """Above all that any device has seen: it may remember an earlier job of this name."""
        there = self.index.on_devices(record.name).values()
        return 1 + max([record.epoch, *(each.epoch for each in there)])

    def _suspend_fits(self, job: Job, record: Record) -> bool:
        return record.step == "started" or self.allocation.memory_allows(job, record, 0)

    def _begin(self, job: Job, record: Record, target: Target) -> None:
        if record.step == "new":
            if target:
                virtual = self.allocation.groups.virtual(job, record)
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
            self.actions.append(Place(job.name, self._next_epoch(record), target))
        elif target == ():
            self.converged.add(job.name)

    def _serve(self, job: Job, record: Record, target: Target) -> None:
        """A placed job: leave it alone, or bring it to a cut and take it off its devices."""
        devices = tuple(dict.fromkeys(record.placement))
        states = {d: self.index.state(d, record) for d in devices}
        if target is None or target == record.placement:
            stopping = tuple(d for d, state in states.items() if state in ("stopping", "cut"))
            if stopping:
                self.actions.append(Barrier(job.name, record.epoch, devices, "withdraw"))
            elif (
                all(state == "running" for state in states.values())
                and job.name not in self.allocation.waiting
            ):
                self.converged.add(job.name)
        elif all(state == "cut" for state in states.values()):
            self.actions.append(self._detach(job, record, target))
        elif not all(state in ("stopping", "cut") for state in states.values()):
            self.actions.append(Barrier(job.name, record.epoch, devices))

    def _detach(self, job: Job, record: Record, target: Target) -> Detach:
        devices = tuple(d for d in dict.fromkeys(record.placement) if d not in record.detached)
        return Detach(job.name, record.epoch, devices, suspend=target == ())
