"""The reconciler's vocabulary: what is desired, what is recorded, what is observed.

Plain frozen records without behaviour of their own; every other module of the reconciler speaks
in them. Sizes are bytes. Times named ``*_at`` are seconds; which clock is said at the field:
``steady`` is the reconciler's own (steady.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from rankfold.messages import DEVICES_MAX, RANKS_MAX
from rankfold.reconciler.fields import written

Json = dict[str, Any]

# What a value must be like to be taken from the journal or from a message. The schemas in schemas/
# say it to people.
ObjectName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")]
DeviceName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\0]*\Z")]
Text = Annotated[str, Meta(pattern=r"^[^\0]*\Z")]
AbsolutePath = Annotated[str, Meta(max_length=4095, pattern=r"^/[^\0]*\Z")]
Ranks = Annotated[int, Meta(ge=1, le=RANKS_MAX)]
Devices = Annotated[int, Meta(ge=1, le=DEVICES_MAX)]
Memory = Annotated[int, Meta(ge=1, le=1 << 50)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]

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

    name: DeviceName
    type: Annotated[str, Meta(pattern=r"^(soft|nvidia)\Z")]
    memory: Memory
    cc: Annotated[str, Meta(pattern=r"^[0-9]{1,3}\.[0-9]\Z")] = "8.0"
    speed: Annotated[float, Meta(gt=0, le=1)] = 1.0
    only_for: str | None = None  # a temporary fleet serves the one job that `run` made it for


@dataclass(frozen=True)
class Pool:
    name: ObjectName
    devices: tuple[Device, ...]
    only_for: str | None = None


@dataclass(frozen=True)
class Job:
    """A normalised Job: every default is filled in, `workdir` is absolute.

    The one table of a Job's fields. Of each: what the journal takes; where it is written, what a
    file may say there, and how it is reported to people (fields.py).
    """

    name: ObjectName = field(
        metadata=written(
            "metadata.name",
            {
                "type": "string", "minLength": 1, "maxLength": 63,
                "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$(?!\n)",
                "description": "Name of the job. At most 63 lower-case letters, digits and inner "
                "hyphens.",
            },
            "the job's name",
        )
    )  # fmt: skip
    command: Annotated[tuple[Text, ...], Meta(min_length=1)] = field(
        metadata=written(
            "spec.command",
            {
                "type": "array", "minItems": 1,
                "items": {"type": "string", "description": "One argument."},
                "description": "Program and arguments of every rank, as a list. A program with a / "
                "in its name is relative to workdir, another is looked for along PATH. Fixed at "
                "the first start.",
            },
            "program and arguments of every rank, as a list of texts. With a `/` in its name the "
            "program is relative to `workdir`, else it is looked for along `PATH`",
            fixed=True, read=tuple,
        )
    )  # fmt: skip
    workdir: AbsolutePath = field(
        metadata=written(
            "spec.workdir",
            {
                "type": "string", "minLength": 1, "default": ".",
                "description": "Working directory of every rank, relative to the file. Fixed at "
                "the first start.",
            },
            "working directory. Relative to the file; in a git source, to the repository's work "
            "tree; a bare or remote repository needs an absolute one",
            shown=".", fixed=True,
        )
    )  # fmt: skip
    world_size: Ranks = field(
        metadata=written(
            "spec.worldSize",
            {
                "type": "integer", "minimum": 1, "maximum": RANKS_MAX,
                "description": f"Number of ranks: from 1 to {RANKS_MAX}, for ever.",
            },
            f"number of ranks, 1 to {RANKS_MAX}", fixed=True, read=int,
        )
    )  # fmt: skip
    gpus: Devices = field(
        metadata=written(
            "spec.gpus",
            {
                "type": ["integer", "object"], "minimum": 1, "maximum": DEVICES_MAX,
                "description": "Number of devices now: from 1 to worldSize, "
                f"{DEVICES_MAX} at most; default: as many.",
                "additionalProperties": False,
                "properties": {
                    "min": {"type": "integer", "minimum": 1, "description": "Fewest devices."},
                    "max": {"type": "integer", "minimum": 1, "description": "Most devices."},
                    "demand": {
                        "type": "integer", "minimum": 1,
                        "description": "What the tier's fraction is measured against.",
                    },
                },
            },
            f"number of devices now, 1 to worldSize, {DEVICES_MAX} at most. May change at any time",
            shown="worldSize", read=int,
        )
    )  # fmt: skip
    env: tuple[tuple[Text, Text], ...] = field(
        default=(),
        metadata=written(
            "spec.env",
            {
                "type": "object", "default": {},
                "propertyNames": {
                    "pattern": "^[A-Za-z_][A-Za-z0-9_]*$(?!\n)",
                    "description": "Name of an environment variable: letters, digits and "
                    "underscores, no digit first.",
                },
                "additionalProperties": {
                    "type": "string",
                    "description": "Value of an environment variable, in quotes where it looks "
                    "like a number.",
                },
                "description": "Environment variables, beside a few of the reconciler's. Fixed at "
                "the first start.",
            },
            "environment variables, values in quotes if they look like numbers: see "
            "[Environment](#environment)",
            shown="{}", fixed=True, read=lambda env: tuple(sorted(env.items())),
        ),
    )  # fmt: skip
    device_types: tuple[str, ...] = field(  # () is any
        default=(),
        metadata=written(
            "spec.deviceTypes",
            {
                "type": "array", "minItems": 1, "uniqueItems": True,
                "items": {"enum": ["soft", "nvidia"], "description": "Kind of device."},
                "description": "Kinds of device the job may get; default: any. A job stays with "
                "the kind it started on.",
            },
            "kinds of device that the job may get. It stays with the kind it started on",
            shown="any", read=tuple,
        ),
    )  # fmt: skip
    determinism: Annotated[str, Meta(pattern=r"^D[01]\Z")] = field(
        default="D1",
        metadata=written(
            "spec.determinism",
            {
                "enum": ["D0", "D1", "D2"], "default": "D1", "x-notBuiltValues": ["D2"],
                "description": "D0: same devices, same bits. D1: any number of devices, same bits. "
                "D2: any kind of device. Fixed at the first start.",
            },
            "`D0`: same devices, same bits. `D1`: any number of devices, same bits. `D2`: *not "
            "built*",
            shown="D1", fixed=True,
        ),
    )  # fmt: skip
    check_order: Annotated[str, Meta(pattern=r"^(none|certain|possible)\Z")] = field(
        default="none",
        metadata=written(
            "spec.checkOrder",
            {
                "enum": ["none", "certain", "possible"], "default": "none",
                "description": "certain: tell which accesses of different streams race. possible: "
                "those that may, too. Fixed at the first start.",
            },
            "`certain`: tell which accesses of different streams to one range of memory nothing "
            "orders. `possible`: those that may race, too. See [Races](#races)",
            shown="none", fixed=True,
        ),
    )  # fmt: skip
    suspend: bool = field(
        default=False,
        metadata=written(
            "spec.suspend",
            {
                "type": "boolean", "default": False,
                "description": "true: free the devices and keep the job; false again: go on.",
            },
            "true: free the devices and keep the job; false again: go on",
            shown="false",
        ),
    )  # fmt: skip
    save_every_s: Count = field(  # 0: not by time
        default=600,
        metadata=written(
            "spec.checkpoint.interval",
            {
                "type": "string", "pattern": "^[0-9]+(s|m|h)$(?!\n)", "default": "10m",
                "description": "Time between checkpoints, such as 30s, 10m or 2h; 0s: none by "
                "time.",
            },
            "time between checkpoints, such as `30s`; `0s`: none by time. See "
            "[Checkpoints](#checkpoints)",
            shown="10m", read=lambda text: int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]],
        ),
    )  # fmt: skip
    save_every_steps: Count = field(
        default=0,
        metadata=written(
            "spec.checkpoint.everySteps",
            {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "Collectives of each rank between checkpoints; 0: by time only.",
            },
            "collectives of each rank between checkpoints; 0: by time only",
            shown="0", read=int,
        ),
    )  # fmt: skip
    keep: Annotated[int, Meta(ge=1)] = field(
        default=3,
        metadata=written(
            "spec.checkpoint.keep",
            {
                "type": "integer", "minimum": 1, "default": 3,
                "description": "How many checkpoints to keep.",
            },
            "how many checkpoints to keep", shown="3", read=int,
        ),
    )  # fmt: skip
    max_restarts: Count = field(
        default=3,
        metadata=written(
            "spec.restart.maxRestarts",
            {
                "type": "integer", "minimum": 0, "default": 3,
                "description": "How often to go on after a fault, from the last checkpoint.",
            },
            "how often to go on after a fault: from the last checkpoint, or from the beginning if "
            "there is none. See [Restarts](#restarts)",
            shown="3", read=int,
        ),
    )  # fmt: skip
    # What no file says:
    store: bool = False  # while suspended it rests in the store, not in memory
    created: Seconds = 0.0  # wall clock; the order in which pending jobs are served
    orphaned: bool = False  # its file is gone
    drifted: bool = False  # overridden by hand
    cancelled: bool = False
    env_whole: bool = False  # `env` is all there is, not on top of the reconciler's own

    @property
    def suspended(self) -> bool:
        return self.suspend or self.orphaned


@dataclass(frozen=True)
class Desired:
    """All that should be, by name."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)

    checkpoint_store: str = ""  # an fsspec URL; empty: in the state directory

    def devices(self) -> dict[str, Device]:
        return {d.name: d for pool in self.pools.values() for d in pool.devices}


# ---- recorded (the journal's view of a job) ---------------------------------------------------

TERMINAL = ("Succeeded", "Failed")
NODE = "node"  # in the place of a checkpoint's id: the dump on this node
RESTARTING = "Restarting"  # the phase of an ending that is none
STEPS = r"^(new|started|placing|placed|detaching|detached|vacating|stored|restoring|ended)\Z"


@dataclass(frozen=True)
class Ending:
    """How a job is going to end, once its devices are free and its ranks are gone. In the phase
    RESTARTING it goes on then, from its newest checkpoint or from its beginning."""

    phase: str
    reason: str
    message: str
    since: Seconds  # steady
    rank: Annotated[int, Meta(ge=0, lt=RANKS_MAX)] | None = None  # that failed, if one did


@dataclass(frozen=True)
class Checkpoint:
    """One that exists in the store."""

    id: str
    time: Seconds  # wall clock of the cut
    bytes: Count  # that a restore brings back


@dataclass(frozen=True)
class Save:
    """A save that is under way.

    stage: "stopping" (the job is being brought to a cut) → "saving" (its ranks stand still, and
    snapshots of them are made) → "uploading" (the job goes on, unless it shall rest in the store).
    """

    number: Count  # of its folder: layout.py
    why: str  # "interval" | "steps" | "request" | "rest"
    since: Seconds  # steady
    stage: Annotated[str, Meta(pattern=r"^(stopping|saving|uploading)\Z")] = "stopping"
    token: str = ""  # of the request that it serves
    at: Seconds = 0.0  # wall clock of the cut
    tries: Count = 0  # how often its upload was begun
    tried_at: Seconds = 0.0  # steady
    error: str = ""  # why the last of them failed


@dataclass(frozen=True)
class Dump:
    """Snapshots of a job that rests, kept on this node.

    whole: they are on the disk, and its processes may end.
    """

    number: Count  # of its folder: layout.py
    whole: bool = False


@dataclass(frozen=True)
class Restore:
    """A checkpoint, or the dump, that is being brought back. As `Save`, for its fetch.

    failed: it cannot be restored; what was started of it is ended. damaged: it never can.
    """

    number: Count
    id: str  # NODE: the dump
    tries: Count = 0
    tried_at: Seconds = 0.0
    error: str = ""
    failed: bool = False
    damaged: bool = False


@dataclass(frozen=True)
class Answer:
    """What became of a requested save."""

    token: str
    id: str = ""
    error: str = ""


@dataclass(frozen=True)
class Record:
    """What has been done for a job so far. Written before an action starts and after it ended.

    step: "new" (nothing started) → "started" (launchers run or are being started) → "placing"
    (proxies of `epoch` are being told) → "placed" → "detaching" → "detached" → "placing" at
    epoch + 1 …; "ended" is final. A job that shall rest in the store goes on from "started" or
    "detached": "vacating" (its checkpoint exists, its ranks are ended) → "stored" (it has no
    process) → "restoring" → "detached", its ranks frozen until they are placed. So does a job
    that rests on this node: `dump` has it then.
    placement: device of rank 0, 1, …: of `epoch`; after a detach, what the job keeps reserved for
    its move, or () where it was suspended.
    """

    name: ObjectName
    step: Annotated[str, Meta(pattern=STEPS)] = "new"
    epoch: Count = 0
    placement: tuple[DeviceName, ...] = ()
    proxies: Mapping[str, Count] = field(default_factory=dict)  # device → pid that got `place`
    detached: tuple[str, ...] = ()  # devices whose detach at `epoch` is confirmed
    fixed: Job | None = None  # the spec at the first start
    device: Json = field(default_factory=dict)  # fields of struct rf_device
    device_type: str = ""
    master_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    ending: Ending | None = None
    phase: str = ""  # one of TERMINAL when step is "ended"
    exits: tuple[int | None, ...] = ()  # of each rank, when ended
    counters: Mapping[str, Json] = field(default_factory=dict)  # of each rank, when ended
    gpu_seconds: Seconds = 0.0
    held_since: Seconds | None = None  # steady; since when `placement` counts for gpu_seconds
    races: tuple[str, ...] = ()  # accesses that its program does not order, where that is checked
    alarms: tuple[str, ...] = ()  # contents of its ranks that should be equal and were not
    error: str = ""  # of the last action that failed
    error_permanent: bool = False
    incarnation: Count = 1  # rises with each restore and restart
    known: Count = 0  # the newest incarnation in the store that is its own, or that it took over
    rival: str = ""  # who had it when it was taken over, as the store says; until it is restored
    restarts: Count = 0
    saves: Count = 0  # the highest number that a save or restore has had
    save: Save | None = None
    restore: Restore | None = None
    checkpoints: tuple[Checkpoint, ...] = ()  # those that are kept, oldest first
    stored: str = ""  # the checkpoint that it rests in, or is to go on from; NODE: its dump
    dump: Dump | None = None  # its folder is there, or is being written or removed
    rested_at: Seconds = 0.0  # steady: since when it is on no device
    rest_failed_at: Seconds = 0.0  # steady: when the last dump failed
    rest_error: str = ""  # why it failed, since it rests
    unusable: tuple[str, ...] = ()  # checkpoints that could not be restored
    asked: str = ""  # token of a save that a person requested and that has not begun
    asked_tries: Count = 0  # how often it has failed, and is to be tried again
    answer: Answer | None = None  # to the last such request
    saved_at: Seconds = 0.0  # steady: from when the interval counts; 0: not yet placed
    saved_steps: Count = 0  # the same for steps
    save_error: str = ""  # why the last save failed
    looked: Count = 0  # the incarnation whose launchers were asked what cannot be saved
    looked_at: Seconds = 0.0  # steady: when that was, the last time
    hindered: str = ""  # what they said
    lost: str = ""  # what the last restart cost
    amiss: str = ""  # what is amiss with its files since then, for it was restored
    back_to: str = ""  # the checkpoint that a person wants it to go on from

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
class Spent:
    """How long a job has been on a device, and for how much of that the device ran nothing of it:
    because it went from rank to rank, because memory was moved or copied, because ranks waited for
    one another. Seconds; of several devices, added up."""

    seconds: float = 0.0
    switches: float = 0.0
    copies: float = 0.0
    waiting: float = 0.0


@dataclass(frozen=True)
class Guard:
    """What watches over sharing: at each `every` collectives `compared` parts of buffers were
    compared, and of `unwatched` ranks none is any more; launches of kernels of which nothing is
    known, `measured`, and of these `alike`."""

    every: int
    compared: int = 0
    unwatched: int = 0
    measured: int = 0
    alike: int = 0


@dataclass(frozen=True)
class JobOnDevice:
    job: str
    epoch: int
    state: str  # joining | running | stopping | cut | saved | failed
    reason: str = ""
    cut_at: float | None = None  # CLOCK_MONOTONIC
    released_at: float | None = None  # CLOCK_MONOTONIC
    ranks: tuple[RankOnDevice, ...] = ()
    races: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    shared: int = 0  # bytes of chunks that several of these ranks have
    spent: Spent = Spent()
    guard: Guard | None = None
    incarnation: int = 1


@dataclass(frozen=True)
class SeenDevice:
    """What a proxy answered; `ready` false: it holds its lock but does not answer (yet).

    silent_since: wall clock; not None: it listens, and has not answered for a while.
    """

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
    silent_since: float | None = None
    trouble: str = ""  # what keeps jobs from leaving it
    cc: str = "8.0"
    speed: float = 1.0
    shares: bool | None = None  # whether ranks may share there; None: it does not say

    def job(self, name: str) -> JobOnDevice | None:
        return next((each for each in self.jobs if each.job == name), None)


@dataclass(frozen=True)
class SeenRank:
    """What a rank's launcher answered, or what its exit file says."""

    job: str
    rank: int
    state: str  # starting | running | frozen | empty | silent (as `silent_since` above) | exited
    pid: int | None = None
    channel: bool = False
    exit_status: int | None = None  # negative: killed by that signal
    error: str = ""
    silent_since: float | None = None
    incarnation: int = 1


@dataclass(frozen=True)
class Transfer:
    """What is said of bringing the snapshots of a save into the store, or back out of it. Bytes.

    state: none (nothing said yet) | working | done | failed; lives: a process works at it.
    """

    number: int
    state: str = "none"
    lives: bool = False
    id: str = ""
    bytes: int = 0
    stored: int = 0
    total: int = 0
    error: str = ""
    retry: bool = False
    code: str = ""  # why it failed, for programs: checkpoint/background.py
    stuck: bool = False  # it lives, and got no further for a long time


@dataclass(frozen=True)
class Asked:
    """When the store was asked last who has the jobs that run (steady), and how many times running
    it has answered for none."""

    at: float = 0.0
    silent: int = 0

    def again(self, now: float, answered: bool) -> Asked:
        return Asked(now, 0 if answered else self.silent + 1)


@dataclass(frozen=True)
class Observed:
    """The fleet as it answers. A device or a rank that is missing here does not exist."""

    devices: Mapping[str, SeenDevice] = field(default_factory=dict)
    ranks: Mapping[tuple[str, int], SeenRank] = field(default_factory=dict)
    host_memory: int = 1 << 62  # bytes of host memory that jobs may need beside their devices
    failing: Mapping[str, str] = field(default_factory=dict)  # bad devices: a proxy ends whenever
    # it is started, and these were its last words
    transfers: Mapping[str, Transfer] = field(default_factory=dict)  # of each job that has one
    no_saves: str = ""  # why no process can be saved here; empty: it can
    dump_after: float | None = None  # seconds for which a job rests in memory; None: always
    asked: Asked = Asked()


@dataclass(frozen=True)
class Condition:
    type: str
    status: str  # "True" | "False"
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Change:
    """A change of a started job's devices, from the wish to the fact."""

    id: Count
    job: ObjectName
    from_gpus: Count
    to_gpus: Count
    commit: str
    wanted_at: Seconds  # wall clock: commit, or save of the file
    epoch: Count = 0  # of the job when the change was wished
    cut_at: Seconds | None = None  # CLOCK_MONOTONIC, as the next three
    placed_at: Seconds | None = None
    released_at: Seconds | None = None
    freed_at: Seconds | None = None
    converged_at: Seconds | None = None  # wall clock
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


def named(id: str) -> str:
    """A checkpoint, or the dump, that a job goes on from."""
    return "the dump on this node" if id == NODE else f"checkpoint {id}"


# ---- JSON for the store ------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    return dataclasses.asdict(value)
