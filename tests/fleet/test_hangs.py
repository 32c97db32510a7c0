"""SIGSTOP of processes of a fleet: jobs beside them are started and changed, and no bit is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from cuda import PROGRAMS, build

from rankfold import control
from rankfold.proxy.hal.soft.modules import compiler_socket
from support.command import Rankfold, Specs
from support.leaks import State

from .neighbour import NAME, Neighbour


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """These processes are stopped while this lasts."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_proxy_and_the_compiler(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour, state: State
) -> None:
    rankfold.environment["RANKFOLD_CACHE"] = str(state.folder / "kernels")  # it must compile
    specs.pool(3)
    neighbour.apply(gpus=2)
    neighbour.goes_on()
    program = str(build(PROGRAMS / "one_launch.cu"))
    rankfold("run", "--world-size", "1", "--", program)
    pids = neighbour.pids()
    hung = sorted(neighbour.devices())[0]
    compiler = control.call(compiler_socket(state.path), "status")["pid"]
    with stopped(rankfold.proxy_pid(hung), int(compiler)):
        assert rankfold("run", "--world-size", "1", "--", program) == "cudaSuccess\n"
        neighbour.describe(gpus=1)
        rankfold("apply", "-f", str(specs.folder))
        rankfold.until(lambda: "DoesNotAnswer" in {
            condition["reason"] for condition in rankfold.job(NAME)["conditions"]
        })  # fmt: skip
        assert rankfold("run", "--world-size", "1", "--", program) == "cudaSuccess\n"
        told = {device["name"]: device["state"] for device in rankfold.status()["devices"]}
        assert told.pop(hung) == "Down" and set(told.values()) == {"Ready"}
        assert len(neighbour.devices()) == 2, "who hangs has not let go"
    rankfold.until(lambda: len(neighbour.devices()) == 1)
    assert neighbour.pids() == pids
    neighbour.finish()
