"""The fleet as it answers: devices, ranks, and what goes into the store or comes out of it. Plain
frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankfold.reconciler.model.values import Json


@dataclass(frozen=True)
class RankOnDevice:
    rank: int
    state: str
    counters: Json = field(default_factory=dict)
    error: str = ""
    at: str = ""  # what it gets on by next (messages.py, RankAt)
    quiet_s: float = 0.0  # for so long it has called for nothing, and no work has begun or ended


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
    cut_at: float | None = None  # steady, as the next
    released_at: float | None = None
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
    lost: str = ""  # why it serves nobody any more, until another proxy has it
    cc: str = "8.0"
    speed: float = 1.0
    shares: bool | None = None  # whether ranks may share there; None: it does not say
    loaded: int = 0  # kernels whose code it has, of whatever job

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
    launcher: int = 0  # pid of its launcher where that is silent; 0: not known
    stopped: tuple[str, ...] = ()  # processes of it that a signal has stopped: "name (pid N)"
    killed: tuple[str, ...] = ()  # that were still running when it had exited, likewise


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
    waits_for: str = ""  # in words, where that is not the store
    stopped: int = 0  # pid of the process, while a signal has stopped it


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
