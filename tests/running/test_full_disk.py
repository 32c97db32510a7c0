"""Promise: a full state disk costs no program its work. Code that a program loads meanwhile
stays in memory; the job leaves its devices once that is stored, and no earlier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold.control import ControlError
from support import disk
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

STEPS = 200  # seconds of them: what happens to the job happens before its end


@pytest.fixture
def ballast(state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file to remove: modules and compiled kernels are on a full disk."""
    with disk.small_disk(state) as place:
        (place / "modules").mkdir()
        (state.path / "modules").symlink_to(place / "modules")
        monkeypatch.setenv("RANKFOLD_CACHE", str(place / "kernels"))
        yield disk.fill(place)


def training(fleet: Fleet, name: str, steps: int = 30) -> RunningJob:
    return fleet.start(name, [str(build(PROGRAMS / "mlp_sharded.cu")), str(steps)], [0, 1])


def troubles(fleet: Fleet) -> list[str]:
    return [fleet.status(name)["trouble"] for name in fleet.names]


@pytest.mark.slow
def test_a_job_begins_on_a_full_disk_and_leaves_when_there_is_space(
    ballast: Path, state: State
) -> None:
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        job = training(fleet, "full", STEPS)
        until(lambda: job.output(0).count("\n") > 3, what="some steps")
        folder = state.path / "modules"
        assert all(f"{folder}: No space left" in trouble for trouble in troubles(fleet))
        job.stop()
        for attempt in (job.save, job.detach, job.detach):
            with pytest.raises(ControlError, match=r"stays at its cut") as caught:
                attempt()
            assert caught.value.code == "storage"
        assert all(fleet.status(name)["jobs"][0]["state"] == "cut" for name in fleet.names)
        assert not [each for each in folder.iterdir() if each.stat().st_size == 0]
        ballast.unlink()
        assert job.detach() > 0
        assert troubles(fleet) == ["", ""]
        job.place([fleet.names[1], fleet.names[1]])
        assert job.wait() == [0, 0], job.errors(0)
        job.detach(discard=True)
        plain = training(fleet, "plain", STEPS)
        assert plain.wait() == [0, 0], plain.errors(0)
        assert [job.output(r) for r in (0, 1)] == [plain.output(r) for r in (0, 1)]
        plain.detach(discard=True)
        for log in (state.path / "proxies").glob("*.log"):
            assert log.read_text().count("WARNING images: modules cannot be stored") == 1
            assert log.read_text().count("WARNING server: kernels cannot be stored") <= 1


def test_modules_that_wait_for_space_are_stored_when_there_is_some(
    ballast: Path, state: State
) -> None:
    """No one asks; and what was brought by jobs that are gone is not waited for."""
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        job = training(fleet, "over")
        assert job.wait() == [0, 0], job.errors(0)
        assert all(troubles(fleet))
        job.detach(discard=True)
        assert troubles(fleet) == ["", ""]
        job = training(fleet, "stays")
        until(lambda: job.output(0).count("\n") > 3, what="some steps")
        assert all(troubles(fleet))
        ballast.unlink()
        until(lambda: not any(troubles(fleet)), what="stored")
        assert [each.stat().st_size > 0 for each in (state.path / "modules").iterdir()] == [True]
        assert job.wait() == [0, 0], job.errors(0)
        job.detach(discard=True)
