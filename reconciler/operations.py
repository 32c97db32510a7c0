"""The requests that the reconciler takes: from the commands, over its control socket.

The form of the messages, and what holds for all of them, stands in rankfold/messages.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from rankfold.messages import Hello, Name, Operation
from rankfold.reconciler.model.desired import Job, Pool
from rankfold.reconciler.model.values import Count, Json, Ranks, Seconds
from rankfold.reconciler.wording import count

__all__ = ["Attach", "Checkpoint", "GoBack", "Hello", "Override", "Run", "State", "Stop", "Unwatch"]

Path = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\0]*\Z")]


class ReconcilerHello(Struct, frozen=True):
    """The reply to ``hello``. `source`: what is followed now; `trouble`: why what it says is not
    desired now."""

    kind: Literal["reconciler"]
    pid: int
    source: str | None
    trouble: str


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """A directory (`dir`), or a folder `path` of a `branch` of the repository `git`."""

    dir: Path | None = None
    git: Path | None = None
    branch: Annotated[str, Meta(max_length=4096, pattern=r"^[^\0]*\Z")] | None = None
    path: Annotated[str, Meta(max_length=4096, pattern=r"^[^\0]*\Z")] = ""

    def told(self) -> Json:
        """What was given."""
        return {k: v for k, v in structs.asdict(self).items() if v is not None}

    def __post_init__(self) -> None:
        if (self.dir is None) == (self.git is None) or (self.git and not self.branch):
            raise ValueError("a source is a dir, or git and branch")


class Attach(Operation, frozen=True, tag="attach"):
    """→ {revision, faults, warnings}. Loads and accepts a revision; with `watch` the source is
    followed until this connection ends, and those of others who watch the same. A second,
    different source is refused (code "source"), and so is one that cannot be read ("unreadable")
    unless it is watched `again`: then ``hello`` reports the trouble."""

    source: Source
    watch: bool = False
    again: bool = False


class Unwatch(Operation, frozen=True, tag="unwatch"):
    """→ {}. What this connection attached is no longer followed for it, and on purpose."""


class Run(Operation, frozen=True, tag="run"):
    """→ {}. `pool`, if any, serves that job only and goes with it. Asked again with the same token,
    it is the same job."""

    job: Job
    pool: Pool | None
    token: Name

    def __post_init__(self) -> None:
        if self.job.gpus > self.job.world_size:
            raise ValueError(
                f"{self.job.gpus} on {count(self.job.world_size, 'rank')}: a rank uses one device"
            )
        if self.pool and (self.pool.only_for != self.job.name or not self.pool.devices):
            raise ValueError("the pool must have devices, for this job only")


class Overridden(Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of a job that a person sets by hand."""

    gpus: int | UnsetType = UNSET
    suspend: bool | UnsetType = UNSET
    store: bool | UnsetType = UNSET
    cancelled: bool | UnsetType = UNSET

    def told(self) -> Json:
        """Those that were given."""
        return {k: v for k, v in structs.asdict(self).items() if v is not UNSET}


class Override(Operation, frozen=True, tag="override"):
    """→ {unrecorded}: why a job was cancelled without the journal, if so. `force`: also where the
    job is described in a source."""

    name: Name
    fields: Overridden
    force: bool = False


class CancelAll(Operation, frozen=True, tag="cancel_all"):
    """→ {unrecorded}, as ``override``. Every job that is not over is cancelled, in one step: none
    of those that wait for a device starts meanwhile."""


class Checkpoint(Operation, frozen=True, tag="checkpoint"):
    """→ {"token": …}. A save begins as soon as it can; ``state`` has the answer, with that token:
    of an earlier request whose save has not begun, if there is one."""

    name: Name
    token: Name


class Begun(Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint says of its job: what never changes for it, and how far it had come; and
    the store, who has its newest incarnation."""

    world_size: Ranks
    device: Json
    device_type: Name
    master_port: Annotated[int, Meta(ge=0, le=65535)]
    epoch: Count
    incarnation: Count
    owner: Annotated[str, Meta(max_length=255)]
    time: Seconds
    bytes: Count


class GoBack(Operation, frozen=True, tag="go_back"):
    """→ {}. A job that rests shall go on from this checkpoint, whatever it did since; one that has
    not started here goes on as what it has begun elsewhere."""

    name: Name
    checkpoint: Annotated[str, Meta(pattern=r"^[0-9]{1,15}-[0-9]{1,15}\Z")]
    begun: Begun | None = None
    force: bool = False


class State(Operation, frozen=True, tag="state"):
    """→ {jobs: {name: {step, phase, converged, message, …}}, fleet_ready, faults, …}, after the
    last change of desired state was planned for."""


class Stop(Operation, frozen=True, tag="stop"):
    """→ {jobs, left}: jobs that go on, and why devices were not ended. Ends the reconciler; proxies
    are shut down if no job goes on."""
