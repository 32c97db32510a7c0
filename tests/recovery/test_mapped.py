"""Memory that a program has mapped piece by piece is back after everything was killed."""

from __future__ import annotations

import cuda
import pytest

from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs

from .conftest import RANKS

NAME = "mapped"


@pytest.mark.slow
def test_mapped_memory_is_saved_and_restored(rankfold: Rankfold, specs: Specs) -> None:
    program, told = cuda.build(cuda.PROGRAMS / "expandable.cu"), specs.folder.parent / "go-on"
    logs = [Layout(rankfold.state.path).logs(NAME) / f"rank-{rank}.out" for rank in range(RANKS)]
    specs.program([str(program), str(told)], NAME, gpus=1, ranks=RANKS)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: all(log.exists() and log.read_text() == "half\n" for log in logs))
    rankfold("checkpoint", NAME, "--wait")
    rankfold.kill_everything(NAME)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job(NAME)["restarts"] == 1)
    told.touch()
    rankfold.until(lambda: rankfold.job(NAME)["phase"] in ("Succeeded", "Failed"))
    assert rankfold.job(NAME)["phase"] == "Succeeded", rankfold("events", NAME)
