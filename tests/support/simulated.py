"""A fleet in memory that takes the planner's actions: for property tests of `plan`.

It refuses (AssertionError) what must never be asked of a fleet, keeps what the journal would
keep, and answers as proxies and launchers do. Ranks that run do work; a checkpoint has the work of
its cut, and a restore brings it back: so it sees what is lost, or done by two copies of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from rankfold.reconciler import actions
from rankfold.reconciler import plan as planner
from rankfold.reconciler.model.desired import Desired
from rankfold.reconciler.model.observed import (
    JobOnDevice,
    Measured,
    Observed,
    ObservedDevice,
    ObservedRank,
    StoreQuery,
    Transfer,
)
from rankfold.reconciler.model.recorded import NODE, Answer, LocalSnapshot, Record, Restore, Save
from rankfold.reconciler.model.states import declared
from rankfold.reconciler.plan import saving
from rankfold.reconciler.plan.index import as_described


@dataclass
class Fleet:
    desired: Desired
    records: dict[str, Record] = field(default_factory=dict)
    devices: dict[str, ObservedDevice] = field(default_factory=dict)
    ranks: dict[tuple[str, int], ObservedRank] = field(default_factory=dict)
    host_memory: int = 1 << 62
    now: float = 1e9
    pids: int = 0  # the last that a proxy got
    placed: int = 0  # how often a job was placed
    failing: frozenset[str] = frozenset()  # devices that are bad: their proxy does not start
    lost: dict[str, int] = field(default_factory=dict)  # devices, and in how many turns they end
    silent: frozenset[str] = frozenset()  # devices whose proxy hangs
    in_flight: frozenset[str] = frozenset()  # subjects of actions that are not over
    work: dict[str, int] = field(default_factory=dict)  # that each job's ranks have done
    snapshots: dict[tuple[str, int], int] = field(default_factory=dict)  # (job, save) → its work
    store: dict[tuple[str, str], int] = field(default_factory=dict)  # (job, checkpoint) → its work
    transfers: dict[str, Transfer] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)  # jobs, in the order of their saves
    no_saves: str = ""
    save_obstacle: str = ""  # what launchers say that keeps a rank from being saved
    looks: int = 0  # number of queries for that
    questions: list[tuple[str, ...]] = field(default_factory=list)  # to the store: about which jobs
    store_query: StoreQuery = field(default_factory=StoreQuery)
    store_silent: bool = False
    saves_fail: bool = False
    killed_in_a_save: bool = False  # the reconciler: once, when all ranks are frozen
    uploads: str = "done"  # how uploads end: done | retry | failed; or they are slow
    damaged: set[tuple[str, str]] = field(default_factory=set)  # (job, checkpoint)
    restores_fail: bool = False
    rest_save_after: float | None = None  # seconds
    minute: int = -1  # of the day
    measured: tuple[Measured, ...] = ()  # of jobs whose records were removed
    dump_damaged: bool = False
    transitions: set[tuple[str, str]] = field(default_factory=set)  # that jobs took

    def observed(self) -> Observed:
        devices = {
            name: ObservedDevice(name, False, silent_since=1.0) if name in self.silent else device
            for name, device in self.devices.items()
        }
        return Observed(
            devices,
            dict(self.ranks),
            self.host_memory,
            dict.fromkeys(self.failing - devices.keys(), "no such device"),
            dict(self.transfers),
            self.no_saves,
            self.rest_save_after,
            store_query=self.store_query,
            minute=self.minute,
            measured=self.measured,
        )

    def plan(self) -> planner.Plan:
        planned = planner.plan(
            self.desired, self.records, self.observed(), self.now, self.in_flight
        )
        assert not self.in_flight & {actions.subject(action) for action in planned.actions}
        for action in planned.actions:
            hung = self.silent & set(actions.devices_of(action))
            assert not hung, f"{action} speaks to {hung}, who does not answer"
        return planned

    def turn(self) -> planner.Plan:
        """observe → plan → act, once."""
        self.now += 1.0
        planned = self.plan()
        for name, guaranteed in planned.guaranteed.items():
            record = self.records.get(name) or Record(name)
            self.records[name] = replace(record, guaranteed=guaranteed)
        for name, granted_at in planned.grants.items():
            record = self.records.get(name) or Record(name)
            self.records[name] = replace(record, granted_at=granted_at)
        for action in planned.actions:
            self.act(action)
            self.check()
        self.proceed()
        return planned

    def converge(self, turns: int = 60) -> planner.Plan:
        """Runs until the planner has nothing to do except to start processes that do not start."""
        for _ in range(turns):
            before = (dict(self.devices), dict(self.ranks), dict(self.transfers))
            planned, ending = self.turn(), bool(self.lost)
            after = (self.devices, self.ranks, self.transfers)
            if not self.wanted(planned) and not ending and before == after:
                return planned
        raise AssertionError(f"still acting after {turns} turns: {planned.actions}")

    def wanted(self, planned: planner.Plan) -> list[actions.Action]:
        """Actions that lead anywhere."""
        return [
            each
            for each in planned.actions
            if not isinstance(each, actions.Look)
            and not (isinstance(each, actions.StartProxy) and each.device.name in self.failing)
        ]

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
        for name in list(self.lost):
            self.lost[name] -= 1
            if self.lost[name] < 0:
                self.lose(name)
        for name in self.records:
            if self.works(name):
                self.work[name] = self.work.get(name, 0) + 1
        for name, transfer in self.transfers.items():
            if transfer.lives:
                self.transfers[name] = self.transferred(name, transfer)

    def works(self, job: str) -> bool:
        """Whether all of its ranks are served and let go."""
        record = self.records[job]
        ranks = [rank for (name, _), rank in self.ranks.items() if name == job]
        there = [self.devices[d].job(job) for d in set(record.placement) if d in self.devices]
        return bool(there and ranks) and all(
            rank.state == "running" for rank in (*ranks, *there) if rank is not None
        )

    def transferred(self, job: str, transfer: Transfer) -> Transfer:
        """A transfer comes to its end."""
        over = replace(transfer, lives=False)
        restore = self.records[job].restore
        if restore is not None and restore.id != NODE and restore.number == transfer.number:
            if (job, restore.id) in self.damaged:
                return replace(over, state="failed", error="a unit is damaged")
            self.snapshots[job, transfer.number] = self.store[job, restore.id]
            return replace(over, state="done")
        if self.uploads == "slow":
            return transfer
        if self.uploads != "done":
            return replace(over, state="failed", error="full", retry=self.uploads == "retry")
        id = f"{self.records[job].incarnation}-{transfer.number}"
        self.store[job, id] = self.snapshots[job, transfer.number]
        return replace(over, state="done", id=id, bytes=1)

    def kill(self, job: str, rank: int) -> None:
        """Its launcher is killed, and the rank with it."""
        self.ranks.pop((job, rank), None)

    def exit(self, job: str, rank: int, status: int) -> None:
        self.ranks[job, rank] = ObservedRank(job, rank, "exited", exit_status=status)

    def lose(self, device: str) -> None:
        """Its proxy is killed: everything on it is gone."""
        self.devices.pop(device, None)
        self.lost.pop(device, None)

    def break_down(self, device: str, turns: int) -> None:
        """It serves no job any more, and its proxy ends after so many turns."""
        self.devices[device] = replace(self.devices[device], lost="its context has ended")
        self.lost[device] = turns

    # ---- actions

    def act(self, action: actions.Action) -> None:
        match action:
            case actions.StartProxy(device):
                assert device.name not in self.devices
                if device.name in self.failing:
                    return
                self.pids += 1
                starting = as_described(device, ready=False, pid=self.pids)
                self.devices[device.name] = starting
            case actions.StopProxy(name):
                assert not self.jobs_on(name), "stopped under a job"
                self.lose(name)
            case actions.Start():
                self.start(action)
            case actions.Place():
                self.place(action)
            case actions.Barrier():
                if action.save and self.records[action.job].save is None:
                    record = self.records[action.job]
                    save = Save(record.saves + 1, action.save, self.now, token=record.requested)
                    self.update(action.job, save=save, saves=save.number, requested="")
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
                    assert self.ranks[job, rank].state == "running", "a signal to an ended rank"
                    self.exit(job, rank, -signum)
            case actions.Finish(job, phase):
                assert not any(job in self.jobs_on(name) for name in self.devices)
                self.drop_local_snapshot(job)
                self.update(job, step="ended", phase=phase, placement=(), detached=(), restore=None)
            case actions.Forget(kind, name):
                self.forget(kind, name)
            case actions.Save():
                self.save(action)
            case actions.Upload() | actions.Fetch():
                self.transfer(action)
            case actions.Conclude():
                self.conclude(action)
            case actions.Thaw(job, ranks):
                self.set_ranks(job, ranks, "running")
            case actions.Look():
                self.look(action)
            case actions.QueryStore():
                self.query_store(action)
            case actions.Vacate():
                self.vacate(action)
            case actions.Rest():
                self.rest(action)
            case actions.Restore():
                self.restore(action)
            case _:
                assert_never(action)

    def start(self, action: actions.Start) -> None:
        job = action.job
        record = self.records.get(job.name, Record(job.name))
        if record.step == "new":
            self.work[job.name] = 0
            self.update(
                job.name,
                step="started",
                fixed=job,
                device=action.device,
                device_type=action.device_type,
            )
        for rank in action.ranks:
            assert (job.name, rank) not in self.ranks, "a rank was started twice"
            self.ranks[job.name, rank] = ObservedRank(
                job.name, rank, "running", incarnation=record.incarnation
            )

    def place(self, action: actions.Place) -> None:
        record = self.records[action.job]
        assert record.fixed is not None
        assert len(action.placement) == record.fixed.world_size
        devices = tuple(dict.fromkeys(action.placement))
        if record.local_snapshot is not None:
            self.drop_local_snapshot(action.job)
        if record.step != "placing":
            assert action.epoch > record.epoch
            assert not self.lost.keys() & set(devices), "placed on a lost device"
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
        save = record.save
        if save is not None and save.why == "rest":
            save = replace(save, why="request")
        self.update(action.job, step="placing")
        self.update(
            action.job,
            step="placed",
            epoch=action.epoch,
            placement=action.placement,
            proxies=pids,
            detached=(),
            save=save,
            saved_at=record.saved_at or self.now,
            placed_since=self.now,
            granted_at=0.0,
            placed_for=action.placed_for,
        )

    def detach(self, action: actions.Detach) -> None:
        for name in action.devices:
            there = self.devices[name].job(action.job)
            assert there and there.state in ("cut", "saved"), "detached without a cut"
        for name in action.devices:
            self.set_state(name, action.job, "saved")
        kept = () if action.suspend else self.records[action.job].placement
        self.update(action.job, step="detaching")
        self.update(
            action.job,
            step="detached",
            placement=kept,
            proxies={},
            detached=(),
            **self.records[action.job].counted(self.now),
            placed_since=None,
            rested_at=self.now,
            rest_error="",
        )

    # ---- saves and restores

    def save(self, action: actions.Save) -> None:
        job, record = action.job, self.records[action.job]
        if action.devices:
            assert set(action.devices) == set(record.placement)
            for name in action.devices:
                there = self.devices[name].job(job)
                assert there and there.state == "cut", "saved without a cut"
        else:
            assert not any(job in self.jobs_on(name) for name in self.devices), "it does not rest"
        if action.node:
            self.save_locally(action)
            return
        self.drop_local_snapshot(job)
        save, token = record.save, record.requested
        if save is None or save.number != action.number:
            save, token = Save(action.number, self.resting(job), self.now, token=token), ""
        save = replace(save, stage="saving", at=self.now)
        self.update(
            job,
            save=save,
            saves=max(record.saves, save.number),
            saved_at=self.now,
            requested=token,
        )
        gone = any((job, r) not in self.ranks for r in action.ranks)
        ended = gone or any(self.ranks[job, r].state == "exited" for r in action.ranks)
        living = tuple(r for r in action.ranks if (job, r) in self.ranks)
        self.set_ranks(job, living, "frozen")
        if self.killed_in_a_save:
            self.killed_in_a_save = False
            return
        failed = self.saves_fail or ended
        if failed or action.devices or save.why != "rest":
            self.set_ranks(job, living, "running")
        for name in action.devices:
            self.set_state(name, job, "running")
        if failed:
            self.failed(job, "a process cannot be saved")
            return
        self.saved.append(job)
        self.snapshots[job, action.number] = self.work[job]
        self.transfers[job] = Transfer(action.number)
        self.update(job, save=replace(save, stage="uploading"))

    def save_locally(self, action: actions.Save) -> None:
        job, record = action.job, self.records[action.job]
        assert record.local_snapshot is None or record.local_snapshot.number == action.number, (
            "a folder is forgotten"
        )
        self.update(
            job, local_snapshot=LocalSnapshot(action.number), saves=max(record.saves, action.number)
        )
        living = tuple(r for r in action.ranks if (job, r) in self.ranks)
        self.set_ranks(job, living, "frozen")
        if self.killed_in_a_save:
            self.killed_in_a_save = False
            return
        ended = len(living) < len(action.ranks) or any(
            self.ranks[job, r].state == "exited" for r in living
        )
        if self.saves_fail or ended:
            self.set_ranks(job, living, "running")
            self.update(job, local_snapshot=None, rest_error="io_uring", rest_failed_at=self.now)
            return
        self.snapshots[job, action.number] = self.work[job]
        wanted = self.desired.jobs.get(job)
        self.update(job, local_snapshot=LocalSnapshot(action.number, whole=True), rest_error="")
        if wanted is not None and wanted.suspended and not wanted.store:
            self.update(job, step="vacating", stored=NODE)

    def resting(self, job: str) -> str:
        wanted = self.desired.jobs.get(job)
        return "rest" if wanted is not None and wanted.store else "request"

    def drop_local_snapshot(self, job: str) -> None:
        local, save = self.records[job].local_snapshot, self.records[job].save
        if local is not None:
            if save is None or save.number != local.number:
                self.snapshots.pop((job, local.number), None)
            self.update(job, local_snapshot=None)

    def failed(self, job: str, error: str, again: bool = False) -> None:
        record = self.records[job]
        assert record.save is not None
        self.update(job, save=None, save_error=error, saved_at=self.now)
        tries = record.request_tries + 1
        if again and record.save.token and tries < saving.REQUEST_TRIES:
            self.update(job, requested=record.save.token, request_tries=tries)
        elif record.save.token:
            self.update(job, answer=Answer(record.save.token, error=error), request_tries=0)

    def transfer(self, action: actions.Upload | actions.Fetch) -> None:
        record = self.records[action.job]
        there = self.transfers.get(action.job)
        if there is not None and there.number == action.number:
            assert action.stuck == there.lives, "two work at it, or one that works is ended"
        if isinstance(action, actions.Fetch) and record.restore is None:
            assert not self.living(action.job), "the old incarnation lives"
            self.drop_local_snapshot(action.job)
            self.update(
                action.job,
                restore=Restore(action.number, action.id),
                saves=action.number,
                incarnation=record.incarnation + 1,
            )
        elif isinstance(action, actions.Upload) and record.save is None:
            local = record.local_snapshot
            assert local is not None and local.whole and local.number == action.number
            assert not self.living(action.job), "it was woken"
            save = Save(
                local.number, self.resting(action.job), self.now, "uploading", record.requested
            )
            self.update(action.job, save=replace(save, tries=1, tried_at=self.now), requested="")
            if self.dump_damaged:
                self.failed(action.job, "it is cut short")
                return
        elif record.save is not None:
            save = replace(record.save, tries=record.save.tries + 1, tried_at=self.now)
            self.update(action.job, save=save)
        self.transfers[action.job] = Transfer(action.number, "working", lives=True)

    def conclude(self, action: actions.Conclude) -> None:
        job, record = action.job, self.records[action.job]
        assert record.save is not None and record.save.number == action.number
        self.transfers.pop(job, None)
        if action.checkpoint is None:
            self.failed(job, action.error, action.again)
            return
        token = record.save.token
        self.update(
            job,
            save=None,
            save_error="",
            request_tries=0,
            checkpoints=(*record.checkpoints, action.checkpoint)[-action.keep :],
            answer=Answer(token, id=action.checkpoint.id) if token else record.answer,
        )
        if action.rest:
            self.update(job, step="vacating", stored=action.checkpoint.id, local_snapshot=None)

    def query_store(self, action: actions.QueryStore) -> None:
        assert all(map(self.works, action.jobs))
        self.questions.append(action.jobs)
        self.store_query = self.store_query.repeated(self.now, not self.store_silent)

    def look(self, action: actions.Look) -> None:
        job = action.job
        assert self.works(job)
        assert all((job, rank) in self.ranks for rank in action.ranks)
        self.looks += 1
        self.update(
            job,
            obstacle_checked=self.records[job].incarnation,
            obstacle_checked_at=self.now,
            save_obstacle=self.save_obstacle,
        )

    def vacate(self, action: actions.Vacate) -> None:
        record = self.records[action.job]
        if record.step == "vacating":
            assert record.stored != NODE or (
                record.local_snapshot is not None and record.local_snapshot.whole
            )
            saved = (
                self.snapshots[action.job, record.local_snapshot.number]
                if record.stored == NODE and record.local_snapshot is not None
                else self.store[action.job, record.stored]
            )
            assert saved == self.work[action.job], "it was ended, and what it did is not saved"
        else:
            assert record.ending or record.step == "restoring", "ended for nothing"
        for rank in action.ranks:
            del self.ranks[action.job, rank]

    def rest(self, action: actions.Rest) -> None:
        job, record = action.job, self.records[action.job]
        assert not self.living(job), "an old copy of a rank lives"
        for key in [key for key in self.ranks if key[0] == job]:
            del self.ranks[key]
        if action.restart:
            assert record.ending is not None and record.restarts < 100
            self.update(
                job,
                step="stored" if action.stored else "new",
                ending=None,
                placement=(),
                proxies={},
                detached=(),
                restarts=record.restarts + 1,
                save=None,
                restore=None,
                incarnation=record.incarnation + (0 if action.stored else 1),
                restart_cost="something",
            )
        elif action.unusable:
            self.update(
                job,
                step="stored",
                restore=None,
                restart_cost="something",
                unusable=(*record.unusable, action.unusable),
            )
        else:
            self.update(job, step="stored", restore=self.retried(record.restore))
        self.update(job, stored=action.stored)

    def retried(self, restore: Restore | None) -> Restore | None:
        if restore is None:
            return None
        return replace(
            restore, failed=False, error="again", tries=restore.tries + 1, tried_at=self.now
        )

    def restore(self, action: actions.Restore) -> None:
        job, record = action.job, self.records[action.job]
        if record.stored == NODE and record.restore is None:
            assert not self.living(job), "the old incarnation lives"
            restore = Restore(action.number, NODE)
            self.update(job, restore=restore, incarnation=record.incarnation + 1)
            record = self.records[job]
        assert record.restore is not None and record.restore.number == action.number
        self.update(job, step="restoring")
        if record.stored == NODE and self.dump_damaged:
            failed = replace(record.restore, failed=True, damaged=True, error="it is cut short")
            self.update(job, restore=failed)
            return
        for rank in action.missing:
            assert (job, rank) not in self.ranks, "an old copy of a rank lives"
            self.ranks[job, rank] = ObservedRank(job, rank, "empty", incarnation=record.incarnation)
        if self.restores_fail:
            failed = replace(record.restore, failed=True, error="another CPU", tried_at=self.now)
            self.update(job, restore=failed)
            return
        self.set_ranks(job, action.ranks, "frozen")
        self.work[job] = self.snapshots[job, action.number]
        if record.save is None:
            self.transfers.pop(job, None)
        self.update(
            job,
            step="detached",
            placement=(),
            restore=None,
            stored="",
            proxies={},
            rested_at=self.now,
        )

    def living(self, job: str) -> bool:
        return any(j == job and rank.state != "exited" for (j, _), rank in self.ranks.items())

    def set_ranks(self, job: str, ranks: tuple[int, ...], state: str) -> None:
        for rank in ranks:
            if self.ranks[job, rank].state != "exited":
                self.ranks[job, rank] = replace(self.ranks[job, rank], state=state)

    def forget(self, kind: str, name: str) -> None:
        if kind == "Job":
            self.records.pop(name)
        else:
            pools = {n: p for n, p in self.desired.pools.items() if n != name}
            self.desired = replace(self.desired, pools=pools)

    # ---- helpers

    def update(self, job: str, **fields: object) -> None:
        record = self.records.get(job, Record(job))
        after = replace(record, **fields)
        assert declared(record.step, after.step), f"{record.step} → {after.step} is not declared"
        self.transitions.add((record.step, after.step))
        self.records[job] = after

    def set_state(self, device: str, job: str, state: str) -> None:
        device_ = self.devices[device]
        jobs = tuple(replace(j, state=state) if j.job == job else j for j in device_.jobs)
        self.devices[device] = replace(device_, jobs=jobs)

    def jobs_on(self, device: str) -> list[str]:
        return [j.job for j in self.devices[device].jobs if j.state != "saved"]

    def check(self) -> None:
        """Checks what must hold after every action."""
        for name in self.devices:
            assert len(self.jobs_on(name)) <= 1, f"{name} serves {self.jobs_on(name)}"
