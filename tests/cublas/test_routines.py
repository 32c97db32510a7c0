"""BLAS's other routines equal NumPy's, and are the same bits wherever a rank is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State
from support.native import REPOSITORY

PROGRAM = Path(__file__).with_name("routines_program.py")
NOT_INITIALIZED, INVALID, NOT_SUPPORTED = 1, 7, 15
TOLD = {
    "handle": NOT_INITIALIZED,
    "no scalar": INVALID,
    "no result": INVALID,
    "nothing to do": 0,
    "step": INVALID,
    "ld": INVALID,
    "operation": INVALID,
    "triangle": INVALID,
    "diagonal": INVALID,
    "side": INVALID,
    "size": INVALID,
    "band": INVALID,
    "types": NOT_SUPPORTED,
    "half": NOT_SUPPORTED,
    "half backwards": NOT_SUPPORTED,
}


def start(fleet: Fleet, name: str, placement: list[int], *arguments: str) -> RunningJob:
    command = [sys.executable, str(PROGRAM), *arguments]
    env = {"PYTHONPATH": str(REPOSITORY / "tests")}
    return fleet.start(name, command, placement, env, memory=16 * MiB)


def outputs(job: RunningJob) -> list[str]:
    assert job.wait() == [0, 0], job.errors(0) + job.errors(1)
    job.detach(discard=True)
    return [job.output(rank) for rank in range(2)]


def run_spread_and_folded(
    state: State, *arguments: str, kinds: tuple[str, ...] = ("soft",) * 2, **told: int
) -> list[str]:
    """The output of each rank. `told`: errors that differ from `TOLD`."""
    with Fleet(state, memory=16 * MiB, kinds=kinds) as fleet:
        spread = outputs(start(fleet, "spread", [0, 1], *arguments))
        for text in spread:
            assert f"told {TOLD | told}\n" in text and "\ncaptured 13 901 8.0" in text
        folded = start(fleet, "folded", [0, 0], *arguments)
        until(lambda: folded.output(0).count("\n") > 10, 60, "the first calls")
        folded.move([fleet.names[1]] * 2)
        assert outputs(folded) == spread
    return spread


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_on_two_devices_and_on_one_that_they_leave_in_between(state: State) -> None:
    text = "".join(run_spread_and_folded(state, "3", "5", "SC"))
    for name in (
        "Saxpy",
        "Ccopy",
        "Sdot",
        "Cdotc",
        "Scnrm2",
        "Icamax",
        "Srotmg",
        "Cgemv",
        "Stbsv",
        "Cger",
        "Ssyr",
        "Cher",
        "Ctrsm",
        "Strmm",
        "Cgemm",
        "Csymm|cublasChemm",
        "Cgeam",
        "Sdgmm",
        "Csyr.?k|cublasCher.?k",
        "Sgetrf",
        "Cgetrs",
    ):
        assert re.search(f"^cublas{name}", text, re.M), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_types_many_times(state: State) -> None:
    run_spread_and_folded(state, "12", "77", "SDCZ")
