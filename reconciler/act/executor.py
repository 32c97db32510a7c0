"""Executes the planner's actions, each journalled before and after.

An action is a generator: it yields everything that may block as calls, and is resumed with their
results (inflight.py). Everything else, above all the journal, happens in the loop's thread. Before
an action sends a request, the record says that the action starts; after all replies, that it is
done. If the reconciler is killed in between, the next one plans the same action again; since every
operation of proxies and launchers is idempotent, repeating it is harmless. Raises Temporary,
Permanent or JobFailed; none of them stops the fleet.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, assert_never

from msgspec import structs

from rankfold import control, paths
from rankfold.messages import of_incarnation
from rankfold.reconciler import actions, clock
from rankfold.reconciler.act.inflight import Call, Steps
from rankfold.reconciler.act.jobs import JobActions
from rankfold.reconciler.act.restores import Restores
from rankfold.reconciler.act.saves import Saves
from rankfold.reconciler.act.takeover import Takeover
from rankfold.reconciler.act.transfers import Transfers
from rankfold.reconciler.deadlines import DETACH_S, REQUEST_S, RESTED_S
from rankfold.reconciler.faults import point, requested
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout, try_lock
from rankfold.reconciler.model import runtimes
from rankfold.reconciler.model.observed import JobOnDevice, Observed, ObservedDevice
from rankfold.reconciler.model.recorded import Ending, Record, Save
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node import environment
from rankfold.reconciler.node.launchers import CannotLaunch, Node, child_environment
from rankfold.reconciler.observe.fleet import reported_jobs
from rankfold.reconciler.wording import count, still_running

DISCARD: Json = {"discard": True}
PERMANENT_CODES = ("argument", "bad_request", "unknown_op", "version", "denied")


class Temporary(Exception):
    """An action that failed and may work later."""


class Permanent(Exception):
    """An action that will fail again until a person changes something."""


class JobFailed(Exception):
    """A device reports that the job itself has failed; another try could only hide that."""


class Executor(JobActions):
    """Executes actions: writes the journal, starts proxies and launchers, sends them requests."""

    def __init__(self, layout: Layout, journal: Journal):
        super().__init__(layout, journal, Node(layout))
        self.saves = Saves(layout, journal, self.node)
        self.transfers = Transfers(self.saves)
        self.takeover = Takeover(layout, journal, self.node)
        self.restores = Restores(self.takeover, self._launcher_config)

    def steps(self, action: actions.Action, observed: Observed) -> Steps:
        """Execute one action. Raises Temporary, Permanent or JobFailed. observed: the state for
        which it was planned."""
        try:
            match action:
                case actions.StartProxy():
                    self.start_proxy(action)
                case actions.StopProxy():
                    yield from self.stop_proxy(action)
                case actions.Start():
                    yield from self.start(action, observed)
                case actions.Place():
                    yield from self.place(action, observed)
                case actions.Barrier():
                    yield from self.barrier(action)
                case actions.Detach():
                    yield from self.detach(action)
                case actions.Release():
                    self._update(action.job, placement=(), proxies={})
                case actions.End():
                    self._end(action, observed)
                case actions.Discard():
                    yield from self.discard(action)
                case actions.Signal():
                    yield from self._signal(action)
                case actions.Finish():
                    yield from self.finish(action)
                case actions.Forget():
                    self.journal.forget(action.kind, action.name)
                case actions.Save():
                    if action.node:
                        yield from self.saves.save_on_node(action)
                    else:
                        yield from self.saves.save(action, observed)
                case actions.Upload():
                    yield from self.transfers.upload(action)
                case actions.Conclude():
                    yield from self.saves.conclude(action)
                case actions.Thaw():
                    yield from self.saves.thaw(action)
                case actions.Look():
                    yield from self.saves.look(action)
                case actions.QueryStore():
                    endings = yield from self.takeover.query(action.jobs)
                    for job, ending in endings.items():
                        self._end(actions.End(job, ending), observed)
                case actions.Vacate():
                    yield from self.restores.vacate(action)
                case actions.Rest():
                    yield from self.restores.wait_launchers_ended(action.job)
                    self.restores.rest(action)
                case actions.Fetch():
                    yield from self.transfers.fetch(action)
                case actions.Restore():
                    yield from self.restores.restore(action)
                case _:
                    assert_never(action)
        except control.ControlError as error:
            kind = Permanent if error.code in PERMANENT_CODES else Temporary
            if error.code == "failed" and isinstance(
                action, (actions.Place, actions.Barrier, actions.Detach)
            ):
                raise JobFailed(error.message) from error
            raise kind(f"{type(action).__name__.lower()}: {error.message}") from error
        except CannotLaunch as error:
            raise Permanent(str(error)) from error
        except (OSError, subprocess.SubprocessError) as error:
            raise Temporary(f"{type(action).__name__.lower()}: {error}") from error

    # ---- proxies

    def start_proxy(self, action: actions.StartProxy) -> None:
        device = action.device
        lock_file = self.layout.proxy_file(device.name, ".lock")
        lock = try_lock(lock_file)
        if lock is None:
            return  # one lives already
        os.ftruncate(lock, 0)
        os.write(lock, device.name.encode())  # by this `observe` finds devices that are in no pool
        arguments = [
            "--device",
            device.name,
            "--type",
            device.type,
            "--memory",
            str(device.memory),
            "--cc",
            device.cc,
            "--speed",
            str(device.speed),
            "--state",
            str(self.layout.state),
            "--index",
            device.name.rpartition("-")[2],
            "--socket",
            str(self.layout.proxy_socket(device.name)),
        ]
        if device.core_count:
            arguments += ["--cores", str(device.core_count), "--first-core", str(device.first_core)]
        if device.runtime:
            arguments += ["--runtime", device.runtime]
        program = os.environ.get("RANKFOLD_PROXY")  # tests replace the proxy program with it
        command = (
            shlex.split(program) if program else [sys.executable, "-m", runtimes.server(device)]
        )
        try:
            with self.layout.proxy_file(device.name, ".log").open("ab") as log:
                subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock,),
                    env=child_environment(),
                )
        finally:
            os.close(lock)
        point("proxy.started")
        self.journal.event(f"Device/{device.name}", "ProxyStarted", "its proxy was started")

    def stop_proxy(self, action: actions.StopProxy) -> Steps:
        path = self.layout.proxy_socket(action.device)
        results = yield [lambda: control.call(path, "shutdown", timeout=REQUEST_S)]
        _agreed((action.device,), results)
        self.journal.event(f"Device/{action.device}", "ProxyStopped", action.reason)

    # ---- start of a job

    def start(self, action: actions.Start, observed: Observed) -> Steps:
        """Record what never changes for the job, then start the launchers that do not exist."""
        job, record = action.job, self._record(action.job.name)
        if record.step == "new":
            if not Path(job.workdir).is_dir():  # nothing is fixed yet: the file can still change
                raise Permanent(f"the working directory {job.workdir} does not exist")
            self.node.begin(job.name)
            record = structs.replace(
                record,
                step="started",
                fixed=job,
                device=action.device,
                device_type=action.device_type,
                master_port=free_port(),
                error="",
                incarnation=self._incarnation(record, observed),
                local_snapshot=None,
            )
            with self.journal.transaction():
                self.journal.begin(job.name, 0, "start", {"ranks": job.world_size})
                self.journal.save(record)
                self.journal.event(f"Job/{job.name}", "Started", count(job.world_size, "rank"))
            point("start.journalled")
        ranks = list(action.ranks)
        while ranks:  # only the first one at first, if a test requests that
            first = 1 if requested("start.partly") else len(ranks)
            batch, ranks = ranks[:first], ranks[first:]
            (trouble,) = yield [self._launching(record, batch)]
            point("start.partly")
            if _is_error(trouble):
                raise trouble
        point("start.sent")
        self.journal.end_action(job.name, 0, "start")

    def _incarnation(self, record: Record, observed: Observed) -> int:
        """An incarnation above those of any earlier job of this name: the store and devices may
        remember them."""
        had = [int(self.journal.get("incarnations", {}).get(record.name, 0))]
        there = (each.job(record.name) for each in observed.devices.values())
        had += [each.incarnation for each in there if each]
        return max(record.incarnation, max(had) + 1)

    def _launching(self, record: Record, ranks: Sequence[int]) -> Call:
        configs = [self._launcher_config(record, rank) for rank in ranks]
        return lambda: self.node.launch(configs)

    def _launcher_config(self, record: Record, rank: int) -> Json:
        """The configuration of a rank's launcher, without the paths that the node adds."""
        job = record.fixed
        assert job is not None
        return {
            "job": job.name,
            "rank": rank,
            "world_size": job.world_size,
            "command": list(job.command),
            "workdir": job.workdir,
            "env": environment.of_ranks(job, os.environ),
            "inherit": False,
            "master_addr": "127.0.0.1",
            "master_port": record.master_port,
            "device": record.device,
            "incarnation": record.incarnation,
            **runtimes.of_launcher(
                job,
                rank,
                record.incarnation,
                str(self.layout.job(job.name).absolute()),
                str(paths.REPOSITORY),
            ),
        }

    # ---- placement

    def place(self, action: actions.Place, observed: Observed) -> Steps:
        record = self._record(action.job)
        devices = tuple(dict.fromkeys(action.placement))
        if (record.step, record.epoch) != ("placing", action.epoch):
            if record.step == "detached" and not 0 <= clock.now() - record.rested_at < RESTED_S:
                yield from self.takeover.need_own(action.job)
            yield from self.saves.drop_local_snapshot(action.job)
            record = self._record(action.job)
            proxies = {d: observed.devices[d].pid for d in devices}
            record = structs.replace(
                record,
                step="placing",
                epoch=action.epoch,
                placement=action.placement,
                proxies=proxies,
                detached=(),
                placed_since=clock.now(),
                granted_at=0.0,
                placed_for=action.placed_for,
                saved_at=record.saved_at or clock.now(),
                save=_ordinary_save(record.save),
            )
            with self.journal.transaction():
                placement = {"placement": action.placement}
                self.journal.begin(action.job, action.epoch, "place", placement)
                self.journal.save(record)
                self._mark(action.job, placed_at=clock.now())
            point("place.journalled")
        assert record.fixed is not None
        arguments = {
            "determinism": record.fixed.determinism,
            "check_order": record.fixed.check_order,
            "cc": f"{record.device['cc_major']}.{record.device['cc_minor']}",
            "world_size": record.fixed.world_size,
            **of_incarnation(record.incarnation),
            "members": [
                {
                    "rank": r,
                    "device": d,
                    "launcher": str(self.node.door(action.job, r)),
                }
                for r, d in enumerate(action.placement)
            ],
            "devices": [self._peered(observed.devices[d]) for d in devices],
        }
        yield from self._request_all(devices, "place", action, arguments)
        point("place.sent")
        with self.journal.transaction():
            self._update(action.job, step="placed")
            self.journal.end_action(action.job, action.epoch, "place")
            text = f"epoch {action.epoch}: {describe_placement(action.placement)}"
            self.journal.event(f"Job/{action.job}", "Placed", text)

    def _peered(self, device: ObservedDevice) -> Json:
        found: Json = {"device": device.name, "socket": str(self.layout.proxy_socket(device.name))}
        if device.cores:  # proxies older than the field would refuse it
            found["cores"] = list(device.cores)
        if device.gpu:
            found |= {"gpu": device.gpu, "memory": device.memory}
        return found

    def barrier(self, action: actions.Barrier) -> Steps:
        kind = f"barrier-{action.action}"
        with self.journal.transaction():
            self.journal.begin(action.job, action.epoch, kind, {"devices": action.devices})
            if action.save:
                self.saves.begin(action.job, action.save)
        point("barrier.journalled")
        yield from self._request_all(action.devices, "barrier", action, {"action": action.action})
        self.journal.end_action(action.job, action.epoch, kind)
        reason = "BarrierRequested" if action.action == "request" else "BarrierWithdrawn"
        self.journal.event(f"Job/{action.job}", reason, f"epoch {action.epoch}")

    def detach(self, action: actions.Detach) -> Steps:
        record = self._record(action.job)
        if record.step != "detaching":
            with self.journal.transaction():
                self.journal.begin(action.job, action.epoch, "detach", {"devices": action.devices})
                self._update(action.job, step="detaching", detached=())
            point("detach.journalled")
        yield from self._request_all(action.devices, "detach", action, {"discard": False})
        point("detach.sent")
        with self.journal.transaction():
            record = self._record(action.job)
            kept = () if action.suspend else record.placement
            self._update(
                action.job,
                step="detached",
                placement=kept,
                proxies={},
                detached=(),
                **record.counted(clock.now()),
                placed_since=None,
                rested_at=clock.now(),
                rest_error="",
            )
            self.journal.end_action(action.job, action.epoch, "detach")
            kind = "Suspended" if action.suspend else "Detached"
            self.journal.event(f"Job/{action.job}", kind, f"epoch {action.epoch}")

    def _request_all(
        self,
        devices: Sequence[str],
        op: str,
        action: actions.Place | actions.Barrier | actions.Detach,
        arguments: Json,
    ) -> Steps:
        """Send a request to all devices at once, and journal which of them have detached the job.

        Raises the first ControlError after all have answered. The fault point ``<op>.partly`` makes
        the first device get the request alone.
        """
        left = list(devices)
        while left:
            count = 1 if requested(f"{op}.partly") else len(left)
            batch, left = left[:count], left[count:]
            results = yield self._requests(batch, op, action, arguments)
            point(f"{op}.partly")
            agreed = [d for d, result in zip(batch, results, strict=True) if not _is_error(result)]
            if op == "detach" and agreed:
                record = self._record(action.job)
                detached = tuple(sorted({*record.detached, *agreed}))
                self.journal.save(structs.replace(record, detached=detached))
            _agreed(batch, results)

    def _requests(
        self,
        devices: Iterable[str],
        op: str,
        action: actions.Place | actions.Barrier | actions.Detach | actions.Discard,
        arguments: Json,
    ) -> list[Call]:
        """One request for each device."""
        request = {"job": action.job, "epoch": action.epoch, **arguments}
        timeout = DETACH_S if op == "detach" else REQUEST_S

        def request_to(path: Path) -> Call:
            return lambda: control.call(path, op, timeout=timeout, **request)

        return [request_to(self.layout.proxy_socket(device)) for device in devices]

    # ---- the end of a job

    def _end(self, action: actions.End, observed: Observed) -> None:
        record, ending = self._record(action.job), action.ending
        if record.step == "new" and not any(d.job(record.name) for d in observed.devices.values()):
            self._never_started(record, ending)
            return
        devices = (observed.devices.get(device) for device in record.holds())
        reports = (each.job(action.job) for each in devices if each)
        counters = _last_counters(record, filter(None, reports))
        with self.journal.transaction():
            self._update(action.job, ending=ending, counters=counters, error="")
            kind = "Normal" if ending.phase == "Succeeded" else "Warning"
            self.journal.event(f"Job/{action.job}", ending.reason, ending.message, kind)

    def _never_started(self, record: Record, ending: Ending) -> None:
        """End a job that holds nothing to be released, at once."""
        ended = structs.replace(record, step="ended", phase=ending.phase, ending=ending, error="")
        with self.journal.transaction():
            self.journal.save(ended)
            for reason in (ending.reason, ending.phase):
                self.journal.event(f"Job/{record.name}", reason, ending.message, "Warning")

    def discard(self, action: actions.Discard) -> Steps:
        """Discard a job on a device. If the job is ending, record its counters first: those
        recorded when its end was noticed may be older than its last work."""
        devices, path = (action.device,), self.layout.proxy_socket(action.device)
        if self._record(action.job).ending:
            results = yield [lambda: control.call(path, "status", timeout=REQUEST_S)]
            _agreed(devices, results)
            reports = [each for each in reported_jobs(results[0]) if each.job == action.job]
            record = self._record(action.job)
            self._update(action.job, counters=_last_counters(record, reports))
        _agreed(devices, (yield self._requests(devices, "detach", action, DISCARD)))

    def _signal(self, action: actions.Signal) -> Steps:
        """Send a signal to ranks. Errors are ignored: some of them may have ended by now."""

        arguments = {
            "signum": action.signum,
            **of_incarnation(self._record(action.job).incarnation),
        }

        def signalling(rank: int) -> Call:
            return lambda: self.node.request(action.job, rank, "signal", REQUEST_S, **arguments)

        yield [signalling(rank) for rank in action.ranks]

    def finish(self, action: actions.Finish) -> Steps:
        yield [lambda: self.node.tidy(action.job)]  # also ends an upload that is no longer needed
        record = self._record(action.job)
        ranks = range(record.fixed.world_size if record.fixed else 0)
        ended_ranks = [self.node.ended(action.job, rank) for rank in ranks]
        ending = record.ending
        assert ending is not None
        if ending.rank is not None:
            message = self._with_stderr(record, ending.rank, ending.message)
            ending = structs.replace(ending, message=message)
        self.node.sweep(action.job, ranks)
        point("finish.before")
        with self.journal.transaction():
            self._update(
                action.job,
                step="ended",
                phase=action.phase,
                placement=(),
                proxies={},
                detached=(),
                save=None,
                restore=None,
                local_snapshot=None,
                ending=ending,
                exits=tuple(each.exit_status if each else None for each in ended_ranks),
                **record.counted(clock.now()),
                placed_since=None,
                error="",
            )
            kind = "Normal" if action.phase == "Succeeded" else "Warning"
            left = ending.phase == "Succeeded" and still_running(
                {each.rank: each.killed for each in ended_ranks if each}
            )
            if left:
                self.journal.event(f"Job/{action.job}", "ProcessesKilled", left[0], "Warning")
            self.journal.event(f"Job/{action.job}", action.phase, ending.message, kind)

    def _with_stderr(self, record: Record, rank: int, message: str) -> str:
        """Add the last lines of the failed rank's stderr, which people look for first."""
        text = self.node.last_lines(record.name, rank)
        known = text.removeprefix("rankfold: ") in message
        return message if known else f"{message}\n{text}"

    def _mark(self, job: str, **fields: float) -> None:
        """Record a time in the job's open change."""
        for change in self.journal.changes(job, only_open=True):
            self.journal.save_change(structs.replace(change, **fields), open=True)


# ---- helpers -----------------------------------------------------------------------------------


def _is_error(result: object) -> bool:
    return isinstance(result, Exception)


def _agreed(devices: Sequence[str], results: Sequence[Any]) -> None:
    """Raise the first error among the results. Of several ControlErrors, one with code "failed"
    takes precedence: the job has failed."""
    errors = []
    for device, error in zip(devices, results, strict=True):
        if isinstance(error, control.ControlError):
            errors.append(control.ControlError(error.code, f"{device}: {error.message}"))
        elif isinstance(error, Exception):
            raise error
    for each in sorted(errors, key=lambda error: error.code != "failed"):
        raise each


def _ordinary_save(save: Save | None) -> Save | None:
    """The save of a job that is placed: if it was to let the job rest, it becomes an ordinary
    one."""
    return structs.replace(save, why="request") if save and save.why == "rest" else save


def _last_counters(record: Record, reports: Iterable[JobOnDevice]) -> dict[str, Json]:
    """The recorded counters of each rank, updated with the devices' reports."""
    counters = dict(record.counters)
    for there in reports:
        if there.epoch == record.epoch:
            counters.update({str(each.rank): each.counters for each in there.ranks})
    return counters


def describe_placement(placement: tuple[str, ...]) -> str:
    """For example ``ranks 0-1 on a, 2-3 on b``."""
    parts = []
    for device in dict.fromkeys(placement):
        ranks = [r for r, d in enumerate(placement) if d == device]
        span = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
        parts.append(f"{span} on {device}")
    return "ranks " + ", ".join(parts)


def free_port() -> int:
    """A TCP port that is free now. Ranks share the host's network, and it is not reserved for
    them."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
