"""examples/torch computes the same bits however its job runs: PyTorch's processes, threads and
files are moved, saved and restored."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from guests.runner import Place, Results, Way, folded, moved
from guests.table import Guest

from support.command import Rankfold, Specs
from support.leaks import State
from support.patience import scaled

GPT = Guest(
    "torch-gpt",
    "examples/torch/train_gpt.py",
    ("--steps", "100", "--out", "params", "--save", "state.pt", "--save-every", "8"),
    ranks=4,
    lines=20,
    interpreter="build/torch/python",
    capability="9.0",
    memory="1GiB",
)


@pytest.fixture(scope="module")
def expected() -> list[Results]:
    """The results of an undisturbed run, when a test of this file has made one."""
    return []


def on_two(place: Place) -> Results:
    """Two ranks on each of two devices."""
    job = place.job()
    job.apply(gpus=2)
    return job.results()


def killed(place: Place) -> Results:
    """Everything is killed when a checkpoint is in the store. Until then the ranks stand still from
    their snapshot on: they would end before 3 GB are uploaded."""
    job, rankfold = place.started(), place.rankfold
    saving = rankfold.start("checkpoint", job.name, "--wait")
    rankfold.until(lambda: "Snapshot" in rankfold("events", job.name))
    for rank in rankfold.job(job.name)["ranks"]:
        os.kill(rank["pid"], signal.SIGSTOP)
    id, error = saving.communicate(timeout=scaled(300))
    assert saving.returncode == 0, error
    rankfold.kill_everything(job.name)
    return place.restarted(id.strip())


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", [folded, on_two, moved, killed])
def test_the_bits_are_those_of_an_undisturbed_run(
    way: Way,
    expected: list[Results],
    torch: Path,
    state: State,
    rankfold: Rankfold,
    specs: Specs,
) -> None:
    place = Place(GPT, state, rankfold, specs)
    if not expected:
        expected.append(place.undisturbed())
    assert set(expected[0].files) == {"state.pt", *(f"params-rank{rank}.bin" for rank in range(4))}
    assert way(place) == expected[0]
