"""Products through cuBLAS and cuBLASLt equal NumPy's, and are the same bits wherever a rank is."""

from __future__ import annotations

import sys
from pathlib import Path

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State
from support.native import REPOSITORY

PROGRAM = Path(__file__).with_name("rank_program.py")
CALLS = 200
NOT_INITIALIZED, INVALID, NOT_SUPPORTED = 1, 7, 15
REFUSED = {
    "no such epilogue": NOT_SUPPORTED,
    "relu aux without": INVALID,
    "bits apart": INVALID,
    "ld of aux": INVALID,
    "type of aux": NOT_SUPPORTED,
    "bgradb without": INVALID,
    "factorisation": NOT_SUPPORTED,
    "types": NOT_SUPPORTED,
    "leading dimension": INVALID,
    "size": INVALID,
    "no scalar": INVALID,
    "handle": NOT_INITIALIZED,
    "stream": INVALID,
    "attribute": NOT_SUPPORTED,
    "attribute's size": INVALID,
    "nothing to do": 0,
}


def start(fleet: Fleet, name: str, placement: list[int]) -> RunningJob:
    command = [sys.executable, str(PROGRAM), str(CALLS), "11"]
    env = {"PYTHONPATH": str(REPOSITORY / "tests")}
    return fleet.start(name, command, placement, env, memory=16 * MiB)


def outputs(job: RunningJob) -> list[str]:
    assert job.wait() == [0, 0], job.errors(0) + job.errors(1)
    job.detach(discard=True)
    return [job.output(rank) for rank in range(2)]


def test_two_ranks_on_two_devices_and_on_one_that_they_leave_in_between(state: State) -> None:
    with Fleet(state, 2, memory=16 * MiB) as fleet:
        spread = outputs(start(fleet, "spread", [0, 1]))
        for text in spread:
            calls = [line for line in text.splitlines() if " sums " not in line]
            assert len(calls) == CALLS + 1 and f"refused {REFUSED}" in calls
            for name in (
                "relu aux",
                "bias relu aux",
                "drelu",
                "drelu bgrad",
                "gelu aux",
                "bgrada",
                "bias gelu aux",
                "dgelu",
                "dgelu bgrad",
                "bgradb",
            ):
                assert f"\ncublasLtMatmul {name} " in spread[0] + spread[1]
        folded = start(fleet, "folded", [0, 0])
        until(lambda: folded.output(0).count("\n") > 10, 60, "the first calls")
        folded.move([fleet.names[1]] * 2)
        assert outputs(folded) == spread
        said = [line for line in folded.errors(0).splitlines() if line.startswith("rankfold: ")]
        for name in (
            "cublasSgeqrfBatched",
            "cublasLtEpilogue_t 3",
            "cublasLtMatrixLayoutAttribute_t 8",
        ):
            assert any(name in line for line in said), (name, said)
