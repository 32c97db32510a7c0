"""The device proxy's process: `python -m rankfold.proxy.server`, one per device.

The reconciler starts it; it serves the operations listed in `rankfold.messages`. This half decides
and communicates: `epochs` connects the proxies of a job and claims ranks from their launchers, and
`loading` has modules loaded. The C half (`native`) does everything that happens per call of a rank;
this half never waits for it.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankfold import limits, messages, switches
from rankfold.control import ControlError, Message
from rankfold.log import area, set_up
from rankfold.proxy.epochs import Epochs
from rankfold.proxy.jobs import Job, Placement
from rankfold.proxy.loading import LoadThreads
from rankfold.proxy.modules import ModuleStore
from rankfold.proxy.native import (
    EVENT_ALARM,
    EVENT_FUNCTION,
    EVENT_JOB,
    EVENT_LINK,
    EVENT_LOST,
    EVENT_MODULE,
    EVENT_RACE,
    EVENT_SAVED,
    Native,
    NativeError,
)
from rankfold.service import Request, Server

log = area(__file__)

# Time for programs to exit by their errors before the proxy of a lost device exits; remaining jobs
# then see the proxy as killed. The reconciler does not wait if there are no jobs.
DEVICE_LOST_GRACE_S = 3.0
LOOK_S = 1.0  # between two checks of jobs' progress
CLOSE_S = 10.0  # for modules that are still being loaded, and for work on the device, at the end
IDLE_EXIT_S = 600.0  # without ranks and without a request for this long, a proxy exits


class Proxy:
    """The server of one device."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        # 0.0: no GPU has less, so the device is opened whatever it has.
        self.cc = _capability("0.0" if options.cc == messages.OWN_CC else options.cc)
        shares = options.type != "nvidia"  # sharing saves no time there yet
        self.native = Native(
            options.type,
            options.memory,
            self.cc,
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
        self.modules = ModuleStore(options.type, Path(options.state), self.cc)
        self.cc = self.modules.compute_capability
        self.facts = self.modules.facts()
        self.loads = LoadThreads(self.native, self.modules)
        self.lost = ""  # why the device serves no jobs any more
        self._last_request = time.monotonic()
        self._stays = False  # it would exit if it had no ranks; logged once
        self.server = Server(  # self.epochs needs it
            options.socket,
            {
                messages.Hello: self.hello,
                messages.Status: self.status,
                messages.Place: self.place,
                messages.Barrier: lambda request: self.epochs.barrier(request),
                messages.Wait: lambda request: self.epochs.wait(request),
                messages.Save: lambda request: self.epochs.save(request),
                messages.Detach: lambda request: self.epochs.detach(request),
                messages.Peer: lambda request: self.epochs.peer(request),
                messages.Outbox: lambda request: self.epochs.outbox(request),
                messages.DebugText: lambda _request: {"text": self.native.debug_text()},
                messages.Shutdown: self.shutdown,
            },
            serves=options.state,
        )
        self.epochs = Epochs(options.device, self.native, self.server, self.modules.images)
        self.server.add(self.native.event_fd, self._events)
        self.server.after(LOOK_S, self._housekeep)

    def run(self) -> None:
        """Serve until `shutdown`, or until the device is lost; then another proxy may open it."""
        log.info("device %s serves at %s", self.options.device, self.options.socket)
        self.server.run()
        if self.lost:  # a kernel may never end: do not wait for the driver
            os._exit(1)
        self.modules.close()
        with self._within("a module or kernel that is being loaded"):
            self.loads.close()
        with self._within("work that the device does not end"):
            self.native.close()

    @contextlib.contextmanager
    def _within(self, request: str) -> Iterator[None]:
        """Exit at once, with a line in the log, if the block has not ended after CLOSE_S. Until the
        process exits, no other proxy can open the device."""

        def leave() -> None:
            log.error(
                "device %s: exiting after %g s of waiting for %s",
                self.options.device,
                CLOSE_S,
                request,
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
            "facts": self.facts,
            "own_cc": "{}.{}".format(*self.cc) if o.cc == messages.OWN_CC else "",
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
            "jobs": [self.epochs.describe(job) for job in self.epochs.jobs.values()],
            "history": self.epochs.history,
        }

    def place(self, request: Request[messages.Place]) -> Message:
        self._last_request = time.monotonic()
        placement = Placement.read(request.message)
        if self.options.device not in placement.devices:
            raise ControlError("argument", f"{self.options.device} is not among the devices")
        if self.lost:
            raise ControlError("busy", f"{self.options.device} was lost and is being restarted")
        self.epochs.place(placement)
        return {}

    # ---- events ----

    def _events(self) -> None:
        jobs = {job.id: job for job in self.epochs.jobs.values()}
        for event in self.native.events():
            job = jobs.get(event.job)
            if event.kind in (EVENT_MODULE, EVENT_FUNCTION):
                self.loads.load(event, self._cc(job))
            elif event.kind == EVENT_LOST:
                log.error("device %s is lost: %s", self.options.device, event.text)
                self.lost = event.text
                self.server.after(DEVICE_LOST_GRACE_S, self.server.stop)
            elif job and event.kind == EVENT_JOB:
                self.epochs.on_changed(job, event)
            elif job and event.kind == EVENT_RACE:
                job.races.append(f"rank {event.rank}: {event.data.decode(errors='replace')}")
            elif job and event.kind == EVENT_ALARM:
                log.error("job %s: %s", job.placement.job, event.text)
                job.alarms.append(event.text)
            elif job and event.kind == EVENT_LINK:
                log.info("job %s: %s", job.placement.job, event.text)
            elif job and event.kind == EVENT_SAVED:
                self.epochs.on_saved(job, event)

    def _housekeep(self) -> None:
        for job in self.epochs.jobs.values():
            if job.opened:
                self.native.hurry(job.id)
        if self.modules.images.has_work():
            self.loads.store_images()
        if why := self._unneeded():
            if not any(job.lives() for job in self.epochs.jobs.values()):
                log.warning("device %s: exiting, as %s", self.options.device, why)
                self.server.stop()
            elif not self._stays:
                log.warning("device %s: %s; exiting when its jobs end", self.options.device, why)
                self._stays = True
        self.server.after(LOOK_S, self._housekeep)

    def _unneeded(self) -> str:
        """Why this proxy is not needed if it has no jobs; empty: it may be needed. A reconciler
        that returns starts another one: without a job nothing is lost."""
        if self.server.serves and not self.server.serves.is_there():
            return f"its state directory {self.options.state} was removed"
        if time.monotonic() - self._last_request > self.options.unasked:
            return f"no reconciler has sent a request for {self.options.unasked:g} s"
        self._stays = False
        return ""

    def _cc(self, job: Job | None) -> tuple[int, int]:
        """The job's compute capability: the same on all devices, as it must not change while the
        job runs."""
        return _capability(job.placement.cc) if job and job.placement.cc else self.cc


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; see `--help`."""
    parser = argparse.ArgumentParser(prog="rankfold-proxy", description="Serve one device.")
    parser.add_argument("--device", required=True, help="its name: <pool>/<type>-<index>")
    parser.add_argument("--type", required=True, choices=["soft", "nvidia"])
    parser.add_argument("--memory", required=True, type=int, help="bytes")
    parser.add_argument("--cc", required=True, help="compute capability; own: the GPU's (nvidia)")
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
