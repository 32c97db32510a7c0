"""Connects a command to the background reconciler: finds it, starts it, sends requests.

A command that finds no reconciler starts one. If the reconciler is killed during a request, the
command starts another one, which continues with the same state.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankfold import control
from rankfold.reconciler import liveness
from rankfold.reconciler.deadlines import SILENT_AFTER_S
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.reports import last_lines
from rankfold.reconciler.observe import restarts
from rankfold.reconciler.wording import time_of_day

START_TIMEOUT_S = 30.0
AGAIN_S = 0.05
PATIENCE_S = 2.0  # longest wait before restarting a reconciler that crashes repeatedly
REQUEST_TIMEOUT_S = 180.0  # the reconciler may be in the middle of a long action


class NoReconciler(Exception):
    """The background reconciler could not be started."""


class Unresponsive(control.ControlError):
    """A reconciler runs but does not answer."""

    def __init__(self, why: str):
        super().__init__("unresponsive", why)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Reconciler:
    """A connection that starts the reconciler when it does not run.

    notify: called with a message for people, such as what a request waits for. cancel: a reconciler
    that it starts begins by cancelling every job."""

    def __init__(self, state: Path, notify: Callable[[str], None] = _print, cancel: bool = False):
        self.state, self.notify, self.cancel = state, notify, cancel
        self.layout = Layout(state)
        self.client: control.Client | None = None
        self._noted = False  # whether a difference in versions has been reported

    def __enter__(self) -> Reconciler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.client:
            self.client.close()
            self.client = None

    def request(self, op: str, start: bool = True, **arguments: Any) -> Json:
        """Send a request and return the reply. Raises ControlError when it is refused, Unresponsive
        when the reconciler does not answer, NoReconciler when none runs and none is
        started.

        If the reconciler is killed during the request, it is started again and gets the request
        again, so every operation is idempotent.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self.client is None:
                self.client = self._connect(start)
            try:
                return self._reply(self.client, op, **arguments)
            except control.ControlError as error:
                if error.code not in ("unreachable", "timeout"):
                    raise
                self.close()
                if not start or time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_S)  # connecting to a process that is just ending fails at once

    def _reply(self, client: control.Client, op: str, **arguments: Any) -> Json:
        """Wait for the reply. Raises Unresponsive as soon as it is clear that none will come."""
        with liveness.watching(client, lambda: liveness.hangs(self.layout, self.notify)) as watched:
            try:
                reply, _ = client.request(op, timeout=REQUEST_TIMEOUT_S, **arguments)
                return reply
            except control.ControlError as error:
                if watched.why:
                    self.close()
                    raise Unresponsive(watched.why) from error
                raise

    def _connect(self, start: bool) -> control.Client:
        child: subprocess.Popen[bytes] | None = None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            reconciler = liveness.query(self.layout, SILENT_AFTER_S)
            if reconciler.answers:
                if reconciler.note and not self._noted:
                    self.notify(f"rankfold: {reconciler.note}")
                    self._noted = True
                with contextlib.suppress(control.ControlError):  # it may have ended in between
                    return control.Client(self.layout.socket, timeout=REQUEST_TIMEOUT_S)
            elif reconciler.runs:
                self._wait_for(reconciler)
                continue
            if not start:
                raise NoReconciler("no reconciler runs on this state directory")
            if child is None or child.poll() is not None:
                if child is not None and time.monotonic() > deadline - START_TIMEOUT_S + 5:
                    raise NoReconciler(
                        f"the reconciler did not start: {last_lines(self.layout.log)}"
                    )
                self._back_off()
                child = self._spawn()
            if time.monotonic() > deadline:
                raise NoReconciler(f"the reconciler is unresponsive; its log: {self.layout.log}")
            time.sleep(AGAIN_S)

    def _wait_for(self, reconciler: liveness.Liveness) -> None:
        """Wait for a reconciler that runs and does not answer. It has no request from us yet.
        Raises Unresponsive."""
        if not reconciler.patient:
            raise Unresponsive(f"{reconciler.trouble}. Nothing was changed")
        if why := liveness.hangs(self.layout, self.notify):
            raise Unresponsive(f"{why}. Nothing was changed")

    def _back_off(self) -> None:
        """Wait before restarting a reconciler that crashes repeatedly, for PATIENCE_S at most;
        raises NoReconciler if the wait is longer."""
        if wait := restarts.wait_s(self.layout):
            if wait > PATIENCE_S:
                again = f"It is started again at {time_of_day(time.time() + wait)} at the earliest"
                raise NoReconciler(f"{restarts.report(self.layout)}. {again}")
            time.sleep(wait)

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.layout.log.open("ab") as log:
            command = [sys.executable, "-m", "rankfold.reconciler.daemon", "--state"]
            more = ["--cancel"] if self.cancel else []
            return subprocess.Popen(
                [*command, str(self.state), *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=dict(os.environ),
                cwd="/",
            )
