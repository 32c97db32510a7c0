"""A thread that brings work and a thread that sleeps until it comes do not miss each other
(doorbell.h).

With a plain store in place of doorbell_publish the long run hangs within a minute, on x86.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rankfold import paths
from support.patience import scaled


@pytest.mark.parametrize("rounds", [100_000, pytest.param(3_000_000, marks=pytest.mark.slow)])
def test_no_sleeper_is_missed(tmp_path: Path, rounds: int) -> None:
    source, program = Path(__file__).with_name("doorbell.c"), tmp_path / "doorbell"
    room = paths.REPOSITORY / "interpose/channel"
    flags = ["-O2", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, f"-I{room}", source, "-o", program, "-lpthread"], check=True)
    subprocess.run([program, str(rounds)], check=True, timeout=scaled(240))
