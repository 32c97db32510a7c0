"""A job is saved while it goes on, rests in the store, and outlives the death of all it runs on."""

from __future__ import annotations

import os
import signal

from rankfold.reconciler.layout import Layout
from support.command import Rankfold

from .conftest import RANKS, Trained


def kill_everything(rankfold: Rankfold, job: Trained) -> None:
    """Every process of the fleet, with -9, as a power cut would."""
    pids = [rank["pid"] for rank in job.status["ranks"] if rank["pid"]]
    pids += [rankfold.proxy_pid(device["name"]) for device in rankfold.status()["devices"]]
    pids += [rankfold.reconciler_pid()]
    layout = Layout(rankfold.state.path)
    pids += [parent(pid) for pid in pids[:RANKS]]
    assert layout.state.exists() and all(pid > 1 for pid in pids)
    for pid in reversed(pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        text = file.read()
    return int(text[text.rindex(")") + 1 :].split()[1])


def test_a_checkpoint_while_it_runs_changes_nothing(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=1)
    job.reaches(10)
    id = rankfold("checkpoint", job.name, "--wait").strip()
    assert [each["id"] for each in job.status["checkpoints"]] == [id] == ["1-1"]
    assert job.status["phase"] == "Running" and job.status["restarts"] == 0
    assert job.results() == undisturbed


def test_everything_is_killed_and_the_job_goes_on_from_its_checkpoint(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    job.reaches(len(job.lines()) + 10)
    kill_everything(rankfold, job)
    job.apply(gpus=2)
    assert job.status["restarts"] == 1
    assert "back to checkpoint 1-1" in rankfold("describe", job.name)
    assert job.results() == undisturbed


def test_a_job_rests_in_the_store_and_goes_on_elsewhere(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=2)
    job.reaches(10)
    rankfold("suspend", job.name, "--store", "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == "store")
    printed = job.lines()
    assert all(rank["pid"] is None for rank in job.status["ranks"])
    assert all(device["used"] == 0 for device in rankfold.status()["devices"])
    rankfold("stop")
    assert job.lines() == printed
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed
    assert job.status["restarts"] == 0
