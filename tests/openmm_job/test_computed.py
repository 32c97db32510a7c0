"""OpenMM from PyPI, unmodified, in a rank: its kernels count on the threads of a warp going in step
(proxy/hal/soft/compiler/meeting.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import guest
from support.command import Rankfold
from support.leaks import State

HERE = Path(__file__).parent
TIMEOUT_S = 900.0


@pytest.mark.slow
@pytest.mark.installs
@pytest.mark.timeout(1200)
def test_openmm_computes_what_its_reference_does(state: State) -> None:
    python = guest.environment(HERE / "requirements.txt") / "bin/python"
    rankfold = Rankfold(state, guest.job_environment(HOME=str(state.folder), PYTHONPATH=""))
    run = ["run", "--world-size", "1", "--", str(python), str(HERE / "computed.py")]
    process = rankfold.start(*run)
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        rankfold.end()
    assert process.returncode == 0, err
    assert out == "66 compared\n"
