"""The fleet's own time, by which durations are measured: what the journal calls "steady".

It passes as CLOCK_MONOTONIC does, so setting the wall clock changes no duration. The file
STATE/clock says what it was at one reading of the kernel's clocks: all processes of the fleet have
the same time, and so has the next reconciler. CLOCK_MONOTONIC begins anew with each boot, and may
differ in another time namespace: there the fleet's time continues by what has passed on the wall
clock, and never goes back. Its numbers look like those of the wall clock when the fleet began.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

NOTE_S = 10.0  # between two notes by the reconciler: what a reboot makes unknown lies between them


@dataclass(frozen=True)
class Reading:
    """One moment on all clocks. `boot` and `namespace`: whose CLOCK_MONOTONIC it is."""

    boot: str
    namespace: str
    steady: float
    monotonic: float
    wall: float


def _here() -> tuple[str, str]:
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/time")
    return boot, namespace


def _read(steady: float | None = None) -> Reading:
    wall = time.time()
    return Reading(*_here(), wall if steady is None else steady, time.monotonic(), wall)


_reading = _read()


def reading() -> Reading:
    """Now, for a process that may have another clock, or run after the next boot: see `age`."""
    return _read(now())


def age(of: Reading) -> float:
    """Seconds since then: by the wall clock only if the machine was booted since, or another time
    namespace has read it."""
    if (of.boot, of.namespace) == _here():
        return max(0.0, time.monotonic() - of.monotonic)
    return max(0.0, time.time() - of.wall)


def now() -> float:
    return _reading.steady + time.monotonic() - _reading.monotonic


def wall(at: float) -> float:
    """That moment as the wall clock has it, for people."""
    return at + time.time() - now()


def of_wall(at: float) -> float:
    """A moment that the wall clock had, unless that is set meanwhile; none of the future."""
    return now() - max(0.0, time.time() - at)


def follow(file: Path) -> float | None:
    """From now on `now` is the time of the fleet whose file this is. Gives the last time that was
    noted before the machine was booted; None: it was not booted since, or nothing is known."""
    global _reading
    try:
        noted = msgspec.json.decode(file.read_bytes(), type=Reading)
    except (OSError, msgspec.MsgspecError):
        _reading = _read()
        return None
    here = _here()
    if (noted.boot, noted.namespace) == here:
        _reading = noted
        return None
    _reading = _read(noted.steady + max(0.0, time.time() - noted.wall))
    return noted.steady if noted.boot != here[0] else None


def note(file: Path) -> None:
    """For the fleet's other processes, and for after the next boot. Raises OSError."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(msgspec.json.encode(_read(now())))
    os.replace(temporary, file)
