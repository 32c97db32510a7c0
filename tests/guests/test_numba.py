"""Numba-CUDA from PyPI, unmodified, in a rank: its documented examples and some of its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Rankfold, job_environment
from support.leaks import State

from . import installed, own_tests

HERE = Path(__file__).parent / "numba"
TIMEOUT_S = 1500.0
NO_LIBRARY = "synchronises a grid by a function in libcudadevrt.a, which is machine code"
FAILING = {
    "TestCooperativeGroups.test_ex_grid_sync": NO_LIBRARY,
    "TestLaplace.test_ex_laplace": NO_LIBRARY,
    "TestSessionization.test_ex_sessionize": NO_LIBRARY,
}


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.timeout(2400)
def test_numba_s_documented_examples(state: State) -> None:
    environment = installed.environment(HERE / "requirements.txt")
    rankfold = Rankfold(state, job_environment(HOME=str(state.folder), PYTHONPATH=""))
    # Not this repository's settings of pytest, nor its tests' folder, which has a module `cuda`.
    tests = [
        "--noconftest",
        "-c",
        "/dev/null",
        "--rootdir",
        str(state.folder),
        str(HERE / "documented.py"),
    ]
    try:
        results = own_tests.run(rankfold, environment / "bin/python", "numba", tests, TIMEOUT_S)
    finally:
        rankfold.end()
    own_tests.report("numba", {"documented": results}, results, FAILING)
    assert results.unlisted(FAILING) == {}
    assert len(results.passed) >= 0.9 * (len(results.passed) + len(results.failed))
