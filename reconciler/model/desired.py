"""Desired state: pools and their devices, jobs, and the store of their checkpoints. Plain frozen
records without behaviour of their own."""

# No `from __future__ import annotations`: each process decodes these classes, and evaluating their
# annotations here takes half the time.

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from rankfold.job_limits import DEVICES_MAX, RANKS_MAX
from rankfold.policy.vocabulary import PRIORITY_MAX, Locality, Tier
from rankfold.reconciler.model.fields import Written
from rankfold.reconciler.model.values import (
    CAPABILITIES,
    AbsolutePath,
    Count,
    DeviceName,
    Devices,
    Memory,
    ObjectName,
    PlaceName,
    Ranks,
    Seconds,
    Text,
)

GROWTH_DELAY_S = 30.0
STEPS_MAX = 10**9
KEPT_MAX = 10_000
FEWEST = {
    "type": "integer",
    "minimum": 0,
    "maximum": DEVICES_MAX,
    "description": "Fewest devices; 0: it may lose all of them.",
}
MOST = {
    "type": "integer",
    "minimum": 1,
    "maximum": DEVICES_MAX,
    "description": "Most devices: up to worldSize.",
}
DEMAND = {
    "type": "integer",
    "minimum": 1,
    "maximum": RANKS_MAX,
    "description": "Number of devices to which the tier's fraction refers: from min to max.",
}


def seconds_of(text: str) -> int:
    """Seconds of a time as files give it, such as ``10m``."""
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def most_given(gpus: int | Mapping[str, int]) -> int | None:
    """The number of devices that a file gives, or the most of a range; None if it gives none."""
    most = gpus.get("max") if isinstance(gpus, Mapping) else gpus
    return None if most is None else int(most)


RESTARTS_MAX = 10**6
REPLICAS_MAX = 256  # of a service
CORES_MAX = 1024  # of a device


class Origin(Struct, frozen=True):
    """Where an object is described: file and line; the first line is 1."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Device(Struct, frozen=True):
    """One device of a pool. Its name is ``<pool>/<type>-<index>``."""

    name: DeviceName
    type: Annotated[str, Meta(pattern=r"^(soft|nvidia|cpu)\Z")]
    memory: Memory
    cc: Annotated[str, Meta(pattern=r"^([0-9]{1,3}\.[0-9]|own)\Z")] = CAPABILITIES["soft"]
    speed: Annotated[float, Meta(gt=0, le=1)] = 1.0
    only_for: str | None = None  # the job for which `run` made a temporary fleet
    domain: PlaceName = ""
    node: PlaceName = ""  # empty: that of all devices of the domain that name none
    drained: bool = False  # jobs leave it, and none gets it
    # A device of type cpu has so many cores of the machine, after so many of other devices.
    core_count: Annotated[int, Meta(ge=0, le=CORES_MAX)] = 0
    first_core: Annotated[int, Meta(ge=0)] = 0
    runtime: Annotated[str, Meta(pattern=r"^(proxy|elastic)?\Z")] = ""  # empty: its type's usual


class Pool(Struct, frozen=True):
    name: ObjectName
    devices: tuple[Device, ...]
    only_for: str | None = None


class Service(Struct, frozen=True):
    """A service. Each of its replicas is a job, and has this record.

    least, most: fewest and most replicas.
    load: file that holds the load, or URL, with the name of a metric behind a # if it has one;
        empty: there are always `most` replicas.
    per_replica: load that one replica carries.
    fall_delay_s: for which the load needs fewer replicas before there are fewer.
    """

    name: ObjectName
    least: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]
    most: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    load: Annotated[str, Meta(max_length=4095, pattern=r"^((/|https?://)[^\0]*)?\Z")] = ""
    per_replica: Annotated[float, Meta(gt=0, le=1e15)] = 1.0
    fall_delay_s: Count = 0

    def __str__(self) -> str:
        if not self.load:
            return str(self.most)
        return (
            f"{self.least} to {self.most}, one for {self.per_replica:g} of {self.load}, "
            f"fewer after {self.fall_delay_s} s"
        )

    def replica(self, number: int) -> str:
        """The name of a replica's job."""
        return f"{self.name}-{number}"


class Job(Struct, frozen=True):
    """A normalised Job: every default is filled in, `workdir` is absolute.

    The only table of a Job's fields. Each row defines what the journal accepts, where a file has
    the field, which values the file may give, and how the field is reported to people (fields.py).
    """

    name: Annotated[
        ObjectName,
        Written(
            "metadata.name",
            {
                "type": "string",
                "minLength": 1,
                "maxLength": 63,
                "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$(?!\n)",
                "description": "Name of the job. At most 63 lower-case letters, digits and inner "
                "hyphens.",
            },
            "the job's name",
        ),
    ]
    command: Annotated[
        tuple[Text, ...],
        Meta(min_length=1),
        Written(
            "spec.command",
            {
                "type": "array",
                "minItems": 1,
                "items": {"type": "string", "description": "One argument."},
                "description": "Program and arguments of every rank, as a list. A program with a / "
                "in its name is relative to workdir, others are searched for along PATH. Fixed at "
                "the first start.",
            },
            "program and arguments of every rank, as a list of texts. With a `/` in its name the "
            "program is relative to `workdir`, otherwise it is searched for along `PATH`",
            fixed=True,
            read=tuple,
        ),
    ]
    workdir: Annotated[
        AbsolutePath,
        Written(
            "spec.workdir",
            {
                "type": "string",
                "minLength": 1,
                "default": ".",
                "description": "Working directory of every rank, relative to the file. Fixed at "
                "the first start.",
            },
            "working directory. Relative to the file; if it is left out in a git source, the "
            "repository's work tree. A bare or remote repository needs an absolute one",
            shown=".",
            fixed=True,
        ),
    ]
    world_size: Annotated[
        Ranks,
        Written(
            "spec.worldSize",
            {
                "type": "integer",
                "minimum": 1,
                "maximum": RANKS_MAX,
                "description": f"Number of ranks: from 1 to {RANKS_MAX}; fixed for the job's life.",
            },
            f"number of ranks, 1 to {RANKS_MAX}",
            fixed=True,
            read=int,
        ),
    ]
    gpus: Annotated[
        Devices,
        Written(
            "spec.gpus",
            {
                "type": ["integer", "object"],
                "minimum": 0,
                "maximum": DEVICES_MAX,
                "description": "Number of devices now, or a range: from 1 to worldSize, "
                f"{DEVICES_MAX} at most; default: as many. 0: as suspend: true.",
                "additionalProperties": False,
                "properties": {"min": FEWEST, "max": MOST, "demand": DEMAND},
            },
            f"number of devices now, 1 to worldSize, {DEVICES_MAX} at most, or a "
            "[range](#ranges-of-devices); 0 is `suspend: true`. May change at any time",
            shown="worldSize",
            read=most_given,
        ),
    ]
    env: Annotated[
        tuple[tuple[Text, Text], ...],
        Written(
            "spec.env",
            {
                "type": "object",
                "default": {},
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
                "description": "Environment variables, in addition to a few of the reconciler's. "
                "Fixed at the first start.",
            },
            "environment variables, values in quotes if they look like numbers: see "
            "[Environment](#environment)",
            shown="{}",
            fixed=True,
            read=lambda env: tuple(sorted(env.items())),
        ),
    ] = ()
    device_types: Annotated[
        tuple[str, ...],
        Written(
            "spec.deviceTypes",
            {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": {"enum": ["soft", "nvidia", "cpu"], "description": "Kind of device."},
                "description": "Kinds of device the job may get; default: any of its runtime. A "
                "job keeps the kind it started on.",
            },
            "kinds of device that the job may get. It keeps the kind it started on",
            shown="any of its runtime",
            read=tuple,
        ),
    ] = ()
    runtime: Annotated[
        str,
        Meta(pattern=r"^(proxy|elastic)\Z"),
        Written(
            "spec.runtime",
            {
                "enum": ["proxy", "elastic"],
                "default": "proxy",
                "description": "proxy: any program, on devices of type soft or nvidia. elastic: a "
                "PyTorch script with a few lines changed, on devices of type cpu, or of type "
                "nvidia whose pool has runtime: elastic. Fixed at the first start.",
            },
            "`proxy`: any program, on devices of type soft or nvidia. `elastic`: a PyTorch script "
            "with a few lines changed, on devices of type cpu, or of type nvidia whose pool has "
            "`runtime: elastic`. See [elastic.md](elastic.md)",
            shown="proxy",
            fixed=True,
        ),
    ] = "proxy"
    determinism: Annotated[
        str,
        Meta(pattern=r"^D[012]\Z"),
        Written(
            "spec.determinism",
            {
                "enum": ["D0", "D1", "D2"],
                "default": "D1",
                "description": "D0: same devices, same bits. D1: any number of devices, same bits. "
                "D2: any kind of device, for runtime elastic. Fixed at the first start.",
            },
            "`D0`: same devices, same bits. `D1`: any number of devices, same bits. `D2`, for "
            "runtime elastic: also [any type of CPU](elastic.md#determinism)",
            shown="D1",
            fixed=True,
        ),
    ] = "D1"
    check_order: Annotated[
        str,
        Meta(pattern=r"^(none|certain|possible)\Z"),
        Written(
            "spec.checkOrder",
            {
                "enum": ["none", "certain", "possible"],
                "default": "none",
                "description": "certain: report which accesses of different streams race. "
                "possible: those that may, too. Fixed at the first start.",
            },
            "`certain`: report accesses of different streams to the same memory that the program "
            "does not order. `possible`: those that may race, too. See [Races](#races)",
            shown="none",
            fixed=True,
        ),
    ] = "none"
    suspend: Annotated[
        bool,
        Written(
            "spec.suspend",
            {
                "type": "boolean",
                "default": False,
                "description": "true: free the devices and keep the job; false again: continue.",
            },
            "true: free the devices and keep the job; false again: continue",
            shown="false",
        ),
    ] = False
    save_every_s: Annotated[
        Count,
        Written(
            "spec.checkpoint.interval",
            {
                "type": "string",
                "pattern": "^[0-9]{1,7}(s|m|h)$(?!\n)",
                "default": "10m",
                "description": "Time between checkpoints, such as 30s, 10m or 2h, with at most 7 "
                "digits; 0s: none by time.",
            },
            "time between checkpoints, such as `30s`, with at most 7 digits; `0s`: none by time. "
            "See [Checkpoints](#checkpoints)",
            shown="10m",
            read=seconds_of,
        ),
    ] = 600
    save_every_steps: Annotated[
        Count,
        Written(
            "spec.checkpoint.everySteps",
            {
                "type": "integer",
                "minimum": 0,
                "maximum": STEPS_MAX,
                "default": 0,
                "description": "Collectives of each rank between checkpoints, at most "
                f"{STEPS_MAX}; 0: by time only.",
            },
            f"collectives of each rank between checkpoints, at most {STEPS_MAX}; 0: by time only",
            shown="0",
            read=int,
        ),
    ] = 0
    keep: Annotated[
        int,
        Meta(ge=1),
        Written(
            "spec.checkpoint.keep",
            {
                "type": "integer",
                "minimum": 1,
                "maximum": KEPT_MAX,
                "default": 3,
                "description": f"How many checkpoints to keep: from 1 to {KEPT_MAX}.",
            },
            f"how many checkpoints to keep, 1 to {KEPT_MAX}",
            shown="3",
            read=int,
        ),
    ] = 3
    max_restarts: Annotated[
        Count,
        Written(
            "spec.restart.maxRestarts",
            {
                "type": "integer",
                "minimum": 0,
                "maximum": RESTARTS_MAX,
                "default": 3,
                "description": f"How often to restart after a fault, at most {RESTARTS_MAX} times, "
                "from the last checkpoint.",
            },
            f"how often to restart after a fault, at most {RESTARTS_MAX} times: from the last "
            "checkpoint, or from the beginning if there is none. See [Restarts](#restarts)",
            shown="3",
            read=int,
        ),
    ] = 3
    gpus_min: Annotated[
        Annotated[int, Meta(ge=0, le=DEVICES_MAX)] | None,
        Written(
            "spec.gpus.min",
            FEWEST,
            "fewest devices; 0: it may lose all of them",
            shown="1",
            read=int,
        ),
    ] = None  # None: it has `gpus` or none
    demand: Annotated[
        Annotated[int, Meta(ge=1, le=RANKS_MAX)] | None,
        Written(
            "spec.gpus.demand",
            DEMAND,
            "number of devices to which the tier's fraction refers, min to max: "
            "[Fractions](#fractions)",
            shown="max",
            read=int,
        ),
    ] = None
    tier: Annotated[
        Tier,
        Written(
            "spec.tier",
            {
                "enum": ["premium", "standard", "basic"],
                "default": "standard",
                "description": "Class of service.",
            },
            "class of service: `premium`, `standard` or `basic`. See [Tiers](#tiers)",
            shown="standard",
        ),
    ] = "standard"
    priority: Annotated[
        int,
        Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX),
        Written(
            "spec.priority",
            {
                "type": "integer",
                "minimum": -PRIORITY_MAX,
                "maximum": PRIORITY_MAX,
                "default": 0,
                "description": f"Order among jobs of the tier, from -{PRIORITY_MAX} to "
                f"{PRIORITY_MAX}; the highest goes first.",
            },
            f"order among jobs of the tier, -{PRIORITY_MAX} to {PRIORITY_MAX}; the highest goes "
            "first",
            shown="0",
            read=int,
        ),
    ] = 0
    min_runtime_s: Annotated[
        Count,
        Written(
            "spec.minRuntime",
            {
                "type": "string",
                "pattern": "^[0-9]{1,7}(s|m|h)$(?!\n)",
                "default": "0s",
                "description": "How long the job keeps the devices that it got, unless a job of a "
                "higher tier needs them, such as 30s or 10m, with at most 7 digits.",
            },
            "how long the job keeps the devices that it got, unless a job of a higher tier needs "
            "them, such as `30s` or `10m`, with at most 7 digits",
            shown="0s",
            read=seconds_of,
        ),
    ] = 0
    time_limit_s: Annotated[
        Count,
        Written(
            "spec.timeLimit",
            {
                "type": "string",
                "pattern": "^[0-9]{1,7}(s|m|h)$(?!\n)",
                "default": "0s",
                "description": "How long the job may run on the most devices that it requests, "
                "such as 30m or 2h, with at most 7 digits; 0s: not limited.",
            },
            "how long the job may run on the most devices that it requests, such as `30m` or `2h`, "
            "with at most 7 digits; `0s`: not limited. See [Time limits](#time-limits)",
            shown="0s",
            read=seconds_of,
        ),
    ] = 0
    quota: Annotated[
        str,
        Meta(max_length=63),
        Written(
            "spec.quota",
            {
                "type": "string",
                "minLength": 1,
                "maxLength": 63,
                "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$(?!\n)",
                "description": "Name of one of the Policy's quotas; default: none.",
            },
            "one of the Policy's [quotas](#quotas), by name",
            shown="none",
        ),
    ] = ""
    locality: Annotated[
        Locality,
        Written(
            "spec.locality",
            {
                "enum": ["node", "domain", "any"],
                "default": "any",
                "description": "Within what all devices of the job are: one node, one domain, or "
                "any.",
            },
            "within what all devices of the job are: one `node`, one `domain`, or `any`. See "
            "[Nodes and domains](#nodes-and-domains)",
            shown="any",
        ),
    ] = "any"
    # Not in a file:
    store: bool = False  # while suspended, the job rests in the store, not in memory
    created: Seconds = 0.0  # fleet time; decides the order in which waiting jobs are served
    orphaned: bool = False  # its file was removed
    drifted: bool = False  # overridden by hand
    cancelled: bool = False
    env_whole: bool = False  # `env` is the whole environment; nothing of the reconciler's is added
    service: Service | None = None  # that it is a replica of
    replica: Count = 0  # its number in the service
    idle: bool = False  # the load of its service needs fewer replicas

    @property
    def suspended(self) -> bool:
        return self.suspend or self.orphaned or self.idle

    @property
    def elastic(self) -> bool:
        """Whether its number of devices is a range, up to `gpus`."""
        return self.gpus_min is not None

    @property
    def least(self) -> int:
        """The fewest devices on which it runs."""
        return self.gpus if self.gpus_min is None else max(1, self.gpus_min)

    def with_gpus(self, gpus: int) -> "Job":
        """The job with a fixed number of devices."""
        return replace(self, gpus=gpus, gpus_min=None, demand=None)


class TierRule(Struct, frozen=True):
    """The fraction of their progress that a tier guarantees its jobs, in each period."""

    fraction: Annotated[float, Meta(ge=0, lt=1)]
    period_s: Annotated[float, Meta(ge=1, le=1e12)] = 3600.0


class QuotaRule(Struct, frozen=True):
    """Devices that belong to some jobs: policy/quotas.py."""

    devices: Annotated[int, Meta(ge=0)]
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    borrow: Annotated[int, Meta(ge=0)] | None = None  # None: not limited
    lend: Annotated[int, Meta(ge=0)] | None = None


class Defragmentation(Struct, frozen=True):
    """windows: when jobs move so that nodes and domains have no job: minutes of a day of UTC, from
    the first to the one before the last, also over midnight. exempt: jobs that never move for
    others."""

    windows: tuple[tuple[Count, Count], ...] = ()
    exempt: tuple[ObjectName, ...] = ()

    def is_open(self, minute: int) -> bool:
        """minute: of a day of UTC; below 0: not known."""
        if not self.windows:
            return False
        from rankfold.policy.windows import is_open  # here: most fleets have none

        return is_open(self.windows, minute)

    def __str__(self) -> str:
        """For people, as a file gives it."""
        times = ", ".join(f"{_time(begin)}-{_time(end)}" for begin, end in self.windows)
        exempt = f"; exempt: {', '.join(self.exempt)}" if self.exempt else ""
        return (times or "no window") + exempt


def _time(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


class Desired(Struct, frozen=True):
    """The whole desired state, by name."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)

    checkpoint_store: str = ""  # an fsspec URL; empty: in the state directory
    growth_delay_s: float = (
        GROWTH_DELAY_S  # for which an elastic job has its devices before it grows
    )
    preemption_delay_s: float = 0.0  # for which a job waits before others give up devices
    max_wait_s: float = 0.0  # after which a job that waits goes before others; 0: never
    disturbances: Mapping[str, int] = field(default_factory=dict)  # tier → most in an hour
    tiers: Mapping[str, TierRule] = field(default_factory=dict)  # those that guarantee a fraction
    quotas: Mapping[str, QuotaRule] = field(default_factory=dict)
    defragmentation: Defragmentation = Defragmentation()

    def devices(self) -> dict[str, Device]:
        return {d.name: d for pool in self.pools.values() for d in pool.devices}
