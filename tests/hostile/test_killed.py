"""Promise: a program that is killed at any moment leaves nothing behind on the device, and the
neighbours on it print what they would have printed.

The moments are counted in records that the device has taken from the victim, so a run's kills
depend on the seed, not on the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
from random import Random

import cuda
import pytest

from rankfold.control import ControlError, call
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

VICTIMS = (("launch_bound", "2000"), ("streams", "60"), ("ring", "400"), ("host_functions", "60"))


def start(fleet: Fleet, name: str, program: str, *arguments: str) -> RunningJob:
    command = [str(cuda.build(cuda.PROGRAMS / f"{program}.cu")), *arguments]
    return fleet.start(name, command, [0, 0])


def taken(fleet: Fleet, job: RunningJob) -> int:
    """Records that the device has taken from the job's ranks; -1 when one has ended."""
    ranks = [
        rank
        for entry in fleet.status(fleet.names[0])["jobs"]
        if entry["job"] == job.name
        for rank in entry["ranks"]
    ]
    ended = any(job.exit_status(rank) is not None for rank in range(job.world_size))
    return -1 if ended else sum(rank.get("records", 0) for rank in ranks)


def kill(fleet: Fleet, job: RunningJob, after: int, first: int) -> None:
    """SIGKILL a rank after so many records (or let it end before), then the rest of its job."""
    until(lambda: not 0 <= taken(fleet, job) < after, 60, f"{job.name} sends {after} records")
    for rank in (first, 1 - first):
        if job.exit_status(rank) is None:
            with contextlib.suppress(ControlError):  # its launcher ends with it
                call(job.launcher(rank), "signal", signum=signal.SIGKILL)
            until(lambda: job.exit_status(rank) is not None, 30, "the rank ends")  # noqa: B023
    job.detach(discard=True)


def descriptors(fleet: Fleet) -> int:
    return len(os.listdir(f"/proc/{fleet.processes[fleet.names[0]].pid}/fd"))


def killed_next_to_a_neighbour(state: State, seed: int, kills: int) -> None:
    r = Random(seed)
    with Fleet(state, 1, memory=128 * MiB) as fleet:
        alone = start(fleet, "alone", "until_told", "/")  # told already: one period of it
        assert alone.wait() == [0, 0], alone.errors(0)
        alone.detach(discard=True)
        for program, _ in VICTIMS[:kills]:  # to compile keeps a connection open
            once = start(fleet, f"once-{program}", program, "1")
            assert once.wait() == [0, 0], once.errors(0)
            once.detach(discard=True)
        told = state.folder / "told"
        open_files = descriptors(fleet)
        neighbour = start(fleet, "neighbour", "until_told", str(told))
        for number in range(kills):
            program, steps = VICTIMS[number % len(VICTIMS)]
            victim = start(fleet, f"victim-{number}", program, steps)
            kill(fleet, victim, r.randrange(1, 1500), r.randrange(2))
            assert neighbour.exit_status(0) is neighbour.exit_status(1) is None
        told.touch()
        assert neighbour.wait() == [0, 0], neighbour.errors(0)
        neighbour.detach(discard=True)
        for rank in range(2):
            printed, period = neighbour.output(rank), alone.output(rank)
            assert printed == period * (len(printed) // len(period))
        until(lambda: descriptors(fleet) <= open_files, 10, "no descriptor is left")
        status = fleet.status(fleet.names[0])
        assert status["used"] == status["swap"] == 0


@pytest.mark.slow
def test_killed_programs_leave_nothing_and_harm_no_other(state: State) -> None:
    killed_next_to_a_neighbour(state, 1, 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 5))
def test_many_killed_programs(state: State, seed: int) -> None:
    killed_next_to_a_neighbour(state, seed, 20)
