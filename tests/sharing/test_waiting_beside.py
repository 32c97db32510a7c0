"""A kernel that waits for what another stream of its rank writes goes on when its rank shares what
is written with others, as it does alone."""

from __future__ import annotations

import cuda
import pytest

from support.fleet import Fleet, MiB, RunningJob
from support.leaks import State

STEPS = 6


def ended(job: RunningJob) -> list[str]:
    for rank, status in enumerate(job.wait(60.0)):
        assert status == 0, f"rank {rank}: {job.errors(rank)}"
    job.detach(discard=True)
    return [job.output(rank) for rank in range(job.world_size)]


FAST = ("host", "kernel")
CASES = [
    pytest.param(how, marks=[pytest.mark.slow] * (how not in FAST))
    for how in ("host", "fill", "device", "kernel")
]


@pytest.mark.parametrize("how", CASES)
def test_a_kernel_that_waits_for_another_stream_goes_on(how: str, state: State) -> None:
    command = [str(cuda.build(cuda.PROGRAMS / "waits_beside.cu")), str(STEPS), how]
    with Fleet(state, 2, memory=128 * MiB, workers=2) as fleet:
        expected = ended(fleet.start("wide", command, [0, 1]))
        folded = fleet.start("folded", command, [0, 0])
        assert ended(folded) == expected
        assert ended(fleet.start("more", command, [0, 0, 0, 0])) == 2 * expected
