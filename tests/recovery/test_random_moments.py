"""At random moments of a job that is saved, stored, resumed and moved, a process is killed (-9) or
stopped for a while: in the end every bit is that of the undisturbed job."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from support.command import Rankfold
from support.patience import scaled

from .conftest import Trained

MOMENTS = 6  # of each job
JOBS = 50
AWAIT_S = 5.0  # a victim that is there now and then is waited for so long
STOPPED_S = (0.05, 4.0)
ENDS_S = 300.0
UNTIRING = "checkpoint: {interval: 0s, everySteps: 400}\n  restart: {maxRestarts: 99}"

KINDS = {  # what the command lines of a fleet's processes have
    "reconciler": ("rankfold.reconciler.daemon",),
    "proxy": ("rankfold.proxy.server",),
    "launcher": ("rankfold.interpose.launcher",),  # and who works for one
    "uploader": ("rankfold.checkpoint.upload",),
    "fetcher": ("rankfold.checkpoint.fetch",),
    "criu": ("criu", "dump"),
    "criu restoring": ("criu", "restore"),
}
RANK, EVERYTHING = "rank", "everything"
OFTEN = ("reconciler", "proxy", "launcher", RANK)
WISHES = ("checkpoint", "checkpoint", "store", "suspend", "gpus 1", "gpus 2", "nothing")
PROVOKED = {  # what makes those appear that are there now and then
    "uploader": ("checkpoint", "store"),
    "criu": ("checkpoint", "store"),
    "fetcher": ("a rank's end",),
    "criu restoring": ("a rank's end",),
}


class Victims:
    """The processes of a fleet by what they are."""

    def __init__(self, rankfold: Rankfold, program: Path):
        self.watch, self.program = rankfold.state.watch, str(program)

    def found(self) -> dict[str, list[int]]:
        kinds: dict[str, list[int]] = {}
        for pid in sorted(self.watch.new_processes()):
            if kind := self.kind(pid):
                kinds.setdefault(kind, []).append(pid)
        return kinds

    def kind(self, pid: int) -> str:
        words = _read(pid, "cmdline").split("\0")
        if words[0] == self.program:
            return RANK
        text = " ".join(words)
        return next((kind for kind, marks in KINDS.items() if all(m in text for m in marks)), "")

    def copies(self) -> dict[str, list[int]]:
        """Living processes of each rank."""
        ranks: dict[str, list[int]] = {}
        for pid in self.found().get(RANK, ()):
            environment = dict(
                line.split("=", 1) for line in _read(pid, "environ").split("\0") if "=" in line
            )
            if "RANK" in environment:
                ranks.setdefault(environment["RANK"], []).append(pid)
        return ranks


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; one that is traced, as during a restore, does not
    count."""
    return _read(pid, "stat").rpartition(")")[2].split()[:1] == ["T"]


class Disaster:
    """Disturbs one job as `seed` decides. `told`: everything that happened, for a failure's report.
    `on_disk`: a suspended job rests on disk, instead of in memory or in the store."""

    def __init__(self, job: Trained, seed: int):
        self.on_disk = seed % 2 == 1
        self.job, self.rankfold = job, job.rankfold
        self.chance = random.Random(seed)
        self.victims = Victims(job.rankfold, job.program)
        self.told: list[str] = []
        self.suspended = self.stopped = False
        self.twice: dict[str, list[int]] = {}

    def over(self) -> bool:
        return str(self.job.status.get("phase")) in ("Succeeded", "Failed")

    def tend(self, seconds: float) -> None:
        """Let time pass. There is a reconciler, and of no rank are there two for long. A rank that
        was saved while we had stopped it comes back as it was: it is let go again."""
        until = time.monotonic() + seconds
        while True:
            ranks = self.victims.found().get(RANK, ()) if self.stopped else ()
            _signal([pid for pid in ranks if _is_stopped(pid)], signal.SIGCONT)
            if not self.rankfold.reconciler_pid():
                self.rankfold.run("apply", "-f", str(self.job.specs.folder))
            copies = {r: pids for r, pids in self.victims.copies().items() if len(pids) > 1}
            lasting = [r for r, pids in copies.items() if self.twice.get(r) == pids]
            assert not lasting, f"two copies of ranks {copies} after {self.told}"
            self.twice = copies
            if time.monotonic() > until:
                return
            time.sleep(min(0.2, max(0.01, until - time.monotonic())))

    def happens(self) -> None:
        kind = self.chance.choice((*OFTEN, *KINDS, EVERYTHING))
        self._wish(self.chance.choice(PROVOKED.get(kind, WISHES)))
        if kind not in PROVOKED:
            self.tend(self.chance.uniform(0.0, 1.5))
        self._strike(kind)

    def _wish(self, wish: str) -> None:
        """A person wants something, or nothing."""
        wish = "suspend" if self.on_disk and wish == "store" else wish
        self.told.append(wish)
        name = self.job.name
        if self.suspended and wish != "nothing":
            self.rankfold.run("resume", name, "--override")
            self.suspended = False
        elif wish == "a rank's end":
            _signal(self._named(RANK)[:1], signal.SIGKILL)
        elif wish == "checkpoint":
            self.rankfold.run("checkpoint", name)
        elif wish in ("store", "suspend"):
            store = ["--store"] if wish == "store" else []
            self.rankfold.run("suspend", name, *store, "--override")
            self.suspended = True
        elif wish.startswith("gpus"):
            self.rankfold.run("scale", name, "--gpus", wish.split()[1], "--override")

    def _strike(self, kind: str) -> None:
        how = self.chance.choice(("kill one", "kill all", "stop one", "stop all"))
        until = time.monotonic() + scaled(AWAIT_S)
        while not (pids := self._named(kind)) and time.monotonic() < until:
            time.sleep(0.005)
            if kind in PROVOKED:
                self.tend(0.0)
        time.sleep(self.chance.random() * 0.1)
        pids = pids if how.endswith("all") or kind == EVERYTHING else pids[:1]
        self.told.append(f"{how} of {kind} ({len(pids)})")
        if how.startswith("kill"):
            _signal(pids, signal.SIGKILL)
            return
        self.stopped |= kind in (RANK, EVERYTHING)
        _signal(pids, signal.SIGSTOP)
        try:
            time.sleep(self.chance.uniform(*STOPPED_S))
        finally:
            _signal(pids, signal.SIGCONT)

    def _named(self, kind: str) -> list[int]:
        found = self.victims.found()
        pids = [pid for k, each in found.items() if kind in (k, EVERYTHING) for pid in each]
        self.chance.shuffle(pids)
        return pids

    def ends(self) -> None:
        until = time.monotonic() + scaled(ENDS_S)
        while not self.over():
            if self.suspended or self.job.status.get("phase") == "Suspended":
                self.rankfold.run("resume", self.job.name, "--override")
                self.suspended = False
            self.tend(0.5)
            assert time.monotonic() < until, f"{self.told}\n{self.rankfold('events')}"


def _signal(pids: list[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(JOBS))
def test_bits_are_the_same_whichever_process_dies_or_stops(
    seed: int, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    disaster = Disaster(job, seed)
    if disaster.on_disk:
        job.rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = "0"
    job.apply(gpus=2, extra=UNTIRING)
    while len(disaster.told) < 2 * MOMENTS and not disaster.over():
        disaster.happens()
        disaster.tend(disaster.chance.uniform(0.0, 2.0))
    disaster.ends()
    print(f"seed {seed}: {disaster.told}; {job.status['restarts']} restarts")
    assert job.results() == undisturbed, disaster.told
