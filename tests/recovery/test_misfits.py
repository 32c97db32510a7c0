"""A checkpoint that cannot be restored here is refused by name, and what rests is not given up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankfold.checkpoint import snapshot
from rankfold.checkpoint import store as stores
from rankfold.checkpoint.snapshot import Snapshot
from rankfold.checkpoint.store import Id
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.node.launchers import Node
from support.command import Rankfold

from .conftest import RANKS, Trained

ALL_FEATURES = b"\x30\xff\xff\xff\xff\x0f"  # as a word of capabilities in cpuinfo.img


def of_another_processor(folder: Path) -> None:
    file = folder / "criu/cpuinfo.img"
    before = file.read_bytes()
    after = re.sub(rb"\x30[\x80-\xff]{4}[\x01-\x0f]", ALL_FEATURES, before)
    assert after != before
    file.write_bytes(after)


def change(file: Path, changing: Callable[[Any], None]) -> None:
    found = json.loads(file.read_text())
    changing(found)
    file.write_text(json.dumps(found))


def of_another_interposer(folder: Path) -> None:
    change(folder / "about.json", lambda about: about.update(interposer="0" * 16))


def of_a_newer_format(folder: Path) -> None:
    change(folder / "about.json", lambda about: about.update(version=9))


def of_another_state(folder: Path) -> None:
    change(folder / "about.json", lambda about: about.pop("state"))


def that_read_something_else(folder: Path) -> None:
    change(folder / "files.json", lambda files: files["inputs"][0].update(size=7))


MISFITS = [
    (of_another_processor, "rank 1: the rank ran on a processor with features that this one lacks"),
    (of_another_interposer, "other interposer libraries (0000000000000000)"),
    (of_a_newer_format, "about.json has format 9"),
    (
        of_another_state,
        "the device state of rank 1 was saved in format version 9, this rankfold reads",
    ),
    (that_read_something_else, "rank 1: files that the rank reads have changed"),
]


def another_checkpoint(job: Trained, folder: Path, changing: Callable[[Path], None]) -> str:
    """The job's first one once more, after a change to rank 1's snapshot."""
    layout = Layout(job.rankfold.state.path)
    store = stores.open(layout.checkpoints, Node(layout).fleet())
    first = store.checkpoint(job.name, Id(1, 1))
    folders = {rank: folder / f"rank-{rank}" for rank in range(RANKS)}
    snapshot.write(first, folders)
    changing(folders[1])
    save = store.begin(job.name, 1)
    for rank, each in folders.items():
        Snapshot(each).add_to(save, rank)
    return str(save.finish(first.manifest.about).id)


@pytest.mark.slow
@pytest.mark.parametrize("rests", ["memory", "node"])
def test_a_resting_job_is_kept_if_its_checkpoint_cannot_be_restored_here(
    rests: str, rankfold: Rankfold, job: Trained, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    if rests == "node":
        rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = "0"
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    rankfold("suspend", job.name, "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == rests)
    ranks = [rank["pid"] for rank in job.status["ranks"]]
    for changing, said in MISFITS:
        id = another_checkpoint(job, tmp_path / changing.__name__, changing)
        done = rankfold.run("resume", job.name, "--from", id, "--override")
        assert done.returncode == 1 and f"checkpoint {id} of gpt cannot be restored" in done.stderr
        assert said in done.stderr
    assert job.status["suspendedIn"] == rests
    assert [rank["pid"] for rank in job.status["ranks"]] == ranks
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed
    assert "WentBack" not in rankfold("events", job.name)
