"""Programs that know nothing of rankfold compute the same bits wherever their ranks are.

Each program runs once with a device per rank, and once while its ranks are moved from one
placement to the next. It checks its own results; what it printed must be equal as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle

import cuda
import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

STEPS_BETWEEN_MOVES = 3


@dataclass(frozen=True)
class Case:
    """A program, its number of ranks, and where its ranks are put one after another."""

    program: str
    world_size: int
    placements: tuple[tuple[int, ...], ...]
    steps: int = 30
    arguments: tuple[str, ...] = ()
    memory: int = 64 * MiB
    capacity: int | None = None  # of the virtual device, if not the whole one
    arch: str = ""  # the PTX it carries, if not compute_75
    runtime: str = "static"  # as nvcc links it by default

    def command(self) -> list[str]:
        args = ["-cudart", self.runtime, *([f"-arch={self.arch}"] if self.arch else [])]
        program = cuda.build(cuda.PROGRAMS / f"{self.program}.cu", args=args)
        return [str(program), str(self.steps), *self.arguments]

    def __str__(self) -> str:
        return f"{self.program}-{self.world_size}"


TWO = ((0, 0), (0, 1), (1, 1))
THREE = ((0, 0, 0), (0, 1, 1), (2, 1, 0), (1, 1, 1))
FIVE = ((0, 0, 0, 0, 0), (0, 0, 1, 1, 1), (0, 1, 2, 2, 0))
CASES = [
    Case("mlp_sharded", 3, THREE),
    Case("conv_mixed", 2, TWO, runtime="shared"),
    Case("mlp_blas", 3, THREE),
    Case("subgroups", 5, FIVE),
    Case("ring", 3, THREE),
    Case("reductions", 3, THREE, steps=8),
    Case("launch_bound", 2, TWO, steps=100),
    Case("large_state", 3, THREE, 16, ("12", "3"), 32 * MiB, runtime="shared"),
    Case("symbols", 3, THREE),
    Case("events", 2, TWO),
    Case("host_functions", 2, TWO, steps=100),
    Case("streams", 3, THREE, runtime="shared"),
    Case("poll", 3, THREE),
    Case("tcp_wait", 3, THREE, steps=300),
    Case("out_of_memory", 2, TWO, steps=12, memory=96 * MiB, capacity=32 * MiB),
    Case("alone", 2, TWO, steps=300),
    Case("graphs", 2, TWO, steps=60, runtime="shared"),
    Case("boxes", 2, TWO, steps=8, arguments=()),
    Case("pools", 2, TWO, steps=100),
    Case("captures", 2, TWO, steps=10),
    Case("video", 2, TWO, steps=30),
    Case("any_memory", 3, THREE, steps=3),
    Case("matrices", 2, TWO, steps=12, arch="compute_80"),
    Case("kernel_heap", 2, TWO, steps=30),
    Case("watchdog", 3, THREE, steps=16),
]


def printed(job: RunningJob) -> int:
    """Lines that the rank which is furthest behind has printed."""
    return min(job.output(rank).count("\n") for rank in range(job.world_size))


def keep_moving(job: RunningJob, case: Case) -> int:
    """Moves the ranks whenever they have made some progress; how often that was done."""
    for moves, placement in enumerate(cycle(case.placements)):
        seen = printed(job)

        def continued(seen: int = seen) -> bool:
            return over(job) or printed(job) >= seen + STEPS_BETWEEN_MOVES

        until(continued, 60, f"{case} continues")
        if over(job):
            return moves
        try:
            job.move([job.fleet.names[device] for device in placement])
        except AssertionError:
            if over(job):  # while it was asked to stop
                return moves
            raise
    raise AssertionError("unreachable")


def over(job: RunningJob) -> bool:
    return any(job.exit_status(rank) is not None for rank in range(job.world_size))


def outputs(job: RunningJob) -> list[str]:
    """The output of each rank, after checking that all exited with 0."""
    for rank, status in enumerate(job.wait()):
        assert status == 0, f"rank {rank}: {job.errors(rank)}"
    job.detach(discard=True)  # a device serves one job at a time
    return [job.output(rank) for rank in range(job.world_size)]


def undisturbed_and_moved(fleet: Fleet, case: Case, factor: int) -> int:
    """Runs the case both ways and compares; how often the ranks were moved."""
    case = replace(case, steps=case.steps * factor)
    spread = list(range(case.world_size))
    wide = fleet.start(f"wide-{factor}", case.command(), spread, memory=case.capacity)
    expected = outputs(wide)
    assert all(len(text.splitlines()) >= case.steps for text in expected)
    wide.detach(discard=True)
    start = list(case.placements[0])
    moved = fleet.start(f"moved-{factor}", case.command(), start, memory=case.capacity)
    moves = keep_moving(moved, case)
    assert outputs(moved) == expected
    moved.detach(discard=True)
    return moves


@pytest.mark.usual("alone-2", "any_memory-3", "graphs-2", "mlp_sharded-3")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_bits_wherever_the_ranks_are(
    case: Case, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or ranks that never wait for others compute to their end, one by one, and are moved then.
    monkeypatch.setenv("RANKFOLD_QUANTUM", "0.05")
    devices = max(case.world_size, 1 + max(map(max, case.placements)))
    with Fleet(state, devices, memory=case.memory) as fleet:
        # More steps if the machine was too busy to move it before it ended.
        for factor in (1, 4, 16, 64):
            if undisturbed_and_moved(fleet, case, factor) >= 2:
                return
    pytest.fail("it always ended before it was moved twice")
