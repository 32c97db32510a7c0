"""Actions that the planner requests and the executor performs: one frozen record per kind.

Imported by all modules that handle actions; imports none of them. Code that distinguishes kinds
ends with `assert_never`, so that it does not type-check if it omits a kind.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import Struct

from rankfold.reconciler.model.desired import Device, Job
from rankfold.reconciler.model.recorded import Checkpoint, Ending
from rankfold.reconciler.model.values import Json


class StartProxy(Struct, frozen=True):
    device: Device


class StopProxy(Struct, frozen=True):
    device: str
    reason: str


class Start(Struct, frozen=True):
    """Record what never changes (spec, virtual device) and start the launchers of `ranks`."""

    job: Job
    device: Json
    device_type: str
    ranks: tuple[int, ...]


class Place(Struct, frozen=True):
    """placed_for: as in `Record`."""

    job: str
    epoch: int
    placement: tuple[str, ...]
    placed_for: str = ""


class Barrier(Struct, frozen=True):
    """`save`: not empty if a save begins with this barrier: its reason (recorded.Save.why)."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    action: str = "request"  # or "withdraw"
    save: str = ""


class Detach(Struct, frozen=True):
    """At a cut: save and leave the devices. `suspend`: the job keeps no device reserved."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    suspend: bool = False


class Release(Struct, frozen=True):
    """A detached job gives up the devices that it kept reserved for a move."""

    job: str


class End(Struct, frozen=True):
    """Record that a job ends; from then on its devices and ranks are released."""

    job: str
    ending: Ending


class Discard(Struct, frozen=True):
    """A device drops a job without saving it."""

    job: str
    epoch: int
    device: str


class Signal(Struct, frozen=True):
    job: str
    ranks: tuple[int, ...]
    signum: int


class Finish(Struct, frozen=True):
    job: str
    phase: str


class Forget(Struct, frozen=True):
    """Remove a job or temporary pool that is no longer desired from the journal."""

    kind: str
    name: str


class Save(Struct, frozen=True):
    """Make snapshots of all ranks. With `devices`: at their cut; their proxies save, and the job
    continues whether or not the save succeeds. Without: the job rests already, and stays frozen.
    `node`: the snapshots stay on this node as a local snapshot, and the job's processes end."""

    job: str
    epoch: int
    devices: tuple[str, ...]
    ranks: tuple[int, ...]
    number: int
    node: bool = False


class Upload(Struct, frozen=True):
    """Start the upload of a save's snapshots to the store, while the job continues. `stuck`: first
    end the process that uploads now."""

    job: str
    number: int
    keep: int
    stuck: bool = False


class Conclude(Struct, frozen=True):
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


class Thaw(Struct, frozen=True):
    """Thaw frozen ranks of a placed job."""

    job: str
    ranks: tuple[int, ...]


class Look(Struct, frozen=True):
    """Query the launchers of a running job for what prevents a save, and record it."""

    job: str
    ranks: tuple[int, ...]


class QueryStore(Struct, frozen=True):
    """Query the store for the running jobs that another owner has taken over; those jobs end."""

    jobs: tuple[str, ...]


class Vacate(Struct, frozen=True):
    """End ranks together with their launchers: a checkpoint has the ranks, or they have failed."""

    job: str
    ranks: tuple[int, ...]


class Rest(Struct, frozen=True):
    """Record that no process of a job is left, and from where it continues: `stored` is a
    checkpoint, or "" for the beginning. `restart`: after a fault. `unusable`: a checkpoint that
    cannot be restored, for the reason in `error`."""

    job: str
    stored: str
    restart: bool = False
    unusable: str = ""
    error: str = ""


class Fetch(Struct, frozen=True):
    """Start to fetch a checkpoint from the store, for the job's next incarnation. `stuck`: first
    end the process that fetches now."""

    job: str
    number: int
    id: str
    stuck: bool = False


class Restore(Struct, frozen=True):
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
    | QueryStore
    | Vacate
    | Rest
    | Fetch
    | Restore
)


def subject(action: Action) -> str:
    """The subject of an action. Each subject has one action at a time, and waits after a failure.

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
        case QueryStore():
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
        case QueryStore():
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
            | QueryStore()
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
