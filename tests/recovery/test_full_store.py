"""The store's disk is full while a job is saved by the clock: the job continues, what there was of
it stays whole, and when there is room all continues by itself. A save that has none for too long is
given up, and the next one is made."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import pytest
from fleet.neighbour import NAME, Neighbour

from rankfold.reconciler.layout import Layout
from rankfold.reconciler.plan import saving
from support import disk
from support.command import Rankfold, Specs
from support.leaks import State
from support.patience import scaled

from .clock import pass_time


@pytest.fixture
def place(state: State) -> Iterator[Path]:
    with disk.small_disk(state) as found:
        yield found


@pytest.fixture
def rankfold(place: Path, rankfold: Rankfold) -> Rankfold:
    """It ends before the disk goes."""
    return rankfold


class Saved(Neighbour):
    """A job with two checkpoints to keep, in a store of its own."""

    def __init__(self, store: Path, rankfold: Rankfold, specs: Specs, interval: str):
        super().__init__(rankfold, specs, cuda.build(cuda.PROGRAMS / "until_told.cu"))
        specs.store(store)
        self.apply(extra=f"checkpoint: {{interval: {interval}, keep: 2}}")

    def ids(self) -> list[str]:
        return [each["id"] for each in self.rankfold.job(NAME)["checkpoints"]]

    def not_saved(self) -> Any:
        found = self.rankfold.job(NAME)["conditions"]
        return next((each for each in found if each["type"] == "NotSaved"), None)

    def comes_back(self) -> None:
        """The job restarts from its newest checkpoint when nothing else is left of it."""
        self.rankfold.kill_everything(NAME)
        self.rankfold("apply", "-f", str(self.specs.folder), "--wait")
        assert self.rankfold.job(NAME)["restarts"] == 1
        assert f"back to checkpoint {self.ids()[-1]}" in self.rankfold("describe", NAME)


@pytest.mark.slow
def test_a_store_that_fills_up(place: Path, rankfold: Rankfold, specs: Specs) -> None:
    store = place / "store"
    job = Saved(store, rankfold, specs, "3s")
    rankfold.until(job.ids)
    ballast = disk.fill(place)
    said = rankfold.until(job.not_saved)
    assert said["reason"] == "UploadFailed" and f"{store}" in said["message"]
    assert "No space left on device; free some space" in said["message"]
    before = job.ids()
    for _ in range(2):
        job.continues()
        listed = json.loads(rankfold("store", "list", str(store), "-o", "json"))
        assert [each["id"] for each in listed["checkpoints"]] == job.ids() == before
        rankfold("store", "check", str(store))  # nothing that counts is half there
        assert rankfold.job(NAME)["phase"] == "Running"
        assert rankfold.until(job.not_saved)["reason"] == "UploadFailed"

    words = ("suspend", NAME, "--store", "--override")
    rests = rankfold.run(*words, "--wait", "--timeout", "3s")
    assert rests.returncode == 1 and "No space left on device; free some space" in rests.stderr
    assert "--wait waits for it" in rankfold.run(*words).stderr, "it does not claim to be done"
    rankfold("resume", NAME, "--override", "--wait")
    job.continues()

    ballast.unlink()
    rankfold.until(lambda: job.ids()[-1] != before[-1] and not job.not_saved())
    job.comes_back()
    rankfold("store", "check", str(store))
    job.finish()


@pytest.mark.slow
def test_a_save_that_never_has_space_is_given_up_and_the_next_is_made(
    place: Path, rankfold: Rankfold, specs: Specs
) -> None:
    """Attempts are minutes apart. Before each one the reconciler ends, and the next reconciler
    finds that an hour of the fleet's time has passed."""
    store = place / "store"
    job = Saved(store, rankfold, specs, "0s")
    saves = Layout(rankfold.state.path).job(NAME) / "saves"
    before = [rankfold("checkpoint", NAME, "--wait").strip()]
    ballast = disk.fill(place)
    asked = rankfold.start("checkpoint", NAME, "--wait")

    def attempts() -> int:
        """As many as are over. All that is known of them goes when the save is given up."""
        try:
            text = "".join(each.read_text() for each in saves.glob("*/log"))
        except FileNotFoundError:
            text = ""
        return saving.TRIES if asked.poll() is not None else text.count("No space left on device")

    def another(seen: int) -> int:
        rankfold.until(lambda: attempts() > seen)
        return attempts()

    seen, now = 0, another(0)
    while now < saving.TRIES:
        assert rankfold.until(job.not_saved)["reason"] == "UploadFailed"
        job.continues()
        os.kill(rankfold.reconciler_pid(), signal.SIGTERM)
        pass_time(Layout(rankfold.state.path).clock, 3600)
        rankfold("apply", "-f", str(specs.folder))
        seen, now = now, another(now)
    assert seen == saving.TRIES - 1, "given up too early"
    _, err = asked.communicate(timeout=scaled(60))
    assert asked.returncode == 1 and "was not saved" in err and "No space left on device" in err
    said = job.not_saved()
    assert said["reason"] == "SaveFailed"
    assert "No space left on device; free some space" in said["message"]
    assert job.ids() == before and not list(saves.iterdir())
    rankfold("store", "check", str(store))
    job.continues()

    ballast.unlink()
    after = rankfold("checkpoint", NAME, "--wait").strip()
    assert job.ids() == [*before, after] and not job.not_saved()
    assert rankfold.job(NAME)["phase"] == "Running" and rankfold.job(NAME)["restarts"] == 0
    job.comes_back()
    rankfold("store", "check", str(store))
    job.finish()
