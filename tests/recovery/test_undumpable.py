"""State that cannot be saved is reported early, and its job continues to run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankfold.reconciler.layout import Layout
from support import privileges
from support.command import Rankfold, Specs

PROGRAM = Path(__file__).parents[1] / "launcher" / "resting_program.py"


def cannot_be_saved_message(rankfold: Rankfold, job: str) -> str:
    told = rankfold.job(job)["conditions"]
    return "".join(c["message"] for c in told if c["reason"] == "CannotBeSaved")


@pytest.mark.slow
def test_a_rank_that_is_a_sandbox_is_named_in_a_condition(rankfold: Rankfold, specs: Specs) -> None:
    privileges.need_criu()
    waits = f"until [ -e {specs.stop_file} ]; do sleep 0.05; done"
    specs.program(["unshare", "-n", "sh", "-c", waits], "sandbox")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    message = str(rankfold.until(lambda: cannot_be_saved_message(rankfold, "sandbox")))
    assert message == (
        "rank 0: process 1000 (sh) has a net namespace of its own: run it without its sandbox or "
        "container"
    )
    specs.stop_file.touch()
    rankfold.until(lambda: rankfold.job("sandbox")["phase"] == "Succeeded")


@pytest.mark.slow
def test_an_io_uring_is_named_in_a_condition_before_any_save(
    rankfold: Rankfold, specs: Specs
) -> None:
    privileges.need_criu()
    folder = specs.folder.parent / "work"
    folder.mkdir()
    specs.program([sys.executable, str(PROGRAM), "io_uring", str(folder)], "ring")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    rankfold.until(lambda: (folder / "ready").exists())
    out = Layout(rankfold.state.path).logs("ring") / "rank-0.out"
    if out.read_text().startswith("none"):
        privileges.missing("this kernel has no io_uring")

    message = str(rankfold.until(lambda: cannot_be_saved_message(rankfold, "ring")))
    assert message.startswith("rank 0: process 1") and "io_uring, which cannot be saved" in message
    job = rankfold.job("ring")
    assert job["phase"] == "Running" and job["checkpoints"] == [] and job["restarts"] == 0
    events = rankfold("events", "ring")
    assert "CannotBeSaved" in events and "SaveFailed" not in events and "Barrier" not in events
    (folder / "go").touch()
    rankfold.until(lambda: rankfold.job("ring")["phase"] == "Succeeded")
    assert out.read_text() == "still here True\n"
