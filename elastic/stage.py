"""A stage of a run, as its processes know it: when to save state, and where it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .cut import NEVER, Cut, Marks
from .errors import Stopped
from .gpu import COVERED, Gpu

STAY = b"stay"
LONGEST_REASON = 1000  # characters; a pipe takes 4096 bytes at once
LEAD = 1  # steps before its end at which a stage has the next one prepared


class Stage(NamedTuple):
    """A part of a run in which the number of processes does not change.

    The processes save their state each `every` steps and where `cut` says, which may also end the
    stage. Steps are counted from 0 over the whole run. `end` is the step at which the plan ends it.
    `go` is a file descriptor per process, on which the parent's words arrive: the folder with the
    state, if the process `continues`; at the end, whether to stay. `report` is one on which the
    processes report. `keeps_bits`: sums have the order, and reducers the buckets, that they would
    have in any number of processes. `threads`: with how many a script's operators begin. `gpus`: of
    each process; empty: none. `covered`: the file with the types of GPU that the run may use."""

    world: int
    processes: int
    folder: Path
    end: int | None
    cut: Cut
    every: int | None
    report: int
    go: Mapping[int, int]
    continues: bool
    keeps_bits: bool = True
    threads: int = 1
    gpus: tuple[Gpu, ...] = ()
    covered: Path = COVERED

    def saves(self, step: int, marks: Marks, saved: int) -> bool:
        """Whether a worker that has saved at step `saved` last saves before this step."""
        return (
            NEVER != marks.end <= step
            or saved < marks.save <= step
            or (self.every is not None and step % self.every == 0)
        )

    def unfinished(self, step: int) -> Path:
        """The folder in which state is saved before all of it is there."""
        return self.folder / f"unfinished-{step}"

    def send(self, message: str) -> None:
        os.write(self.report, f"{message}\n".encode())  # short: processes' lines do not mix

    def send_failed(self, index: int, reason: str) -> None:
        """Reports why the script of a worker of process `index` has failed."""
        line = next(iter(reason.splitlines()), "")[:LONGEST_REASON]
        self.send(f"failed {index} {line}".encode(errors="replace").decode())

    def send_saved(self, step: int, failures: str) -> None:
        """Reports that the process has saved its state before a step; or why it has not: a line per
        worker."""
        if failures:
            self.send(f"unsaved {step} {failures.splitlines()[0][:LONGEST_REASON]}")
        else:
            self.send(f"saved {step}")

    def wait_for_state(self, index: int) -> Path:
        """The folder with saved state. Called by one logical worker of process `index`."""
        self.send("waiting")
        path = os.read(self.go[index], 4096)
        if not path:
            raise Stopped("the run has ended")
        return Path(os.fsdecode(path))

    def stays(self, index: int) -> bool:
        """Called when process `index` has saved at the stage's end. Waits for the parent's word:
        whether the process continues; else it exits."""
        return os.read(self.go[index], 4096) == STAY
