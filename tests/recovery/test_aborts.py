"""A job whose communicators are aborted in every step is moved, saved, stored and resumed; one of
its ranks is killed. Every bit is that of the undisturbed job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cuda
import pytest

from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs
from support.fleet import Fleet, MiB
from support.leaks import State
from support.patience import scaled

NAME, RANKS, FASTEST_WAY = "aborts", 4, 8


class Aborting:
    """tests/programs/watchdog.cu as a job that runs until `finish`."""

    def __init__(self, rankfold: Rankfold, specs: Specs):
        self.rankfold, self.specs = rankfold, specs
        self.program = str(cuda.build(cuda.PROGRAMS / "watchdog.cu"))
        self.hold = specs.folder / "hold"

    def apply(self) -> None:
        command = [self.program, "0", "-1", str(self.specs.folder)]
        self.specs.program(command, NAME, 4, "", RANKS)
        self.rankfold("apply", "-f", str(self.specs.folder), "--wait")

    def log(self, name: str) -> str:
        file: Path = Layout(self.rankfold.state.path).logs(NAME) / name
        return file.read_text() if file.exists() else ""

    def lines(self, rank: int) -> list[str]:
        text = self.log(f"rank-{rank}.out")
        return text[: text.rfind("\n") + 1].splitlines()

    def printed(self) -> int:
        return min(len(self.lines(rank)) for rank in range(RANKS))

    def continues(self, steps: int = 3) -> None:
        seen = self.printed()
        self.rankfold.until(lambda: self.printed() >= seen + steps)

    def holding(self) -> int:
        return sum(self.log(f"rank-{rank}.err").count(" holds\n") for rank in range(RANKS))

    def is_held(self) -> None:
        """Wait until ranks are blocked in a collective that another rank has aborted."""
        seen = self.holding()
        self.hold.touch()
        self.rankfold.until(lambda: self.holding() > seen)

    def command(self, *words: str, held: bool) -> None:
        """A command for the job; if `held`, it finds the job amid an abort."""
        if held:
            self.is_held()
        self.rankfold(words[0], NAME, *words[1:])
        self.hold.unlink(missing_ok=True)

    def scale(self, gpus: int, held: bool) -> None:
        self.command("scale", "--gpus", str(gpus), "--override", held=held)
        self.rankfold.until(lambda: len(set(self.rankfold.job(NAME)["placement"].values())) == gpus)
        self.continues()

    def suspend(self, *options: str, where: str, held: bool) -> None:
        self.command("suspend", *options, "--override", held=held)
        self.rankfold.until(lambda: self.rankfold.job(NAME).get("suspendedIn") == where)
        self.rankfold("resume", NAME, "--override")
        self.continues()

    def checkpoint(self) -> None:
        """Requested while ranks wait for what never comes; it exists once they have aborted."""
        self.is_held()
        command = self.rankfold.start("checkpoint", NAME, "--wait")
        self.rankfold.until(lambda: "SaveRequested" in self.rankfold("describe", NAME))
        self.hold.unlink()
        _, errors = command.communicate(timeout=scaled(60))
        assert command.returncode == 0, errors
        self.continues()

    def finish(self) -> None:
        (self.specs.folder / "stop").touch()
        self.rankfold.until(lambda: self.rankfold.job(NAME)["phase"] in ("Succeeded", "Failed"))
        assert self.rankfold.job(NAME)["phase"] == "Succeeded", self.rankfold("events", NAME)
        found = [self.lines(rank) for rank in range(RANKS)]
        assert found == [undisturbed(self.rankfold.state, self.program, len(found[0]))] * RANKS


def undisturbed(state: State, program: str, steps: int) -> list[str]:
    """The output of a rank in so many steps, without a reconciler, on one device: the bits of a
    step do not depend on how the rank is blocked."""
    folder = state.folder / "undisturbed"
    (folder / "state").mkdir(parents=True)
    own = State(folder, folder / "state", state.runtime, state.watch)
    with Fleet(own, 1, memory=RANKS * 64 * MiB) as fleet:
        job = fleet.start("plain", [program, str(steps), str(FASTEST_WAY)], [0] * RANKS)
        assert job.wait() == [0] * RANKS, job.errors(0)
        job.detach(discard=True)
        return job.output(0).splitlines()


@pytest.fixture
def aborting(rankfold: Rankfold, specs: Specs) -> Iterator[Aborting]:
    job = Aborting(rankfold, specs)
    job.apply()
    yield job
    job.hold.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_job_amid_aborts_is_saved_scaled_and_rests(aborting: Aborting) -> None:
    """When a rank is killed, the others are blocked in its collective."""
    aborting.continues()
    aborting.checkpoint()
    aborting.is_held()
    os.kill(aborting.rankfold.job(NAME)["ranks"][1]["pid"], signal.SIGKILL)
    aborting.rankfold.until(lambda: aborting.rankfold.job(NAME)["restarts"] == 1)
    aborting.hold.unlink()
    aborting.continues()
    for held in (False, True):
        for gpus in (1, 2, 4):
            aborting.scale(gpus, held)
    aborting.suspend(where="memory", held=True)
    aborting.suspend("--store", where="store", held=True)
    assert aborting.rankfold.job(NAME)["restarts"] == 1
    aborting.finish()
