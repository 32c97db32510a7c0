"""The owner of a job in the store is known by its state directory and machine, whatever that is
called."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold import owners
from support import privileges
from support.patience import scaled

from .test_uploading import UPLOAD, Job, does, state_of

CALLED_OTHERWISE = ["unshare", "--uts", "sh", "-ec", 'hostname called-otherwise; exec "$@"', "sh"]


def on_another_machine(folder: Path) -> list[str]:
    """Made of the same image: it has another name for itself."""
    (folder / "machine-id").write_text("5a" * 16 + "\n")
    mount = f'mount --bind "{folder}/machine-id" {owners.MACHINE}; exec "$@"'
    return ["unshare", "--mount", "sh", "-ec", mount, "sh"]


def uploads(prefix: list[str], folder: Path) -> tuple[str, str | None]:
    """Its end, and what it says."""
    command = [*prefix, sys.executable, "-m", "rankfold.checkpoint.upload", str(folder)]
    subprocess.run(command, check=True, timeout=scaled(60))
    deadline = time.monotonic() + scaled(60)
    while (found := state_of(folder)).state == "working":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found.state, found.error


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    privileges.need_namespaces()
    yield Job(tmp_path)


def need_a_machine_id() -> None:
    if not owners.MACHINE.is_file():
        pytest.skip(f"this machine has no {owners.MACHINE}")


def test_a_machine_that_is_called_otherwise_is_the_same(job: Job) -> None:
    need_a_machine_id()
    assert does(UPLOAD, job.saved(0)).state == "done"
    assert uploads(CALLED_OTHERWISE, job.saved(1)) == ("done", None)
    assert does(UPLOAD, job.saved(2)).id == "1-3"


def test_a_state_directory_on_another_machine_is_another_one(job: Job, tmp_path: Path) -> None:
    """It was copied there."""
    need_a_machine_id()
    assert does(UPLOAD, job.saved(0)).state == "done"
    state, error = uploads(on_another_machine(tmp_path), job.saved(1))
    assert state == "failed" and "incarnation 1 of gpt has been begun by" in str(error)
    assert f"{os.uname().nodename}:{job.folder}" in str(error), "for people"


def test_a_state_directory_of_the_same_path_is_another_one(job: Job, tmp_path: Path) -> None:
    """On a machine made from the same image, and called the same."""
    assert does(UPLOAD, job.saved(0)).state == "done"
    job.folder.parents[1].joinpath("mark").unlink()
    assert does(UPLOAD, job.saved(1)).code == "refused"


def test_the_owner_from_before_there_were_marks_still_owns_the_job(job: Job) -> None:
    """The old owner is recognised by the host name; files that are written from then on have a
    mark."""
    before = f"{os.uname().nodename}:{job.folder}"
    job.store().begin_incarnation("gpt", 1, owner=before)
    assert does(UPLOAD, job.saved(0)).state == "done"
    state, error = uploads(CALLED_OTHERWISE, job.saved(1))
    assert state == "failed" and before in str(error)
    now = owners.owner_of(job.folder)
    assert owners.is_same(now, before) and owners.is_same(before, now)
    assert owners.local_folder(before) == owners.local_folder(now) == job.folder
    assert owners.description(now) == owners.description(before) == before
    for other in ("", "here", f"elsewhere:{job.folder}", f"{before}-2", f"{now}-2"):
        assert not owners.is_same(now, other) and owners.local_folder(other) != job.folder
    another = job.folder.parents[1] / "another/jobs/gpt"
    another.mkdir(parents=True)
    assert owners.local_folder(now.replace(str(job.folder), str(another))) is None


def test_all_who_ask_at_once_get_one_name(tmp_path: Path) -> None:
    found: list[str] = []
    (tmp_path / "mark").write_text("half")  # of one who was killed
    asking = [
        threading.Thread(target=lambda: found.append(owners.owner_of(tmp_path / "jobs/gpt")))
        for _ in range(16)
    ]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert len(found) == 16 and len(set(found)) == 1


def test_a_lock_that_another_process_never_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends with an error that names the file, and the next call may succeed."""
    monkeypatch.setattr(owners, "LOCKED_S", 0.05)
    with (tmp_path / "mark").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"held its lock for 0\.05 s: '.*/mark'"):
            owners.owner_of(tmp_path / "jobs/gpt")
    assert owners.local_folder(owners.owner_of(tmp_path / "jobs/gpt")) == tmp_path / "jobs/gpt"


def test_a_long_path_fits_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "/".join(["a" * 60] * 5)
    folder.mkdir(parents=True)
    name = owners.owner_of(folder / "jobs/gpt")
    assert len(json.dumps(name)) == 257
    assert owners.is_same(name, owners.owner_of(folder / "jobs/gpt"))
    (folder / "mark").unlink()  # as on another machine
    assert not owners.is_same(name, owners.owner_of(folder / "jobs/gpt"))
