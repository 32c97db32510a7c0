"""The input of a policy, and its decisions. Plain frozen records.

Devices are given by their positions in the fleet, which number its devices from 0.

No record can be in a cycle of references, so that the garbage collector does not have to visit
them (gc=False): that takes as long as a decision.
"""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

# Whether a job has what it requests, and if not, why:
Outcome = Literal[
    "granted",
    "fewer",  # it continues on fewer devices, because some are bad
    "devices",  # too few devices are free
    "memory",  # its ranks would need too much host memory on the devices that it could have
]


# A job's demand: devices; none, because it is suspended; nothing, because no request can be sent
# to it, so that it stays where it is; or to end. A job that ends is not decided on, but counts as
# long as it may need host memory.
Wants = Literal["devices", "none", "nothing", "end"]


# Why a decision changes a job's placement: its spec requires it; its tier; it grows into devices
# that are free; a service needs the devices; a device is drained; small jobs make way for a large
# one; a device is bad or lost; another job goes first in the order of the scheduler; a quota gets
# back what it has lent.
Cause = Literal[
    "spec", "tier", "growth", "serving", "drain", "defragmentation", "fault", "order", "quota"
]


# Class of service of a job, the lowest first: it never loses a device to a lower one.
Tier = Literal["basic", "standard", "premium"]
TIERS: tuple[str, ...] = get_args(Tier)
# Why a job gets devices, the weakest reason first: it borrows them; it is within its quota, or
# there are no quotas; it has waited too long; a fraction is guaranteed to it.
BORROWS, WITHIN, AGED, GUARANTEED = range(4)
# Causes for which a job that has devices is disturbed without need of its own:
DISTURBING: tuple[Cause, ...] = (
    "tier", "order", "quota", "serving", "growth", "defragmentation"
)  # fmt: skip
# Within what all devices of a job are, together: a domain has nodes, a node has devices.
Locality = Literal["any", "domain", "node"]
BUDGET_S = 3600.0  # for which disturbances are counted
PRIORITY_MAX = 1000  # a priority is between -PRIORITY_MAX and this


class Group(Struct, frozen=True, gc=False):
    """Devices that are equivalent for every job, and of one node.

    free: positions of devices that may be given to any job, ascending. Those that jobs hold may
        be included: a policy that takes devices from jobs needs them, the others ignore them.
    to_come: how many devices a job could have if all other jobs left, without a person's help.
    bad: how many devices do not work, and are in no job's placement, or are drained.
    coming: how many devices will be free soon, such as those that are being started; 0 if no device
        is drained.
    members: positions of all its devices, ascending; () if those are the free ones.
    domain, node: where its devices are. Nodes of different domains are different.
    """

    free: tuple[int, ...]
    to_come: int
    bad: int = 0
    members: tuple[int, ...] = ()
    domain: str = ""
    node: str = ""
    coming: int = 0


class Fleet(Struct, frozen=True):
    """host_memory: bytes that all jobs together may need.
    nodes: positions of the devices of each node; () if they are not known."""

    groups: tuple[Group, ...]
    host_memory: int
    nodes: tuple[tuple[int, ...], ...] = ()


class Guaranteed(Struct, frozen=True, gc=False):
    """A fraction that is guaranteed to a job, and what the job has had of it: fractions.py. Times
    in seconds.

    period: for which the fraction is measured.
    demand: devices to which it refers.
    admitted: since when it is guaranteed.
    begun: when the present period began; until: the time up to which progress is counted.
    progress: in the present period, as the time that it would have taken on `demand` devices.
    earlier: the same in earlier periods; periods: their number; violated: in how many of them the
        job lost more time than the fraction allows.
    need: devices that the job needed for it when it was admitted.
    """

    fraction: float
    period: float
    demand: int
    admitted: float
    begun: float
    until: float
    progress: float = 0.0
    earlier: float = 0.0
    periods: int = 0
    violated: int = 0
    need: float = 1.0


class Rate(Struct, frozen=True, gc=False):
    """How fast a job was on a number of devices, as it was measured last. Times in seconds.

    per_s: steps per second; error: the standard error of that; seconds: for which it was measured.
    at: the end of the measurement, on the clock of `Job.created`.
    before: the rate on fewer devices, which it had before; None: there is none to compare with.
    """

    devices: int
    per_s: float
    error: float
    at: float
    seconds: float = 0.0
    before: Rate | None = None


class Job(Struct, frozen=True, gc=False):
    """A job that wants devices, or has some.

    groups: indices of the groups that it may use. It is given devices of these only.
    own: devices that it has and may keep, in the order of its ranks.
    placed: number of devices that it is on, even if it may not keep them.
    on_devices: whether it holds devices now, and can leave them only at a cut.
    shrinks: whether it may continue with fewer devices while bad ones are missing.
    blocked: whether it cannot start, for a reason that devices do not change.
    late: whether it was given devices and did not start there in time. It goes last for a while.
    remaining: seconds until it ends if it has all its devices from now on, pauses included; None if
        that is not known.
    pause: seconds for which it stands still when it loses or changes devices, as measured; 0 if it
        has not been measured.
    least, most: fewest and most devices on which it may run; 0: only as many as it requests. The
        built-in schedulers do not consider them.
    guarantee: devices that no job of its tier and priority may take from it, if it is elastic: it
        may have more, up to `devices`, which it gives up when another job of its tier or a higher
        one needs them, and with 0 also its last one. None: it has `devices` or none.
    since: when it got the devices that it is on, on the clock of `created`.
    served: device-seconds that it has had so far.
    steps: steps that are left; None if they are not known.
    step_s: seconds of a step on 1, 2, … devices; () if they are not known.
    note: what the policy noted in its last decision on the job.
    tier, priority: which jobs go first, and from which it may take devices: first the tier, then
        the priority; a higher number goes first.
    min_runtime: seconds for which it keeps the devices that it got, as far as jobs of its tier are
        concerned.
    demand: devices to which the fraction of its tier refers; 0: `devices`.
    guaranteed: its fraction, with what it has had until now; None: it has not been admitted.
    waits_since: since when it waits for devices, on the clock of `created`, if that is later.
    serving: whether it is a replica of a service.
    behind: how far it is behind its fraction, if it takes turns, or its quota behind its share, if
        it borrows; fractions.py and quotas.py set it.
    quota: whose devices it uses; "", or a name that is not among the rules': none.
    disturbed: when it was disturbed, for one of DISTURBING, on the clock of `created`; those of the
        last BUDGET_S at least.
    rates: how fast it was, for each number of devices that has been measured.
    history: how fast other jobs with the same program were on such devices.
    capabilities: steps per second that a device of each of its groups makes with one rank, if it
        may use several types at once; (): its groups are of one type.
    locality: it is placed only on devices of one node, or of one domain.
    drained: how many of the devices that it is on are drained. It leaves these, also if it has to
        continue on fewer devices, or wait without any; its minimum run time and the number of its
        disturbances do not matter.
    basis: why it gets devices: BORROWS, …; covered: devices that are within its quota, None: all;
        admitted: as in its decision. These three are not given to a policy: quotas.py and
        fractions.py set them.
    """

    name: str
    world_size: int
    devices: int  # number that it requests
    created: float  # seconds; orders waiting jobs
    groups: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    placed: int = 0
    wants: Wants = "devices"
    on_devices: bool = False
    begun: bool = False
    shrinks: bool = False
    blocked: bool = False
    late: bool = False
    rank_memory: int = 0  # bytes of device memory of a rank
    in_memory: bool = False  # whether its ranks need host memory while it has no device
    need: int = 0  # bytes of host memory that it may need now
    remaining: float | None = None
    pause: float = 0.0
    least: int = 0
    most: int = 0
    served: float = 0.0
    steps: float | None = None
    step_s: tuple[float, ...] = ()
    note: str = ""
    guarantee: int | None = None
    since: float = 0.0
    tier: Tier = "standard"
    priority: int = 0
    min_runtime: float = 0.0
    demand: int = 0
    guaranteed: Guaranteed | None = None
    behind: int = 0
    waits_since: float = 0.0
    serving: bool = False
    quota: str = ""
    basis: int = WITHIN
    covered: int | None = None
    admitted: bool | None = None
    disturbed: tuple[float, ...] = ()
    rates: tuple[Rate, ...] = ()
    history: tuple[Rate, ...] = ()
    capabilities: tuple[float, ...] = ()
    locality: Locality = "any"
    drained: int = 0


class Quota(Struct, frozen=True, gc=False):
    """Devices that belong to some jobs, of any group.

    weight: its part of what is idle, over time, in proportion to other quotas.
    borrow: devices that its jobs may have beyond its own; lend: of its own, that other jobs may
        have; None: not limited.
    used: device-seconds that its jobs have had; a use counts half after quotas.HALF_LIFE_S.
    """

    name: str
    devices: int
    weight: float = 1.0
    borrow: int | None = None
    lend: int | None = None
    used: float = 0.0


class Rules(Struct, frozen=True):
    """Limits that every decision keeps, and the scheduler: one of `decide.SCHEDULERS`.

    growth_delay: seconds for which a job keeps its devices before it moves in order to grow.
    preemption_delay: seconds for which a job waits before others give up devices for it.
    fractions: that each of TIERS guarantees, 0 to 1; 0: none.
    periods: seconds for which each of these is measured.
    quotas: with different names. Jobs of other names share the devices that no quota has.
    max_wait: seconds after which a job that waits goes before others; 0: never.
    disturbances: how often a job of each of TIERS may be disturbed in BUDGET_S, unless a guarantee
        would be broken; None: not limited.
    exempt: jobs that do not move so that another one is placed in one node or domain.
    compacts: whether jobs move so that a node or domain has no job, while no job waits.
    """

    ranks_on_a_device: int
    scheduler: str = "fifo"
    growth_delay: float = 0.0
    fractions: tuple[float, ...] = (0.0, 0.0, 0.0)
    periods: tuple[float, ...] = (3600.0, 3600.0, 3600.0)
    preemption_delay: float = 0.0
    quotas: tuple[Quota, ...] = ()
    max_wait: float = 0.0
    disturbances: tuple[int | None, ...] = (None, None, None)
    exempt: tuple[str, ...] = ()
    compacts: bool = False


class Disturbance(Struct, frozen=True, gc=False):
    """A job that stands still because of a decision. seconds: for how long, 0 if that has not been
    measured; a job that loses all its devices also waits for others."""

    job: str
    seconds: float


class Decision(Struct, frozen=True, gc=False):
    """The decision on a job.

    devices: positions, in the order of the job's ranks; () for none; None if the job has no place
        and continues to wait.
    stays: it keeps its present placement as it is.
    free: devices that it could have had now.
    others: bytes of host memory that other jobs may need.
    number: devices for which the outcome was found.
    cause: why its placement changes; None if it does not.
    reason: why, for people; empty if the outcome says everything.
    disturbs: jobs that stand still for this decision: itself, or others whose devices it gets.
    note: a text that the policy gets back with the job; so a policy needs no memory of its own.
    admitted: whether the fraction of its tier is guaranteed; None: its tier guarantees none.
    limit: why its quota makes it wait, for people; empty if it does not.
    position: its place among the jobs that wait for devices, 1 for the one that gets devices first;
        0: it does not wait, or only for its quota.
    """

    devices: tuple[int, ...] | None
    outcome: Outcome = "granted"
    stays: bool = False
    free: int = 0
    others: int = 0
    number: int = 0
    cause: Cause | None = None
    reason: str = ""
    disturbs: tuple[Disturbance, ...] = ()
    note: str = ""
    admitted: bool | None = None
    limit: str = ""
    position: int = 0
