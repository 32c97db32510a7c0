"""Periodic checkpoints of ranks of PyTorch, with their processes, threads, sockets, shared memory
and files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from guests.runner import Place
from guests.table import Guest

from support.command import Rankfold, Specs
from support.leaks import State
from support.patience import scaled

STEP_S = 1.0  # so that the job does not end while a checkpoint is uploaded
WRITTEN = 5  # the step in which saved.py writes a file


def saved(pace: Path) -> Guest:
    return Guest(
        "torch-saved",
        "tests/pytorch/saved.py",
        (str(pace),),
        ranks=2,
        lines=WRITTEN + 2,
        interpreter="build/torch/python",
        capability="9.0",
        memory="1GiB",
    )


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_a_checkpoint_that_was_due_continues_elsewhere_with_the_same_bits(
    torch: Path, state: State, rankfold: Rankfold, specs: Specs
) -> None:
    """Everything is killed, and the files that the ranks wrote are gone. It continues from the
    newest checkpoint, under another state directory, on one device instead of two."""
    pace = state.folder / "pace"
    place = Place(saved(pace), state, rankfold, specs)
    expected = place.undisturbed()
    assert set(expected.files) == {"once.pt"}

    pace.write_bytes(bytes(round(1000 * scaled(STEP_S))))
    specs.store(place.store)
    job = place.job()
    job.extra = "checkpoint: {interval: 1s, keep: 2}"
    job.apply(gpus=2)
    job.reaches(place.guest.lines)

    def checkpoints() -> list[str]:
        return [each["id"] for each in rankfold.job(job.name)["checkpoints"]]

    before = checkpoints()  # one that is not complete yet may have been begun before the file
    found = rankfold.until(lambda: (new := checkpoints()) and len({*new} - {*before}) > 1 and new)
    rankfold.kill_everything(job.name)
    shutil.rmtree(place.work)
    pace.unlink()
    assert place.restarted(found[-1]) == expected
