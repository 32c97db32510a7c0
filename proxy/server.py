"""The device proxy's process: `python -m rankfold.proxy.server`, one per device.

The reconciler starts it; it serves the operations listed in `rankfold.messages`. This half decides
and communicates: it connects the proxies of a job, claims ranks from their launchers, and has
modules loaded. The C half (`native`) does everything that happens per call of a rank; this half
never waits for it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rankfold import limits, messages, switches
from rankfold.control import Channel, ControlError, Frame, Message
from rankfold.log import area, set_up
from rankfold.proxy.jobs import Job, Placement
from rankfold.proxy.modules import ModuleStore
from rankfold.proxy.native import (
    EVENT_ALARM,
    EVENT_FUNCTION,
    EVENT_JOB,
    EVENT_LOST,
    EVENT_MODULE,
    EVENT_RACE,
    EVENT_SAVED,
    EXIT_CLEAN,
    EXIT_CRASHED,
    EXIT_REPLACED,
    Event,
    Native,
    NativeError,
    segment_create,
)
from rankfold.service import Outgoing, Request, Server

log = area(__file__)

# Time for programs to exit by their errors before the proxy of a lost device exits; remaining jobs
# then see the proxy as killed. The reconciler does not wait if there are no jobs.
DEVICE_LOST_GRACE_S = 3.0
LOADS = max(2, os.cpu_count() or 1)  # modules and kernels loaded at once, as many as compiled
LOOK_S = 1.0  # between two checks of jobs' progress
CLOSE_S = 10.0  # for modules that are still being loaded, and for work on the device, at the end
IDLE_EXIT_S = 600.0  # without ranks and without a request for this long, a proxy exits
MOVING = ("running", "stopping", "cut")  # a job whose devices have connected, until it ends
HISTORY = 256  # ranks of ended placements that `status` still reports
SAVED_JOBS = 16  # jobs that `status` still reports after they were released


class Proxy:
    """The server of one device."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        major, minor = (int(part) for part in options.cc.split("."))
        shares = options.type != "nvidia"  # sharing saves no time there yet
        self.native = Native(
            options.type,
            options.memory,
            (major, minor),
            options.speed,
            options.workers,
            int(min(_NEVER, 1e9 * switches.quantum_s())),
            index=options.index,
            share=switches.share(shares),
            squash=switches.squash(),
            opaque=switches.opaque(),
            prepare=switches.prefetch(),
            validate=min(_NEVER, switches.validate()),
            moves_fd=_moves_fd(),
        )
        self.modules = ModuleStore(options.type, Path(options.state), (major, minor))
        self.pool = ThreadPoolExecutor(LOADS, thread_name_prefix="modules")
        self.storing = ThreadPoolExecutor(1, thread_name_prefix="images")
        self.jobs: dict[str, Job] = {}
        self.history: list[Message] = []
        self._next_id = 0
        self.lost = ""  # why the device serves no jobs any more
        self._last_request = time.monotonic()
        self._stays = False  # it would exit if it had no ranks; logged once
        self.server = Server(
            options.socket,
            {
                messages.Hello: self.hello,
                messages.Status: self.status,
                messages.Place: self.place,
                messages.Barrier: self.barrier,
                messages.Wait: self.wait,
                messages.Save: self.save,
                messages.Detach: self.detach,
                messages.Peer: self.peer,
                messages.DebugText: lambda _request: {"text": self.native.debug_text()},
                messages.Shutdown: self.shutdown,
            },
            serves=options.state,
        )
        self.server.on_close = self._on_peer_disconnected
        self.server.add(self.native.event_fd, self._events)
        self.server.after(LOOK_S, self._look)

    def run(self) -> None:
        """Serve until `shutdown`, or until the device is lost; then another proxy may open it."""
        log.info("device %s serves at %s", self.options.device, self.options.socket)
        self.server.run()
        if self.lost:  # a kernel may never end: do not wait for the driver
            os._exit(1)
        self.modules.close()
        with self._within("a module or kernel that is being loaded"):
            self.pool.shutdown(cancel_futures=True)
            self.storing.shutdown(cancel_futures=True)
        with self._within("work that the device does not end"):
            self.native.close()

    @contextlib.contextmanager
    def _within(self, what: str) -> Iterator[None]:
        """Exit at once, with a line in the log, if the block has not ended after CLOSE_S. Until the
        process exits, no other proxy can open the device."""

        def leave() -> None:
            log.error(
                "device %s: exiting after %g s of waiting for %s",
                self.options.device,
                CLOSE_S,
                what,
            )
            logging.shutdown()
            os._exit(1)

        timer = threading.Timer(CLOSE_S, leave)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    # ---- operations ----

    def hello(self, _request: Request[messages.Hello]) -> Message:
        self._last_request = time.monotonic()
        o = self.options
        return {
            "kind": "proxy",
            "device": o.device,
            "type": o.type,
            "memory": o.memory,
            "cc": o.cc,
            "speed": o.speed,
            "pid": os.getpid(),
        }

    def shutdown(self, _request: Request[messages.Shutdown]) -> Message:
        self.server.after(0.0, self.server.stop)
        return {}

    def status(self, _request: Request[messages.Status]) -> Message:
        self._last_request = time.monotonic()
        o = self.options
        return {
            "device": o.device,
            "type": o.type,
            "memory": o.memory,
            "pid": os.getpid(),
            **self.native.status(),
            "trouble": self.modules.images.trouble,
            "lost": self.lost,
            "loaded": self.modules.kernels,
            "jobs": [self._describe(job) for job in self.jobs.values()],
            "history": self.history,
        }

    def place(self, request: Request[messages.Place]) -> Message:
        self._last_request = time.monotonic()
        placement = Placement.read(request.message)
        if self.options.device not in placement.devices:
            raise ControlError("argument", f"{self.options.device} is not among the devices")
        if self.lost:
            raise ControlError("busy", f"{self.options.device} was lost and is being restarted")
        old = self.jobs.get(placement.job)
        if old and old.placement.incarnation > placement.incarnation:
            what = f"{placement.job} was here in incarnation {old.placement.incarnation}"
            raise ControlError("incarnation", f"{what}: {placement.incarnation} has ended")
        if old and old.placement.epoch == placement.epoch:
            return {}
        if old and old.placement.epoch > placement.epoch:
            raise ControlError("epoch", f"epoch {old.placement.epoch} is placed here already")
        if old and old.state != "saved":
            raise ControlError("busy", f"epoch {old.placement.epoch} has not been detached")
        self._next_id += 1
        job = Job(self._next_id, placement, placement.devices.index(self.options.device))
        self.jobs[placement.job] = job
        try:
            self._meet(job)
        except NativeError as error:
            del self.jobs[placement.job]
            raise ControlError("failed", str(error)) from error
        return {}

    def barrier(self, request: Request[messages.Barrier]) -> Message:
        job = self._job(request.message)
        action = request.message.action
        if job.opened and job.state in MOVING:
            self.native.barrier(job.id, action == "request")
            self._refresh(job)
        elif action == "request" and job.state == "joining":
            raise ControlError("joining", "the devices of the job have not connected yet")
        return {"state": job.state}

    def wait(self, request: Request[messages.Wait]) -> Message | None:
        job = self._job(request.message)
        self._refresh(job)
        states: set[str] = {*request.message.states, "failed"}
        within_s = request.message.within_s
        job.waits.append((time.monotonic() + within_s, states, request))
        self.server.after(within_s, lambda: self._answer_waits(job))
        self._answer_waits(job)
        return None

    def save(self, request: Request[messages.Save]) -> None:
        job = self._job(request.message)
        self._store_modules(job)
        if job.detaches or not job.opened or not self.native.job_save(job.id):
            raise ControlError("no_cut", f"job {job.placement.job} is not at a cut")
        job.saves.append(request)

    def detach(self, request: Request[messages.Detach]) -> Message | None:
        message = request.message
        job = self.jobs.get(message.job)
        if job is None or job.placement.epoch != message.epoch or job.state == "saved":
            return {"saved_bytes": job.saved_bytes if job else 0}
        self._remember(job)
        if not job.opened:
            self._forget(job)
            return {"saved_bytes": 0}
        if message.discard:
            self.native.job_discard(job.id)
            self._refuse(job.saves, "the job is discarded")
        else:
            self._store_modules(job)
            if not self.native.job_leave(job.id):
                raise ControlError("no_cut", f"job {job.placement.job} is not at a cut")
        job.detaches.append(request)
        return None

    def _store_modules(self, job: Job) -> None:
        """Store the job's modules: on its next devices they are found on disk, so it stays until
        all are stored. Raises ControlError."""
        if why := self.modules.images.store(job.id):
            raise ControlError(
                "storage", f"{why}; job {job.placement.job} stays at its cut until there is space"
            )

    def peer(self, request: Request[messages.Peer]) -> Message | None:
        """Send the job's shared segment, from its lowest device to another one."""
        message = request.message
        job = self.jobs.get(message.job)
        if job is None or job.placement.epoch != message.epoch:
            raise ControlError("unknown_job", "not placed here yet")
        device = message.device
        if job.device != 0 or device not in job.placement.devices or job.segment < 0:
            raise ControlError("argument", f"{device} is not a peer of this job here")
        index = job.placement.devices.index(device)
        request.reply([job.segment])
        job.peers[request.channel] = index
        job.joined.add(index)
        self._on_all_joined(job)
        return None

    # ---- connecting the devices of a job ----

    def _job(self, message: messages.OfJob) -> Job:
        job = self.jobs.get(message.job)
        if job is None or job.placement.epoch != message.epoch:
            raise ControlError(
                "unknown_job", f"there is no job {message.job} epoch {message.epoch}"
            )
        return job

    def _meet(self, job: Job) -> None:
        count = len(job.placement.devices)
        if count > 1 and job.device > 0:
            self._request_segment(job, time.monotonic() + 20.0)
            return
        if count > 1:
            job.segment = segment_create(count)
        self._open(job)
        job.joined.add(0)
        self._on_all_joined(job)

    def _request_segment(self, job: Job, deadline: float) -> None:
        """Request the segment from the lowest device; retry, as it may not have the placement
        yet."""

        def on_reply_frame(_reply: messages.Done, fds: list[int]) -> None:
            job.segment = fds[0]
            try:
                self._open(job)
            except NativeError as error:
                self._fail(job, str(error))
                return
            job.state = "running"
            self._claim(job)

        def on_call_ended(reason: str) -> None:
            if job.segment >= 0:
                self._fail(job, f"device {job.placement.devices[0]} was lost: {reason}")
            elif time.monotonic() < deadline and self.jobs.get(job.placement.job) is job:
                self.server.after(0.02, lambda: self._request_segment(job, deadline))
            else:
                self._fail(job, f"device {job.placement.devices[0]} cannot be reached: {reason}")

        p = job.placement
        request = {"op": "peer", "job": p.job, "epoch": p.epoch, "device": self.options.device}
        job.calls.append(
            Outgoing(
                self.server,
                p.sockets[0],
                request,
                reply=messages.Done,
                descriptors=1,
                on_reply=on_reply_frame,
                on_end=on_call_ended,
            )
        )

    def _open(self, job: Job) -> None:
        p = job.placement
        self.native.job_open(
            job.id, p.epoch, job.device, len(p.devices), list(p.rank_device), job.segment
        )
        self.native.job_names(job.id, p.devices)
        if p.check_order != "none":
            self.native.check_order(job.id, p.check_order)
        job.opened = True

    def _on_all_joined(self, job: Job) -> None:
        if job.state == "joining" and len(job.joined) == len(job.placement.devices):
            job.state = "running"
            self._claim(job)

    def _claim(self, job: Job) -> None:
        for rank in job.local:
            self._claim_rank(job, rank)
        self._answer_waits(job)

    def _claim_rank(self, job: Job, rank: int) -> None:
        def on_reply_frame(_reply: messages.Done, fds: list[int]) -> None:
            try:
                if job.detaches:
                    return  # it has nothing here yet: its launcher gives it to the next epoch
                self.native.rank_attach(job.id, rank, fds[0], fds[1])
                status = self.native.rank_status(job.id, rank)
                if status:
                    job.attached[rank] = status
                if job.released_at is None:
                    job.released_at = time.monotonic()
            except NativeError as error:
                self._fail(job, str(error))
            finally:
                for fd in fds:
                    os.close(fd)

        def on_notice_frame(frame: Frame) -> None:
            notice = frame.decode(messages.Notice)
            if isinstance(notice, messages.Exited):
                self._exited(job, rank, notice.exit_status)
            elif rank in job.attached:
                self.native.rank_exited(job.id, rank, EXIT_REPLACED)
                job.attached.pop(rank)
                self._claim_again(job, rank)

        def on_call_ended(reason: str) -> None:
            if rank not in job.exited:
                log.warning("job %s: rank %d is lost: %s", job.placement.job, rank, reason)
                self._exited(job, rank, 0 if rank not in job.attached else -signal.SIGKILL)

        request = {
            "op": "claim",
            "epoch": job.placement.epoch,
            "device": self.options.device,
            **messages.of_incarnation(job.placement.incarnation),
        }
        path = job.placement.launchers[rank]
        job.calls.append(
            Outgoing(
                self.server,
                path,
                request,
                reply=messages.Done,
                descriptors=2,
                on_reply=on_reply_frame,
                on_end=on_call_ended,
                on_notice=on_notice_frame,
            )
        )

    def _claim_again(self, job: Job, rank: int) -> None:
        """The rank has a new channel; claim it when the old one is closed here."""
        if job.opened and self.native.rank_status(job.id, rank):
            self.server.after(0.01, lambda: self._claim_again(job, rank))
        elif job.opened:
            self._claim_rank(job, rank)

    def _exited(self, job: Job, rank: int, status: int) -> None:
        if rank in job.exited:
            return
        self._remember(job)
        job.exited.add(rank)
        self.native.rank_exited(job.id, rank, EXIT_CRASHED if status else EXIT_CLEAN)

    def _on_peer_disconnected(self, channel: Channel) -> None:
        for job in self.jobs.values():
            index = job.peers.pop(channel, None)
            if index is None or job.state in ("saved", "failed") or job.detaches:
                continue
            if job.state == "cut":
                job.departed.add(index)  # it detaches first: nothing is in progress here
            else:
                self._fail(job, f"device {job.placement.devices[index]} was lost")

    # ---- events ----

    def _fail(self, job: Job, reason: str) -> None:
        if job.state in ("saved", "failed"):
            return
        log.error("job %s epoch %d: %s", job.placement.job, job.placement.epoch, reason)
        job.state, job.reason = "failed", reason
        if job.opened:
            self.native.job_fail(job.id, reason)
        self._answer_waits(job)

    def _forget(self, job: Job) -> None:
        """The epoch has ended here: close its connections, keep its name as saved."""
        for call in job.calls:
            call.close()
        if job.opened:
            self.native.job_close(job.id)
        if job.segment >= 0:
            os.close(job.segment)
        self.modules.images.gone(job.id)
        job.calls, job.peers, job.segment, job.opened = [], {}, -1, False
        job.state = "saved"
        self._answer_waits(job)
        job.answer_saves()
        for request in job.detaches:
            request.reply(saved_bytes=job.saved_bytes)
        job.detaches.clear()
        self.history.extend(
            {"job": job.placement.job, "epoch": job.placement.epoch, **job.describe_rank(rank)}
            for rank in job.local
        )
        del self.history[:-HISTORY]
        self._tidy(job)

    def _tidy(self, latest: Job) -> None:
        """Keep only the last few saved jobs; a request about an older one gets the reply of a
        device that has never had it."""
        self.jobs.pop(latest.placement.job, None)
        self.jobs[latest.placement.job] = latest
        saved = [name for name, job in self.jobs.items() if job.state == "saved"]
        for name in saved[:-SAVED_JOBS]:
            del self.jobs[name]

    def _events(self) -> None:
        jobs = {job.id: job for job in self.jobs.values()}
        for event in self.native.events():
            job = jobs.get(event.job)
            if event.kind == EVENT_MODULE:
                self.pool.submit(self._reporting, self._load_module, event, self._cc(job))
            elif event.kind == EVENT_FUNCTION:
                self.pool.submit(self._reporting, self._load_function, event, self._cc(job))
            elif event.kind == EVENT_LOST:
                log.error("device %s is lost: %s", self.options.device, event.text)
                self.lost = event.text
                self.server.after(DEVICE_LOST_GRACE_S, self.server.stop)
            elif job and event.kind == EVENT_JOB:
                self._follow(job, event)
            elif job and event.kind == EVENT_RACE:
                job.races.append(f"rank {event.rank}: {event.data.decode(errors='replace')}")
            elif job and event.kind == EVENT_ALARM:
                log.error("job %s: %s", job.placement.job, event.text)
                job.alarms.append(event.text)
            elif job and event.kind == EVENT_SAVED:
                job.saved_bytes = event.size
                if event.state != "cut":
                    self._forget(job)
                elif event.text:
                    self._refuse(job.saves, event.text)
                else:
                    job.answer_saves()

    def _follow(self, job: Job, event: Event) -> None:
        if event.state == "failed":
            self._fail(job, event.text)
            self._refuse(job.detaches, event.text)
            self._refuse(job.saves, event.text)
        else:
            self._refresh(job)
            if job.departed and job.state not in ("cut", "saved", "failed"):
                self._fail(job, f"device {job.placement.devices[min(job.departed)]} was lost")
        self._answer_waits(job)

    @staticmethod
    def _refuse(requests: list[Any], reason: str) -> None:
        for request in requests:
            request.refuse(ControlError("failed", reason))
        requests.clear()

    def _refresh(self, job: Job) -> None:
        """Update the state of the barrier: events may be out of date when they are read."""
        if job.state not in MOVING:
            return
        status = self.native.job_status(job.id)
        if not status or status["state"] not in MOVING:
            return
        if status["state"] == "cut" and status["cut_at"] != job.cut_at:
            log.info("job %s: cut %s", job.placement.job, status["round"])
        job.state, job.cut_at = status["state"], status["cut_at"]

    def _look(self) -> None:
        for job in self.jobs.values():
            if job.opened:
                self.native.hurry(job.id)
        if self.modules.images.due():
            self.pool.submit(self.modules.images.store)
        if why := self._unneeded():
            if not any(job.lives() for job in self.jobs.values()):
                log.warning("device %s: exiting, as %s", self.options.device, why)
                self.server.stop()
            elif not self._stays:
                log.warning("device %s: %s; exiting when its jobs end", self.options.device, why)
                self._stays = True
        self.server.after(LOOK_S, self._look)

    def _unneeded(self) -> str:
        """Why this proxy is not needed if it has no jobs; empty: it may be needed. A reconciler
        that returns starts another one: without a job nothing is lost."""
        if self.server.serves and not self.server.serves.is_there():
            return f"its state directory {self.options.state} was removed"
        if time.monotonic() - self._last_request > self.options.unasked:
            return f"no reconciler has sent a request for {self.options.unasked:g} s"
        self._stays = False
        return ""

    def _answer_waits(self, job: Job) -> None:
        now = time.monotonic()
        waits, job.waits = job.waits, []
        for deadline, states, request in waits:
            if job.state in states or now >= deadline:
                request.reply(state=job.state, reason=job.reason)
            else:
                job.waits.append((deadline, states, request))

    # ---- modules: in the pool's threads ----

    def _reporting(
        self, load: Callable[[Event, tuple[int, int]], None], event: Event, cc: tuple[int, int]
    ) -> None:
        try:
            load(event, cc)
        except Exception as error:  # report a defect of ours to the program as an error
            log.exception("loading for job %d rank %d", event.job, event.rank)
            what = f"kernel {event.name}" if event.kind == EVENT_FUNCTION else "a module"
            why = f"{what}: {error!r}, which is a defect of rankfold"
            if event.kind == EVENT_MODULE:
                self.native.module_ready(event.token, 999, why=why)
            else:
                self.native.function_ready(event.token, 999, why=why)

    def _cc(self, job: Job | None) -> tuple[int, int]:
        """The job's compute capability: the same on all devices, as it must not change while the
        job runs."""
        major, minor = ((job and job.placement.cc) or self.options.cc).split(".")
        return int(major), int(minor)

    def _load_module(self, event: Event, cc: tuple[int, int]) -> None:
        info, error, why = self.modules.module(
            event.data, event.image_kind, event.text, cc, event.job
        )
        self.native.module_ready(event.token, error, info, why)
        if info and event.data:
            self.storing.submit(self.modules.images.store_taken, info.hash, event.image_kind)

    def _load_function(self, event: Event, cc: tuple[int, int]) -> None:
        info, error, why = self.modules.function(event.text, event.name, cc)
        self.native.function_ready(event.token, error, info, why)

    # ---- reporting ----

    def _remember(self, job: Job) -> None:
        for rank in job.local:
            if job.opened and (status := self.native.rank_status(job.id, rank)):
                job.remember(rank, status)

    def _describe(self, job: Job) -> Message:
        self._remember(job)
        self._refresh(job)
        now = self.native.job_status(job.id) or {}
        return {
            "job": job.placement.job,
            "epoch": job.placement.epoch,
            "state": job.state,
            "reason": job.reason,
            "cut_age_s": age(job.cut_at),
            "released_age_s": age(job.released_at),
            "ranks": [job.describe_rank(rank) for rank in job.local],
            "races": job.races,
            "alarms": job.alarms,
            "shared": now.get("shared", 0),
            "spent": now.get("spent"),
            "guard": now.get("guard"),
            "incarnation": job.placement.incarnation,
        }


def age(at: float | None) -> float | None:
    """Seconds since a reading of CLOCK_MONOTONIC. Ages are sent because the receiver's clock may
    differ."""
    return None if at is None else max(0.0, time.monotonic() - at)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; see `--help`."""
    parser = argparse.ArgumentParser(prog="rankfold-proxy", description="Serve one device.")
    parser.add_argument("--device", required=True, help="its name: <pool>/<type>-<index>")
    parser.add_argument("--type", required=True, choices=["soft", "nvidia"])
    parser.add_argument("--memory", required=True, type=int, help="bytes")
    parser.add_argument("--cc", required=True, help="compute capability")
    parser.add_argument("--speed", default=1.0, type=float, help="relative speed (soft)")
    parser.add_argument("--index", default=0, type=int, help="which of the GPUs (nvidia)")
    parser.add_argument("--workers", default=1, type=int, help="kernel worker threads")
    parser.add_argument("--state", required=True, help="the fleet's state directory")
    parser.add_argument("--socket", required=True, help="where to listen")
    parser.add_argument("--unasked", default=IDLE_EXIT_S, type=float, help="seconds: see UNASKED_S")
    return parser.parse_args(arguments)


_NEVER = 1 << 62  # never: nanoseconds or collectives; the core adds to it


def _moves_fd() -> int:
    """A descriptor for a log of each page that is swapped; 0: none."""
    if not (path := os.environ.get("RANKFOLD_SWAPS")):
        return 0
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
    except OSError as error:
        sys.exit(f"rankfold-proxy: RANKFOLD_SWAPS: {error}")


def _keep_to_itself() -> None:
    """Keep inherited descriptors from child processes. The device's lock must not stay open in a
    compiler that this process starts: the device would seem to be served for as long as the
    compiler lives."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            if int(fd) > 2:
                os.set_inheritable(int(fd), False)


def main() -> None:
    """Run the proxy."""
    options: Any = parse(sys.argv[1:])
    set_up()
    try:
        switches.check()
    except switches.BadSwitch as error:
        sys.exit(f"rankfold-proxy: {error}")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_to_itself()
    limits.lift()
    try:
        proxy = Proxy(options)
    except (NativeError, FileNotFoundError) as error:
        sys.exit(f"rankfold-proxy: {options.device}: {error}{limits.hint()}")
    proxy.run()


if __name__ == "__main__":
    main()
