"""What the planner requests and the executor does: one frozen record for each kind of action.

Called by all who speak of actions; it knows none of them. Whoever tells the kinds apart ends with
`assert_never`, so that one which forgets a kind does not type-check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rankfold.reconciler.model.desired import Device, Job
from rankfold.reconciler.model.recorded import Checkpoint, Ending
from rankfold.reconciler.model.values import Json


@dataclass(frozen=True)
class StartProxy:
    device: Device


@dataclass(frozen=True)
class StopProxy:
    device: str
    reason: str


@dataclass(frozen=True)
class Start:
    """Fix what never changes (spec, virtual device), start the launchers of `ranks`."""

    job: Job
    device: Json
    device_type: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    job: str
    epoch: int
    placement: tuple[str, ...]


@dataclass(frozen=True)
class Barrier:
    """`save`: a save begins with it, for this reason (recorded.Save)."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    action: str = "request"  # or "withdraw"
    save: str = ""


@dataclass(frozen=True)
class Detach:
    """At a cut: save and leave. `suspend`: the job keeps no device reserved."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    suspend: bool = False


@dataclass(frozen=True)
class Release:
    """A detached job gives up the devices it kept for a move."""

    job: str


@dataclass(frozen=True)
class End:
    """Record that a job has ended; its devices and ranks are released from here on."""

    job: str
    ending: Ending


@dataclass(frozen=True)
class Discard:
    """A device lets go of a job without saving it."""

    job: str
    epoch: int
    device: str


@dataclass(frozen=True)
class Signal:
    job: str
    ranks: tuple[int, ...]
    signum: int


@dataclass(frozen=True)
class Finish:
    job: str
    phase: str


@dataclass(frozen=True)
class Forget:
    """A job or temporary pool that nobody wants any longer leaves the journal."""

    kind: str
    name: str


@dataclass(frozen=True)
class Save:
    """Make snapshots of all ranks. With `devices`, at their cut: their proxies save, and the job
    goes on, whatever became of it. Without, it rests already, and stays frozen. `node`: they stay
    on this node, and its processes end."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    ranks: tuple[int, ...]
    number: int
    node: bool = False


@dataclass(frozen=True)
class Upload:
    """Have the snapshots of a save brought into the store, beside the going job. `stuck`: who does
    it is ended first."""

    job: str
    number: int
    keep: int
    stuck: bool = False


@dataclass(frozen=True)
class Conclude:
    """Record what became of a save: the checkpoint, or why there is none. The last `keep` are
    known afterwards. `rest`: what it has may end now, the job goes on from the checkpoint.
    `again`: if somebody requested it, it is worth another try."""

    job: str
    number: int
    checkpoint: Checkpoint | None = None
    error: str = ""
    keep: int = 1
    rest: bool = False
    again: bool = False


@dataclass(frozen=True)
class Thaw:
    """Let frozen ranks of a placed job go on."""

    job: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """Ask the launchers of a running job what keeps it from being saved, and record it."""

    job: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class AskStore:
    """Ask the store which of the jobs that run another state directory has taken over: these
    end."""

    jobs: tuple[str, ...]


@dataclass(frozen=True)
class Vacate:
    """End ranks together with their launchers: a checkpoint has them, or they have failed."""

    job: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Rest:
    """Record that nothing of a job runs any longer, and where it goes on from: `stored`, a
    checkpoint, or "" for its beginning. `restart`: after a fault. `unusable`: a checkpoint that
    cannot be restored, and `error` says why."""

    job: str
    stored: str
    restart: bool = False
    unusable: str = ""
    error: str = ""


@dataclass(frozen=True)
class Fetch:
    """Have a checkpoint brought out of the store, for the next incarnation of its job. `stuck`: who
    does it is ended first."""

    job: str
    number: int
    id: str
    stuck: bool = False


@dataclass(frozen=True)
class Restore:
    """Start empty launchers for ranks that have none, and bring all ranks back, frozen: one that is
    back already says again what it has found."""

    job: str
    number: int
    missing: tuple[int, ...]
    ranks: tuple[int, ...]


Action = (
    StartProxy | StopProxy | Start | Place | Barrier | Detach | Release | End | Discard | Signal
    | Finish | Forget | Save | Upload | Conclude | Thaw | Look | AskStore | Vacate | Rest | Fetch
    | Restore
)  # fmt: skip


def subject(action: Action) -> str:
    """What an action is about: it has one action at a time, and waits when that fails.

    A job, or a device; when a job ends, its ranks and what it has on each device are subjects of
    their own, so that one that hangs does not keep the others.
    """
    match action:
        case StopProxy():
            return action.device
        case Discard():
            return f"{action.job} on {action.device}"
        case Signal() | Vacate():
            return f"the ranks of {action.job}"
        case Upload() | Fetch():
            return f"the snapshots of {action.job}"
        case Look():
            return f"a look at {action.job}"
        case AskStore():
            return "the store of checkpoints"
        case _:
            return job_of(action)


def job_of(action: Action) -> str:
    """The job that an action is for; a pool's, device's or the store's name where it is for
    none."""
    match action:
        case StartProxy():
            return action.device.name
        case StopProxy():
            return action.device
        case Start():
            return action.job.name
        case Forget():
            return action.name
        case AskStore():
            return subject(action)
        case (
            Place() | Barrier() | Detach() | Release() | End() | Discard() | Signal() | Finish()
            | Save() | Upload() | Conclude() | Thaw() | Look() | Vacate() | Rest() | Fetch()
            | Restore()
        ):  # fmt: skip
            return action.job
        case _:
            assert_never(action)


def devices_of(action: Action) -> tuple[str, ...]:
    """Devices whose proxies an action speaks to."""
    match action:
        case Place():
            return tuple(dict.fromkeys(action.placement))
        case Barrier() | Detach() | Save():
            return action.devices
        case Discard() | StopProxy():
            return (action.device,)
        case (
            StartProxy() | Start() | Release() | End() | Signal() | Finish() | Forget()
            | Upload() | Conclude() | Thaw() | Look() | AskStore() | Vacate() | Rest() | Fetch()
            | Restore()
        ):  # fmt: skip
            return ()
        case _:
            assert_never(action)


def ranks_of(action: Action) -> tuple[int, ...]:
    """Ranks of its job whose launchers an action speaks to."""
    match action:
        case Start() | Signal() | Save() | Thaw() | Vacate() | Restore():
            return action.ranks
        case _:
            return ()
