"""Recorded state, as it is in the journal: the progress of each job, the times of each change, and
the conditions of a job. Plain frozen records."""

# No `from __future__ import annotations`: each process decodes these classes, and evaluating their
# annotations here takes half the time.

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, field, to_builtins

from rankfold.job_limits import RANKS_MAX
from rankfold.policy.vocabulary import Guaranteed, Rate
from rankfold.reconciler.model import states
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.values import Count, DeviceName, Json, ObjectName, Seconds

TERMINAL = ("Succeeded", "Failed")
NODE = "node"  # replaces a checkpoint's id: the local snapshot
RESTARTING = "Restarting"  # phase of an ending after which the job continues
STEPS = rf"^({'|'.join(states.STATES)})\Z"


class Ending(Struct, frozen=True):
    """How a job ends once its devices are free and its ranks are gone. In the phase RESTARTING the
    job then continues, from its newest checkpoint or from its beginning."""

    phase: str
    reason: str
    message: str
    since: Seconds  # fleet time
    rank: Annotated[int, Meta(ge=0, lt=RANKS_MAX)] | None = None  # the rank that failed, if one did


class Checkpoint(Struct, frozen=True):
    """A checkpoint that exists in the store."""

    id: str
    time: Seconds  # wall clock of the cut
    bytes: Count  # bytes that a restore fetches
    cut: Seconds | None = None  # fleet time; None: another owner made it


class Save(Struct, frozen=True):
    """A save in progress.

    stage: "stopping" (the job is being brought to a cut) → "saving" (its ranks are frozen while
    snapshots of them are made) → "uploading" (the job continues, unless it is to rest in the
    store).
    """

    number: Count  # number of its folder: layout.py
    why: str  # "interval" | "steps" | "request" | "rest"
    since: Seconds  # fleet time
    stage: Annotated[str, Meta(pattern=r"^(stopping|saving|uploading)\Z")] = "stopping"
    token: str = ""  # of the request that it serves
    at: Seconds = 0.0  # wall clock of the cut
    cut: Seconds | None = None  # fleet time, of the cut
    tries: Count = 0  # number of uploads begun
    tried_at: Seconds = 0.0  # fleet time
    error: str = ""  # why the last upload failed


class LocalSnapshot(Struct, frozen=True):
    """The local snapshot of a resting job, kept on this node.

    whole: it is completely on the disk, and the job's processes may end.
    """

    number: Count  # number of its folder: layout.py
    whole: bool = False


class Restore(Struct, frozen=True):
    """A checkpoint or local snapshot that is being restored. Other fields are as in `Save`.

    failed: it cannot be restored; processes that were started for it are ended.
    damaged: it never can be.
    """

    number: Count
    id: str  # NODE: the local snapshot
    tries: Count = 0
    tried_at: Seconds = 0.0
    error: str = ""
    failed: bool = False
    damaged: bool = False


class Answer(Struct, frozen=True):
    """The result of a requested save."""

    token: str
    id: str = ""
    error: str = ""


# Names in the journal of fields that have been renamed since the first version.
STORED_NAMES = {
    "file_problems": "amiss",
    "local_snapshot": "dump",
    "obstacle_checked": "looked",
    "obstacle_checked_at": "looked_at",
    "placed_since": "held_since",
    "previous_owner": "rival",
    "request_tries": "asked_tries",
    "requested": "asked",
    "restart_cost": "lost",
    "save_obstacle": "hindered",
}


UNKNOWN_USE = "standard/spec"  # of placements that began before uses were recorded


class Record(Struct, frozen=True, rename=STORED_NAMES):
    """The record of everything done for a job so far. Written before an action starts and after it
    has ended.

    step: its state. states.py has the states and the transitions between them.

    placement: the devices of rank 0, 1, … in `epoch`; after a detach, what the job keeps reserved
    for its move, or () if it was suspended.
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
    exits: tuple[int | None, ...] = ()  # exit status of each rank, when ended
    counters: Mapping[str, Json] = field(default_factory=dict)  # of each rank, when ended
    gpu_seconds: Seconds = 0.0
    placed_since: Seconds | None = None  # fleet time; from when `placement` counts for gpu_seconds
    granted_at: Seconds = 0.0  # fleet time: when it was given devices on which it is not yet; or 0
    # Seconds on devices; those with several ranks on a device count for one rank:
    ran: Seconds = 0.0
    placed_for: str = ""  # tier, and cause of the placement, as in `usage`
    # "tier/cause", or with a quota "tier/cause/quota" → device-seconds:
    usage: Mapping[str, Seconds] = field(default_factory=dict)
    recent: Seconds = 0.0  # device-seconds; a use counts half a day later: policy/quotas.py
    recent_at: Seconds = 0.0  # fleet time for which `recent` holds
    # "suspend", "resume" or "resize" → seconds for which it stood still the last time:
    pauses: Mapping[str, Seconds] = field(default_factory=dict)
    disturbed: tuple[Seconds, ...] = ()  # fleet times of disturbances, those of the last hour
    rates: tuple[Rate, ...] = ()  # on each number of devices, the fewest first; fleet time
    guaranteed: Guaranteed | None = None  # what it has had of its tier's fraction; fleet time
    races: tuple[str, ...] = ()  # accesses that the program does not order, if that is checked
    alarms: tuple[str, ...] = ()  # contents of its ranks that should have been equal and were not
    error: str = ""  # of the last action, if it failed
    error_permanent: bool = False
    incarnation: Count = 1  # incremented by each restore and restart
    known: Count = 0  # newest incarnation in the store that is its own, or that it took over
    previous_owner: str = ""  # that it was taken over from, as in the store; until it is restored
    restarts: Count = 0
    saves: Count = 0  # the highest number of a save or restore
    save: Save | None = None
    restore: Restore | None = None
    checkpoints: tuple[Checkpoint, ...] = ()  # those that are kept, oldest first
    stored: str = ""  # checkpoint that it rests in or continues from; NODE: local snapshot
    local_snapshot: LocalSnapshot | None = None  # its folder exists, or is being written or removed
    rested_at: Seconds = 0.0  # fleet time: when it left its devices
    rest_failed_at: Seconds = 0.0  # fleet time: when the last local snapshot failed
    rest_error: str = ""  # why that failed, during this rest
    unusable: tuple[str, ...] = ()  # checkpoints that could not be restored
    requested: str = ""  # token of a requested save that has not begun
    request_tries: Count = 0  # failed tries of that save, before the next one
    answer: Answer | None = None  # to the last such request
    saved_at: Seconds = 0.0  # fleet time: start of the save interval; 0: not yet placed
    saved_steps: Count = 0  # the same, in steps
    save_error: str = ""  # why the last save failed
    obstacle_checked: Count = (
        0  # incarnation whose launchers were queried about what cannot be saved
    )
    obstacle_checked_at: Seconds = 0.0  # fleet time: time of the last such query
    save_obstacle: str = ""  # their answer, for people; "": none is known
    restart_cost: str = ""  # what the last restart cost
    file_problems: str = ""  # problems with its files since its last restore
    back_to: str = ""  # the checkpoint that a person wants it to continue from

    def time_left(self, job: Job, now: float) -> float | None:
        """Seconds until its time limit on devices with one rank each, pauses included; on devices
        with two ranks, twice as long. None: it has no time limit."""
        if not job.time_limit_s:
            return None
        ranks = -(-job.world_size // job.gpus)  # of each device, at most
        return job.time_limit_s / ranks - self.ran_so_far(now)

    def holds(self) -> frozenset[str]:
        """Devices that serve this job, or may serve it."""
        if self.step not in states.ON_DEVICES:
            return frozenset()
        return frozenset(self.placement) - frozenset(self.detached)

    @property
    def pause_s(self) -> float:
        """Seconds for which it stands still when it loses or changes devices; 0: not measured."""
        rests = self.pauses.get("suspend", 0.0) + self.pauses.get("resume", 0.0)
        return max(rests, self.pauses.get("resize", 0.0))

    def used_so_far(self, now: float) -> float:
        """Device-seconds: each of its devices counts while the job is placed there. now: fleet
        time."""
        return self.gpu_seconds + self._since_placed(now)

    def ran_so_far(self, now: float) -> float:
        """Seconds for which it has run, for one rank of each device: with two ranks on a device, a
        second counts half. now: fleet time."""
        if self.placed_since is None or not self.placement:
            return self.ran
        ranks = max(Counter(self.placement).values())
        return self.ran + max(0.0, now - self.placed_since) / ranks

    def usage_so_far(self, now: float) -> dict[str, float]:
        """The same by tier, cause and quota, which a ``/`` separates."""
        seconds_of = dict(self.usage)
        if seconds := self._since_placed(now):
            key = self.placed_for or UNKNOWN_USE
            seconds_of[key] = seconds_of.get(key, 0.0) + seconds
        return seconds_of

    def counted(self, now: float) -> dict[str, Any]:
        """The fields of the record with the device-seconds so far."""
        return {
            "gpu_seconds": self.used_so_far(now),
            "ran": self.ran_so_far(now),
            "usage": self.usage_so_far(now),
            "recent": self.recent_so_far(now),
            "recent_at": now,
            "guaranteed": self.guaranteed_so_far(now),
        }

    def recent_so_far(self, now: float) -> float:
        """Its device-seconds; those of a day ago count half."""
        if self.placed_since is None and not self.recent:
            return 0.0
        from rankfold.policy.quotas import decayed  # here: most fleets have no quotas

        since = now if self.placed_since is None else min(self.placed_since, now)
        before = decayed(self.recent, 0, since - self.recent_at)
        return decayed(before, len(set(self.placement)), now - since)

    def guaranteed_so_far(self, now: float) -> Guaranteed | None:
        """Its part of its tier's fraction until now: it makes progress while it is placed."""
        found = self.guaranteed
        if found is None or self.step == "ended":
            return found
        from rankfold.policy.fractions import counted, rate_of  # here: most fleets guarantee none

        since = now if self.placed_since is None else min(self.placed_since, now)
        if since > found.until:
            found = counted(found, 0.0, since)
        if self.fixed is None or self.placed_since is None:
            return found
        return counted(found, rate_of(found, self.fixed.world_size, len(set(self.placement))), now)

    def _since_placed(self, now: float) -> float:
        if self.placed_since is None:
            return 0.0
        return max(0.0, now - self.placed_since) * len(set(self.placement))


class Condition(Struct, frozen=True):
    type: str
    status: str  # "True" | "False"
    reason: str
    message: str = ""


class Change(Struct, frozen=True):
    """A change of a started job's devices, from the request to convergence."""

    id: Count
    job: ObjectName
    from_gpus: Count
    to_gpus: Count
    commit: str
    wanted_at: Seconds  # wall clock: commit, or save of the file
    epoch: Count = 0  # of the job when the change was requested
    wanted: Seconds | None = None  # the same moment, fleet time, as all that follow
    cut_at: Seconds | None = None
    placed_at: Seconds | None = None
    released_at: Seconds | None = None
    freed_at: Seconds | None = None
    converged_at: Seconds | None = None
    superseded: bool = False
    cause: str = ""  # why the policy requested it; empty: a file or a person did

    @property
    def kind(self) -> str:
        """As in `Record.pauses`."""
        if self.to_gpus == 0:
            return "suspend"
        return "resize" if self.from_gpus else "resume"

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
    return to_builtins(value)
