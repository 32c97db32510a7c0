"""Data-parallel ranks of PyTorch on one device hold one copy of what is equal in all of them:
parameters and the moments of AdamW, which one run of the optimizer's kernels updates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

PROGRAM = REPOSITORY / "benchmarks/torch_programs.py"
RANKS, STEPS = 2, 8
COMPILED_S = 900.0
# Bytes of the parameters of the MLP: Linear(768, 768) twice, LayerNorm(768) and Linear(768, 10).
PARAMETERS = 4 * (2 * 768 * 769 + 2 * 768 + 10 * 769)
COPIES = 3  # of each parameter: itself and two moments


def printed(fleet: Fleet, name: str, torch: Path, placement: list[int]) -> tuple[list[str], int]:
    """The output of each rank, and the bytes that they shared at the most."""
    shared = 0

    def over(job: RunningJob) -> bool:
        nonlocal shared
        shared = max(shared, fleet.status(fleet.names[placement[0]])["shared"])
        return all(job.exit_status(rank) is not None for rank in range(RANKS))

    env = {"OMP_NUM_THREADS": "1"}
    command = [str(torch), str(PROGRAM), "mlp", "--steps", str(STEPS)]
    job = fleet.start(name, command, placement, env=env)
    until(lambda: over(job), COMPILED_S, f"the end of {name}")
    for rank in range(RANKS):
        assert job.exit_status(rank) == 0, f"rank {rank}: {job.errors(rank)}"
    for device in job.devices:
        status = fleet.status(device)
        assert not status["unforeseen"]
        assert not any(each["alarms"] for each in status["jobs"])
    job.detach(discard=True)
    return [job.output(rank) for rank in range(RANKS)], shared


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_ranks_hold_one_copy_of_parameters_and_moments(
    torch: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal versions are compared byte by byte meanwhile."""
    monkeypatch.setenv("RANKFOLD_VALIDATE", "1")
    with Fleet(state, RANKS, memory=1024 * MiB, capability="9.0") as fleet:
        apart, _ = printed(fleet, "apart", torch, list(range(RANKS)))
        folded, shared = printed(fleet, "folded", torch, [0] * RANKS)
        status = fleet.status(fleet.names[0])
    assert folded == apart
    assert all(text.count("loss") == STEPS for text in folded)
    assert status["checked"]
    assert shared >= COPIES * PARAMETERS * 0.9, "of buffers that are not whole chunks, some share"
    updates = 6  # of AdamW, at least: each writes parameters or moments
    assert status["squashed"] >= updates * (STEPS // 2) * (RANKS - 1)
