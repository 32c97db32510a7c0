"""The wall clock jumps by hours, forwards and backwards, for all that serve a job: reconciler,
launchers, proxies, uploaders and commands. No save, rest or restore depends on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rankfold.checkpoint import store as stores
from rankfold.reconciler.layout import Layout
from support.command import Rankfold
from support.patience import scaled

from .clock import Clock
from .conftest import Trained


def test_the_clock_is_another_one(clock: Clock, rankfold: Rankfold) -> None:
    clock.jump(1000)
    code = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=rankfold.environment, capture_output=True, check=True
    )
    there = [float(each) for each in done.stdout.split()]
    here = float(subprocess.run(["date", "+%s"], capture_output=True, check=True).stdout)
    assert all(abs(each - here - 3600_000) < 60 for each in there)


def saved(job: Trained, clock: Clock, before: int | None, meanwhile: int | None) -> str:
    """A checkpoint; the clock jumps before, and while it is made."""
    if before is not None:
        clock.jump(before)
    waiting = job.rankfold.start("checkpoint", job.name, "--wait")
    saves = Layout(job.rankfold.state.path).job(job.name) / "saves"
    if meanwhile is not None:
        job.rankfold.until(lambda: waiting.poll() is not None or list(saves.glob("*/rank-0")))
        clock.jump(meanwhile)
    out, err = waiting.communicate(timeout=scaled(120))
    assert waiting.returncode == 0, err
    return out.strip()


@pytest.mark.slow
@pytest.mark.parametrize("often", [False, True], ids=["now and then", "all the time"])
def test_a_clock_that_jumps_changes_nothing(
    often: bool, clock: Clock, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    rankfold = job.rankfold
    rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = "1"

    def jump(hours: int) -> None:
        if not often:
            clock.jump(hours)

    job.apply(gpus=1, extra="checkpoint: {interval: 0s, keep: 2}")
    if often:
        clock.jumps_often()
    job.reaches(3)
    ids = []
    for before, meanwhile in ((6, -7), (-30, 200), (-48, -47)):  # the newest is the oldest
        ids.append(saved(job, clock, *((None, None) if often else (before, meanwhile))))
    assert [each["id"] for each in job.status["checkpoints"]] == ids[-2:], "the last two are kept"
    fleet = (Layout(rankfold.state.path).state / "fleet").read_text().strip()
    store = stores.open(Layout(rankfold.state.path).checkpoints, fleet)
    assert [str(each) for each in store.checkpoints(job.name)] == ids[-2:]
    os.kill(job.status["ranks"][0]["pid"], signal.SIGKILL)
    jump(12)
    rankfold.until(lambda: job.status["restarts"] == 1)
    jump(-12)
    job.is_in("Running")
    assert f"back to checkpoint {ids[-1]}" in rankfold("describe", job.name)

    rankfold("suspend", job.name, "--override")
    jump(90)
    rankfold.until(lambda: job.status["suspendedIn"] == "node")
    jump(-90)
    rankfold("resume", job.name, "--override")
    jump(5)
    job.is_in("Running")
    rankfold("suspend", job.name, "--store", "--override")
    jump(-5)
    rankfold.until(lambda: job.status["suspendedIn"] == "store")
    jump(1000)
    rankfold("resume", job.name, "--override")
    jump(-1000)
    assert job.results() == undisturbed
    assert job.status["restarts"] == 1
