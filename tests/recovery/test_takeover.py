"""A job that another state directory resumes from the store runs there alone: where it ran before,
it ends, and until that is seen nothing of it begins."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support import leaks
from support.command import Rankfold

from .conftest import RANKS, Trained
from .test_stores import TICKING


class Two:
    """A job that runs in one state directory and was saved, and another one on the same store."""

    def __init__(self, job: Trained):
        self.job, self.here = job, job.rankfold
        store = self.here.state.folder / "store"
        job.specs.store(store)
        job.wrapper = ["sh", "-c", TICKING, "sh"]
        job.apply(gpus=1, extra="checkpoint: {interval: 0s}")
        self.here.until(lambda: all(file.exists() for file in self._ticks()))
        self.id = self.here("checkpoint", job.name, "--wait").strip()
        self.pids = [rank["pid"] for rank in job.status["ranks"]]
        assert len(self.pids) == RANKS and all(self.pids)
        place = replace(self.here.state, path=self.here.state.folder / "elsewhere")
        self.there = Rankfold(place, {**self.here.environment, "RANKFOLD_STATE": str(place.path)})
        self.other = Trained(self.there, job.specs, job.program, job.folder)
        self.other.wrapper = job.wrapper
        self.there("store", "adopt", str(store))
        self.other.apply(gpus=1, extra="checkpoint: {interval: 0s}\n  suspend: true")

    def _ticks(self) -> list[Path]:
        return [self.job.folder / f"ticks-{rank}" for rank in range(RANKS)]

    def resume(self) -> None:
        self.there("resume", self.job.name, "--from", self.id, "--override")

    @property
    def runs_here(self) -> bool:
        return not all(leaks.has_ended(pid, 0) for pid in self.pids)

    @property
    def runs_there(self) -> bool:
        return any(rank["pid"] for rank in self.other.status["ranks"])

    def continues_there(self) -> None:
        """Never next to the one here."""

        def alone() -> bool:
            runs = self.runs_there  # seen first
            assert not (runs and self.runs_here), "two copies"
            return runs

        self.there.until(alone)
        self.other.is_in("Running")

    def results(self) -> dict[str, bytes]:
        (self.job.folder / "go").touch()
        return self.other.results()


@pytest.fixture
def two(job: Trained) -> Iterator[Two]:
    found = Two(job)
    yield found
    found.there.end()


@pytest.mark.slow
def test_a_job_that_runs_ends_where_another_state_directory_has_taken_it_over(
    two: Two, undisturbed: dict[str, bytes]
) -> None:
    two.resume()
    two.continues_there()
    two.job.is_in("Failed")
    told = two.here("describe", two.job.name)
    assert "TakenOver" in told and "continues as incarnation 2" in told
    assert str(two.there.state.path) in told
    assert two.results() == undisturbed


@pytest.mark.slow
def test_nothing_begins_while_a_copy_lives_that_no_reconciler_ends(
    two: Two, undisturbed: dict[str, bytes]
) -> None:
    os.kill(two.here.reconciler_pid(), signal.SIGKILL)
    two.resume()
    said = f"it still runs under {two.here.state.path}"
    two.there.until(lambda: said in two.there("describe", two.job.name))
    assert two.runs_here and not two.runs_there
    two.here("cancel", two.job.name, "--override")
    two.continues_there()
    assert two.results() == undisturbed
