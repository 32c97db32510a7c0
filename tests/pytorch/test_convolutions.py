"""PyTorch's convolutions and batch normalisation, with its defaults: cuDNN is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Rankfold

PROGRAM = Path(__file__).with_name("convolutions.py")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_they_and_their_gradients_equal_the_cpus(torch: Path, rankfold: Rankfold) -> None:
    options = ["--world-size", "1", "--compute-capability", "9.0"]
    printed = rankfold("run", *options, "--", str(torch), str(PROGRAM))
    assert printed.endswith("\nall compared\n")
