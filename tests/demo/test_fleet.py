"""The demo's repository: made from the real specs, changed a field at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from examples.demo.fleet import Fleet, FleetError, Repository
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
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [commits[-1], "1", "1", "gpt.yaml"]
    assert len(set(commits)) == len(CHANGES) + 1


def test_a_field_that_is_not_there_is_not_edited(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "fleet", SPECS)
    with pytest.raises(FleetError, match="0 lines `replicas:`"):
        repository.edit("gpt.yaml", {"replicas": "3"})


def test_the_job_gets_paths_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    run = Run(folder, SPECS, ["/opt/gpt", "--data", '/opt/a "text".txt'], 77, Screen().show)
    spec = job(run.repository.path)
    assert spec["command"] == [
        "/opt/gpt",
        "--data",
        '/opt/a "text".txt',
        "--steps",
        "77",
        "--out",
        "params",
    ]
    assert spec["workdir"] == str(folder)


def test_a_crash_ends_the_fleet_and_its_ranks_and_no_other_process(tmp_path: Path) -> None:
    """A launcher is one whose command line names the state directory; a rank is a child of it."""
    fleet = Fleet(tmp_path / "state", tmp_path / "log")
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    launch = [sys.executable, "-c", f"import subprocess; subprocess.run({sleep!r})"]
    other = [*sleep, str(tmp_path / "stat")]
    launcher, another = subprocess.Popen([*launch, str(fleet.state)]), subprocess.Popen(other)
    try:
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        while not (rank := children.read_text().split()):
            pass
        fleet._watcher = launcher
        assert fleet.crash() == 2
        assert launcher.wait() == -9 and another.poll() is None
        assert not os.path.exists(f"/proc/{rank[0]}/fd") or not os.listdir(f"/proc/{rank[0]}/fd")
    finally:
        another.kill()
        another.wait()
