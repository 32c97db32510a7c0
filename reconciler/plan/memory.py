"""Limits folding by the host memory that jobs may need, and by a proxy's address space."""

from __future__ import annotations

from collections.abc import Iterable

from rankfold.policy.host_memory import Ledger, host_need, too_many
from rankfold.reconciler.model.desired import Device, Job
from rankfold.reconciler.model.fitting import Groups
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.wording import count

# A proxy is one process with 128 TiB of addresses, and each rank takes 2.3 of them: its window with
# guards on both sides, and its image, all of them sparse (proxy/hal/soft/soft.h,
# proxy/core/memory/image_hold.h). The rest is for peers' outboxes, and for builds with sanitizers.
# On the NVIDIA GPU a rank takes 0.6; one number serves both.
RANKS_ON_A_DEVICE = 40


class HostMemory:
    """The bytes that each job may need, and their sum, updated as targets are noted."""

    def __init__(self, index: Index, groups: Groups):
        self._index, self._groups = index, groups
        needs = {name: recorded_need(record) for name, record in index.records.items()}
        self._ledger = Ledger(needs, index.observed.host_memory, RANKS_ON_A_DEVICE)

    def note_target(self, job: Job, record: Record, target: tuple[str, ...]) -> None:
        """Account for the placement that a job is to have."""
        need = 0
        if target or in_memory(record):
            memory = self._groups.virtual(job, record)["memory_bytes"]
            need = host_need(job.world_size, memory, len(set(target)))
        self._ledger.note(job.name, need)

    def objection(self, job: Job, record: Record, devices: int) -> Condition | None:
        """Why a job cannot be folded onto this many devices, 0 to suspend it; None if it can."""
        memory = self._groups.virtual(job, record)["memory_bytes"]
        before = recorded_need(record)
        if self._ledger.allows(job.name, job.world_size, memory, devices, before):
            return None
        return self.refusal(job, record, devices, self._ledger.others(job.name))

    def refusal(self, job: Job, record: Record, devices: int, others: int) -> Condition:
        """The condition of a job that cannot be folded onto this many devices. others: bytes that
        other jobs may need."""
        if message := why_too_many(job.world_size, devices):
            return Condition("Stalled", "True", "TooManyRanks", message)
        memory = self._groups.virtual(job, record)["memory_bytes"]
        need = host_need(job.world_size, memory, devices)
        ranks = "suspended" if devices == 0 else f"on {count(devices, 'device')}"
        message = (
            f"{count(job.world_size, 'rank')} of {gib(memory)} {ranks} may need {gib(need)} of "
            f"host memory; other jobs may need {gib(others)} and the limit is "
            f"{gib(self._index.observed.host_memory)}. "
            "Use more devices, or devices with less memory"
        )
        return Condition("Stalled", "True", "HostMemory", message)


def in_memory(record: Record) -> bool:
    """Whether a job's ranks need host memory while it has no device."""
    return record.step not in ("new", "stored")


def why_too_many(world_size: int, devices: int) -> str:
    """Why proxies cannot serve this many ranks on this many devices; empty: they can."""
    if not too_many(world_size, devices, RANKS_ON_A_DEVICE):
        return ""
    return (
        f"{count(world_size, 'rank')} do not fit on {count(devices, 'device')}: one serves "
        f"{RANKS_ON_A_DEVICE} at most, which take most of its proxy's addresses. Use "
        f"{count(-(-world_size // RANKS_ON_A_DEVICE), 'device')} at least"
    )


def hopeless(job: Job, devices: Iterable[Device], limit: int) -> str:
    """Why a job cannot be folded onto as many of these devices as it requests, even without other
    jobs; empty: it can."""
    if message := why_too_many(job.world_size, job.gpus):
        return message
    memory = min((each.memory for each in devices), default=0)
    need = host_need(job.world_size, memory, job.gpus)
    if need <= limit:
        return ""
    return (
        f"{count(job.world_size, 'rank')} of {gib(memory)} on {count(job.gpus, 'device')} may need "
        f"{gib(need)} of host memory, and the limit is {gib(limit)}: use more devices, or devices "
        "with less memory"
    )


def recorded_need(record: Record) -> int:
    """`host_need` of a job's recorded placement."""
    if record.fixed is None or record.step in ("new", "stored", "ended"):
        return 0
    devices = len(set(record.placement))
    return host_need(record.fixed.world_size, record.device["memory_bytes"], devices)


def gib(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB"
