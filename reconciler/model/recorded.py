"""What the journal says: of each job how far it is, of each change how long it took, and what is to
be said of a job. Plain frozen records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from rankfold.messages import RANKS_MAX
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.values import Count, DeviceName, Json, ObjectName, Seconds

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
    cut: Seconds | None = None  # steady, of the cut; None: it was made elsewhere


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
    cut: Seconds | None = None  # steady, of the cut
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
    wanted: Seconds | None = None  # the same moment, steady, as all that follow
    cut_at: Seconds | None = None
    placed_at: Seconds | None = None
    released_at: Seconds | None = None
    freed_at: Seconds | None = None
    converged_at: Seconds | None = None
    superseded: bool = False

    @property
    def pause_s(self) -> float | None:
        start = self.placed_at if self.from_gpus == 0 else self.cut_at
        end = self.freed_at if self.to_gpus == 0 else self.released_at
        return None if start is None or end is None else max(0.0, end - start)

    @property
    def converge_s(self) -> float | None:
        wanted = self.wanted_at if self.wanted is None else self.wanted
        return None if self.converged_at is None else max(0.0, self.converged_at - wanted)


def to_json(value: Any) -> Any:
    return dataclasses.asdict(value)
