"""A fleet in memory that takes the planner's actions: for property tests of `plan`.

It refuses (AssertionError) what must never be asked of a fleet, keeps what the journal would
keep, and answers as proxies and launchers do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from rankfold.reconciler import actions
from rankfold.reconciler import plan as planner
from rankfold.reconciler.model import (
    Desired,
    JobOnDevice,
    Observed,
    Record,
    SeenDevice,
    SeenRank,
)


@dataclass
class Fleet:
    desired: Desired
    records: dict[str, Record] = field(default_factory=dict)
    devices: dict[str, SeenDevice] = field(default_factory=dict)
    ranks: dict[tuple[str, int], SeenRank] = field(default_factory=dict)
    host_memory: int = 1 << 62
    now: float = 0.0
    placed: int = 0  # how often a job was placed
    failing: frozenset[str] = frozenset()  # devices whose proxy does not start
    silent: frozenset[str] = frozenset()  # devices whose proxy hangs
    in_flight: frozenset[str] = frozenset()  # subjects of actions that are not over

    def observed(self) -> Observed:
        devices = {
            name: SeenDevice(name, False, silent_since=1.0) if name in self.silent else seen
            for name, seen in self.devices.items()
        }
        return Observed(devices, dict(self.ranks), self.host_memory, self.failing)

    def plan(self) -> planner.Plan:
        found = planner.plan(
            self.desired, self.records, self.observed(), self.now, self.in_flight
        )  # fmt: skip
        assert not self.in_flight & {actions.subject(action) for action in found.actions}
        for action in found.actions:
            hung = self.silent & set(actions.devices_of(action))
            assert not hung, f"{action} speaks to {hung}, who does not answer"
        return found

    def turn(self) -> planner.Plan:
        """observe → plan → act, once."""
        self.now += 1.0
        planned = self.plan()
        for action in planned.actions:
            self.act(action)
            self.check()
        self.proceed()
        return planned

    def converge(self, turns: int = 60) -> planner.Plan:
        """Until the planner has nothing left to do."""
        for _ in range(turns):
            before = dict(self.devices)
            planned = self.turn()
            if not planned.actions and before == self.devices:
                return planned
        raise AssertionError(f"still acting after {turns} turns: {planned.actions}")

    # ---- what time does

    def proceed(self) -> None:
        """Proxies get on. Barriers become cuts one device after the other, not all at once."""
        next_state = {"joining": "running", "stopping": "cut"}
        stopping = [
            n for n, d in self.devices.items() if any(j.state == "stopping" for j in d.jobs)
        ]
        for name, device in self.devices.items():
            jobs = device.jobs
            if name not in stopping[1:]:
                jobs = tuple(replace(j, state=next_state.get(j.state, j.state)) for j in jobs)
            self.devices[name] = replace(device, ready=True, jobs=jobs)

    def exit(self, job: str, rank: int, status: int) -> None:
        self.ranks[job, rank] = SeenRank(job, rank, "exited", exit_status=status)

    def lose(self, device: str) -> None:
        """Its proxy is killed: everything on it is gone."""
        self.devices.pop(device, None)

    # ---- actions

    def act(self, action: actions.Action) -> None:
        match action:
            case actions.StartProxy(device):
                assert device.name not in self.devices
                if device.name in self.failing:
                    return
                pid = int(self.now * 1000) + len(self.devices)
                self.devices[device.name] = SeenDevice(
                    device.name, False, pid, device.type, device.memory,
                    cc=device.cc, speed=device.speed,
                )  # fmt: skip
            case actions.StopProxy(name):
                assert not self.jobs_on(name), "stopped under a job"
                del self.devices[name]
            case actions.Start():
                self.start(action)
            case actions.Place():
                self.place(action)
            case actions.Barrier():
                for name in action.devices:
                    self.set_state(
                        name, action.job, "stopping" if action.action == "request" else "running"
                    )
            case actions.Detach():
                self.detach(action)
            case actions.Release(job):
                self.update(job, placement=(), proxies={})
            case actions.End(job, ending):
                self.update(job, ending=ending)
            case actions.Discard(job, _epoch, name):
                self.set_state(name, job, "saved")
            case actions.Signal(job, ranks, signum):
                for rank in ranks:
                    self.exit(job, rank, -signum)
            case actions.Finish(job, phase):
                assert not any(job in self.jobs_on(name) for name in self.devices)
                self.update(job, step="ended", phase=phase, placement=(), detached=())
            case actions.Forget(kind, name):
                self.forget(kind, name)
            case _:
                assert_never(action)

    def start(self, action: actions.Start) -> None:
        job = action.job
        if job.name not in self.records:
            self.records[job.name] = Record(
                job.name, "started", fixed=job, device=action.device, device_type=action.device_type
            )
        for rank in action.ranks:
            assert (job.name, rank) not in self.ranks, "a rank was started twice"
            self.ranks[job.name, rank] = SeenRank(job.name, rank, "running")

    def place(self, action: actions.Place) -> None:
        record = self.records[action.job]
        assert record.fixed is not None
        assert len(action.placement) == record.fixed.world_size
        devices = tuple(dict.fromkeys(action.placement))
        if record.step != "placing":
            assert action.epoch > record.epoch
            self.placed += 1
            for name in devices:
                assert self.devices[name].ready, "placed on a device that does not answer"
                assert not self.jobs_on(name), "placed on a device that is not free"
                old = self.devices[name].job(action.job)
                assert old is None or old.epoch < action.epoch, "a device has had this epoch"
        for name in devices:
            device = self.devices[name]
            others = tuple(j for j in device.jobs if j.job != action.job)
            there = JobOnDevice(action.job, action.epoch, "joining")
            self.devices[name] = replace(device, jobs=(*others, there))
        pids = {name: self.devices[name].pid for name in devices}
        self.update(
            action.job, step="placed", epoch=action.epoch, placement=action.placement,
            proxies=pids, detached=(),
        )  # fmt: skip

    def detach(self, action: actions.Detach) -> None:
        for name in action.devices:
            there = self.devices[name].job(action.job)
            assert there and there.state in ("cut", "saved"), "detached without a cut"
        for name in action.devices:
            self.set_state(name, action.job, "saved")
        kept = () if action.suspend else self.records[action.job].placement
        self.update(action.job, step="detached", placement=kept, proxies={}, detached=())

    def forget(self, kind: str, name: str) -> None:
        if kind == "Job":
            self.records.pop(name)
        else:
            pools = {n: p for n, p in self.desired.pools.items() if n != name}
            self.desired = replace(self.desired, pools=pools)

    # ---- helpers

    def update(self, job: str, **fields: object) -> None:
        record = self.records.get(job, Record(job))
        self.records[job] = replace(record, **fields)  # type: ignore[arg-type]

    def set_state(self, device: str, job: str, state: str) -> None:
        seen = self.devices[device]
        jobs = tuple(replace(j, state=state) if j.job == job else j for j in seen.jobs)
        self.devices[device] = replace(seen, jobs=jobs)

    def jobs_on(self, device: str) -> list[str]:
        return [j.job for j in self.devices[device].jobs if j.state != "saved"]

    def check(self) -> None:
        """What must hold after every single action."""
        for name in self.devices:
            assert len(self.jobs_on(name)) <= 1, f"{name} serves {self.jobs_on(name)}"
