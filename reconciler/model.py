"""The reconciler's vocabulary: what is desired, what is recorded, what is observed.

Plain frozen records without behaviour of their own; every other module of the reconciler speaks
in them. Sizes are bytes. Times named ``*_at`` are seconds; which clock is said at the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

# ---- desired -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """Where a person wrote something: file and line, 1 is the first."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Device:
    """One accelerator of a pool. Its name is ``<pool>/<type>-<index>``."""

    name: str
    type: str
    memory: int
    cc: str = "8.0"
    speed: float = 1.0
    only_for: str | None = None  # a temporary fleet serves the one job that `run` made it for


@dataclass(frozen=True)
class Pool:
    name: str
    devices: tuple[Device, ...]
    only_for: str | None = None


@dataclass(frozen=True)
class Job:
    """A normalised Job: every default is filled in, `workdir` is absolute."""

    name: str
    command: tuple[str, ...]
    workdir: str
    world_size: int
    gpus: int
    env: tuple[tuple[str, str], ...] = ()
    device_types: tuple[str, ...] = ()  # () is any
    determinism: str = "D1"
    suspend: bool = False
    created: float = 0.0  # wall clock; the order in which pending jobs are served
    orphaned: bool = False  # its file is gone
    drifted: bool = False  # overridden by hand
    cancelled: bool = False
    env_whole: bool = False  # `env` is all there is, not on top of the reconciler's own

    @property
    def suspended(self) -> bool:
        return self.suspend or self.orphaned


# What a started job keeps for ever: attribute, and the field's name for people.
FIXED_FIELDS = (
    ("command", "spec.command"),
    ("workdir", "spec.workdir"),
    ("env", "spec.env"),
    ("world_size", "spec.worldSize"),
    ("determinism", "spec.determinism"),
)


@dataclass(frozen=True)
class Desired:
    """All that should be, by name."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)

    def devices(self) -> dict[str, Device]:
        return {d.name: d for pool in self.pools.values() for d in pool.devices}


# ---- recorded (the journal's view of a job) ---------------------------------------------------

TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Ending:
    """How a job is going to end, once its devices are free and its ranks are gone."""

    phase: str
    reason: str
    message: str
    since: float  # wall clock


@dataclass(frozen=True)
class Record:
    """What has been done for a job so far. Written before an action starts and after it ended.

    step: "new" (nothing started) → "started" (launchers run or are being started) → "placing"
    (proxies of `epoch` are being told) → "placed" → "detaching" → "detached" → "placing" at
    epoch + 1 …; "ended" is final.
    placement: device of rank 0, 1, …: of `epoch`; after a detach, what the job keeps reserved for
    its move, or () where it was suspended.
    """

    name: str
    step: str = "new"
    epoch: int = 0
    placement: tuple[str, ...] = ()
    proxies: Mapping[str, int] = field(default_factory=dict)  # device → pid that got `place`
    detached: tuple[str, ...] = ()  # devices whose detach at `epoch` is confirmed
    fixed: Job | None = None  # the spec at the first start
    device: Json = field(default_factory=dict)  # fields of struct rf_device
    device_type: str = ""
    master_port: int = 0
    ending: Ending | None = None
    phase: str = ""  # one of TERMINAL when step is "ended"
    exits: tuple[int | None, ...] = ()  # of each rank, when ended
    counters: Mapping[str, Json] = field(default_factory=dict)  # of each rank, when ended
    gpu_seconds: float = 0.0
    held_since: float | None = None  # wall clock; since when `placement` counts for gpu_seconds
    error: str = ""  # of the last action that failed
    error_permanent: bool = False

    def holds(self) -> frozenset[str]:
        """Devices that serve this job, or may."""
        if self.step not in ("placing", "placed", "detaching"):
            return frozenset()
        return frozenset(self.placement) - frozenset(self.detached)


# ---- observed --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankOnDevice:
    rank: int
    state: str
    counters: Json = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class JobOnDevice:
    job: str
    epoch: int
    state: str  # joining | running | stopping | cut | saved | failed
    reason: str = ""
    cut_at: float | None = None  # CLOCK_MONOTONIC
    released_at: float | None = None  # CLOCK_MONOTONIC
    ranks: tuple[RankOnDevice, ...] = ()


@dataclass(frozen=True)
class SeenDevice:
    """What a proxy answered; `ready` false: it holds its lock but does not answer (yet)."""

    name: str
    ready: bool = True
    pid: int = 0
    type: str = "soft"
    memory: int = 0
    used: int = 0
    swap: int = 0
    jobs: tuple[JobOnDevice, ...] = ()
    counters: Json = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)  # "<job>/<rank>" → kernels run here

    def job(self, name: str) -> JobOnDevice | None:
        return next((each for each in self.jobs if each.job == name), None)


@dataclass(frozen=True)
class SeenRank:
    """What a rank's launcher answered, or what its exit file says."""

    job: str
    rank: int
    state: str  # starting | running | exited
    pid: int | None = None
    channel: bool = False
    exit_status: int | None = None  # negative: killed by that signal
    error: str = ""


@dataclass(frozen=True)
class Observed:
    """The fleet as it answers. A device or a rank that is missing here does not exist."""

    devices: Mapping[str, SeenDevice] = field(default_factory=dict)
    ranks: Mapping[tuple[str, int], SeenRank] = field(default_factory=dict)
    host_memory: int = 1 << 62  # bytes of host memory that jobs may need beside their devices


@dataclass(frozen=True)
class Condition:
    type: str
    status: str  # "True" | "False"
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Change:
    """A change of a started job's devices, from the wish to the fact."""

    id: int
    job: str
    from_gpus: int
    to_gpus: int
    commit: str
    wanted_at: float  # wall clock: commit, or save of the file
    epoch: int = 0  # of the job when the change was wished
    cut_at: float | None = None  # CLOCK_MONOTONIC, as the next three
    placed_at: float | None = None
    released_at: float | None = None
    freed_at: float | None = None
    converged_at: float | None = None  # wall clock
    superseded: bool = False

    @property
    def pause_s(self) -> float | None:
        start = self.placed_at if self.from_gpus == 0 else self.cut_at
        end = self.freed_at if self.to_gpus == 0 else self.released_at
        return None if start is None or end is None else max(0.0, end - start)

    @property
    def converge_s(self) -> float | None:
        return None if self.converged_at is None else max(0.0, self.converged_at - self.wanted_at)


# ---- words ---------------------------------------------------------------------------------------


def count(number: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``"""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


# ---- JSON for the store ------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    return dataclasses.asdict(value)


def job_from_json(data: Json) -> Job:
    data = dict(data)
    data["command"] = tuple(data["command"])
    data["env"] = tuple((k, v) for k, v in data["env"])
    data["device_types"] = tuple(data["device_types"])
    return Job(**data)


def pool_from_json(data: Json) -> Pool:
    devices = tuple(Device(**each) for each in data["devices"])
    return Pool(data["name"], devices, data.get("only_for"))


def record_from_json(data: Json) -> Record:
    data = dict(data)
    for name in ("placement", "detached", "exits"):
        data[name] = tuple(data[name])
    data["fixed"] = job_from_json(data["fixed"]) if data["fixed"] else None
    data["ending"] = Ending(**data["ending"]) if data["ending"] else None
    return Record(**data)
