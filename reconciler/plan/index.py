"""Index of desired, recorded and observed state: each query about a job or a device is one look-up.

Built once at the beginning of a plan, in time in proportion to the fleet, not to jobs times
devices. Queries about every job or every device use it instead of scanning all records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from rankfold.messages import OWN_CC
from rankfold.reconciler.model.desired import Desired, Device, Job
from rankfold.reconciler.model.fitting import may_use
from rankfold.reconciler.model.observed import JobOnDevice, Observed, ObservedDevice, ObservedRank
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.wording import unresponsive

LOADED_MAX = 8192  # kernels; on the software GPU each takes 3 of a process's 65,530 mappings
HOLDING = ("joining", "running", "stopping", "cut", "failed")  # job states that occupy a device


@lru_cache(maxsize=1 << 16)
def _unrecorded(name: str) -> Record:
    """The record of a job that has none. Each plan needs all jobs; a thousand may wait."""
    return Record(name)


class Index:
    """Look-up tables for one plan.

    in_flight: subjects of the actions that have begun and have not ended.
    order: names of all jobs, desired or recorded, in the order of creation.
    held: devices on which some job may be according to its record.
    silent: jobs to which no request can be sent, and why.
    devices: as the pools describe them, in the order of the files.
    for_jobs: the same, with the compute capability of each GPU that is up, where that is to be its
        own.
    """

    def __init__(
        self,
        desired: Desired,
        records: Mapping[str, Record],
        observed: Observed,
        in_flight: frozenset[str],
    ):
        self.desired, self.observed, self.in_flight = desired, observed, in_flight
        self.records = {
            name: records.get(name) or _unrecorded(name) for name in {*desired.jobs, *records}
        }
        self.order = sorted(self.records, key=self._age)
        self.devices: dict[str, Device] = desired.devices()
        self.for_jobs = {
            name: _with_own_cc(device, observed.devices.get(name))
            for name, device in self.devices.items()
        }
        self.names = list(self.devices)  # position → device, as in `Groups`
        self.position = {name: position for position, name in enumerate(self.names)}
        self.holds = {name: record.holds() for name, record in self.records.items()}
        self.held = frozenset(device for held in self.holds.values() for device in held)
        self._there: dict[str, dict[str, JobOnDevice]] = {}  # job → device → its report on the job
        for name, observed_device in observed.devices.items():
            for there in observed_device.jobs:
                self._there.setdefault(there.job, {}).setdefault(name, there)
        self._ranks: dict[str, dict[int, ObservedRank]] = {}
        for (job, rank), each in observed.ranks.items():
            self._ranks.setdefault(job, {})[rank] = each
        self._pools_only_for: dict[str, list[str]] = {}
        for pool in desired.pools.values():
            if pool.only_for is not None:
                self._pools_only_for.setdefault(pool.only_for, []).append(pool.name)
        self._facts: dict[tuple[int, int], dict[str, int]] = {}
        self.silent: dict[str, Condition] = {}
        for name, record in self.records.items():
            if condition := self._silent(record):
                self.silent[name] = condition

    def _age(self, name: str) -> tuple[float, str]:
        job = self.desired.jobs.get(name)
        return (job.created if job else 0.0, name)

    # ---- devices

    def facts(self, positions: Sequence[int]) -> dict[str, int]:
        """The least of each number of the GPUs at these positions, of those that are up."""
        key = (positions[0], len(positions)) if positions else (0, 0)
        if key not in self._facts:
            least: dict[str, int] = {}
            for position in positions:
                observed = self.observed_device(self.names[position])
                for name, value in observed.facts.items() if observed else ():
                    least[name] = min(value, least.get(name, value))
            self._facts[key] = least
        return self._facts[key]

    def observed_device(self, device: str) -> ObservedDevice | None:
        return self.observed.devices.get(device)

    def is_up(self, device: str) -> bool:
        """Whether a device's proxy answers."""
        observed = self.observed_device(device)
        return observed is not None and observed.ready

    def hangs(self, device: str) -> bool:
        observed = self.observed_device(device)
        return observed is not None and observed.silent_since is not None

    def is_free(self, device: str) -> bool:
        """Seen free: the proxy answers and reports no job that occupies it, no record has a job
        there, and no action on the device is in flight."""
        observed = self.observed_device(device)
        if observed is None or not observed.ready or device in self.in_flight:
            return False
        return not any(j.state in HOLDING for j in observed.jobs) and device not in self.held

    def is_as_described(self, device: str) -> bool:
        """Whether a device is in a pool, its proxy answers, it works, and it is as its pool
        describes it. False for a device whose proxy is to be restarted before the next job."""
        wanted, observed = self.devices.get(device), self.observed_device(device)
        if wanted is None or observed is None or not observed.ready or observed.lost:
            return False
        return not differs(wanted, observed) and not self.is_worn(device)

    def is_worn(self, device: str) -> bool:
        """Whether a device has loaded too much code, which no proxy unloads, and is in no job's
        placement: a job in the middle of a move may return to it."""
        observed = self.observed_device(device)
        if observed is None or observed.loaded < LOADED_MAX:
            return False
        return all(device not in record.placement for record in self.records.values())

    def is_eligible(self, device: str, job: Job, record: Record) -> bool:
        """Whether a job may be placed on a device, free or not."""
        return self.is_as_described(device) and may_use(self.for_jobs[device], job, record)

    def is_drained(self, device: str) -> bool:
        wanted = self.devices.get(device)
        return wanted is not None and wanted.drained

    # ---- jobs

    def on_devices(self, job: str) -> Mapping[str, JobOnDevice]:
        """Device → its report on a job."""
        return self._there.get(job, {})

    def state(self, device: str, record: Record) -> str:
        """The state of the job on a device in the recorded epoch; "lost" if it is not there."""
        report = self.on_devices(record.name).get(device) if self.is_up(device) else None
        return report.state if report and report.epoch == record.epoch else "lost"

    def ranks(self, job: str) -> Mapping[int, ObservedRank]:
        return self._ranks.get(job, {})

    def pools_only_for(self, job: str) -> list[str]:
        """Temporary pools, which are removed with their job."""
        return self._pools_only_for.get(job, [])

    def not_answering(self, record: Record) -> list[str]:
        """Devices that serve a job, or may, whose proxies live but have not answered this time."""
        observed = ((name, self.observed_device(name)) for name in sorted(self.holds[record.name]))
        return [name for name, each in observed if each is not None and not each.ready]

    def _silent(self, record: Record) -> Condition | None:
        """A condition if no request can be sent to a job: a proxy or launcher is unresponsive."""
        message = ""
        for name in reversed(self.not_answering(record)):
            observed = self.observed.devices[name]
            if since := observed.silent_since:
                pid = observed.pid or record.proxies.get(name, 0)
                message = unresponsive(f"the proxy of {name}", since, pid)
        if record.fixed is not None and record.step != "ended" and not message:
            ranks = self.ranks(record.name)
            for rank in range(record.fixed.world_size):
                observed_rank = ranks.get(rank)
                if observed_rank and observed_rank.silent_since and not message:
                    message = unresponsive(
                        f"the launcher of rank {rank}",
                        observed_rank.silent_since,
                        observed_rank.launcher,
                    )
        return Condition("Stalled", "True", "DoesNotAnswer", message) if message else None


DESCRIBED = ("type", "memory", "cc", "speed", "core_count", "first_core", "runtime")
_described = attrgetter(*DESCRIBED)


def _with_own_cc(device: Device, observed: ObservedDevice | None) -> Device:
    if device.cc != OWN_CC or observed is None or not observed.own_cc:
        return device
    return replace(device, cc=observed.own_cc)


def as_described(device: Device, **fields: Any) -> ObservedDevice:
    """The device as its proxy would report it."""
    described = {name: getattr(device, name) for name in DESCRIBED}
    return ObservedDevice(device.name, **described, **fields)


def differs(device: Device, observed: ObservedDevice) -> bool:
    """Whether a device is not as its pool describes it."""
    return bool(_described(device) != _described(observed))
