"""The requests that the reconciler accepts from commands, over its control socket.

rankfold/messages.py defines the format of the messages and the rules for all of them. ``→`` in a
docstring introduces the reply.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from rankfold.messages import Hello, Name, Operation
from rankfold.reconciler.model.desired import Job, Pool
from rankfold.reconciler.model.values import Count, Json, Ranks, Seconds, too_many_devices

__all__ = [
    "Attach",
    "Checkpoint",
    "Hello",
    "Override",
    "RollBack",
    "Run",
    "State",
    "Stop",
    "Unwatch",
]

Path = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\0]*\Z")]


class ReconcilerHello(Struct, frozen=True):
    """The reply to ``hello``. `source`: the source that is followed now; `trouble`: why the content
    of the source is not the desired state now."""

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

    def given(self) -> Json:
        """The fields that were given."""
        return {k: v for k, v in structs.asdict(self).items() if v is not None}

    def __post_init__(self) -> None:
        if (self.dir is None) == (self.git is None) or (self.git and not self.branch):
            raise ValueError("a source is a dir, or git and branch")


class Attach(Operation, frozen=True, tag="attach"):
    """→ {revision, faults, warnings}. Loads and accepts a revision. With `watch`, the source is
    followed until this connection, and all others that watch the same source, have ended. A second,
    different source is refused (code "source"), and so is one that cannot be read ("unreadable"),
    unless it is watched `again`: then ``hello`` reports the trouble."""

    source: Source
    watch: bool = False
    again: bool = False


class Unwatch(Operation, frozen=True, tag="unwatch"):
    """→ {}. This connection deliberately stops following the source that it attached."""


class Run(Operation, frozen=True, tag="run"):
    """→ {}. `pool`, if any, serves this job only and is removed with it. A repeated request with
    the same token refers to the same job."""

    job: Job
    pool: Pool | None
    token: Name

    def __post_init__(self) -> None:
        if reason := too_many_devices(self.job.gpus, self.job.world_size):
            raise ValueError(f"gpus {reason}")
        if self.job.gpus_min is not None and self.job.gpus_min >= self.job.gpus:
            raise ValueError(f"gpus_min {self.job.gpus_min} is not below gpus {self.job.gpus}")
        if self.pool and (self.pool.only_for != self.job.name or not self.pool.devices):
            raise ValueError("the pool must have devices, for this job only")


class Overridden(Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of a job that a person overrides."""

    gpus: int | UnsetType = UNSET
    suspend: bool | UnsetType = UNSET
    store: bool | UnsetType = UNSET
    cancelled: bool | UnsetType = UNSET

    def given(self) -> Json:
        """The fields that were given."""
        return {k: v for k, v in structs.asdict(self).items() if v is not UNSET}


class Override(Operation, frozen=True, tag="override"):
    """→ {unrecorded}: why the journal could not record a cancellation that was carried out anyway;
    empty: it did. `force`: allowed for a job that a source describes, too."""

    name: Name
    fields: Overridden
    force: bool = False


class CancelAll(Operation, frozen=True, tag="cancel_all"):
    """→ {unrecorded}, as ``override``. Cancels every job that has not ended, in one step: no job
    that waits for a device starts meanwhile."""


class Checkpoint(Operation, frozen=True, tag="checkpoint"):
    """→ {"token": …}. A save begins as soon as possible. ``state`` has the result under this token,
    which is that of an earlier request if there is one whose save has not begun."""

    name: Name
    token: Name


class SavedJob(Struct, frozen=True, forbid_unknown_fields=True):
    """The facts that a checkpoint records of its job: those that never change, and its progress;
    and, from the store, the owner of the job's newest incarnation."""

    world_size: Ranks
    device: Json
    device_type: Name
    master_port: Annotated[int, Meta(ge=0, le=65535)]
    epoch: Count
    incarnation: Count
    owner: Annotated[str, Meta(max_length=255)]
    time: Seconds
    bytes: Count


class RollBack(Operation, frozen=True, tag="go_back"):
    """→ {}. A resting job is to continue from this checkpoint; what it did since is discarded. A
    job that has not started here continues what another owner has `begun`."""

    name: Name
    checkpoint: Annotated[str, Meta(pattern=r"^[0-9]{1,15}-[0-9]{1,15}\Z")]
    begun: SavedJob | None = None
    force: bool = False


class State(Operation, frozen=True, tag="state"):
    """→ {jobs: {name: {step, phase, converged, message, …}}, fleet_ready, faults, …}, based on a
    plan that includes the last change of desired state."""


class Stop(Operation, frozen=True, tag="stop"):
    """→ {jobs, left, followed}: jobs that continue, why devices' proxies could not be ended, the
    source whose watchers will start another reconciler. Ends the reconciler; proxies are shut down
    only if no job continues."""
