"""Decides which job gets which devices: a target for each job, or the reason why it has none.

Jobs first keep what they have; then free devices are given in the order of creation. A job that has
begun continues with fewer devices than it requests if only bad devices are missing: if those were
usable and free, it would have enough. Runs once per plan, before the steps towards the targets.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import deque

from msgspec.structs import replace

from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.model.states import ON_DEVICES
from rankfold.reconciler.plan.fitting import Group, Groups, may_use, most_frequent
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.plan.memory import HostMemory
from rankfold.reconciler.plan.placement import assign
from rankfold.reconciler.wording import count, some


class Allocation:
    """The devices of every job.

    targets: placement that each job should have now (() for none).
    waiting: why a job does not have what it requests.
    degraded: the same, for a job that continues with fewer devices meanwhile.
    """

    def __init__(self, index: Index):
        self.index = index
        self.groups = Groups(index.devices.values())
        self.memory = HostMemory(index, self.groups)
        self.targets: dict[str, tuple[str, ...]] = {}
        self.waiting: dict[str, Condition] = {}
        self.degraded: dict[str, Condition] = {}
        taken: set[str] = set()
        wanted = self._own(taken)
        self._free: dict[Group, deque[int]] = {}  # positions of devices to give, ascending
        self._can_come: dict[Group, int] = {}  # see `_most_to_come`
        self._bad: dict[Group, list[str]] = {}  # see `_bad_of`
        # A job that has started goes before one that has not: it uses host memory already. A job
        # that cannot start (its folder is missing) goes last: its devices would be idle.
        wanted.sort(key=lambda each: (each[1].step == "new", each[1].error_permanent))
        self._assigned = frozenset(taken)
        for job, record, own in wanted:
            self._give(job, record, own)

    def memory_allows(self, job: Job, record: Record, devices: int) -> bool:
        """Whether a job may be folded onto this many devices; if not, it waits, with the reason."""
        objection = self.memory.objection(job, record, devices)
        if objection:
            self.waiting[job.name] = objection
        return objection is None

    def _aim(self, job: Job, record: Record, target: tuple[str, ...]) -> None:
        self.targets[job.name] = target
        self.memory.note_target(job, record, target)

    # ---- what each job has already

    def _own(self, taken: set[str]) -> list[tuple[Job, Record, list[str]]]:
        """Jobs that want devices, and which of its devices each keeps."""
        wanted: list[tuple[Job, Record, list[str]]] = []
        for name in self.index.order:
            job, record = self.index.desired.jobs.get(name), self.index.records[name]
            if job is None or record.step == "ended" or record.ending or job.cancelled:
                continue
            if job.suspended:
                self._aim(job, record, ())
                continue
            if name in self.index.silent:  # it keeps its devices, and cannot use more
                taken.update(record.placement)
                if self.index.holds[name]:
                    self._aim(job, record, record.placement)
                continue
            own = [d for d in dict.fromkeys(record.placement) if self._keeps(d, job, record, taken)]
            own = own[: job.gpus]
            taken.update(own)
            wanted.append((job, record, own))
        return wanted

    def _keeps(self, device: str, job: Job, record: Record, taken: set[str]) -> bool:
        if device in taken:
            return False
        if device in self.index.holds[job.name]:  # even if its proxy is slow or to be replaced
            wanted = self.index.devices.get(device)
            return wanted is not None and may_use(wanted, job, record)
        return self.index.is_eligible(device, job, record) and self.index.is_free(device)

    # ---- what is free

    def _give(self, job: Job, record: Record, own: list[str]) -> None:
        fitting = self.groups.count(job, record)
        kind = record.device_type or most_frequent(fitting)
        groups = [g for g in self.groups.fitting(job, record) if g.device.type == kind]
        free = [self._free_of(group) for group in groups]
        bad = [name for group in groups for name in self._bad_of(group)]
        fewest = fewest_of(job, record, len(bad))
        free_count = sum(map(len, free))
        there = min(job.gpus, len(own) + free_count)
        holds = record.step in ON_DEVICES
        held = min(job.gpus, len(set(record.placement))) if holds else 0
        if there < max(fewest, held):
            by_hand = bool(bad) and keeps_its_number(record)
            self._wait_for_devices(job, free_count, fitting.get(kind, 0), by_hand)
            if holds:
                self._aim(job, record, record.placement)
            elif own and not self.memory.objection(job, record, len(own)):
                # In the middle of a move, another job got the devices: it continues as before.
                self._aim(job, record, assign(job.world_size, tuple(own)))
            if sum(map(self._most_to_come, groups)) >= fewest:
                for each in free:
                    each.clear()  # the first in line is not overtaken
            return
        # Take the first of each group, so that they can be removed from the front of its deque.
        new = list(itertools.islice(heapq.merge(*free), there - len(own)))
        at = sorted([*(self.index.position[device] for device in own), *new])
        target = assign(job.world_size, tuple(self.index.names[each] for each in at))
        if not self.memory_allows(job, record, there):
            if there < job.gpus:
                objection = self.waiting[job.name]
                message = f"{self._why_bad(bad)}; with fewer devices, {objection.message}"
                self.waiting[job.name] = replace(objection, message=message)
            if holds:
                self._aim(job, record, record.placement)
            return
        if there < job.gpus:
            self.degraded[job.name] = self._degraded_condition(there, job, bad)
        for each in free:
            while new and each and each[0] <= new[-1]:
                each.popleft()
        self._aim(job, record, target)

    def _free_of(self, group: Group) -> deque[int]:
        """Positions of a group's devices that no job has and that were not given yet."""
        if group not in self._free:
            names = self.index.names
            self._free[group] = deque(
                at
                for at in group.positions
                if names[at] not in self._assigned
                and self.index.is_as_described(names[at])
                and self.index.is_free(names[at])
            )
        return self._free[group]

    def _most_to_come(self, group: Group) -> int:
        """How many devices of a group a job could have if all other jobs left. Devices that do not
        answer, do not start, or are held by a job to which no request can be sent stay away until a
        person acts."""
        if group not in self._can_come:
            names = (self.index.names[at] for at in group.positions)
            self._can_come[group] = sum(
                1
                for name in names
                if name not in self._unreachable
                and name not in self.index.observed.failing
                and not self.index.hangs(name)
            )
        return self._can_come[group]

    def _bad_of(self, group: Group) -> list[str]:
        """Bad devices of a group that no job holds. A bad device that a job still holds is not
        included before the job has released it."""
        if group not in self._bad:
            failing = self.index.observed.failing
            names = (self.index.names[at] for at in (group.positions if failing else ()))
            self._bad[group] = [n for n in names if n in failing and n not in self.index.held]
        return self._bad[group]

    @functools.cached_property
    def _unreachable(self) -> frozenset[str]:
        """Devices of jobs to which no request can be sent."""
        records = (self.index.records[name] for name in self.index.silent)
        return frozenset(device for record in records for device in record.placement)

    @functools.cached_property
    def _down(self) -> str:
        """Names of devices that are not up yet, for the message of each waiting job."""
        return some([device for device in self.index.devices if not self.index.is_up(device)])

    def _why_bad(self, bad: list[str]) -> str:
        last = f" ({words})" if (words := self.index.observed.failing[bad[0]]) else ""
        ends = "its proxy exits whenever it is" if len(bad) == 1 else "their proxies exit whenever"
        return f"{some(bad)} went bad: {ends} started{last}"

    def _degraded_condition(self, there: int, job: Job, bad: list[str]) -> Condition:
        message = (
            f"it continues on {there} of {count(job.gpus, 'device')}, because "
            f"{self._why_bad(bad)}. It returns to {job.gpus} when they are back: repair the "
            f"bad ones, or set gpus to {there}"
        )
        return Condition("Degraded", "True", "DevicesBad", message)

    def _wait_for_devices(self, job: Job, free: int, most: int, by_hand: bool) -> None:
        """free: devices that the job could have now; most: that it could ever have; by_hand: fewer
        would suffice, but only a person may request that."""
        kind = " or ".join(job.device_types) or "any kind"
        wanted = count(job.gpus, "device")
        if most < job.gpus:
            message = f"needs {wanted} of {kind}; the pools have {most} that fit it"
            self.waiting[job.name] = Condition("Stalled", "True", "NotEnoughDevices", message)
        elif self._down:
            message = f"needs {wanted} of {kind}; not up yet: {self._down}"
            if by_hand:
                message += (
                    ". On fewer devices its bits may differ (D0): set gpus to continue on fewer"
                )
            self.waiting[job.name] = Condition("Progressing", "True", "WaitingForProxies", message)
        else:
            message = f"needs {wanted} of {kind}; free for it now: {free}"
            self.waiting[job.name] = Condition("Progressing", "True", "WaitingForDevices", message)


def fewest_of(job: Job, record: Record, bad: int) -> int:
    """The fewest devices with which a job starts, or continues, while `bad` devices are bad."""
    if record.fixed is None or keeps_its_number(record):
        return job.gpus
    return max(1, job.gpus - bad)


def keeps_its_number(record: Record) -> bool:
    """Whether a job has begun whose bits depend on the number of its devices, so that only a person
    may change it."""
    return record.fixed is not None and record.fixed.determinism == "D0"
