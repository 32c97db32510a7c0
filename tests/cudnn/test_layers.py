"""Convolutions and batch normalisation equal NumPy's, and are the same bits wherever a rank is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

PROGRAM = Path(__file__).with_name("layers_program.py")
TOLD = {
    "shape": 2008,
    "types": 3000,
    "not final": 2004,
    "two operations": 3000,
    "attribute": 3000,
    "descriptor": 3000,
    "pooling": 3000,
}
NAMED = (
    "rankfold: a cuDNN convolution with several types is not supported by rankfold",
    "rankfold: a cuDNN graph of 2 operations is not supported by rankfold",
    "rankfold: cudnnBackendAttributeName_t 909 is not supported by rankfold",
    "rankfold: cudnnBackendDescriptorType_t 0 is not supported by rankfold",
    "cudnnPoolingForward",
)


FLOAT_AND_HALF, ALL_TYPES = "0,2", "0,1,2,9"  # of cudnnDataType_t


def start(fleet: Fleet, name: str, placement: list[int], *arguments: str) -> RunningJob:
    command = [sys.executable, str(PROGRAM), *arguments]
    return fleet.start(name, command, placement, memory=16 * MiB)


def outputs(job: RunningJob) -> list[str]:
    assert job.wait() == [0, 0], job.errors(0) + job.errors(1)
    job.detach(discard=True)
    return [job.output(rank) for rank in range(2)]


def run_spread_and_folded(state: State, *arguments: str) -> None:
    with Fleet(state, 2, memory=16 * MiB) as fleet:
        job = start(fleet, "spread", [0, 1], *arguments)
        spread = outputs(job)
        for rank, text in enumerate(spread):
            assert f"told {TOLD}\n" in text
            for line in NAMED:
                assert job.errors(rank).count(line) == 1, line
        folded = start(fleet, "folded", [0, 0], *arguments)
        until(lambda: folded.output(0).count("\n") > 10, 60, "the first calls")
        folded.move([fleet.names[1]] * 2)
        assert outputs(folded) == spread


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_on_two_devices_and_on_one_that_they_leave_in_between(state: State) -> None:
    run_spread_and_folded(state, "1", FLOAT_AND_HALF)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_types_many_times(state: State) -> None:
    run_spread_and_folded(state, "5", ALL_TYPES)
