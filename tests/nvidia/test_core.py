"""The proxy's core does over the driver's table what it does over the software GPU's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY


@pytest.mark.parametrize("which", ["not hostile", pytest.param("hostile", marks=pytest.mark.slow)])
def test_the_tests_of_the_core_hold(fake_path: Path, which: str) -> None:
    """In a process of its own, with the fake driver. An address window is one per process, so what
    opens several devices is left out; tests/nvidia/test_fleet.py has them in processes."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not several_devices and not slow",
            "-k",
            which,
            "tests/proxy/test_core.py",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={**os.environ, "RANKFOLD_TEST_HAL": "nvidia", "RANKFOLD_CUDA_DRIVER": str(fake_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d passed", done.stdout)
