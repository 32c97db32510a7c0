"""Runs a program undisturbed, folded, moved, or saved and restarted, and returns its results."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs
from support.leaks import State
from support.patience import scaled

from .table import Guest

ENDS_S = 240.0


class Results(NamedTuple):
    """The output of each rank, and the files that the job left."""

    printed: list[str]
    files: dict[str, bytes]


def contents(folder: Path, pattern: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob(pattern))}


class Job:
    """A program as a job under one state directory, in a folder of its own."""

    def __init__(
        self, guest: Guest, env: dict[str, str], rankfold: Rankfold, specs: Specs, folder: Path
    ):
        self.guest, self.env = guest, env
        self.rankfold, self.specs, self.folder = rankfold, specs, folder
        self.name, self.extra = "job", ""  # extra: more lines of its spec
        folder.mkdir(exist_ok=True)

    def apply(self, gpus: int, suspend: bool = False) -> None:
        env = ", ".join(f"{name}: '{value}'" for name, value in self.env.items())
        suspended = str(suspend).lower()
        extra = f"workdir: {self.folder}\n  env: {{{env}}}\n  suspend: {suspended}\n  {self.extra}"
        self.specs.program(self.guest.command(), self.name, gpus, extra, self.guest.ranks)
        self.rankfold("apply", "-f", str(self.specs.folder), "--wait")

    @property
    def phase(self) -> str:
        return str(self.rankfold.job(self.name)["phase"])

    def printed(self) -> list[str]:
        logs = Layout(self.rankfold.state.path).logs(self.name)
        files = [logs / f"rank-{rank}.out" for rank in range(self.guest.ranks)]
        return [file.read_text() if file.exists() else "" for file in files]

    def reaches(self, lines: int) -> None:
        self.rankfold.until(lambda: min(text.count("\n") for text in self.printed()) >= lines)

    def results(self) -> Results:
        self.rankfold.until(lambda: self.phase in ("Succeeded", "Failed"))
        assert self.phase == "Succeeded", self.rankfold("events", self.name)
        return Results(self.printed(), contents(self.folder, self.guest.files))


class Place:
    """The environment in which a test runs a program: a fleet, and folders for the job and for the
    store."""

    def __init__(self, guest: Guest, state: State, rankfold: Rankfold, specs: Specs):
        self.guest, self.state, self.rankfold, self.specs = guest, state, rankfold, specs
        self.env = guest.env(state.folder)
        self.store, self.work = state.folder / "store", state.folder / "work"
        specs.pool(4, guest.memory, guest.capability)

    def undisturbed(self) -> Results:
        """Each rank alone on its device, by one command."""
        work, place = self.state.folder / "undisturbed", self.state.folder / "alone"
        work.mkdir()
        ranks = self.guest.ranks
        env = {**os.environ, **self.env, "RANKFOLD_STATE": str(place), "RANKFOLD_LINGER": "0.5"}
        run = ["run", "--world-size", str(ranks), "--name", "job", "--memory", self.guest.memory]
        if self.guest.capability:
            run += ["--compute-capability", self.guest.capability]
        subprocess.run(
            [sys.executable, "-m", "rankfold", *run, "--", *self.guest.command()],
            env=env,
            cwd=work,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=scaled(ENDS_S),
        )
        logs = Layout(place).logs("job")
        printed = [(logs / f"rank-{rank}.out").read_text() for rank in range(ranks)]
        return Results(printed, contents(work, self.guest.files))

    def job(self) -> Job:
        return Job(self.guest, self.env, self.rankfold, self.specs, self.work)

    def restarted(self, id: str) -> Results:
        """Restarts from a checkpoint in the store, under another state directory, on one device."""
        path = self.state.folder / "elsewhere"
        environment = {**self.rankfold.environment, "RANKFOLD_STATE": str(path)}
        other = Rankfold(replace(self.state, path=path), environment)
        job = Job(self.guest, self.env, other, self.specs, self.work)
        try:
            other("store", "adopt", str(self.store))
            job.apply(gpus=1, suspend=True)
            other("resume", job.name, "--from", id, "--override")
            return job.results()
        finally:
            other.end()

    def started(self) -> Job:
        """A job that may be saved in the store, and has printed some lines."""
        self.specs.store(self.store)
        job = self.job()
        job.apply(gpus=self.guest.ranks)
        job.reaches(moment(self.guest.lines))
        return job


def moment(lines: int) -> int:
    chosen = random.randint(1, lines)
    print(f"after {chosen} lines")
    return chosen


def folded(place: Place) -> Results:
    """All ranks on one device from the beginning."""
    job = place.job()
    job.apply(gpus=1)
    return job.results()


def in_pairs(place: Place) -> Results:
    """Two ranks on each device from the beginning."""
    job = place.job()
    job.apply(gpus=place.guest.ranks // 2)
    return job.results()


def moved(place: Place) -> Results:
    """Onto one device and back, while it runs."""
    job = place.job()
    job.apply(gpus=place.guest.ranks)
    job.reaches(moment(place.guest.lines // 2))
    job.apply(gpus=1)
    job.reaches(moment(place.guest.lines))
    job.apply(gpus=place.guest.ranks)
    results = job.results()
    assert place.rankfold.job(job.name)["epoch"] > 2, "it ended before it was moved"
    return results


def killed(place: Place) -> Results:
    """Saved while it runs; then every process of the fleet is killed."""
    job = place.started()
    id = place.rankfold("checkpoint", job.name, "--wait").strip()
    place.rankfold.kill_everything(job.name)
    return place.restarted(id)


def on_request(place: Place) -> Results:
    """Suspended into the store: no step is done twice."""
    job, rankfold = place.started(), place.rankfold
    rankfold("suspend", job.name, "--store", "--override")
    rankfold.until(lambda: rankfold.job(job.name)["suspendedIn"] == "store")
    (id,) = [each["id"] for each in rankfold.job(job.name)["checkpoints"]]
    before = job.printed()
    rankfold("stop")
    shutil.rmtree(place.work)  # what the ranks wrote is restored from the store
    results = place.restarted(id)
    pairs = zip(results.printed, before, strict=True)
    assert all(after.startswith(text) for after, text in pairs)
    return results


Way = Callable[[Place], Results]
WAYS: list[Way] = [folded, in_pairs, moved, killed, on_request]
