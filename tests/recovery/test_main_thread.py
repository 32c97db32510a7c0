"""A rank whose main thread has ended is saved like any other, and continues with the same bits."""

from __future__ import annotations

import cuda
import pytest

from rankfold.reconciler.layout import Layout
from support import privileges
from support.command import Rankfold, Specs

NAME = "threads"
STEPS, VALUES = 100, 64


def total() -> int:
    """The total that the program must print."""
    found = 0
    for thread in range(VALUES):
        value = 0
        for _ in range(STEPS):
            value = (value * 1664525 + 1013904223 + thread) % (1 << 32)
        found = (found * 31 + value) % (1 << 32)
    return found


@pytest.mark.slow
def test_a_job_without_its_main_thread_is_saved_and_comes_back(
    rankfold: Rankfold, specs: Specs
) -> None:
    privileges.need_criu()
    program = cuda.build(cuda.PROGRAMS / "main_thread_ends.cu")
    told = specs.folder.parent / "go-on"
    log = Layout(rankfold.state.path).logs(NAME) / "rank-0.out"
    specs.program([str(program), str(told)], NAME, gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: log.exists() and log.read_text() == "half\n")
    rankfold("checkpoint", NAME, "--wait")
    assert rankfold.job(NAME)["phase"] == "Running"
    rankfold.kill_everything(NAME)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job(NAME)["restarts"] == 1)
    rankfold.until(lambda: rankfold.job(NAME)["phase"] == "Running")
    told.touch()
    rankfold.until(lambda: rankfold.job(NAME)["phase"] in ("Succeeded", "Failed"))
    assert log.read_text() == f"half\nsum {total():08x}\n"
    assert rankfold.job(NAME)["phase"] == "Succeeded"
