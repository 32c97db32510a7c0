"""The server of a device for jobs of the elastic runtime: `python -m rankfold.proxy.runs`, one per
device of type cpu, and of type nvidia whose pool has `runtime: elastic`.

It speaks the protocol of a device proxy (`rankfold.messages`) for jobs of the elastic runtime. The
processes of such a job are children of its rank 0, which takes requests at a socket in the job's
folder (elastic/requests.py). The server of the job's first device has these started, held, released
and ended; each server reports the state of the run as the job's. At a cut the run is held: its
state is saved in files, and its processes wait. The server itself uses no GPU: it says which one a
process is to see, and how much of its memory it may take.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankfold import limits, messages
from rankfold.control import ControlError, Frame, Message
from rankfold.elastic import requests
from rankfold.log import area, set_up
from rankfold.proxy import gpus
from rankfold.proxy.jobs import Placement
from rankfold.service import Outgoing, Request, Server

log = area(__file__)

LOOK_S = 0.03  # between two queries for the state of a run
HOLD_AGAIN_S = 1.0  # after the run has refused a cut, because the disk is full, for example
ENDED_S = 1.0  # between two looks whether this server is still needed
IDLE_EXIT_S = 600.0  # without jobs and without a request for this long, it exits
LAUNCHER_S = 30.0  # for a launcher to listen

Then = Callable[[Message], None]


class Run:
    """Requests to a job's run, without waiting."""

    def __init__(self, server: Server, folder: Path):
        self._server, self._folder = server, folder

    def ask(self, request: str, then: Then, **fields: Any) -> None:
        """Calls `then` with the reply; it has "error" if the run refuses or is not there."""
        try:
            connection = requests.connected(self._folder)
        except OSError as error:
            then({"error": str(error), "absent": True})
            return
        connection.setblocking(False)
        text = b""

        def on_data() -> None:
            nonlocal text
            try:
                data = connection.recv(requests.LONGEST)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            text += data
            if data and not text.endswith(b"\n"):
                return
            self._server.remove(connection)
            connection.close()
            then(json.loads(text) if data else {"error": "the run has ended", "absent": True})

        self._server.add(connection, on_data)
        connection.send(json.dumps({"request": request, **fields}).encode() + b"\n")


@dataclass
class Job:
    """One job epoch on this device."""

    placement: Placement
    device: int
    folder: Path  # of the run
    run: Run
    state: str = "joining"
    stopping: bool = False  # a cut is requested
    reason: str = ""  # why the run has refused it
    hold_at: float = 0.0  # when it is requested again
    asking: set[str] = field(default_factory=set)  # requests to the run without a reply
    step: int = 0
    awaited: list[int] | None = None  # ranks that wait for no other one; None: not known
    began: int = 0  # the step at which it began here
    moved_at: float = field(default_factory=time.monotonic)  # when the step last changed
    saved_bytes: int = 0
    cut_at: float | None = None
    released_at: float | None = None
    calls: list[Outgoing[messages.Done]] = field(default_factory=list)
    exited: set[int] = field(default_factory=set)
    waits: list[tuple[float, set[str], Request[messages.Wait]]] = field(default_factory=list)
    detaches: list[Request[messages.Detach]] = field(default_factory=list)

    @property
    def leads(self) -> bool:
        """Whether this server sends the run its requests."""
        return self.device == 0

    @property
    def local(self) -> list[int]:
        return [r for r, d in enumerate(self.placement.rank_device) if d == self.device]

    def ask(self, request: str, then: Then, **fields: Any) -> None:
        """Sends a request, unless an earlier one of this name has no reply yet."""
        if request in self.asking:
            return
        self.asking.add(request)

        def answered(reply: Message) -> None:
            self.asking.discard(request)
            then(reply)

        self.run.ask(request, answered, **fields)

    def at(self, rank: int) -> str:
        """Whether it waits for others, as far as the run knows."""
        return "host" if self.awaited is None or rank in self.awaited else "others"

    def state_bytes(self) -> int:
        """The size of the local ranks' files in the newest saved state. Rank 0 has those of all."""
        names = {f"{kind}-{rank}.pt" for kind in ("rank", "gradients") for rank in self.local}
        names |= {"shared.pt", "threads"} if 0 in self.local else set()
        states = (self.folder / "states").glob("step-*")
        newest = max(states, key=lambda each: int(each.name[5:]), default=None)
        files = [newest / name for name in names] if newest else []
        return sum(each.stat().st_size for each in files if each.exists())

    def describe(self) -> Message:
        attached = self.state not in ("joining", "saved")
        quiet_s = time.monotonic() - self.moved_at
        ranks = [
            {
                "rank": rank,
                "state": "exited" if rank in self.exited else "attached" if attached else "waiting",
                "resident": attached,
                "collectives": self.step,
                "collectives_here": max(0, self.step - self.began),
                **({"at": self.at(rank), "quiet_s": quiet_s} if attached else {}),
            }
            for rank in self.local
        ]
        return {
            "job": self.placement.job,
            "epoch": self.placement.epoch,
            "incarnation": self.placement.incarnation,
            "state": self.state,
            "reason": self.reason if self.stopping else "",
            "cut_age_s": _age(self.cut_at),
            "released_age_s": _age(self.released_at),
            "ranks": ranks,
        }


def own_cores(all_cores: list[int], first: int, count: int) -> list[int]:
    """The cores of a device that has `count`, after `first` of other devices. Devices share cores
    when there are more than that: counting begins again."""
    return sorted({all_cores[(first + each) % len(all_cores)] for each in range(count)})


class Device:
    """The server of one device. Raises gpus.NoGpu."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.cores = own_cores(sorted(os.sched_getaffinity(0)), options.first_core, options.cores)
        self.gpu = _gpu(options) if options.type == "nvidia" else None
        self.jobs: dict[str, Job] = {}
        self._last_request = time.monotonic()
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
                messages.Shutdown: self.shutdown,
            },
            serves=options.state,
        )
        self.server.after(LOOK_S, self._look)
        self.server.after(ENDED_S, self._end_if_unneeded)

    def run(self) -> None:
        log.info("device %s serves at %s", self.options.device, self.options.socket)
        self.server.run()

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
            "core_count": o.cores,
            "first_core": o.first_core,
            "cores": self.cores,
            "runtime": o.runtime,
            "gpu": self.gpu.name if self.gpu else "",
            "own_cc": self.gpu.cc if self.gpu and o.cc == messages.OWN_CC else "",
            "pid": os.getpid(),
        }

    def status(self, _request: Request[messages.Status]) -> Message:
        self._last_request = time.monotonic()
        o = self.options
        return {
            "device": o.device,
            "type": o.type,
            "memory": o.memory,
            "pid": os.getpid(),
            "used": 0,
            "jobs": [job.describe() for job in self.jobs.values()],
        }

    def shutdown(self, _request: Request[messages.Shutdown]) -> Message:
        self.server.after(0.0, self.server.stop)
        return {}

    def place(self, request: Request[messages.Place]) -> Message:
        """Begin an epoch; nothing happens if it has begun."""
        self._last_request = time.monotonic()
        placement = Placement.read(request.message)
        if self.options.device not in placement.devices:
            raise ControlError("argument", f"{self.options.device} is not among the devices")
        old = self.jobs.get(placement.job)
        if old and old.placement.incarnation > placement.incarnation:
            problem = f"{placement.job} was here in incarnation {old.placement.incarnation}"
            raise ControlError("incarnation", f"{problem}: {placement.incarnation} has ended")
        if old and old.placement.epoch == placement.epoch:
            return {}
        if old and old.placement.epoch > placement.epoch:
            raise ControlError("epoch", f"epoch {old.placement.epoch} is placed here already")
        if old and old.state != "saved":
            raise ControlError("busy", f"epoch {old.placement.epoch} has not been detached")
        folder = Path(self.options.state).absolute() / "jobs" / placement.job
        folder /= f"elastic-{placement.incarnation}"
        run = Run(self.server, folder)
        job = Job(placement, placement.devices.index(self.options.device), folder, run)
        self.jobs[placement.job] = job
        for rank in job.local:
            self._follow_rank(job, rank)
        return {}

    def _find(self, message: messages.OfJob) -> Job:
        job = self.jobs.get(message.job)
        if job is None or job.placement.epoch != message.epoch:
            problem = f"there is no job {message.job} epoch {message.epoch}"
            raise ControlError("unknown_job", problem)
        return job

    def barrier(self, request: Request[messages.Barrier]) -> Message:
        job = self._find(request.message)
        if request.message.action == "withdraw":
            job.stopping = False
            if job.leads:
                job.ask("release", lambda _reply: self._query(job))
        elif job.state == "joining":
            raise ControlError("joining", "the run has not begun yet")
        elif job.state == "running":
            job.stopping, job.state, job.reason, job.hold_at = True, "stopping", "", 0.0
            self._hold(job)
        return {"state": job.state}

    def wait(self, request: Request[messages.Wait]) -> None:
        job = self._find(request.message)
        until = time.monotonic() + request.message.within_s
        job.waits.append((until, {*request.message.states, "failed"}, request))
        self._answer_waits(job)

    def save(self, request: Request[messages.Save]) -> Message:
        """The state of a run that is held is in its files already."""
        job = self._find(request.message)
        if job.state != "cut":
            raise ControlError("no_cut", f"job {job.placement.job} is not at a cut")
        job.saved_bytes = job.state_bytes()
        return {"saved_bytes": job.saved_bytes}

    def detach(self, request: Request[messages.Detach]) -> Message | None:
        """End an epoch. None: the reply comes when the run's processes have ended."""
        message = request.message
        job = self.jobs.get(message.job)
        if job is None or job.placement.epoch != message.epoch or job.state == "saved":
            return {"saved_bytes": 0}
        if message.discard or not job.leads:
            if not message.discard and job.state != "cut":
                raise ControlError("no_cut", f"job {job.placement.job} is not at a cut")
            self._close(job)
            return {"saved_bytes": 0}
        if job.state != "cut":
            raise ControlError("no_cut", f"job {job.placement.job} is not at a cut")
        job.detaches.append(request)
        job.ask("suspend", lambda reply: self._suspended(job, reply))
        return None

    def _suspended(self, job: Job, reply: Message) -> None:
        detaches, job.detaches = job.detaches, []
        if error := reply.get("error"):
            for each in detaches:
                each.refuse(ControlError("no_cut", error))
            return
        self._close(job)
        for each in detaches:
            each.reply(saved_bytes=job.saved_bytes)

    def _close(self, job: Job) -> None:
        """The epoch has ended here; keep its name as saved."""
        job.state = "saved"
        for call in job.calls:
            call.close()
        self._answer_waits(job)

    # ---- ranks and the run ----

    def _follow_rank(self, job: Job, rank: int) -> None:
        """Learn when a rank ends. It has no channel, so its launcher keeps the claim open."""

        def on_channel(_reply: messages.Done, fds: list[int]) -> None:
            for fd in fds:  # a program that uses CUDA, too: nothing serves it here
                os.close(fd)

        def on_end(_reason: str) -> None:
            job.exited.add(rank)

        def on_notice(frame: Frame) -> None:
            if isinstance(frame.decode(messages.Notice), messages.Exited):
                job.exited.add(rank)

        request = {
            "op": "claim",
            "epoch": job.placement.epoch,
            "device": self.options.device,
            **messages.of_incarnation(job.placement.incarnation),
        }
        call = Outgoing(
            self.server,
            job.placement.launchers[rank],
            request,
            reply=messages.Done,
            descriptors=2,
            on_reply=on_channel,
            on_end=on_end,
            on_notice=on_notice,
            patience=LAUNCHER_S,
        )
        job.calls.append(call)

    def _look(self) -> None:
        for job in self.jobs.values():
            if job.state != "saved":
                self._query(job)
        self.server.after(LOOK_S, self._look)

    def _query(self, job: Job) -> None:
        job.ask("status", lambda reply: self._noted(job, reply))

    def _noted(self, job: Job, run: Message) -> None:
        """The run has reported its state."""
        if job.state == "saved":
            return
        phase = run.get("phase")
        if phase is not None:
            if job.released_at is None:
                job.began = run["step"] or 0
            job.moved_at = time.monotonic() - run.get("quiet_s", 0.0)
            job.step = run["step"] or 0
            job.awaited = run.get("awaited")
        if phase == "suspended" and job.leads and job.state == "joining":
            placement = job.placement
            job.ask(
                "resume",
                lambda _reply: self._query(job),
                processes=len(placement.devices),
                **({"cores": placement.cores} if all(placement.cores) else {}),
                **({"gpus": placement.gpus} if placement.gpus else {}),
            )
        elif phase == "held":
            if job.cut_at is None:
                job.cut_at = time.monotonic()
            job.state = "cut"
        elif phase == "running":
            if job.released_at is None or job.cut_at is not None:
                job.released_at, job.cut_at = time.monotonic(), None
            job.state = "stopping" if job.stopping else "running"
            self._hold(job)
        self._answer_waits(job)

    def _hold(self, job: Job) -> None:
        """Request the cut, again if processes were killed before it or there."""
        if job.stopping and job.leads and time.monotonic() >= job.hold_at:
            job.ask("hold", lambda reply: self._held(job, reply))

    def _held(self, job: Job, reply: Message) -> None:
        if reason := reply.get("error"):
            log.warning("job %s does not reach a cut: %s", job.placement.job, reason)
            job.reason, job.hold_at = reason, time.monotonic() + HOLD_AGAIN_S
        self._query(job)

    def _answer_waits(self, job: Job) -> None:
        for each in list(job.waits):
            until, states, request = each
            if job.state in states or time.monotonic() >= until:
                job.waits.remove(each)
                request.reply(state=job.state)

    def _end_if_unneeded(self) -> None:
        there = self.server.serves is None or self.server.serves.is_there()
        unasked = time.monotonic() - self._last_request > self.options.unasked
        lives = any(job.state != "saved" and _listens(job) for job in self.jobs.values())
        if (unasked or not there) and not lives:
            log.warning("device %s: exiting, as nothing needs it", self.options.device)
            self.server.stop()
        self.server.after(ENDED_S, self._end_if_unneeded)


def _gpu(options: argparse.Namespace) -> gpus.Gpu:
    """The GPU of a device. Raises NoGpu if it is not as the pool describes it."""
    found = gpus.find(options.index)
    if found.memory < options.memory:
        has, wants = found.memory >> 20, options.memory >> 20
        raise gpus.NoGpu(f"GPU {options.index} has {has} MiB, the pool wants {wants}")
    if options.cc != messages.OWN_CC and options.cc != found.cc:
        raise gpus.NoGpu(
            f"GPU {options.index} has compute capability {found.cc}, not {options.cc}: jobs of the "
            "elastic runtime use it as it is. Leave computeCapability out"
        )
    return found


def _age(since: float | None) -> float | None:
    return None if since is None else time.monotonic() - since


def _listens(job: Job) -> bool:
    """Whether a launcher of the job still listens: it exits with its rank."""
    for path in job.placement.launchers:
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(path)
            except OSError:
                continue
            return True
    return False


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rankfold-runs", description="Serve one device.")
    parser.add_argument("--device", required=True, help="its name: <pool>/<type>-<index>")
    parser.add_argument("--type", required=True, choices=["cpu", "nvidia"])
    parser.add_argument("--runtime", default="", help="as its pool gives it")
    parser.add_argument("--memory", required=True, type=int, help="bytes of a GPU for each process")
    parser.add_argument("--cc", required=True, help="compute capability, for the protocol")
    parser.add_argument("--speed", default=1.0, type=float, help="relative speed")
    parser.add_argument("--index", default=0, type=int)
    parser.add_argument("--cores", default=0, type=int, help="for its processes; 0: all")
    parser.add_argument("--first-core", default=0, type=int, help="how many other devices have")
    parser.add_argument("--state", required=True, help="the fleet's state directory")
    parser.add_argument("--socket", required=True, help="where to listen")
    parser.add_argument("--unasked", default=IDLE_EXIT_S, type=float, help="seconds: see above")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    set_up()
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limits.lift()
    try:
        device = Device(options)
    except gpus.NoGpu as error:
        sys.exit(f"rankfold-runs: {options.device}: {error}")
    device.run()


if __name__ == "__main__":
    main()
