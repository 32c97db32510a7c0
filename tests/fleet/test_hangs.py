"""SIGSTOP of processes of a fleet: jobs next to them are started and changed, and no bit is
lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterable

import pytest
from cuda import PROGRAMS, build

from rankfold import control
from rankfold.proxy.hal.soft.modules import compiler_socket
from support import privileges
from support.command import Rankfold, Specs
from support.leaks import State, below, stopped

from .neighbour import NAME, Neighbour


@pytest.mark.slow
def test_a_proxy_and_the_compiler(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour, state: State
) -> None:
    rankfold.environment["RANKFOLD_CACHE"] = str(state.folder / "kernels")  # it must compile
    specs.pool(3)
    neighbour.apply(gpus=2)
    neighbour.continues()
    program = str(build(PROGRAMS / "one_launch.cu"))
    rankfold("run", "--world-size", "1", "--", program)
    pids = neighbour.pids()
    hung = sorted(neighbour.devices())[0]
    compiler = control.call(compiler_socket(state.path), "status")["pid"]
    with stopped(rankfold.proxy_pid(hung), int(compiler)):
        assert rankfold("run", "--world-size", "1", "--", program) == "cudaSuccess\n"
        neighbour.describe(gpus=1)
        rankfold("apply", "-f", str(specs.folder))
        rankfold.until(
            lambda: (
                "DoesNotAnswer"
                in {condition["reason"] for condition in rankfold.job(NAME)["conditions"]}
            )
        )
        assert rankfold("run", "--world-size", "1", "--", program) == "cudaSuccess\n"
        told = {device["name"]: device["state"] for device in rankfold.status()["devices"]}
        assert told.pop(hung) == "Down" and set(told.values()) == {"Ready"}
        assert len(neighbour.devices()) == 2, "who hangs has not let go"
    rankfold.until(lambda: len(neighbour.devices()) == 1)
    assert neighbour.pids() == pids
    neighbour.finish()


@pytest.mark.slow
def test_a_rank_says_that_it_waits_for_a_kernel(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    """So do the device's log and `status`, which name the compiler that a signal has stopped."""
    rankfold.environment["RANKFOLD_CACHE"] = str(state.folder / "kernels")  # it must compile
    specs.pool(1)
    specs.program([str(build(PROGRAMS / "one_launch.cu"))], "first")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    rankfold.until(lambda: rankfold.job("first")["phase"] == "Succeeded")
    compiler = int(control.call(compiler_socket(state.path), "status")["pid"])
    specs.program([str(build(PROGRAMS / "first_launch.cu"))], "second")
    with stopped(compiler):
        rankfold("apply", "-f", str(specs.folder))
        errors = state.path / "jobs/second/logs/rank-0.err"
        rankfold.until(lambda: errors.exists() and "has waited 2 s" in errors.read_text())
        assert "for its device to load kernels, now for " in errors.read_text()
        said = f"the compiler (process {compiler}) is unresponsive"
        (log,) = (state.path / "proxies").glob("*.log")
        rankfold.until(lambda: said in log.read_text())
        assert any(said in each for each in rankfold.status()["trouble"])
    rankfold.until(lambda: rankfold.job("second")["phase"] == "Succeeded")
    assert errors.read_text().count("has waited") == 1


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


ASLEEP_S = 40.0  # longer than a launcher may take to start, and all waits for a reply but a save's


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("after_s", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("action", ["resize", "save", "rest"])
def test_all_of_it_in_the_midst_of_a_change(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour, action: str, after_s: float
) -> None:
    """As a machine that is paused, or a laptop that sleeps: every process at once, and all are
    there again in some order. No process takes another for hung: no rank begins anew."""
    privileges.need_criu()
    chance = random.Random(f"{action} {after_s}")
    specs.pool(2)
    neighbour.apply(gpus=1)
    neighbour.continues()
    if action == "resize":
        neighbour.describe(gpus=2)
        rankfold("apply", "-f", str(specs.folder))
    elif action == "save":
        rankfold("checkpoint", NAME)
    else:
        rankfold("suspend", NAME, "--store", "--override")
    time.sleep(after_s)
    asleep: set[int] = set()
    try:
        while more := below(os.getpid()) - asleep:  # some begin meanwhile
            send_signal(more, signal.SIGSTOP)
            asleep |= more
        time.sleep(ASLEEP_S)
    finally:
        send_signal(sorted(asleep, key=lambda _: chance.random()), signal.SIGCONT)
    if action == "rest":
        rankfold("resume", NAME, "--override")
    wanted = 2 if action == "resize" else 1
    rankfold.until(lambda: len(neighbour.devices()) == wanted)
    neighbour.continues()
    if action == "save":
        rankfold("checkpoint", NAME, "--wait")
    assert rankfold.job(NAME)["restarts"] == 0
    neighbour.finish()
