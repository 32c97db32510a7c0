"""The store's disk is full while a job is saved by the clock: the job goes on, what there was of it
stays whole, and when there is room all goes on by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import pytest
from fleet.neighbour import NAME, Neighbour

from support import disk
from support.command import Rankfold, Specs
from support.leaks import State

from .test_life import POLICY, kill_everything


@pytest.fixture
def place(state: State) -> Iterator[Path]:
    with disk.small_disk(state) as found:
        yield found


@pytest.fixture
def rankfold(place: Path, rankfold: Rankfold) -> Rankfold:
    """It ends before the disk goes."""
    return rankfold


def test_a_store_that_fills_up(place: Path, rankfold: Rankfold, specs: Specs) -> None:
    store = place / "store"

    def ids() -> list[str]:
        return [each["id"] for each in rankfold.job(NAME)["checkpoints"]]

    def not_saved() -> Any:
        found = rankfold.job(NAME)["conditions"]
        return next((each for each in found if each["type"] == "NotSaved"), None)

    job = Neighbour(rankfold, specs, cuda.build(cuda.PROGRAMS / "until_told.cu"))
    specs.write("policy.yaml", POLICY.format(url=store))
    job.apply(extra="checkpoint: {interval: 3s, keep: 2}")
    rankfold.until(ids)
    ballast = disk.fill(place)
    said = rankfold.until(not_saved)
    assert said["reason"] == "UploadFailed" and f"{store}" in said["message"]
    assert "No space left on device; make room" in said["message"]
    before = ids()
    for _ in range(2):
        job.goes_on()
        listed = json.loads(rankfold("store", "list", str(store), "-o", "json"))
        assert [each["id"] for each in listed["checkpoints"]] == ids() == before
        rankfold("store", "check", str(store))  # nothing that counts is half there
        assert rankfold.job(NAME)["phase"] == "Running"
        assert rankfold.until(not_saved)["reason"] == "UploadFailed"

    ballast.unlink()
    rankfold.until(lambda: ids()[-1] != before[-1] and not not_saved())
    kill_everything(rankfold, NAME)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert rankfold.job(NAME)["restarts"] == 1
    assert "back to checkpoint" in rankfold("describe", NAME)
    rankfold("store", "check", str(store))
    job.finish()
