"""Executes the planner's actions, one at a time, each journalled before and after.

Called by the daemon's loop only. Before an action speaks to anybody, the record says that it
starts; after everybody answered, that it is done. Killed in between, the next reconciler plans the
same action again, and since every operation of proxies and launchers is idempotent, asking again
is harmless. Raises Temporary, Permanent or JobFailed; none of them stops the fleet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rankfold import control
from rankfold.messages import ProxyHello
from rankfold.reconciler import environment, plan
from rankfold.reconciler.faults import asked_for, point
from rankfold.reconciler.layout import Layout, is_locked, try_lock
from rankfold.reconciler.model import Json, Record
from rankfold.reconciler.observe import WORKERS, Connections, last_lines, read_exit, see_device
from rankfold.reconciler.store import Store

DETACH_TIMEOUT_S = 120.0  # writes a device's whole memory in the worst case
TELL_TIMEOUT_S = 10.0
LAUNCH_TIMEOUT_S = 30.0
PERMANENT_CODES = ("argument", "bad_request", "unknown_op", "version", "denied")


class Temporary(Exception):
    """An action that failed and may work later."""


class Permanent(Exception):
    """An action that will fail again until somebody changes something."""


class JobFailed(Exception):
    """A device says that the job itself has failed: asking again could only hide it."""


class Executor:
    def __init__(self, layout: Layout, store: Store, links: Connections):
        self.layout, self.store, self.links = layout, store, links

    def execute(self, action: plan.Action) -> None:
        """Do one action. Raises Temporary, Permanent or JobFailed."""
        try:
            match action:
                case plan.StartProxy():
                    self.start_proxy(action)
                case plan.StopProxy():
                    self.stop_proxy(action)
                case plan.Start():
                    self.start(action)
                case plan.Place():
                    self.place(action)
                case plan.Barrier():
                    self.barrier(action)
                case plan.Detach():
                    self.detach(action)
                case plan.Release():
                    self._update(action.job, placement=(), proxies={})
                case plan.End():
                    self._end(action)
                case plan.Discard():
                    self._tell(action.devices, "detach", action, {"discard": True})
                case plan.Signal():
                    self._signal(action)
                case plan.Finish():
                    self.finish(action)
                case plan.Forget():
                    self.store.forget(action.kind, action.name)
        except control.ControlError as error:
            kind = Permanent if error.code in PERMANENT_CODES else Temporary
            if error.code == "failed" and isinstance(
                action, (plan.Place, plan.Barrier, plan.Detach)
            ):
                raise JobFailed(error.message) from error
            raise kind(f"{type(action).__name__.lower()}: {error.message}") from error
        except (OSError, subprocess.SubprocessError) as error:
            raise Temporary(f"{type(action).__name__.lower()}: {error}") from error

    def _record(self, job: str) -> Record:
        return self.store.record(job) or Record(job)

    def _update(self, job: str, **fields: object) -> Record:
        record = dataclasses.replace(self._record(job), **fields)  # type: ignore[arg-type]
        self.store.save(record)
        return record

    # ---- proxies

    def start_proxy(self, action: plan.StartProxy) -> None:
        device = action.device
        lock_file = self.layout.proxy_file(device.name, ".lock")
        lock = try_lock(lock_file)
        if lock is None:
            return  # one lives already
        os.ftruncate(lock, 0)
        os.write(lock, device.name.encode())  # `observe` finds devices by it that no pool names
        arguments = [
            "--device", device.name, "--type", device.type, "--memory", str(device.memory),
            "--cc", device.cc, "--speed", str(device.speed), "--state", str(self.layout.state),
            "--index", device.name.rpartition("-")[2],
            "--socket", str(self.layout.proxy_socket(device.name)),
        ]  # fmt: skip
        program = os.environ.get("RANKFOLD_PROXY")  # tests stand in for a device with it
        command = (
            shlex.split(program) if program else [sys.executable, "-m", "rankfold.proxy.server"]
        )
        try:
            with self.layout.proxy_file(device.name, ".log").open("ab") as log:
                subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, pass_fds=(lock,), env=child_environment(),
                )  # fmt: skip
        finally:
            os.close(lock)
        point("proxy.started")
        self.store.event(f"Device/{device.name}", "ProxyStarted", "its proxy was started")

    def stop_proxy(self, action: plan.StopProxy) -> None:
        self.links.ask(self.layout.proxy_socket(action.device), "shutdown")
        self.links.drop(self.layout.proxy_socket(action.device))
        self.store.event(f"Device/{action.device}", "ProxyStopped", action.reason)

    # ---- start of a job

    def start(self, action: plan.Start) -> None:
        """Fix what stays for ever, then start the launchers that are not there."""
        job, record = action.job, self._record(action.job.name)
        if record.step == "new":
            if not Path(job.workdir).is_dir():  # nothing is fixed yet: the file can still change
                raise Permanent(f"the working directory {job.workdir} is not there")
            shutil.rmtree(self.layout.job(job.name), ignore_errors=True)
            self.layout.logs(job.name).mkdir(parents=True, mode=0o700)
            record = dataclasses.replace(
                record, step="started", fixed=job, device=action.device,
                device_type=action.device_type, master_port=free_port(), error="",
            )  # fmt: skip
            with self.store.transaction():
                self.store.begin(job.name, 0, "start", {"ranks": job.world_size})
                self.store.save(record)
                self.store.event(f"Job/{job.name}", "Started", f"{job.world_size} ranks")
            point("start.journalled")
        with ThreadPoolExecutor(WORKERS) as pool:
            first, *others = action.ranks
            self._launch(record, first)
            point("start.partly")
            for _ in pool.map(lambda rank: self._launch(record, rank), others):
                pass
        point("start.sent")
        self.store.done(job.name, 0, "start")

    def _launch(self, record: Record, rank: int) -> None:
        """A launcher refuses to be the second of its rank, so starting it twice is harmless."""
        config = self.layout.rank_file(record.name, rank, ".json")
        write_atomically(config, json.dumps(self._launcher_config(record, rank), indent=1))
        done = subprocess.run(
            [sys.executable, "-m", "rankfold.interpose.launcher", "--config", str(config)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=LAUNCH_TIMEOUT_S, env=environment.of_launcher(os.environ),
        )  # fmt: skip
        there = is_locked(self.layout.launcher_lock(record.name, rank))
        if done.returncode != 0 and not there and not read_exit(self.layout, record.name, rank):
            text = done.stderr.decode(errors="replace").strip().splitlines()
            raise Permanent(f"the launcher of rank {rank} did not start: {' / '.join(text[-3:])}")

    def _launcher_config(self, record: Record, rank: int) -> Json:
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
            "socket": str(self.layout.launcher_socket(job.name, rank)),
            "client_socket": str(self.layout.client_socket(job.name, rank)),
            "logs": str(self.layout.logs(job.name)),
            "exit_file": str(self.layout.rank_file(job.name, rank, ".exit")),
            "hidden": [str(self.layout.state), str(self.layout.sockets)],
        }

    # ---- placement

    def place(self, action: plan.Place) -> None:
        record = self._record(action.job)
        devices = tuple(dict.fromkeys(action.placement))
        if (record.step, record.epoch) != ("placing", action.epoch):
            proxies = {
                d: control.expect(ProxyHello, self.links.hello(self.layout.proxy_socket(d))).pid
                for d in devices
            }
            record = dataclasses.replace(
                record, step="placing", epoch=action.epoch, placement=action.placement,
                proxies=proxies, detached=(), held_since=time.time(),
            )  # fmt: skip
            with self.store.transaction():
                self.store.begin(action.job, action.epoch, "place", {"placement": action.placement})
                self.store.save(record)
                self._mark(action.job, placed_at=time.monotonic())
            point("place.journalled")
        assert record.fixed is not None
        arguments = {
            "determinism": record.fixed.determinism,
            "world_size": record.fixed.world_size,
            "members": [
                {
                    "rank": r,
                    "device": d,
                    "launcher": str(self.layout.launcher_socket(action.job, r)),
                }
                for r, d in enumerate(action.placement)
            ],
            "devices": [{"device": d, "socket": str(self.layout.proxy_socket(d))} for d in devices],
        }
        self._tell(devices, "place", action, arguments, fault="place")
        point("place.sent")
        with self.store.transaction():
            self._update(action.job, step="placed")
            self.store.done(action.job, action.epoch, "place")
            text = f"epoch {action.epoch}: {describe_placement(action.placement)}"
            self.store.event(f"Job/{action.job}", "Placed", text)

    def barrier(self, action: plan.Barrier) -> None:
        kind = f"barrier-{action.action}"
        self.store.begin(action.job, action.epoch, kind, {"devices": action.devices})
        point("barrier.journalled")
        self._tell(action.devices, "barrier", action, {"action": action.action}, fault="barrier")
        self.store.done(action.job, action.epoch, kind)
        reason = "BarrierRequested" if action.action == "request" else "BarrierWithdrawn"
        self.store.event(f"Job/{action.job}", reason, f"epoch {action.epoch}")

    def detach(self, action: plan.Detach) -> None:
        record = self._record(action.job)
        if record.step != "detaching":
            with self.store.transaction():
                self.store.begin(action.job, action.epoch, "detach", {"devices": action.devices})
                self._update(action.job, step="detaching", detached=())
            point("detach.journalled")

        def confirmed(device: str) -> None:
            self.store.save(_with_detached(self._record(action.job), device))

        self._tell(
            action.devices, "detach", action, {"discard": False}, fault="detach", then=confirmed
        )
        point("detach.sent")
        with self.store.transaction():
            record = self._record(action.job)
            kept = () if action.suspend else record.placement
            self._update(
                action.job, step="detached", placement=kept, proxies={}, detached=(),
                gpu_seconds=used_so_far(record), held_since=None,
            )  # fmt: skip
            self.store.done(action.job, action.epoch, "detach")
            what = "Suspended" if action.suspend else "Detached"
            self.store.event(f"Job/{action.job}", what, f"epoch {action.epoch}")

    def _tell(
        self,
        targets: Iterable[str],
        op: str,
        action: plan.Place | plan.Barrier | plan.Detach | plan.Discard,
        arguments: Json,
        fault: str = "",
        then: Callable[[str], None] = lambda _device: None,
    ) -> None:
        """Ask all devices at once; `then` is called here for each that agreed.

        Raises the first ControlError after all have answered. A fault point ``<fault>.partly``
        makes the first device be asked alone.
        """
        request = {"job": action.job, "epoch": action.epoch, **arguments}
        timeout = DETACH_TIMEOUT_S if op == "detach" else TELL_TIMEOUT_S

        def one(device: str) -> tuple[str, control.ControlError | None]:
            try:
                self.links.ask(self.layout.proxy_socket(device), op, timeout, **request)
            except control.ControlError as error:
                return device, error
            return device, None

        remaining = list(targets)
        results = []
        if fault and asked_for(f"{fault}.partly"):
            results.append(one(remaining.pop(0)))
            point(f"{fault}.partly")
        with ThreadPoolExecutor(WORKERS) as pool:
            results += pool.map(one, remaining)
        errors = []
        for device, error in results:
            if error is None:
                then(device)
            else:
                errors.append(control.ControlError(error.code, f"{device}: {error.message}"))
        if errors:
            raise errors[0]

    # ---- the end of a job

    def _end(self, action: plan.End) -> None:
        counters = self._last_counters(self._record(action.job))
        with self.store.transaction():
            self._update(action.job, ending=action.ending, counters=counters, error="")
            kind = "Normal" if action.ending.phase == "Succeeded" else "Warning"
            self.store.event(f"Job/{action.job}", action.ending.reason, action.ending.message, kind)

    def _last_counters(self, record: Record) -> dict[str, Json]:
        """What the proxies counted for each rank, before they let go of the job."""
        counters = dict(record.counters)
        for device in sorted(record.holds()):
            seen = see_device(self.layout, device, self.links)
            there = seen.job(record.name) if seen else None
            if there and there.epoch == record.epoch:
                counters.update({str(each.rank): each.counters for each in there.ranks})
        return counters

    def _signal(self, action: plan.Signal) -> None:
        for rank in action.ranks:
            with contextlib.suppress(control.ControlError):  # it may be gone by now
                path = self.layout.launcher_socket(action.job, rank)
                self.links.ask(path, "signal", signum=action.signum)

    def finish(self, action: plan.Finish) -> None:
        record = self._record(action.job)
        ranks = range(record.fixed.world_size if record.fixed else 0)
        seen = [read_exit(self.layout, action.job, rank) for rank in ranks]
        ending = record.ending
        assert ending is not None
        if ending.reason in ("RankFailed", "DeviceReported", "DeviceLost"):
            ending = dataclasses.replace(ending, message=self._with_stderr(record, ending.message))
        self._sweep(action.job, ranks)
        point("finish.before")
        with self.store.transaction():
            self._update(
                action.job, step="ended", phase=action.phase, placement=(), proxies={}, detached=(),
                ending=ending, exits=tuple(each.exit_status if each else None for each in seen),
                gpu_seconds=used_so_far(record), held_since=None, error="",
            )  # fmt: skip
            kind = "Normal" if action.phase == "Succeeded" else "Warning"
            self.store.event(f"Job/{action.job}", action.phase, ending.message, kind)

    def _sweep(self, job: str, ranks: Iterable[int]) -> None:
        """Sockets of launchers that were killed; the others take theirs with them."""
        for rank in ranks:
            if not is_locked(self.layout.launcher_lock(job, rank)):
                self.layout.launcher_socket(job, rank).unlink(missing_ok=True)
                self.layout.client_socket(job, rank).unlink(missing_ok=True)

    def _with_stderr(self, record: Record, message: str) -> str:
        """Add the last lines of the failed rank's stderr: what people look for first."""
        words = message.split()
        if len(words) < 2 or words[0] != "rank" or not words[1].isdigit():
            return message
        text = last_lines(self.layout.logs(record.name) / f"rank-{words[1]}.err")
        known = text.removeprefix("rankfold: ") in message
        return message if known else f"{message}\n{text}"

    def _mark(self, job: str, **fields: float) -> None:
        """Note a time in the job's open change."""
        for change in self.store.changes(job, only_open=True):
            self.store.save_change(dataclasses.replace(change, **fields), open=True)  # type: ignore[arg-type]


# ---- helpers -----------------------------------------------------------------------------------


def _with_detached(record: Record, device: str) -> Record:
    return dataclasses.replace(record, detached=tuple(sorted({*record.detached, device})))


def used_so_far(record: Record) -> float:
    """Device-seconds of a job: each of its devices counts while it is placed there."""
    if record.held_since is None:
        return record.gpu_seconds
    held = max(0.0, time.time() - record.held_since)
    return record.gpu_seconds + held * len(set(record.placement))


def describe_placement(placement: tuple[str, ...]) -> str:
    """``ranks 0-1 on a, 2-3 on b``"""
    parts = []
    for device in dict.fromkeys(placement):
        ranks = [r for r, d in enumerate(placement) if d == device]
        span = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
        parts.append(f"{span} on {device}")
    return "ranks " + ", ".join(parts)


def child_environment() -> dict[str, str]:
    """Ours, less what is meant for the reconciler alone."""
    return {k: v for k, v in os.environ.items() if k != "RANKFOLD_FAULT"}


def free_port() -> int:
    """A TCP port that is free now. Ranks share the host's network: nobody holds it for them."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def write_atomically(path: Path, text: str) -> None:
    """For our own eyes: environments may hold what is nobody else's business."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
