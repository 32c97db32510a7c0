"""A kernel that waits for what another stream of its rank writes continues when its rank shares
what is written with others, as it does alone."""

from __future__ import annotations

import cuda
import pytest

from support.fleet import Fleet, MiB, RunningJob
from support.leaks import State

STEPS = 6
QUANTUM_S, APART_US = 0.002, 20000


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


@pytest.mark.usual("host-2")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("how", CASES)
def test_a_kernel_that_waits_for_another_stream_continues(
    how: str, workers: int, state: State
) -> None:
    """A spare worker runs the other stream's work if the device's one worker is busy."""
    command = [str(cuda.build(cuda.PROGRAMS / "waits_for_stream.cu")), str(STEPS), how]
    with Fleet(state, 2, memory=128 * MiB, workers=workers) as fleet:
        expected = ended(fleet.start("wide", command, [0, 1]))
        folded = fleet.start("folded", command, [0, 0])
        assert ended(folded) == expected
        assert ended(fleet.start("more", command, [0, 0, 0, 0])) == 2 * expected


@pytest.mark.usual("kernel-0")
@pytest.mark.parametrize(
    ("how", "share"),
    [
        ("kernel", "0"),
        ("kernel", "1"),
        ("behind", "0"),
        *(pytest.param(how, "1", marks=pytest.mark.slow) for how in ("host", "fill", "device")),
    ],
)
def test_it_continues_when_its_time_slice_is_over(
    how: str, share: str, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank has work, and what the kernel waits for comes after that."""
    monkeypatch.setenv("RANKFOLD_QUANTUM", str(QUANTUM_S))
    monkeypatch.setenv("RANKFOLD_SHARE", share)
    program = cuda.build(cuda.PROGRAMS / "waits_for_stream.cu")
    command = [str(program), str(STEPS), how, str(APART_US)]
    with Fleet(state, 2, memory=128 * MiB, workers=2) as fleet:
        expected = ended(fleet.start("wide", command, [0, 1]))
        assert ended(fleet.start("folded", command, [0, 0])) == expected


@pytest.mark.parametrize(
    ("switch", "value"),
    [("RANKFOLD_QUANTUM", "1e11"), ("RANKFOLD_QUANTUM", "inf"), ("RANKFOLD_VALIDATE", "9" * 30)],
)
def test_a_number_beyond_all_bounds_means_never(
    switch: str, value: str, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(switch, value)
    program = cuda.build(cuda.PROGRAMS / "waits_for_stream.cu")
    with Fleet(state, 1, memory=128 * MiB, workers=2) as fleet:
        ended(fleet.start("folded", [str(program), "2", "kernel", "0"], [0, 0]))
