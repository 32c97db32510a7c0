"""Jobs that get no further though all their processes live: what their ranks wait for is
reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from cuda import PROGRAMS, build

from rankfold import control
from rankfold.proxy.hal.soft.modules import compiler_socket
from rankfold.reconciler.observe.stalls import WAITS_S
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
    """Why a job makes no progress: reason and message."""
    found = rankfold.job(name)["conditions"]
    return {c["reason"]: c["message"] for c in found if c["type"] == "Waiting"}


def at(rankfold: Rankfold, name: str) -> list[str]:
    """The calls in which the job's ranks wait, of those ranks that have begun."""
    return [each.get("at", "") for each in rankfold.job(name).get("ranks", ())]


class Stands:
    """A job whose ranks stand still until the test lets them continue."""

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

    def conditions(self) -> list[Any]:
        found: list[Any] = self.rankfold.job(JOB)["conditions"]
        return found

    def finish(self) -> None:
        self.told.touch()
        self.rankfold.until(lambda: self.rankfold.job(JOB)["phase"] == "Succeeded")


@pytest.mark.usual("crossed-1")
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("how", AT)
def test_the_condition_says_what_lets_ranks_continue(
    rankfold: Rankfold, specs: Specs, how: str, gpus: int
) -> None:
    job = Stands(rankfold, specs, how, gpus)
    rankfold.until(lambda: at(rankfold, JOB) == AT[how])
    rankfold.until(lambda: all(each["quietSeconds"] >= 2 for each in job.ranks()))
    assert at(rankfold, JOB) == AT[how]
    assert not waiting(rankfold, JOB), "it has been a moment only"
    if how != "crossed":
        job.finish()


@pytest.mark.slow
def test_a_rank_that_a_signal_has_stopped(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    specs.pool(2)
    neighbour.apply(gpus=2)
    neighbour.continues()
    pid = neighbour.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    found = rankfold.until(lambda: waiting(rankfold, "neighbour"))
    assert f"(pid {pid}) of rank 1" in found["RankStopped"]
    assert "stopped by a signal: " in rankfold("status")
    os.kill(pid, signal.SIGCONT)
    rankfold.until(lambda: not waiting(rankfold, "neighbour"))
    neighbour.finish()


@pytest.mark.slow
def test_run_says_so(rankfold: Rankfold, state: State) -> None:
    told = state.folder / "told"
    command = [str(build(PROGRAMS / "stands.cu")), "host", str(told)]
    process = rankfold.start("run", "--world-size", "2", "--name", JOB, "--", *command)
    rankfold.until(lambda: at(rankfold, JOB) == AT["host"])
    pid = rankfold.job(JOB)["ranks"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert process.stderr is not None
    said = next(line for line in process.stderr if "stopped by a signal" in line)
    assert said.startswith("rankfold: ") and f"(pid {pid}) of rank 1" in said
    os.kill(pid, signal.SIGCONT)
    told.touch()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0 and "stopped by a signal" not in err, "it was said already"


@pytest.mark.slow
def test_a_rank_whose_kernels_a_stopped_compiler_has(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    """Its device says that it waits for code, and `status` names the process; then it continues."""
    cache, socket = state.folder / "kernels", compiler_socket(state.path)
    socket.parent.mkdir(parents=True, exist_ok=True)
    rankfold.environment["RANKFOLD_CACHE"] = str(cache)  # other tests have compiled the kernel
    command = [sys.executable, "-m", "rankfold.proxy.hal.soft.compiler.server", "--idle", "60"]
    with subprocess.Popen([*command, "--socket", str(socket), "--cache", str(cache)]) as compiler:
        rankfold.until(lambda: socket.exists())
        compiler.send_signal(signal.SIGSTOP)
        job = Stands(rankfold, specs, "kernels", 2)
        rankfold.until(lambda: at(rankfold, JOB) == ["code", "code"])
        (told,) = rankfold.status()["trouble"]
        assert told.startswith(f"the compiler (process {compiler.pid}) has not answered")
        compiler.send_signal(signal.SIGCONT)
        rankfold.until(lambda: at(rankfold, JOB) == ["device", "device"])
        job.finish()
        control.call(socket, "shutdown")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["host", "kernel", "kernels", "crossed"])
def test_after_a_minute_it_is_said(rankfold: Rankfold, specs: Specs, how: str) -> None:
    job = Stands(rankfold, specs, how, 2)
    reason = {"crossed": "ForOneAnother", "kernels": "ForKernels"}.get(how, "ForRanks")
    rankfold.until(lambda: all(r.get("quietSeconds", 0) > WAITS_S / 2 for r in job.ranks()))
    found = rankfold.until(lambda: waiting(rankfold, JOB))
    assert list(found) == [reason]
    if how == "crossed":
        return
    if how != "kernels":
        assert f": rank 1 (pid {job.ranks()[1]['pid']})" in found[reason]
        assert ("in a kernel" in found[reason]) == (how == "kernel")
    job.describe("suspend: true")  # that has to wait, too, and it is still said for what
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: any(c["reason"] == "Converging" for c in job.conditions()))
    assert waiting(rankfold, JOB) == found
    assert found[reason] in rankfold("status")
    job.describe()
    rankfold("apply", "-f", str(specs.folder))
    job.finish()
