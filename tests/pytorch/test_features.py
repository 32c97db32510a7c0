"""Promise: the parts of torch.cuda other than operators work."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Rankfold

PROGRAM = Path(__file__).with_name("features.py")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_each_part_gives_what_the_cpu_or_a_plain_run_gives(torch: Path, rankfold: Rankfold) -> None:
    options = ["--world-size", "1", "--compute-capability", "9.0"]
    printed = rankfold("run", *options, "--", str(torch), str(PROGRAM))
    assert printed.endswith("\nall checked\n")
