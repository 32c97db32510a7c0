"""Jobs that get no further though all their processes live: what their ranks wait for is told."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from cuda import PROGRAMS, build

from rankfold.reconciler.waiting import WAITS_S
from support.command import DEADLINE_S, Rankfold, Specs
from support.leaks import State

from .neighbour import Neighbour

JOB = "stands"
AT = {  # what each of two ranks gets on by next
    "host": ["others", "host"],
    "kernel": ["others", "device"],
    "receive": ["host", "others"],
    "crossed": ["others", "others"],
    "join": ["others", "host"],
}


def waiting(rankfold: Rankfold, name: str) -> dict[str, str]:
    """Why a job gets no further: reason and message."""
    found = rankfold.job(name)["conditions"]
    return {c["reason"]: c["message"] for c in found if c["type"] == "Waiting"}


class Stands:
    """A job whose ranks stand still, until told."""

    def __init__(self, rankfold: Rankfold, specs: Specs, how: str, gpus: int):
        self.rankfold, self.specs, self.how, self.gpus = rankfold, specs, how, gpus
        self.told = specs.folder / "told"
        self.program = build(PROGRAMS / "stands.cu")
        specs.pool(2)
        self.describe()
        rankfold("apply", "-f", str(specs.folder), "--wait")

    def describe(self, extra: str = "") -> None:
        command = [str(self.program), self.how, str(self.told)]
        self.specs.program(command, JOB, self.gpus, extra, 2)

    def ranks(self) -> list[Any]:
        found: list[Any] = self.rankfold.job(JOB)["ranks"]
        return found

    def finish(self) -> None:
        self.told.touch()
        self.rankfold.until(lambda: self.rankfold.job(JOB)["phase"] == "Succeeded")


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("how", AT)
def test_what_ranks_get_on_by_next(rankfold: Rankfold, specs: Specs, how: str, gpus: int) -> None:
    job = Stands(rankfold, specs, how, gpus)
    rankfold.until(lambda: all(each.get("quietSeconds", 0) >= 1 for each in job.ranks()))
    assert [each["at"] for each in job.ranks()] == AT[how]
    assert not waiting(rankfold, JOB), "it has been a moment only"
    if how != "crossed":
        job.finish()


def test_a_rank_that_a_signal_has_stopped(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    specs.pool(2)
    neighbour.apply(gpus=2)
    neighbour.goes_on()
    pid = neighbour.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    found = rankfold.until(lambda: waiting(rankfold, "neighbour"))
    assert f"of rank 1 (pid {pid}) is stopped by a signal" in found["RankStopped"]
    assert "is stopped by a signal" in rankfold("status")
    os.kill(pid, signal.SIGCONT)
    rankfold.until(lambda: not waiting(rankfold, "neighbour"))
    neighbour.finish()


def test_run_says_so(rankfold: Rankfold, state: State) -> None:
    told = state.folder / "told"
    command = [str(build(PROGRAMS / "stands.cu")), "host", str(told)]
    process = rankfold.start("run", "--world-size", "2", "--name", JOB, "--", *command)
    rankfold.until(lambda: [r.get("at") for r in rankfold.job(JOB).get("ranks", ())] == AT["host"])
    pid = rankfold.job(JOB)["ranks"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    rankfold.until(lambda: waiting(rankfold, JOB))
    os.kill(pid, signal.SIGCONT)
    rankfold.until(lambda: not waiting(rankfold, JOB))
    told.touch()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    lines = [line for line in err.splitlines() if line.startswith("rankfold: ")]
    assert len(lines) == 1 and f"of rank 1 (pid {pid}) is stopped by a signal" in lines[0], err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["host", "kernel", "crossed"])
def test_after_a_minute_it_is_said(rankfold: Rankfold, specs: Specs, how: str) -> None:
    job = Stands(rankfold, specs, how, 2)
    reason = {"crossed": "ForOneAnother"}.get(how, "ForRanks")
    rankfold.until(lambda: min(r.get("quietSeconds", 0) for r in job.ranks()) > WAITS_S / 2)
    found = rankfold.until(lambda: waiting(rankfold, JOB))
    assert list(found) == [reason]
    if how != "crossed":
        pid = job.ranks()[1]["pid"]
        assert f": rank 1 (pid {pid})" in found[reason]
        job.finish()


@pytest.mark.slow
def test_a_kernel_that_does_not_let_it_stand_still(rankfold: Rankfold, specs: Specs) -> None:
    job = Stands(rankfold, specs, "kernel", 2)
    job.describe("suspend: true")
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: min(r.get("quietSeconds", 0) for r in job.ranks()) > WAITS_S / 2)
    assert "in a kernel" in rankfold.until(lambda: waiting(rankfold, JOB))["ForRanks"]
    job.told.touch()
    rankfold.until(lambda: rankfold.job(JOB)["phase"] in ("Suspended", "Succeeded"))
    job.describe()
    rankfold("apply", "-f", str(specs.folder))
    job.finish()
