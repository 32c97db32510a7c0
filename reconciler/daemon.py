"""The background reconciler: one process per state directory.

`apply`, `run`, `watch`, `scale` … are its clients and start it when it does not run. It holds the
state directory's lock, serves requests on its own control socket (requests.py) between the turns of
its loop (loop.py), and ends when no job and no source is left. It may be killed at any moment:
proxies and launchers live on, and the next reconciler continues from the journal and from what they
report.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rankfold import control, service, switches
from rankfold.legible import legible
from rankfold.log import area, set_up
from rankfold.reconciler import clock, operations, reserve
from rankfold.reconciler.act import boot
from rankfold.reconciler.act.inflight import WORKERS
from rankfold.reconciler.deadlines import LOOK_WITHIN_S, REQUEST_S, STARTING_S
from rankfold.reconciler.journal import retention
from rankfold.reconciler.journal.journal import Journal, JournalError
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.layout import is_locked
from rankfold.reconciler.loop import FAST_S, IDLE_S, Loop
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.observe.fleet import known_devices
from rankfold.reconciler.observe.restarts import STABLE_AFTER_S, AlreadyRunning, Claim, claimed
from rankfold.reconciler.requests import Requests

log = area(__file__)


class Daemon:
    """The reconciler of one state directory: its life, from the claim on the directory to the end
    of its proxies."""

    def __init__(self, claim: Claim):
        self.claim, self.layout = claim, claim.layout
        booted_after = clock.follow(self.layout.clock)
        with contextlib.suppress(OSError):  # the disk may be full
            reserve.keep(self.layout)
        self.journal = Journal(self.layout.state)
        if booted_after is not None:
            boot.count_until(self.journal, booted_after)
        self.loop = Loop(self.layout, self.journal)
        self.requests = Requests(self.loop, self._changed, self._used, self._stop)
        self.server, self.sources = self.requests.server, self.requests.sources
        self.server.add(self.loop.in_flight.fd, self.loop.collect)
        self.stopping = False
        self.idle_since = time.monotonic()
        self.linger_s = switches.linger_s()

    def serve(self, cancel: bool = False) -> None:
        """Run until nothing is left to do. cancel: first cancel every job, before a turn starts
        one."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.server.stop())
        self.claim.report(self.journal)
        if cancel:
            self.requests.cancel_live()
        self.server.after(0, self._turn)
        self.server.after(0, self._follow_loads)
        self.server.after(retention.MORE_S, self._forget)
        self.server.after(STABLE_AFTER_S, self.claim.stable)
        self._record_time()
        try:
            self.server.run()
        finally:
            self.sources.close()
            self.loop.prober.close()
            self.loop.services.close()
            self.journal.close()

    def _turn(self) -> None:
        wait = IDLE_S
        if self.stopping:
            return  # a turn would start the proxies again
        if not self.claim.is_there():
            log.error("%s was removed while in use: exiting", self.layout.state)
            self.server.stop()
            return
        try:
            if self.journal.rewrite_if_missing():
                path = database(self.layout.state)
                text = f"{path} was removed or replaced while in use; it is put back"
                log.error("%s", text)
                self.journal.event("Reconciler", "JournalRemoved", text, "Warning")
            self.sources.poll()
            wait = self.loop.reconcile(self.sources.busy)
            if self._idle():
                self._shutdown_proxies()
                self.server.stop()
        except Exception as error:  # a bug must not end the only process that manages the fleet
            log.exception("a turn failed")
            self.claim.trouble(error, self.journal)
        else:
            self.claim.trouble(None, self.journal)
        self.server.after(wait, self._turn)

    def _follow_loads(self) -> None:
        """Begin a turn soon after a load has changed: turns that find nothing new are rare."""
        if self.loop.services.changed():
            self.server.expedite(self._turn)
        self.server.after(self.loop.services.follow_s(), self._follow_loads)

    def _record_time(self) -> None:
        with contextlib.suppress(OSError):  # the disk may be full
            if self.claim.is_there():
                clock.note(self.layout.clock)
                reserve.keep(self.layout)
        self.server.after(clock.NOTE_S, self._record_time)

    def _forget(self) -> None:
        wait = retention.AGAIN_S
        try:
            if self.claim.is_there():
                wait = retention.forget(self.journal, self.layout)
        except (sqlite3.Error, JournalError, OSError) as error:
            log.warning("finished jobs are kept for now: %s", error)
        except Exception:  # as above
            log.exception("removing finished jobs failed")
        self.server.after(wait, self._forget)

    def _changed(self) -> None:
        """Desired state has changed: plan again, immediately."""
        self.loop.fresh = False
        self.server.expedite(self._turn)

    def _used(self) -> None:
        self.idle_since = time.monotonic()

    def _idle(self) -> bool:
        """Whether there has been no source, live job, action or request for `linger_s`."""
        live = any(not self.loop.ended(name) for name in self.journal.desired().jobs)
        acts = self.loop.plan.actions or self.loop.in_flight.subjects()
        if live or acts or self.sources.busy:
            self._used()
        return time.monotonic() - self.idle_since > self.linger_s

    # ---- the end

    def _stop(self, _request: service.Request[operations.Stop]) -> Json:
        live = [name for name in self.journal.desired().jobs if not self.loop.ended(name)]
        left = {} if live else self._shutdown_proxies()
        followed = self.sources.identity if self.sources.watchers else ""
        self.stopping = True
        self.sources.stops()
        self.server.after(0, self.server.stop)
        return {"jobs": live, "left": left, "followed": followed}

    def _shutdown_proxies(self) -> dict[str, str]:
        """Request all proxies to end; return each device whose proxy did not accept, and why."""
        devices = sorted({*known_devices(self.layout), *self.loop.observed.devices})
        with ThreadPoolExecutor(WORKERS) as pool:
            errors = dict(zip(devices, pool.map(self._shutdown_proxy, devices), strict=True))
        left = {name: error for name, error in errors.items() if error}
        for name, error in left.items():
            log.warning("cannot request the proxy of %s to exit: %s", name, error)
        with contextlib.suppress(sqlite3.Error):
            self.loop.processes.all_requested_to_end(left)
        return left

    def _shutdown_proxy(self, device: str) -> str:
        """Request a proxy to end; wait for one that was just started, which would outlive us
        otherwise.

        Returns "", or why the proxy did not accept the request."""
        deadline = time.monotonic() + STARTING_S
        patience = LOOK_WITHIN_S if device in self.loop.processes.silent else REQUEST_S
        while True:
            try:
                control.call(self.layout.proxy_socket(device), "shutdown", timeout=patience)
                return ""
            except control.ControlError as error:
                if error.code != "unreachable" or time.monotonic() > deadline:
                    return error.message
            if not is_locked(self.layout.proxy_file(device, ".lock")):
                return ""
            time.sleep(FAST_S)


def _create_daemon(claim: Claim, cancel: bool) -> Daemon:
    """Create the daemon; if it is to cancel all jobs, on a full disk, too. Raises JournalError,
    sqlite3.Error."""
    try:
        return Daemon(claim)
    except (JournalError, sqlite3.Error):
        if not cancel or not reserve.give_up(claim.layout):
            raise
    return Daemon(claim)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rankfold.reconciler.daemon", description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--cancel", action="store_true", help="every job, before any is started")
    options: Any = parser.parse_args(arguments)
    set_up()
    try:
        switches.check()
        with claimed(options.state.absolute()) as claim:
            _create_daemon(claim, options.cancel).serve(options.cancel)
    except (AlreadyRunning, JournalError, PermissionError, switches.BadSwitch) as error:
        print(f"rankfold: {legible(str(error))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
