"""Whether those who write a rank down, or bring it back, get on: CRIU, and who works with it.

One that neither computes nor reads nor writes is stuck, unless the kernel holds it up itself: it
cannot be killed then, and goes on when the disk does. Looks are counted, not seconds: while we do
not run ourselves, nobody is stuck.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from rankfold.interpose.launcher.rank import process

STUCK_S = 60.0
_LOOKS = 20
_STATE, _CPU = 0, slice(11, 13)  # words of /proc/PID/stat behind the name


class Stuck:
    """Of one snapshot or restore. `look` is to be called every `pause_s`; `who` is at work, all of
    the namespace but ourselves if it is not given."""

    def __init__(self, who: Callable[[], set[int]] = lambda: process.living() - {os.getpid()}):
        self._who = who
        self.patience_s = float(os.environ.get("RANKFOLD_CRIU_STUCK") or STUCK_S)
        self.pause_s = self.patience_s / _LOOKS
        self._seen: dict[int, str] = {}
        self._idle = 0

    def look(self) -> bool:
        """Whether nothing has been done for `patience_s`."""
        now = {pid: _done(pid) for pid in self._who()}
        waits = any(done.startswith("D") for done in now.values())
        self._idle = 0 if waits or now != self._seen else self._idle + 1
        self._seen = now
        return self._idle >= _LOOKS


def _done(pid: int) -> str:
    """A process's state, CPU time, and what it has read and written, until now."""
    found = ""
    with contextlib.suppress(OSError, IndexError):
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        found = " ".join([words[_STATE], *words[_CPU]])
        found += Path(f"/proc/{pid}/io").read_text()
    return found
