"""`rankfold watch`: attaches a source, prints what happens, and survives temporary failures.

The reconciler that follows the source may be killed, the disk may be full, the branch or the
directory may be missing, a file may be partly saved: each is reported once on stderr, and waited
for."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import NoReturn

from rankfold import control
from rankfold.reconciler.client import NoReconciler, Reconciler
from rankfold.reconciler.journal.journal import JournalError
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.report.console import last_event, live_view, print_events
from rankfold.reconciler.report.lines import say

POLL_S = 0.1  # between two reads of the journal's events
HELLO_S = 0.5  # between two requests to the reconciler, which answers each one in its loop
END_S = 2.0  # for the reconciler, when the command is interrupted
AGAIN_MIN_S, AGAIN_MAX_S = 0.2, 5.0
LASTING = ("source", "denied", "version", "unknown_op", "argument", "bad_request", "nonsense")
_PASSING = (control.ControlError, NoReconciler, JournalError, sqlite3.Error, OSError)


class Watching:
    """One `rankfold watch`. An error before the source was first read ends it, because a person is
    present and may have mistyped something. After that, only errors that waiting cannot resolve
    do."""

    def __init__(self, state: Path, reconciler: Reconciler, source: Json, output: str):
        self.state, self.reconciler = state, reconciler
        self.source, self.output = source, output
        self.client: control.Client | None = None  # the connection that attached the source
        self.attached = False  # whether it ever was
        self.trouble = ""
        self.hello_due = 0.0  # CLOCK_MONOTONIC
        self.faults: list[str] = []

    def run(self) -> NoReturn:
        """Run until interrupted. Raises the error that ends it."""
        self.after, again = last_event(self.state), AGAIN_MIN_S
        with live_view(self.state, self.output) as refresh:
            while True:
                try:
                    self._turn()
                    refresh()
                except _PASSING as error:
                    if not self.attached or _lasts(error):
                        raise
                    self._report_trouble(str(error))
                    time.sleep(again)
                    again = min(AGAIN_MAX_S, again * 2)
                else:
                    again = AGAIN_MIN_S
                    time.sleep(POLL_S)

    def end(self) -> None:
        """Stop following, after an interrupt, so that the source is not reported as unwatched."""
        if self.client is not None and self.reconciler.client is self.client:
            with contextlib.suppress(*_PASSING):
                self.client.request("unwatch", timeout=END_S)

    def _turn(self) -> None:
        if self.client is None or self.reconciler.client is not self.client:
            self._attach()
        for number in print_events(self.state, self.after, self.output):
            self.after = number
        if time.monotonic() >= self.hello_due:
            now = self.reconciler.request("hello")
            self.hello_due = time.monotonic() + HELLO_S
            self._report_trouble(now["trouble"])

    def _attach(self) -> None:
        reply = self.reconciler.request(
            "attach", source=self.source, watch=True, again=self.attached
        )
        if not self.attached:
            say(f"rankfold: watching {self.reconciler.request('hello')['source']}")
        self.client, self.attached = self.reconciler.client, True
        if reply["faults"] != self.faults:
            self.faults = reply["faults"]
            for fault in self.faults:
                say(fault)

    def _report_trouble(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            say(f"rankfold: {trouble}; waiting for it")
        elif self.trouble and not trouble:
            say("rankfold: recovered, continuing")
        self.trouble = trouble


def _lasts(error: Exception) -> bool:
    if isinstance(error, control.ControlError):
        return error.code in LASTING
    return isinstance(error, BrokenPipeError)  # no process reads our output
