"""The time between two events of a program does not include its time at rest."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import cuda
import pytest

from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs

from .conftest import RANKS

NAME = "rests"
AWAKE_S, RESTS_S = 1.0, 8.0
BUSY_S = 3.0  # from when a rank is served again until it continues, on a busy machine


def on_the_node(rankfold: Rankfold, specs: Specs) -> None:
    rankfold("suspend", NAME, "--override")
    rankfold.until(lambda: rankfold.job(NAME)["suspendedIn"] == "node")
    time.sleep(RESTS_S)
    rankfold("resume", NAME, "--override")


def in_the_store(rankfold: Rankfold, specs: Specs) -> None:
    rankfold("suspend", NAME, "--store", "--override")
    rankfold.until(lambda: rankfold.job(NAME)["suspendedIn"] == "store")
    time.sleep(RESTS_S)
    rankfold("resume", NAME, "--override")


def killed(rankfold: Rankfold, specs: Specs) -> None:
    rankfold("checkpoint", NAME, "--wait")
    rankfold.kill_everything(NAME)
    time.sleep(RESTS_S)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job(NAME)["restarts"] == 1)


@pytest.mark.slow
@pytest.mark.parametrize("rest", [on_the_node, in_the_store, killed])
def test_time_between_events_does_not_count_a_rest(
    rest: Callable[[Rankfold, Specs], None], rankfold: Rankfold, specs: Specs
) -> None:
    rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = "0"
    program, told = cuda.build(cuda.PROGRAMS / "rests.cu"), specs.folder.parent / "go-on"
    logs = [Layout(rankfold.state.path).logs(NAME) / f"rank-{rank}.out" for rank in range(RANKS)]
    specs.program([str(program), str(told)], NAME, gpus=1, ranks=RANKS)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: all(log.exists() and log.read_text() == "half\n" for log in logs))
    time.sleep(AWAKE_S)
    rest(rankfold, specs)
    rankfold.until(lambda: rankfold.job(NAME)["phase"] == "Running")
    told.touch()
    rankfold.until(lambda: rankfold.job(NAME)["phase"] in ("Succeeded", "Failed"))
    assert rankfold.job(NAME)["phase"] == "Succeeded", rankfold("events", NAME)
    for log in logs:
        counted, awake = _counted(log)
        assert AWAKE_S <= counted < awake + BUSY_S, log.read_text()


def _counted(log: Path) -> tuple[float, float]:
    """Seconds that events count, and seconds by the rank's own clock."""
    found = re.fullmatch(r"half\n(\S+) s counted of (\S+) s\n", log.read_text())
    assert found is not None, log.read_text()
    return float(found[1]), float(found[2])
