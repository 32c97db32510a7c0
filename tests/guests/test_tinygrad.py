"""tinygrad from PyPI, unmodified, on the software GPU: the numbers of a NumPy twin."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

from . import table
from .tinygrad.twin import losses

SCRIPT = Path(__file__).parent / "tinygrad/train.py"
STEPS = 20


def printed(job: RunningJob) -> list[float]:
    return [float(line.split()[3]) for line in job.output(0).splitlines()]


@pytest.mark.slow
def test_tinygrad_trains_to_the_numbers_of_its_numpy_twin(state: State) -> None:
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        env = table.tinygrad(state.folder)
        command = [sys.executable, str(SCRIPT), str(STEPS)]
        job = fleet.start("tiny", command, [0], env=env)
        assert job.wait() == [0], job.errors(0)
        assert fleet.status(fleet.names[0])["kernels"] > STEPS
        np.testing.assert_allclose(printed(job), losses(STEPS), rtol=2e-3)
        job.detach(discard=True)

        moved = fleet.start("moved", command, [0], env=env)
        for count, place in ((3, 1), (8, 0)):
            until(lambda: moved.output(0).count("\n") > count, what="some steps")  # noqa: B023
            moved.move([fleet.names[place]])
        assert moved.wait() == [0], moved.errors(0)
        assert moved.output(0) == job.output(0)
        moved.detach(discard=True)


@pytest.mark.skipif(shutil.which("clang") is None, reason="tinygrad's CPU backend needs clang")
def test_the_same_on_tinygrad_s_own_cpu_backend(state: State) -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(STEPS)],
        env={**os.environ, **table.tinygrad(state.folder), "DEV": "CPU"},
        capture_output=True,
        text=True,
        check=True,
    )
    values = [float(line.split()[3]) for line in done.stdout.splitlines()]
    np.testing.assert_allclose(values, losses(STEPS), rtol=2e-3)
