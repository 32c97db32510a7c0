"""The demo's repository: made from the real specs, changed a field at a time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from examples.demo.fleet import FleetError, Repository
from examples.demo.run import CHANGES, Run
from examples.demo.show import Screen
from rankfold.paths import REPOSITORY

SPECS = REPOSITORY / "specs"


def job(folder: Path) -> dict[str, object]:
    spec: dict[str, object] = yaml.safe_load((folder / "gpt.yaml").read_text())["spec"]
    return spec


def test_every_change_is_one_line_of_one_commit(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "fleet", SPECS)
    commits = [repository.commit("start")]
    for change in CHANGES:
        repository.edit("gpt.yaml", change.fields)
        commits.append(repository.commit(change.title))
        wanted = 0 if job(repository.path)["suspend"] else job(repository.path)["gpus"]
        assert wanted == change.gpus
        done = subprocess.run(
            ["git", "-C", str(repository.path), "show", "--numstat", "--format=%H"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split() == [commits[-1], "1", "1", "gpt.yaml"]
    assert len(set(commits)) == len(CHANGES) + 1


def test_a_field_that_is_not_there_is_not_edited(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "fleet", SPECS)
    with pytest.raises(FleetError, match="0 lines `replicas:`"):
        repository.edit("gpt.yaml", {"replicas": "3"})


def test_the_job_gets_paths_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    run = Run(folder, SPECS, Path("/opt/gpt"), Path("/opt/a text.txt"), 77, Screen().show)
    spec = job(run.repository.path)
    assert spec["command"] == [
        "/opt/gpt", "--steps", "77", "--data", "/opt/a text.txt", "--out", "params"
    ]  # fmt: skip
    assert spec["workdir"] == str(folder)
