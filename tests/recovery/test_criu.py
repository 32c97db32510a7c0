"""Who writes a rank's processes down, or brings them back, is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from support.command import Rankfold
from support.halting_criu import HaltingCriu
from support.leaks import State

from .conftest import Trained


@pytest.fixture
def halting(rankfold: Rankfold, state: State) -> Iterator[HaltingCriu]:
    found = HaltingCriu(state)
    rankfold.environment["PATH"] = f"{found.folder}:{os.environ['PATH']}"
    yield found
    for what in ("dump", "restore"):
        if pid := found.stopped(what):  # the test has failed
            os.kill(pid, signal.SIGKILL)


def saved_once(rankfold: Rankfold, job: Trained) -> None:
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    job.reaches(len(job.lines()) + 5)


def test_a_rank_over_which_criu_is_killed_is_lost_and_its_job_goes_back(
    rankfold: Rankfold, job: Trained, halting: HaltingCriu, undisturbed: dict[str, bytes]
) -> None:
    saved_once(rankfold, job)
    halting.request("dump")
    rankfold("checkpoint", job.name)
    os.kill(rankfold.until(lambda: halting.stopped("dump")), signal.SIGKILL)
    rankfold.until(lambda: job.status["restarts"] == 1)
    assert "CRIU was killed" in (told := rankfold("describe", job.name)), told
    assert "back to checkpoint 1-1" in told
    assert job.results() == undisturbed
    assert [each["id"] for each in job.status["checkpoints"]][:1] == ["1-1"]


def test_a_restore_in_which_criu_is_killed_is_tried_again(
    rankfold: Rankfold, job: Trained, halting: HaltingCriu, undisturbed: dict[str, bytes]
) -> None:
    saved_once(rankfold, job)
    halting.request("restore")
    os.kill(job.status["ranks"][0]["pid"], signal.SIGKILL)
    os.kill(rankfold.until(lambda: halting.stopped("restore")), signal.SIGKILL)
    rankfold.until(lambda: "CRIU was killed" in rankfold("events", job.name))
    assert job.results() == undisturbed
    assert job.status["restarts"] == 1 and "RestoreFailed" in rankfold("events", job.name)
