"""The process that saves or restores a rank's processes is killed in the middle."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.reconciler.layout import Layout
from rankfold.reconciler.node import cgroups
from support import leaks
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def launcher_above(pid: int) -> int:
    """Pid 1 of the namespace in which a process is: CRIU is not its child."""
    while not re.search(r"^NSpid:.*\t1$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE):
        pid = leaks.parent(pid)
    return pid


def cgroups_of(job: Trained) -> set[str]:
    """Those of its ranks that are there."""
    layout = Layout(job.rankfold.state.path)
    names = {cgroups.name(layout.launcher_socket(job.name, rank)) for rank in range(2)}
    inside = (each for _, inside, _ in os.walk("/sys/fs/cgroup") for each in inside)
    return names.intersection(inside)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["criu", pytest.param("launcher", marks=pytest.mark.slow)])
def test_a_job_that_loses_a_rank_during_its_local_snapshot_goes_back(
    victim: str,
    rankfold: Rankfold,
    job: Trained,
    halting: HaltingCriu,
    undisturbed: dict[str, bytes],
) -> None:
    """It is suspended meanwhile, and stays so."""
    rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = "0"
    saved_once(rankfold, job)
    halting.request("dump")
    rankfold("suspend", job.name, "--override")
    criu = rankfold.until(lambda: halting.stopped("dump"))
    assert len(cgroups_of(job)) == 2
    os.kill(criu if victim == "criu" else launcher_above(criu), signal.SIGKILL)
    rankfold.until(lambda: job.status["restarts"] == 1)
    rankfold.until(lambda: job.status["suspendedIn"] == "store")
    assert job.status["phase"] == "Suspended"
    assert not cgroups_of(job)
    assert "back to checkpoint 1-1" in rankfold("describe", job.name)
    assert not list((Layout(rankfold.state.path).job(job.name) / "saves").iterdir())
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("victim", [pytest.param("criu", marks=pytest.mark.slow), "launcher"])
def test_the_way_back_from_a_local_snapshot_is_tried_again(
    victim: str,
    rankfold: Rankfold,
    job: Trained,
    halting: HaltingCriu,
    undisturbed: dict[str, bytes],
) -> None:
    rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = "0"
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("suspend", job.name, "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == "node")
    halting.request("restore")
    rankfold("resume", job.name, "--override")
    criu = rankfold.until(lambda: halting.stopped("restore"))
    os.kill(criu if victim == "criu" else launcher_above(criu), signal.SIGKILL)
    assert job.results() == undisturbed
    assert job.status["restarts"] == 0 and "RestoreFailed" in rankfold("events", job.name)
