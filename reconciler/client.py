"""How commands reach the background reconciler: find it, start it, ask it.

Used by `cli`. A command that meets no reconciler starts one and goes on; one that loses it in the
middle (killed) starts another, which finds everything where it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rankfold import control
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.node import last_lines
from rankfold.reconciler.values import Json

START_TIMEOUT_S = 30.0
AGAIN_S = 0.05
LOOK_TIMEOUT_S = 2.0
ASK_TIMEOUT_S = 180.0  # the reconciler may be in the middle of a long action


def reconciler_runs(layout: Layout) -> bool:
    """Whether one listens. No request is sent: it may be busy."""
    try:
        control.Client(layout.socket, timeout=LOOK_TIMEOUT_S).close()
    except control.ControlError:
        return False
    return True


class NoReconciler(Exception):
    """The background reconciler could not be started."""


class Reconciler:
    """A connection that starts the reconciler when it is not there."""

    def __init__(self, state: Path):
        self.state = state
        self.layout = Layout(state)
        self.client: control.Client | None = None

    def __enter__(self) -> Reconciler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.client:
            self.client.close()
            self.client = None

    def ask(self, op: str, start: bool = True, **arguments: Any) -> Json:
        """Raises ControlError for a refusal, NoReconciler when there is none.

        One that is killed while it is asked is started again and asked again, so every operation
        is idempotent.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self.client is None:
                self.client = self._connect(start)
            try:
                reply, _ = self.client.ask(op, timeout=ASK_TIMEOUT_S, **arguments)
                return reply
            except control.ControlError as error:
                if error.code not in ("unreachable", "timeout"):
                    raise
                self.close()
                if not start or time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_S)  # a connection to one that is just dying breaks at once

    def _connect(self, start: bool) -> control.Client:
        child: subprocess.Popen[bytes] | None = None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return control.Client(self.layout.socket, timeout=ASK_TIMEOUT_S)
            except control.ControlError as error:
                if not start:
                    raise NoReconciler("no reconciler runs on this state directory") from error
            if child is None or child.poll() is not None:
                if child is not None and time.monotonic() > deadline - START_TIMEOUT_S + 5:
                    raise NoReconciler(
                        f"the reconciler did not start: {last_lines(self.layout.log)}"
                    )
                child = self._spawn()
            if time.monotonic() > deadline:
                raise NoReconciler(f"the reconciler does not answer; its log: {self.layout.log}")
            time.sleep(AGAIN_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.layout.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "rankfold.reconciler.daemon", "--state", str(self.state)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=dict(os.environ), cwd="/",
            )  # fmt: skip
