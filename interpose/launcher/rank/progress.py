"""Detects that a snapshot or restore makes no progress: CRIU, and the processes that work with it.

A process that neither computes nor reads nor writes is stuck, unless the kernel itself holds it up
(state D): then it cannot be killed, and continues when the disk does. Patience is measured in
checks, not in seconds: while this process does not run, no other process counts as stuck.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from rankfold import switches
from rankfold.interpose.launcher.rank import process

_LOOKS = 20
_STATE, _CPU = 0, slice(11, 13)  # words of /proc/PID/stat behind the name


class Stuck:
    """Watches one snapshot or restore. The caller calls `look` every `pause_s`. `who` returns the
    processes that work; by default all of the namespace except ourselves."""

    def __init__(self, who: Callable[[], set[int]] = lambda: process.living() - {os.getpid()}):
        self._who = who
        self.patience_s = switches.criu_stuck_s()
        self.pause_s = self.patience_s / _LOOKS
        self._seen: dict[int, str] = {}
        self._idle = 0

    def look(self) -> bool:
        """Whether the processes have made no progress for `patience_s`."""
        now = {pid: _done(pid) for pid in self._who()}
        waits = any(done.startswith("D") for done in now.values())
        self._idle = 0 if waits or now != self._seen else self._idle + 1
        self._seen = now
        return self._idle >= _LOOKS


def _done(pid: int) -> str:
    """A process's state, CPU time, and I/O counters so far."""
    reports = ""
    with contextlib.suppress(OSError, IndexError):
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        reports = " ".join([words[_STATE], *words[_CPU]])
        reports += Path(f"/proc/{pid}/io").read_text()
    return reports
