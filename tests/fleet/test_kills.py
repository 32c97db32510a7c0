"""kill -9 of each kind of process while CUDA jobs run: what is lost is said, the rest continues."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold import control
from rankfold.proxy.hal.soft.modules import compiler_socket
from support.command import Rankfold, Specs
from support.leaks import State, has_ended
from support.patience import scaled

from .neighbour import NAME, Neighbour


def start_victim(neighbour: Neighbour, specs: Specs) -> None:
    """A second job of two ranks, on two devices of its own, that would never end, and does not
    restart."""
    command = [str(neighbour.program), "/none"]
    specs.program(command, "victim", gpus=2, extra="restart: {maxRestarts: 0}", ranks=2)


def failed(rankfold: Rankfold, name: str) -> str:
    """Wait until a job has failed: why."""
    rankfold.until(lambda: rankfold.job(name)["phase"] == "Failed")
    return str(rankfold.job(name)["message"])


def all_devices_serve(rankfold: Rankfold, count: int) -> None:
    """The devices that no job uses take a job of `count` ranks, one on each."""
    program = str(build(PROGRAMS / "one_launch.cu"))
    out = rankfold("run", "--world-size", str(count), "--", program)
    assert out.count("cudaSuccess") == count


def parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 1 :].split()[1])


def test_a_proxy(rankfold: Rankfold, specs: Specs, neighbour: Neighbour) -> None:
    specs.pool(3)
    start_victim(neighbour, specs)
    neighbour.apply(gpus=1)
    neighbour.continues()
    placement = rankfold.job("victim")["placement"]
    kept, lost = placement["0"], placement["1"]
    killed = rankfold.proxy_pid(lost)
    os.kill(killed, signal.SIGKILL)
    # The message depends on what is seen first: the exit, or that the job's other device misses it.
    assert failed(rankfold, "victim") in (
        f"the proxy of {lost} exited; the device memory of rank 1 is lost",
        f"{kept}: device {lost} was lost",
    )
    neighbour.continues()
    rankfold.until(lambda: all(d["state"] == "Ready" for d in rankfold.status()["devices"]))
    assert rankfold.proxy_pid(lost) != killed
    all_devices_serve(rankfold, 2)
    neighbour.finish()


@pytest.mark.slow
def test_a_launcher(rankfold: Rankfold, specs: Specs, neighbour: Neighbour) -> None:
    specs.pool(3)
    start_victim(neighbour, specs)
    neighbour.apply(gpus=1)
    neighbour.continues()
    ranks = [rank["pid"] for rank in rankfold.job("victim")["ranks"]]
    os.kill(parent(ranks[1]), signal.SIGKILL)
    assert "the launcher of rank 1 was killed" in failed(rankfold, "victim")
    assert all(has_ended(pid, 10) for pid in ranks), "no rank is left behind"
    all_devices_serve(rankfold, 2)
    neighbour.finish()


@pytest.mark.slow
def test_the_reconciler_in_mid_action(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    """It dies half-way through every change of a running job; all fault points with devices that
    compute nothing: tests/reconciler."""
    specs.pool(3)
    neighbour.ranks = 3
    neighbour.apply(gpus=2)
    pids = neighbour.pids()
    token = specs.folder / "die"
    for point, gpus, extra in (
        ("barrier.partly", 1, ""),
        ("place.partly", 2, ""),
        ("detach.partly", 3, ""),
        ("detach.sent", 3, "suspend: true"),
        ("place.journalled", 2, ""),
    ):
        rankfold("stop")  # the next one gets the fault point
        rankfold.environment["RANKFOLD_FAULT"] = f"{point}@{token}"
        token.touch()
        neighbour.apply(gpus, extra)
        assert not token.exists(), f"{point} was never reached"
        assert len(neighbour.devices()) == (0 if extra else gpus)
        assert neighbour.pids() == pids
        if not extra:
            neighbour.continues()
    neighbour.finish()


@pytest.mark.slow
def test_the_proxy_that_started_the_compiler(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    """The compiler serves the other proxies on, and the device is free for a new proxy."""
    rankfold.environment["RANKFOLD_CACHE"] = str(specs.folder / "kernels")
    rankfold.environment["PYTHONNOUSERSITE"] = "1"  # a fork's parent would be the fork server
    specs.pool(2)
    neighbour.ranks = 2
    neighbour.apply(gpus=2, extra="restart: {maxRestarts: 0}")
    neighbour.continues()
    compiler = control.call(compiler_socket(rankfold.state.path), "status")["pid"]
    proxies = {rankfold.proxy_pid(d["name"]) for d in rankfold.status()["devices"]}
    starter = parent(compiler)
    assert starter in proxies
    os.kill(starter, signal.SIGKILL)
    failed(rankfold, NAME)
    rankfold.until(lambda: all(d["state"] == "Ready" for d in rankfold.status()["devices"]))
    all_devices_serve(rankfold, 2)


@pytest.mark.slow
def test_the_compiler_in_mid_job(rankfold: Rankfold, state: State) -> None:
    """Nothing is cached: the job needs it, again and again."""
    rankfold.environment["RANKFOLD_CACHE"] = str(state.folder / "kernels")
    program = str(build(PROGRAMS / "reductions.cu"))
    job = rankfold.start("run", "--world-size", "2", "--gpus", "1", "--", program, "2")
    socket = compiler_socket(state.path)
    killed: set[int] = set()

    def compiling() -> int:
        """The pid of one that was not killed yet and is at work now."""
        assert job.poll() is None, "the job ended before its compiler could be killed"
        try:
            status = control.call(socket, "status")
        except control.ControlError:
            return 0
        return int(status["pid"]) if status["running"] and status["pid"] not in killed else 0

    while len(killed) < 2:
        pid = rankfold.until(compiling)
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    out, err = job.communicate(timeout=scaled(100))
    assert job.returncode == 0, err
    lines = [line.split(" ", 1) for line in out.splitlines()]
    assert len(lines) == 2 * 2 * 9 * 6  # ranks, steps, types, operations
    each = [[text for rank, text in lines if rank == f"[{r}]"] for r in range(2)]
    assert each[0] == each[1], "it checks its results itself; all ranks have the same"
