"""Desired + recorded + observed → the next actions. Pure: no I/O, no clock but `now`.

Called by the daemon's loop before `act`, by `plan` and `status` to say what they would do. It is
level-triggered: it looks only at what is, never at what changed, and gives at most the next step
of each job; the loop observes again after every step. A step that was done already, or half, is
simply asked for again (every operation is idempotent). The rules it keeps:

- a device serves one job at a time, and is given away only when it is *seen* free;
- nothing leaves a device but at a consistent cut, unless the job is over;
- what cannot be placed, or cannot grow, waits, and says why; it has a claim on what becomes free
  before those behind it, as long as what it misses can come by itself;
- what is in flight is left alone: one action at a time for each subject;
- nothing is asked of a job while one of its proxies or launchers does not answer.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rankfold.reconciler.model import (
    Condition,
    Desired,
    Device,
    Ending,
    Job,
    Json,
    Observed,
    Record,
    SeenDevice,
    count,
)
from rankfold.reconciler.placement import assign

KILL_AFTER_S = 5.0  # a rank that is told to end gets SIGTERM, then SIGKILL
HOLDING = ("joining", "running", "stopping", "cut", "failed")  # a proxy's job states that use it

# ---- actions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartProxy:
    device: Device


@dataclass(frozen=True)
class StopProxy:
    device: str
    reason: str


@dataclass(frozen=True)
class Start:
    """Fix what stays for ever (spec, virtual device), start the launchers of `ranks`."""

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
    job: str
    epoch: int
    devices: tuple[str, ...]
    action: str = "request"  # or "withdraw"


@dataclass(frozen=True)
class Detach:
    """At a cut: save and let go. `suspend`: the job keeps no device reserved."""

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
    """Record that a job is over; its devices and ranks are let go from here on."""

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


Action = (
    StartProxy | StopProxy | Start | Place | Barrier | Detach | Release | End | Discard | Signal
    | Finish | Forget
)  # fmt: skip


def subject(action: Action) -> str:
    """What an action is about: it has one action at a time, and waits when that fails.

    A job, or a device; when a job ends, its ranks and what it has on each device are subjects of
    their own, so that one that hangs does not keep the others.
    """
    if isinstance(action, StartProxy):
        return action.device.name
    if isinstance(action, StopProxy):
        return action.device
    if isinstance(action, Discard):
        return f"{action.job} on {action.device}"
    if isinstance(action, Signal):
        return f"the ranks of {action.job}"
    if isinstance(action, Start):
        return action.job.name
    return action.name if isinstance(action, Forget) else action.job


def job_of(action: Action) -> str:
    """The job that an action is for; a pool's or device's name where it is for none."""
    if isinstance(action, (Place, Barrier, Detach, Release, End, Discard, Signal, Finish)):
        return action.job
    return subject(action)


def devices_of(action: Action) -> tuple[str, ...]:
    """Devices whose proxies an action speaks to."""
    match action:
        case Place():
            return tuple(dict.fromkeys(action.placement))
        case Barrier() | Detach():
            return action.devices
        case Discard() | StopProxy():
            return (action.device,)
    return ()


@dataclass(frozen=True)
class Plan:
    """What to do next, and what to say about every job.

    targets: placement each job should have now (() for none); converged: jobs that are as desired.
    """

    actions: tuple[Action, ...] = ()
    conditions: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    converged: frozenset[str] = frozenset()
    fleet_ready: bool = True  # every desired device answers, no other one is there


def plan(
    desired: Desired,
    records: Mapping[str, Record],
    observed: Observed,
    now: float,
    in_flight: frozenset[str] = frozenset(),
) -> Plan:
    """in_flight: subjects of the actions that have begun and are not over."""
    return _Planner(desired, records, observed, now, in_flight).run()


class _Planner:
    def __init__(
        self,
        desired: Desired,
        records: Mapping[str, Record],
        observed: Observed,
        now: float,
        in_flight: frozenset[str],
    ):
        self.desired, self.observed, self.now = desired, observed, now
        self.in_flight = in_flight
        names = {*desired.jobs, *records}
        self.records = {name: records.get(name, Record(name)) for name in names}
        self.devices = desired.devices()
        self.actions: list[Action] = []
        self.waiting: dict[str, Condition] = {}  # job → why it is not as desired
        self.targets: dict[str, tuple[str, ...]] = {}
        self.converged: set[str] = set()
        self.silent = {
            name: condition for name, record in self.records.items()
            if (condition := self._silent(record))
        }  # fmt: skip

    def run(self) -> Plan:
        fleet_ready = self._fleet()
        self._allocate()
        for name in self._order():
            self._job(name, self.records[name])
        self.converged -= self.in_flight
        conditions = {name: self._conditions(name) for name in self.desired.jobs}
        actions = tuple(each for each in self.actions if subject(each) not in self.in_flight)
        return Plan(actions, conditions, self.targets, frozenset(self.converged), fleet_ready)

    def _order(self) -> list[str]:
        def key(name: str) -> tuple[float, str]:
            job = self.desired.jobs.get(name)
            return (job.created if job else 0.0, name)

        return sorted(self.records, key=key)

    # ---- devices

    def _fleet(self) -> bool:
        """Start the proxies of desired devices, stop the others when they are free."""
        ready = True
        for name, device in self.devices.items():
            seen = self.observed.devices.get(name)
            if seen is None:
                self.actions.append(StartProxy(device))
                ready = False
            elif not seen.ready:
                ready = False
            elif self._differs(device, seen):
                ready = False
                if self._free(name):
                    self.actions.append(StopProxy(name, "its pool describes another device now"))
        for name, seen in self.observed.devices.items():
            for there in seen.jobs:
                if there.state != "saved" and self._unknown(there.job):
                    self.actions.append(Discard(there.job, there.epoch, name))
            if name not in self.devices:
                ready = False
                if seen.ready and self._free(name):
                    self.actions.append(StopProxy(name, "no pool has it any longer"))
        return ready

    def _unknown(self, job: str) -> bool:
        """A job on a device that the journal has never placed, or has seen end."""
        record = self.records.get(job)
        return record is None or record.step in ("new", "ended")

    @staticmethod
    def _differs(device: Device, seen: SeenDevice) -> bool:
        return (device.type, device.memory, device.cc, device.speed) != (
            seen.type, seen.memory, seen.cc, seen.speed,
        )  # fmt: skip

    def _holder(self, device: str) -> str | None:
        """The job whose journal says that it may be on this device."""
        for name, record in self.records.items():
            if device in record.holds():
                return name
        return None

    def _free(self, name: str) -> bool:
        """Seen free: the proxy answers, lists no job that uses it, and no job was sent there."""
        seen = self.observed.devices.get(name)
        if seen is None or not seen.ready or name in self.in_flight:
            return False
        return not any(j.state in HOLDING for j in seen.jobs) and self._holder(name) is None

    def _eligible(self, name: str, job: Job, record: Record) -> bool:
        """Whether a job may be put on a device at all (free or not)."""
        device, seen = self.devices.get(name), self.observed.devices.get(name)
        if device is None or seen is None or not seen.ready or self._differs(device, seen):
            return False
        return may_use(device, job, record)

    # ---- allocation

    def _allocate(self) -> None:
        """Fill `targets`: first what each job has already, then free devices by creation."""
        taken: set[str] = set()
        wanted: list[tuple[str, Job, Record, list[str]]] = []
        for name in self._order():
            job, record = self.desired.jobs.get(name), self.records[name]
            if job is None or record.step == "ended" or record.ending or job.cancelled:
                continue
            if job.suspended:
                self.targets[name] = ()
                continue
            if name in self.silent:  # it keeps what it has, and cannot use more
                taken.update(record.placement)
                if record.holds():
                    self.targets[name] = record.placement
                continue
            own = [d for d in dict.fromkeys(record.placement) if self._keeps(d, job, record, taken)]
            own = own[: job.gpus]
            taken.update(own)
            wanted.append((name, job, record, own))
        # A job that has started goes before one that has not: it holds host memory already. One
        # that cannot start (its folder is missing) goes last: what it is given would lie idle.
        wanted.sort(key=lambda each: (each[2].step == "new", each[2].error_permanent))
        for name, job, record, own in wanted:
            self._give(name, job, record, own, taken)

    def _keeps(self, device: str, job: Job, record: Record, taken: set[str]) -> bool:
        if device in taken:
            return False
        if device in record.holds():  # also while its proxy is slow, or shall be another one
            wanted = self.devices.get(device)
            return wanted is not None and may_use(wanted, job, record)
        return self._eligible(device, job, record) and self._free(device)

    def _give(self, name: str, job: Job, record: Record, own: list[str], taken: set[str]) -> None:
        free = [
            d for d in self.devices
            if d not in taken and self._eligible(d, job, record) and self._free(d)
        ]  # fmt: skip
        fitting = fitting_devices(self.devices.values(), job, record)
        kind = record.device_type or most_frequent(fitting)
        free = [d for d in free if self.devices[d].type == kind]
        missing = job.gpus - len(own)
        holds = record.step in ("placing", "placed", "detaching")
        if missing > len(free):
            most = fitting.get(kind, 0)
            self._wait_for_devices(name, job, len(free), most, most >= job.gpus)
            if holds:
                self.targets[name] = record.placement
            elif own and self._memory_allows(name, job, record, len(own)):
                # In the middle of a move, and somebody was faster: it goes on as it was.
                self.targets[name] = assign(job.world_size, tuple(own))
            if self._can_come(job, record, kind) >= job.gpus:
                taken.update(free)  # the first in line is not overtaken
            return
        chosen = sorted([*own, *free[:missing]], key=list(self.devices).index)
        target = assign(job.world_size, tuple(chosen))
        if not self._memory_allows(name, job, record, len(chosen)):
            if holds:
                self.targets[name] = record.placement
            return
        taken.update(chosen)
        self.targets[name] = target

    def _can_come(self, job: Job, record: Record, kind: str) -> int:
        """How many devices a job would have if all others went: those that do not answer, do not
        start, or are a job's of which nothing can be asked, stay away until somebody acts."""
        kept = {d for name in self.silent for d in self.records[name].placement}
        return sum(
            1 for name, device in self.devices.items()
            if device.type == kind and may_use(device, job, record) and name not in kept
            and name not in self.observed.failing and not self._hangs(name)
        )  # fmt: skip

    def _hangs(self, device: str) -> bool:
        seen = self.observed.devices.get(device)
        return seen is not None and seen.silent_since is not None

    def _wait_for_devices(self, name: str, job: Job, free: int, most: int, possible: bool) -> None:
        kind = " or ".join(job.device_types) or "any kind"
        wanted = count(job.gpus, "device")
        down = [d for d in self.devices if not self._up(d)]
        if not possible:
            message = f"needs {wanted} of {kind}; the pools have {most} that fit it"
            self.waiting[name] = Condition("Stalled", "True", "NotEnoughDevices", message)
        elif down:
            message = f"needs {wanted} of {kind}; not up yet: {', '.join(down)}"
            self.waiting[name] = Condition("Progressing", "True", "WaitingForProxies", message)
        else:
            message = f"needs {wanted} of {kind}; free for it now: {free}"
            self.waiting[name] = Condition("Progressing", "True", "WaitingForDevices", message)

    def _up(self, device: str) -> bool:
        seen = self.observed.devices.get(device)
        return seen is not None and seen.ready

    # ---- host memory

    def _memory_allows(self, name: str, job: Job, record: Record, devices: int) -> bool:
        """Count the host memory that all jobs may need before folding one more."""
        others = sum(self._host_need(each) for each in self.records if each != name)
        memory = self._virtual(job, record)["memory_bytes"]
        need = host_need(job.world_size, memory, devices)
        if others + need <= self.observed.host_memory or need <= recorded_need(record):
            return True
        ranks = "suspended" if devices == 0 else f"on {devices} devices"
        message = (
            f"{job.world_size} ranks of {gib(memory)} {ranks} may need {gib(need)} of host memory; "
            f"other jobs may need {gib(others)} and the limit is {gib(self.observed.host_memory)}. "
            "Use more devices, or devices with less memory"
        )
        self.waiting[name] = Condition("Stalled", "True", "HostMemory", message)
        return False

    def _host_need(self, name: str) -> int:
        """Bytes a job may need on its target; as it is placed now while it has none."""
        record, job, target = (
            self.records[name],
            self.desired.jobs.get(name),
            self.targets.get(name),
        )
        if job is None or target is None or record.step == "ended":
            return recorded_need(record)
        if record.step == "new" and not target:
            return 0
        memory = self._virtual(job, record)["memory_bytes"]
        return host_need(job.world_size, memory, len(set(target)))

    def _virtual(self, job: Job, record: Record) -> Json:
        if record.device:
            return dict(record.device)
        kind = most_frequent(fitting_devices(self.devices.values(), job, record))
        fit = [d for d in self.devices.values() if d.type == kind and may_use(d, job, record)]
        return virtual_device(fit)

    # ---- one job

    def _job(self, name: str, record: Record) -> None:
        job = self.desired.jobs.get(name)
        if record.step == "ended":
            self._after_the_end(name, job)
        elif record.ending:
            self._end(record, record.ending)
        elif ending := self._over(job, record):
            self.actions.append(End(name, ending))
        elif job is not None and name not in self.silent and not self._unheard(record):
            self._advance(job, record, self.targets.get(name))

    def _unheard(self, record: Record) -> list[str]:
        """Devices that serve a job, or may, and live, and have not answered this time."""
        seen = ((name, self.observed.devices.get(name)) for name in sorted(record.holds()))
        return [name for name, each in seen if each is not None and not each.ready]

    def _silent(self, record: Record) -> Condition | None:
        """That a proxy or launcher of a job hangs: nothing can be asked of the job then."""
        message = ""
        for name in reversed(self._unheard(record)):
            if since := self.observed.devices[name].silent_since:
                message = silence(f"the proxy of {name}", since, record.proxies.get(name, 0))
        if record.fixed is not None and record.step != "ended" and not message:
            for rank in range(record.fixed.world_size):
                seen = self.observed.ranks.get((record.name, rank))
                if seen and seen.silent_since and not message:
                    message = silence(f"the launcher of rank {rank}", seen.silent_since)
        return Condition("Stalled", "True", "DoesNotAnswer", message) if message else None

    def _after_the_end(self, name: str, job: Job | None) -> None:
        self.converged.add(name)
        if job is None:
            self.actions.append(Forget("Job", name))
        for pool in self.desired.pools.values():
            if pool.only_for == name:
                self.actions.append(Forget("Pool", pool.name))

    def _advance(self, job: Job, record: Record, target: tuple[str, ...] | None) -> None:
        """One step towards `target`: a placement, () for none, None while there is no place."""
        if (
            target == ()
            and record.step not in ("new", "detached")
            and not self._suspend_fits(job, record)
        ):
            target = record.placement or None
        if record.step in ("new", "started"):
            self._begin(job, record, target)
        elif record.step == "placing":
            self.actions.append(Place(job.name, record.epoch, record.placement))
        elif record.step == "placed":
            self._serve(job, record, target)
        elif record.step == "detaching":
            self.actions.append(self._detach(job, record, target))
        elif record.step == "detached":
            if target:
                self.actions.append(Place(job.name, self._next_epoch(record), target))
            elif record.placement:
                self.actions.append(Release(job.name))
            elif target == ():
                self.converged.add(job.name)

    def _next_epoch(self, record: Record) -> int:
        """Above all that any device has seen: it may remember an earlier job of this name."""
        told = (seen.job(record.name) for seen in self.observed.devices.values())
        return 1 + max([record.epoch, *(there.epoch for there in told if there)])

    def _suspend_fits(self, job: Job, record: Record) -> bool:
        return record.step == "started" or self._memory_allows(job.name, job, record, 0)

    def _begin(self, job: Job, record: Record, target: tuple[str, ...] | None) -> None:
        if record.step == "new":
            if target:
                virtual = self._virtual(job, record)
                kind = self.devices[target[0]].type
                self.actions.append(Start(job, virtual, kind, tuple(range(job.world_size))))
            elif target == ():
                self.converged.add(job.name)
            return
        missing = tuple(
            r for r in range(job.world_size) if (job.name, r) not in self.observed.ranks
        )
        if missing:
            self.actions.append(Start(job, dict(record.device), record.device_type, missing))
        elif any(
            self.observed.ranks[job.name, r].state == "starting" for r in range(job.world_size)
        ):
            return
        elif target:
            self.actions.append(Place(job.name, self._next_epoch(record), target))
        elif target == ():
            self.converged.add(job.name)

    def _serve(self, job: Job, record: Record, target: tuple[str, ...] | None) -> None:
        """A placed job: leave it alone, or bring it to a cut and take it off its devices."""
        devices = tuple(dict.fromkeys(record.placement))
        states = {d: self._state(d, record) for d in devices}
        if target is None or target == record.placement:
            stopping = tuple(d for d, state in states.items() if state in ("stopping", "cut"))
            if stopping:
                self.actions.append(Barrier(job.name, record.epoch, devices, "withdraw"))
            elif (
                all(state == "running" for state in states.values())
                and job.name not in self.waiting
            ):
                self.converged.add(job.name)
        elif all(state == "cut" for state in states.values()):
            self.actions.append(self._detach(job, record, target))
        elif not all(state in ("stopping", "cut") for state in states.values()):
            self.actions.append(Barrier(job.name, record.epoch, devices))

    def _detach(self, job: Job, record: Record, target: tuple[str, ...] | None) -> Detach:
        devices = tuple(d for d in dict.fromkeys(record.placement) if d not in record.detached)
        return Detach(job.name, record.epoch, devices, suspend=target == ())

    def _state(self, device: str, record: Record) -> str:
        """State of the job on a device at the recorded epoch; "lost" if it is not there."""
        seen = self.observed.devices.get(device)
        there = seen.job(record.name) if seen and seen.ready else None
        return there.state if there and there.epoch == record.epoch else "lost"

    # ---- the end of a job

    def _over(self, job: Job | None, record: Record) -> Ending | None:
        """Whether a job is over: its ranks ended, its devices are lost, or it is not wanted."""
        if record.step == "new":
            if job is not None and job.cancelled:
                return Ending("Failed", "Cancelled", "cancelled before it started", self.now)
            return None
        assert record.fixed is not None
        return (
            self._ranks_over(record, record.fixed.world_size)
            or self._devices_lost(record)
            or self._not_wanted(job)
        )

    def _ranks_over(self, record: Record, world_size: int) -> Ending | None:
        seen = [self.observed.ranks.get((record.name, r)) for r in range(world_size)]
        for rank, each in enumerate(seen):
            if each is None and record.step != "started":
                message = f"the launcher of rank {rank} ended without a word: it was killed"
                return Ending("Failed", "LauncherLost", message, self.now)
            if each and each.state == "exited" and each.exit_status != 0:
                return Ending(
                    "Failed",
                    "RankFailed",
                    rank_failure(rank, each.exit_status, each.error),
                    self.now,
                )
        if all(each is not None and each.state == "exited" for each in seen):
            return Ending(
                "Succeeded", "Completed", f"all {world_size} ranks exited with 0", self.now
            )
        return None

    def _devices_lost(self, record: Record) -> Ending | None:
        if record.step not in ("placing", "placed", "detaching"):
            return None
        reported: Ending | None = None
        for device in dict.fromkeys(record.placement):
            if device in record.detached:
                continue
            seen = self.observed.devices.get(device)
            if seen is not None and not seen.ready:
                continue  # it holds its lock: it starts, or is too busy to answer
            there = seen.job(record.name) if seen else None
            if there and there.epoch == record.epoch and there.state == "failed":
                text = f"{device}: {there.reason}"
                reported = reported or Ending("Failed", "DeviceReported", text, self.now)
                continue
            told = record.proxies.get(device)
            gone = seen is None or (told is not None and seen.pid != told)
            if gone or (record.step == "placed" and self._state(device, record) == "lost"):
                ranks = [str(r) for r, d in enumerate(record.placement) if d == device]
                message = (
                    f"the proxy of {device} ended; what rank {', '.join(ranks)} had on the device "
                    "is lost. Start the job anew"
                )
                return Ending("Failed", "DeviceLost", message, self.now)
        return reported  # a device that is gone says more than what its peers noticed

    def _not_wanted(self, job: Job | None) -> Ending | None:
        if job is None or job.cancelled:
            return Ending("Failed", "Cancelled", "cancelled by hand", self.now)
        return None

    def _end(self, record: Record, ending: Ending) -> None:
        """Let go of devices, end the ranks, and when nothing is left, say so."""
        holding = self._unheard(record)
        for name, seen in sorted(self.observed.devices.items()):
            there = seen.job(record.name) if seen.ready else None
            if there and there.state != "saved":
                holding.append(name)
                self.actions.append(Discard(record.name, there.epoch, name))
        ranks = [
            (rank, seen.state) for (job, rank), seen in sorted(self.observed.ranks.items())
            if job == record.name and seen.state != "exited"
        ]  # fmt: skip
        live = tuple(rank for rank, state in ranks if state == "running")
        if live:
            late = self.now - ending.since > KILL_AFTER_S
            signum = signal.SIGKILL if late else signal.SIGTERM
            self.actions.append(Signal(record.name, live, int(signum)))
        if not holding and not ranks:
            self.actions.append(Finish(record.name, ending.phase))

    # ---- conditions

    def _conditions(self, name: str) -> tuple[Condition, ...]:
        job, record = self.desired.jobs[name], self.records[name]
        found = [self._ready(name, job, record)]
        if name in self.silent:
            found.append(self.silent[name])
        elif record.error:
            kind = "Stalled" if record.error_permanent else "Progressing"
            found.append(Condition(kind, "True", "ActionFailed", record.error))
        elif name in self.waiting and record.step != "ended":
            found.append(self.waiting[name])
        elif name not in self.converged:
            found.append(Condition("Progressing", "True", "Converging", f"step: {record.step}"))
        if record.step != "ended":
            if job.suspended:
                why = "its file is gone" if job.orphaned else "spec.suspend is true"
                found.append(
                    Condition("Suspended", "True", "Orphaned" if job.orphaned else "Desired", why)
                )
            if job.orphaned:
                message = "its file is gone: the job rests; put the file back, or cancel the job"
                found.append(Condition("Orphaned", "True", "FileRemoved", message))
            if job.drifted:
                message = "changed by hand, until the object changes in its source"
                found.append(Condition("Drifted", "True", "Override", message))
        return tuple(found)

    def _ready(self, name: str, job: Job, record: Record) -> Condition:
        if record.ending and record.step == "ended":
            good = "True" if record.phase == "Succeeded" else "False"
            return Condition("Ready", good, record.ending.reason, record.ending.message)
        if record.ending:
            return Condition("Ready", "False", "Ending", record.ending.message)
        if name in self.converged:
            if job.suspended:
                return Condition("Ready", "False", "Suspended", "the job holds no device")
            devices = len(set(record.placement))
            return Condition(
                "Ready",
                "True",
                "AsDesired",
                f"{count(job.world_size, 'rank')} on {count(devices, 'device')}",
            )
        return Condition("Ready", "False", "NotAsDesired", "")


# ---- helpers -----------------------------------------------------------------------------------


def silence(who: str, since: float, pid: int = 0) -> str:
    """What to say of a process that hangs. since: wall clock; pid: 0 if it is not known."""
    when = time.strftime("%H:%M:%S", time.localtime(since))
    one = f"process {pid}" if pid else "the process"
    return (
        f"{who} has not answered since {when}: it is stopped, or stuck. Nothing is asked of it "
        f"until it goes on; if it will not, kill {one}: what it serves is lost then"
    )


def host_need(world_size: int, memory: int, devices: int) -> int:
    """Host bytes a job may need at most: all its ranks' memory less what its devices hold."""
    return max(0, world_size - devices) * memory


def recorded_need(record: Record) -> int:
    """The same for what has been done already."""
    if record.fixed is None or record.step == "ended":
        return 0
    devices = len(set(record.placement))
    return host_need(record.fixed.world_size, record.device["memory_bytes"], devices)


def gib(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB"


def may_use(device: Device, job: Job, record: Record) -> bool:
    """Whether a device is one of those that a job may be put on, whoever has it now."""
    if device.only_for not in (None, job.name):
        return False
    if record.device_type:
        virtual = record.device
        cc = (int(virtual.get("cc_major", 0)), int(virtual.get("cc_minor", 0)))
        fits = device.memory >= virtual["memory_bytes"] and cc_of(device) >= cc
        return device.type == record.device_type and fits
    return not job.device_types or device.type in job.device_types


def fitting_devices(devices: Iterable[Device], job: Job, record: Record) -> dict[str, int]:
    """How many devices of each kind a job may be put on, the first kind in the files first."""
    return Counter(d.type for d in devices if may_use(d, job, record))


def most_frequent(kinds: dict[str, int]) -> str:
    """The kind with the most devices, of equals the first; empty if there is none."""
    return max(kinds, key=lambda kind: kinds[kind], default="")


def cc_of(device: Device) -> tuple[int, int]:
    major, _, minor = device.cc.partition(".")
    return int(major), int(minor)


def virtual_device(devices: list[Device]) -> Json:
    """The device that a job's ranks see: what the least of those it may get can hold.

    Fixed at admission, so that out-of-memory does not depend on the placement. Fields of
    ``struct rf_device``; those left out are the launcher's defaults.
    """
    if not devices:
        return {"name": "none", "memory_bytes": 0, "cc_major": 0, "cc_minor": 0}
    memory = min(d.memory for d in devices)
    major, minor = min(cc_of(d) for d in devices)
    name = f"rankfold {devices[0].type} device"
    return {"name": name, "memory_bytes": memory, "cc_major": major, "cc_minor": minor}


def rank_failure(rank: int, exit_status: int | None, error: str) -> str:
    """How a rank ended, for people."""
    if exit_status is None:
        how = "ended in an unknown way"
    elif exit_status < 0:
        try:
            how = f"was killed by {signal.Signals(-exit_status).name}"
        except ValueError:
            how = f"was killed by signal {-exit_status}"
    else:
        how = f"exited with status {exit_status}"
    return f"rank {rank} {how}" + (f": {error}" if error else "")


def assume_fleet(desired: Desired, observed: Observed) -> Observed:
    """As if every desired device were up: `rankfold plan` asks where jobs would go, then."""
    devices = dict(observed.devices)
    for name, device in desired.devices().items():
        seen = devices.get(name)
        if seen is None or not seen.ready:
            devices[name] = SeenDevice(
                name, type=device.type, memory=device.memory, cc=device.cc, speed=device.speed
            )
    return replace(observed, devices=devices)
