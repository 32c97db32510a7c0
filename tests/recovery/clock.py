"""A wall clock that a test sets: that of a fleet's processes, not the machine's."""

from __future__ import annotations

import json
import mmap
import struct
import threading
from pathlib import Path

from support import native
from support.command import Rankfold

JUMPS_H = (0, 6, -7, 30, -48, 1, -1, 200, -3)
OFTEN_S = 0.3


def pass_time(file: Path, seconds: float) -> None:
    """So much of the fleet's own time passes while no reconciler runs. `file`: Layout.clock."""
    reading = json.loads(file.read_text())
    reading["steady"] += seconds
    file.write_text(json.dumps(reading))


class Clock:
    """The clock of every process of a fleet except the ranks."""

    def __init__(self, folder: Path, rankfold: Rankfold):
        file = folder / "clock"
        file.write_bytes(bytes(8))
        source = Path(__file__).with_name("shifted_clock.c")
        library = native.build(folder, [source], "clock", args=[f'-DSHIFT_FILE="{file}"'])
        rankfold.environment["LD_PRELOAD"] = str(library)
        with file.open("r+b") as opened:
            self._shift = mmap.mmap(opened.fileno(), 8)
        self._over = threading.Event()
        self._jumper = threading.Thread(target=self._often)

    def jump(self, hours: int) -> None:
        """It is now off by so many hours."""
        struct.pack_into("=q", self._shift, 0, hours * 3600)

    def jumps_often(self) -> None:
        self._jumper.start()

    def _often(self) -> None:
        at = 0
        while not self._over.wait(OFTEN_S):
            at += 1
            self.jump(JUMPS_H[at % len(JUMPS_H)])

    def end(self) -> None:
        self._over.set()
        if self._jumper.ident:
            self._jumper.join()
        self._shift.close()
