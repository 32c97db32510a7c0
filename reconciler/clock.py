"""The fleet's own time, by which durations are measured: fleet time. The file has it as "steady".

It advances with CLOCK_MONOTONIC, so setting the wall clock changes no duration. The file
STATE/clock records its value at one reading of the kernel's clocks, so that all processes of the
fleet, and the next reconciler, have the same time. CLOCK_MONOTONIC starts over at each boot and may
differ in another time namespace. There the fleet's time continues by the time that has passed on
the wall clock, and never goes back. Its values look like those of the wall clock when the fleet
began.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

NOTE_S = 10.0  # between two notes by the reconciler: so exactly the time of a reboot is known


class Reading(msgspec.Struct, frozen=True):
    """One moment on all clocks. `boot` and `namespace` identify the CLOCK_MONOTONIC."""

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


def _begin(steady: float | None = None) -> Reading:
    """The current moment, with this fleet time; None: that of the wall clock."""
    here, wall = _here(), time.time()
    return Reading(*here, wall if steady is None else steady, time.monotonic(), wall)


_reading = _begin()


def reading() -> Reading:
    """The current moment, for a process in another time namespace or after a boot: see `age`."""
    here, wall, monotonic = _here(), time.time(), time.monotonic()
    return Reading(*here, _at(monotonic), monotonic, wall)


def age(of: Reading) -> float:
    """Seconds since a reading. Uses the wall clock only if the machine was booted since, or if the
    reading is of another time namespace."""
    if (of.boot, of.namespace) == _here():
        return max(0.0, time.monotonic() - of.monotonic)
    return max(0.0, time.time() - of.wall)


def now() -> float:
    return _at(time.monotonic())


def _at(monotonic: float) -> float:
    """Fleet time at a reading of CLOCK_MONOTONIC. Both must be of one moment: otherwise the time
    goes back for the processes that follow a note, by the time between them."""
    return _reading.steady + monotonic - _reading.monotonic


def wall(fleet_time: float) -> float:
    """The wall clock's time at a moment of the fleet's time, for people."""
    return fleet_time + time.time() - now()


def of_wall(wall_time: float) -> float:
    """The fleet's time at a moment of the wall clock, now at the latest. Wrong if the wall clock
    was set in between."""
    return now() - max(0.0, time.time() - wall_time)


def follow(file: Path) -> float | None:
    """Make `now` return the time of the fleet to which this file belongs. Returns the last time
    noted before the machine was booted; None if it was not booted since, or if nothing is known."""
    global _reading
    try:
        noted = msgspec.json.decode(file.read_bytes(), type=Reading)
    except (OSError, msgspec.MsgspecError):
        _reading = _begin()
        return None
    here = _here()
    if (noted.boot, noted.namespace) == here:
        _reading = noted
        return None
    _reading = _begin(noted.steady + max(0.0, time.time() - noted.wall))
    return noted.steady if noted.boot != here[0] else None


def note(file: Path) -> None:
    """Record the time for the fleet's other processes and for the next boot. Raises OSError."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(msgspec.json.encode(reading()))
    os.replace(temporary, file)
