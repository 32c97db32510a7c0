"""What the planner requests and the executor does: one frozen record per kind of action.

Imported by all modules that handle actions; imports none of them. Code that distinguishes kinds
ends with `assert_never`, so that it does not type-check if it omits a kind.
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
    """Record what never changes (spec, virtual device) and start the launchers of `ranks`."""

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
    """`save`: not empty if a save begins with this barrier: its reason (recorded.Save.why)."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    action: str = "request"  # or "withdraw"
    save: str = ""


@dataclass(frozen=True)
class Detach:
    """At a cut: save and leave the devices. `suspend`: the job keeps no device reserved."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    suspend: bool = False


@dataclass(frozen=True)
class Release:
    """A detached job gives up the devices that it kept reserved for a move."""

    job: str


@dataclass(frozen=True)
class End:
    """Record that a job ends; from then on its devices and ranks are released."""

    job: str
    ending: Ending


@dataclass(frozen=True)
class Discard:
    """A device drops a job without saving it."""

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
    """Remove a job or temporary pool that is no longer desired from the journal."""

    kind: str
    name: str


@dataclass(frozen=True)
class Save:
    """Make snapshots of all ranks. With `devices`: at their cut; their proxies save, and the job
    continues whether or not the save succeeds. Without: the job rests already, and stays frozen.
    `node`: the snapshots stay on this node as a local snapshot, and the job's processes end."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    ranks: tuple[int, ...]
    number: int
    node: bool = False


@dataclass(frozen=True)
class Upload:
    """Start the upload of a save's snapshots to the store, while the job continues. `stuck`: first
    end the process that uploads now."""

    job: str
    number: int
    keep: int
    stuck: bool = False


@dataclass(frozen=True)
class Conclude:
    """Record the result of a save: the checkpoint, or why there is none. The record keeps the last
    `keep` checkpoints. `rest`: the job's processes may end now; it continues from the checkpoint
    later. `again`: a save that a person requested is worth another try."""

    job: str
    number: int
    checkpoint: Checkpoint | None = None
    error: str = ""
    keep: int = 1
    rest: bool = False
    again: bool = False


@dataclass(frozen=True)
class Thaw:
    """Thaw frozen ranks of a placed job."""

    job: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """Query the launchers of a running job for what prevents a save, and record it."""

    job: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class AskStore:
    """Query the store for the running jobs that another owner has taken over; those jobs end."""

    jobs: tuple[str, ...]


@dataclass(frozen=True)
class Vacate:
    """End ranks together with their launchers: a checkpoint has the ranks, or they have failed."""

    job: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Rest:
    """Record that no process of a job is left, and from where it continues: `stored` is a
    checkpoint, or "" for the beginning. `restart`: after a fault. `unusable`: a checkpoint that
    cannot be restored, for the reason in `error`."""

    job: str
    stored: str
    restart: bool = False
    unusable: str = ""
    error: str = ""


@dataclass(frozen=True)
class Fetch:
    """Start to fetch a checkpoint from the store, for the job's next incarnation. `stuck`: first
    end the process that fetches now."""

    job: str
    number: int
    id: str
    stuck: bool = False


@dataclass(frozen=True)
class Restore:
    """Start empty launchers for the ranks in `missing`, and restore all ranks, frozen. A rank that
    is restored already reports its result again."""

    job: str
    number: int
    missing: tuple[int, ...]
    ranks: tuple[int, ...]


Action = (
    StartProxy
    | StopProxy
    | Start
    | Place
    | Barrier
    | Detach
    | Release
    | End
    | Discard
    | Signal
    | Finish
    | Forget
    | Save
    | Upload
    | Conclude
    | Thaw
    | Look
    | AskStore
    | Vacate
    | Rest
    | Fetch
    | Restore
)


def subject(action: Action) -> str:
    """What an action is about. Each subject has one action at a time, and waits after a failure.

    A subject is a job or a device. When a job ends, its ranks and its share of each device are
    separate subjects, so that an unresponsive process does not delay the others.
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
    """The job that an action is for; for actions without a job, the name of the pool, the device or
    the store."""
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
            Place()
            | Barrier()
            | Detach()
            | Release()
            | End()
            | Discard()
            | Signal()
            | Finish()
            | Save()
            | Upload()
            | Conclude()
            | Thaw()
            | Look()
            | Vacate()
            | Rest()
            | Fetch()
            | Restore()
        ):
            return action.job
        case _:
            assert_never(action)


def devices_of(action: Action) -> tuple[str, ...]:
    """Devices whose proxies an action sends requests to."""
    match action:
        case Place():
            return tuple(dict.fromkeys(action.placement))
        case Barrier() | Detach() | Save():
            return action.devices
        case Discard() | StopProxy():
            return (action.device,)
        case (
            StartProxy()
            | Start()
            | Release()
            | End()
            | Signal()
            | Finish()
            | Forget()
            | Upload()
            | Conclude()
            | Thaw()
            | Look()
            | AskStore()
            | Vacate()
            | Rest()
            | Fetch()
            | Restore()
        ):
            return ()
        case _:
            assert_never(action)


def ranks_of(action: Action) -> tuple[int, ...]:
    """Ranks of its job whose launchers an action sends requests to."""
    match action:
        case Start() | Signal() | Save() | Thaw() | Vacate() | Restore():
            return action.ranks
        case _:
            return ()
