"""Observed state: devices, ranks, and uploads and fetches. Plain frozen records."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from rankfold.policy.vocabulary import Rate
from rankfold.reconciler.model.values import CAPABILITIES, Json


class RankOnDevice(Struct, frozen=True):
    rank: int
    state: str
    counters: Json = field(default_factory=dict)
    error: str = ""
    at: str = ""  # what it waits for (messages.py, RankAt)
    quiet_s: float = 0.0  # seconds in which it made no request, and no work of it began or ended


class Spent(Struct, frozen=True):
    """How long a job has been on a device, and for how much of that time the device ran nothing of
    the job: because of switches between ranks, because memory was moved or copied, because ranks
    waited for one another. Seconds; summed over several devices."""

    seconds: float = 0.0
    switches: float = 0.0
    copies: float = 0.0
    waiting: float = 0.0


class CrossCheck(Struct, frozen=True):
    """Counts of the cross-check, which runs at each `every` collectives.

    compared: parts of buffers that were compared.
    unwatched: ranks that are not compared before the next placement, because their kernels do not
        end.
    measured: launches of opaque kernels that were measured.
    alike: places in the program where such a launch has equal effects in all ranks.
    """

    every: int
    compared: int = 0
    unwatched: int = 0
    measured: int = 0
    alike: int = 0


class JobOnDevice(Struct, frozen=True):
    job: str
    epoch: int
    state: str  # joining | running | stopping | cut | saved | failed
    reason: str = ""
    cut_at: float | None = None  # fleet time, as released_at
    released_at: float | None = None
    ranks: tuple[RankOnDevice, ...] = ()
    races: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    shared: int = 0  # bytes of chunks that several of these ranks share
    spent: Spent = Spent()
    guard: CrossCheck | None = None
    incarnation: int = 1
    # of collectives: other devices whose memory it reads through the host's, and why; bytes that it
    # has left for others in its own memory, and in the host's
    indirect: tuple[tuple[str, str], ...] = ()
    direct: int = 0
    through_host: int = 0
    # at determinism D0: bytes that it has given to NCCL; why a communicator does without it
    links_bytes: int = 0
    links_why_not: str = ""


class ObservedDevice(Struct, frozen=True):
    """The answer of a proxy.

    ready: it answers; false: it holds its lock but does not answer (yet).
    silent_since: wall clock; not None: it listens, but has not answered for a while.
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
    trouble: str = ""  # what prevents jobs from leaving it
    lost: str = ""  # why it serves no job any more, until another proxy opens the device
    cc: str = CAPABILITIES["soft"]
    speed: float = 1.0
    shares: bool | None = None  # whether ranks may share there; None: not reported
    loaded: int = 0  # kernels whose code is loaded, of any job
    core_count: int = 0  # as in its pool
    first_core: int = 0
    cores: tuple[int, ...] = ()  # numbers of the cores on which its processes run; empty: all
    facts: Mapping[str, int] = field(default_factory=dict)  # of a real GPU, as its ranks see them
    runtime: str = ""  # as in its pool
    gpu: str = ""  # the GPU's name for CUDA_VISIBLE_DEVICES, if its jobs use it directly
    own_cc: str = ""  # if `cc` is "own": the compute capability of the GPU

    def job(self, name: str) -> JobOnDevice | None:
        return next((each for each in self.jobs if each.job == name), None)


class ObservedRank(Struct, frozen=True):
    """The answer of a rank's launcher, or the content of its exit file."""

    job: str
    rank: int
    state: str  # starting | running | frozen | empty | silent (as `silent_since` above) | exited
    pid: int | None = None
    channel: bool = False
    exit_status: int | None = None  # negative: killed by that signal
    error: str = ""
    silent_since: float | None = None
    incarnation: int = 1
    launcher: int = 0  # pid of its launcher if that is unresponsive; 0: not known
    stopped: tuple[str, ...] = ()  # its processes that a signal has stopped: "name (pid N)"
    killed: tuple[str, ...] = ()  # processes that were still running when it exited, likewise


class Transfer(Struct, frozen=True):
    """State of an upload or a fetch of snapshots, as its process reports it. Sizes in bytes.

    state: none (no report yet) | working | done | failed.
    lives: a process works on it.
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
    stuck: bool = False  # the process lives, but has made no progress for a long time
    waits_for: str = ""  # what it waits for, in words, if that is not the store
    stopped: int = 0  # pid of the process, if a signal has stopped it


class StoreQuery(Struct, frozen=True):
    """The last query to the store about the owners of the running jobs: when it was (fleet time),
    and how many queries in succession the store has not answered for any job."""

    at: float = 0.0
    silent: int = 0

    def repeated(self, now: float, answered: bool) -> StoreQuery:
        return StoreQuery(now, 0 if answered else self.silent + 1)


class Measured(Struct, frozen=True):
    """How fast a job was whose record has been removed. program: as history.py names it."""

    program: str
    device_type: str
    rates: tuple[Rate, ...]


class Observed(Struct, frozen=True):
    """The observed state. A device or a rank that is missing here does not exist."""

    devices: Mapping[str, ObservedDevice] = field(default_factory=dict)
    ranks: Mapping[tuple[str, int], ObservedRank] = field(default_factory=dict)
    host_memory: int = 1 << 62  # for memory that is not on the devices
    failing: Mapping[str, str] = field(default_factory=dict)  # bad devices: each proxy that
    # is started there ends; the value is the error, or the last line of its log
    transfers: Mapping[str, Transfer] = field(default_factory=dict)  # of each job that has one
    no_saves: str = ""  # why no process can be saved here; empty: processes can be saved
    rest_save_after: float | None = (
        None  # seconds for which a job rests in memory; None: without limit
    )
    minute: int = -1  # of the day, UTC, as the wall clock says; below 0: not known
    store_query: StoreQuery = StoreQuery()
    measured: tuple[Measured, ...] = ()  # the oldest first
