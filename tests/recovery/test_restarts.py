"""A job continues after a fault as often as it may, and no more often."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rankfold.interpose.launcher.freeze.freezer import PREFIX
from rankfold.reconciler.layout import Layout
from support import leaks
from support.command import Rankfold, Specs

from .conftest import RANKS, Trained


@pytest.mark.slow
def test_a_launcher_that_is_killed_costs_what_was_done_since_the_checkpoint(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=2)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    job.reaches(len(job.lines()) + 5)
    os.kill(leaks.parent(job.status["ranks"][1]["pid"]), signal.SIGKILL)
    assert job.results() == undisturbed
    assert job.status["restarts"] == 1
    (told,) = [c["message"] for c in job.status["conditions"] if c["type"] == "Restarted"]
    assert told.startswith("the launcher of rank 1 was killed") and "back to checkpoint 1-1" in told


@pytest.mark.slow
def test_a_rank_that_is_killed_while_it_is_copied_goes_back_to_that_checkpoint(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    """It continues already, and its image is not in the snapshot yet."""
    job.apply(gpus=2)
    job.reaches(10)
    os.kill(saved_and_let_go(rankfold, job), signal.SIGKILL)
    assert job.results() == undisturbed
    (told,) = [c["message"] for c in job.status["conditions"] if c["type"] == "Restarted"]
    assert "back to checkpoint 1-1" in told


@pytest.mark.slow
def test_a_launcher_that_stops_before_it_copies_is_named_and_the_job_continues(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    """Only the upload waits for the launcher."""
    rankfold.environment |= {"RANKFOLD_STUCK": "1"}
    job.apply(gpus=2)
    job.reaches(10)
    launcher = leaks.parent(saved_and_let_go(rankfold, job))
    os.kill(launcher, signal.SIGSTOP)
    try:
        waits = "waits for the launchers that still copy device memory of rank-1: no progress"
        rankfold.until(lambda: waits in rankfold("events", job.name))
    finally:
        os.kill(launcher, signal.SIGCONT)
    assert job.results() == undisturbed


def saved_and_let_go(rankfold: Rankfold, job: Trained) -> int:
    """Rank 1's pid, 0.1 s before its image is copied."""
    rank: int = job.status["ranks"][1]["pid"]
    rankfold("checkpoint", job.name)
    saved = Layout(rankfold.state.path).save(job.name, 1)
    while not (saved / "rank-1/image.part").exists():
        time.sleep(0.001)
    while PREFIX in Path(f"/proc/{rank}/cgroup").read_text():
        time.sleep(0.001)
    return rank


# The last try of rank 1 is the one that must go well.
FAILING = """
echo rank $RANK begins
[ "$RANK" = 1 ] || exit 0
echo >>tries
[ "$(wc -l <tries)" -gt "$1" ] || exit 3
echo rank $RANK ends
"""


@pytest.mark.usual("1-0", "2-1")
@pytest.mark.parametrize(("fails", "may"), [(3, None), (2, 1), (1, 0)])
def test_a_rank_that_exits_with_another_status_than_0_begins_anew(
    fails: int, may: int | None, rankfold: Rankfold, job: Trained, specs: Specs
) -> None:
    """With empty logs, for there is no checkpoint; three times unless its file says otherwise."""
    job.folder.mkdir()
    extra = f"workdir: {job.folder}"
    if may is not None:
        extra += f"\n  restart: {{maxRestarts: {may}}}"
    specs.program(["sh", "-c", FAILING, "sh", str(fails)], job.name, 1, extra, RANKS)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: job.status["phase"] in ("Succeeded", "Failed"))
    status = job.status
    assert status["restarts"] == min(fails, 3 if may is None else may)
    if may is None:
        assert status["phase"] == "Succeeded"
        assert job.lines(0) == ["rank 0 begins"]
        assert job.lines(1) == ["rank 1 begins", "rank 1 ends"]
        told = rankfold("describe", job.name)
        assert "rank 1 exited with status 3: restarted from the beginning" in told
    else:
        assert status["phase"] == "Failed"
        assert job.lines(1) == ["rank 1 begins"]
        after = f"; after {may} restart" if may else ""
        assert status["message"] == f"rank 1 exited with status 3{after}"
