"""Determines which devices a job may use, whichever job has them now, and which device its ranks
see.

Thousands of devices are of a few kinds. `Groups` combines devices that are equivalent for every
job, so that a query about a job takes time in proportion to the kinds, not to the devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from msgspec import Struct, field

from rankfold.messages import OWN_CC
from rankfold.reconciler.model import runtimes
from rankfold.reconciler.model.desired import Device, Job
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.model.values import Json


class Group(Struct, eq=False):
    """Devices that are equivalent for every job, and of one node. positions: in the order of the
    files, ascending."""

    device: Device  # the first of them
    positions: list[int] = field(default_factory=list)


class Fitting(Struct, frozen=True):
    """The groups that a job may use, how many devices of each type they have, and indices of those
    groups that have the type which the job gets."""

    groups: list[Group]
    count: Mapping[str, int]
    of_one_kind: tuple[int, ...]


class Groups:
    """all: every group, in the order of their first devices in the files."""

    def __init__(self, devices: Iterable[Device]):
        alike: dict[Hashable, Group] = {}
        for position, device in enumerate(devices):
            kind = (
                device.type, device.runtime, device.memory, device.cc,
                device.only_for, device.domain, device.node,
            )  # fmt: skip
            alike.setdefault(kind, Group(device)).positions.append(position)
        self.all = tuple(alike.values())
        self._at = {group: number for number, group in enumerate(self.all)}
        self._for_all = [g for g in alike.values() if g.device.only_for is None]
        self._for_one: dict[str, list[Group]] = {}
        for group in alike.values():
            if group.device.only_for is not None:
                self._for_one.setdefault(group.device.only_for, []).append(group)
        self._fitting: dict[Hashable, Fitting] = {}

    def fitting(self, job: Job, record: Record) -> list[Group]:
        """Groups that a job may use, in the order of their first devices in the files."""
        return self._find(job, record).groups

    def count(self, job: Job, record: Record) -> Mapping[str, int]:
        """How many devices of each type a job may use, in the order of the files."""
        return self._find(job, record).count

    def kind(self, job: Job, record: Record) -> str:
        """The type of device that a job has, or gets; empty if there is none for it."""
        return record.device_type or most_frequent(self.count(job, record))

    def most(self, job: Job, record: Record) -> int:
        """How many devices a job can have at most: all are of one type, and of one node or domain
        if the job requests that."""
        if job.locality == "any":
            return max(self.count(job, record).values(), default=0)
        found: Counter[tuple[str, ...]] = Counter()
        for group in self.fitting(job, record):
            device = group.device
            node = (device.node,) if job.locality == "node" else ()
            found[(device.type, device.domain, *node)] += len(group.positions)
        kind = record.device_type
        return max((most for key, most in found.items() if kind in ("", key[0])), default=0)

    def of_one_kind(self, job: Job, record: Record) -> tuple[int, ...]:
        """Indices in `all` of the groups that have the type of device which a job gets."""
        return self._find(job, record).of_one_kind

    def _find(self, job: Job, record: Record) -> Fitting:
        own = self._for_one.get(job.name)
        wishes = _requirements(job, record)
        key = (job.name, wishes) if own else wishes
        if key not in self._fitting:
            groups = sorted([*self._for_all, *(own or ())], key=lambda g: g.positions[0])
            groups = [g for g in groups if may_use(g.device, job, record)]
            count: Counter[str] = Counter()
            for group in groups:
                count[group.device.type] += len(group.positions)
            kind = record.device_type or most_frequent(count)
            one = tuple(self._at[group] for group in groups if group.device.type == kind)
            self._fitting[key] = Fitting(groups, count, one)
        return self._fitting[key]

    def virtual(self, job: Job, record: Record) -> Json:
        """The device that a job's ranks see, or would see if the job started now."""
        if record.device:
            return dict(record.device)
        kind = most_frequent(self.count(job, record))
        fit = [g.device for g in self.fitting(job, record) if g.device.type == kind]
        return virtual_device(fit)


def _requirements(job: Job, record: Record) -> Hashable:
    """Everything that `may_use` reads of a job, except its name."""
    if record.device_type:
        virtual = record.device
        cc = (virtual.get("cc_major", 0), virtual.get("cc_minor", 0))
        return (job.runtime, record.device_type, virtual["memory_bytes"], cc)
    return (job.runtime, job.device_types)


def may_use(device: Device, job: Job, record: Record) -> bool:
    """Whether a job may be placed on a device, whichever job has it now."""
    if device.only_for not in (None, job.name) or not runtimes.serves(device, job):
        return False
    if record.device_type:
        virtual = record.device
        cc = (int(virtual.get("cc_major", 0)), int(virtual.get("cc_minor", 0)))
        known = cc_of(device)
        runs = known is None or runtimes.runs_on(job, known, cc)
        return (
            device.type == record.device_type and device.memory >= virtual["memory_bytes"] and runs
        )
    return not job.device_types or device.type in job.device_types


def most_frequent(kinds: Mapping[str, int]) -> str:
    """The type with the most devices, the first of equals; empty if there is none."""
    return max(kinds, key=lambda kind: kinds[kind], default="")


def cc_of(device: Device) -> tuple[int, int] | None:
    """None: the GPU's own, which is not known here."""
    if device.cc == OWN_CC:
        return None
    major, _, minor = device.cc.partition(".")
    return int(major), int(minor)


def virtual_device(devices: list[Device]) -> Json:
    """The device that a job's ranks see: the least memory and compute capability of `devices`.

    Fixed at admission, so that out-of-memory errors do not depend on the placement. Fields of
    ``struct rf_device``; the launcher has defaults for those that are missing. A GPU whose own
    compute capability is not known yet does not count; if none is known, it is 0.0.
    """
    if not devices:
        return {"name": "none", "memory_bytes": 0, "cc_major": 0, "cc_minor": 0}
    memory = min(d.memory for d in devices)
    known = [cc for d in devices if (cc := cc_of(d)) is not None]
    major, minor = min(known, default=(0, 0))
    name = f"rankfold {devices[0].type} device"
    return {"name": name, "memory_bytes": memory, "cc_major": major, "cc_minor": minor}
