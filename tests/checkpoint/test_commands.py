"""`rankfold store list` and `check`: what people learn of a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from rankfold.checkpoint.store import Id
from rankfold.reconciler.cli import cli
from support.checkpoints import example, opened, saved
from support.patience import scaled


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def rankfold(*arguments: str | Path) -> Done:
    """Runs in this process, as a process of its own would take a second each."""
    command = ["store", *map(str, arguments)]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Done(done.exit_code or done.return_value or 0, done.stdout, done.stderr)


def test_sound_checkpoints_are_listed_and_checked(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    manifests = [saved(store, "gpt", 1, example(n)) for n in range(2)]
    listed = json.loads(rankfold("list", tmp_path, "-o", "json").stdout)
    assert listed["fleet"] == "fleet" and not listed["faults"]
    assert [
        (row["job"], row["id"], row["ranks"], row["bytes"]) for row in listed["checkpoints"]
    ] == [("gpt", str(each.id), 2, each.size) for each in manifests]
    done = rankfold("check", tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == [
        "gpt: checkpoint 1-1: ok",
        "gpt: checkpoint 1-2: ok",
        "2 of 2 checkpoints are sound",
    ]


def test_check_reports_the_damage_of_each_checkpoint(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    for n in range(4):
        saved(store, "gpt", 1, example(n))
    [pack] = [
        place for place in store.manifest("gpt", Id(1, 4)).packs if place.folder[:3] == "1-4"
    ][:1]
    file = tmp_path / "jobs/gpt/data" / pack.name
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    [pack] = [
        place for place in store.manifest("gpt", Id(1, 3)).packs if place.folder[:3] == "1-3"
    ][:1]
    (tmp_path / "jobs/gpt/data" / pack.name).unlink()
    (tmp_path / "jobs/gpt/manifests/1-2.json").write_text("{")
    (tmp_path / "jobs/gpt/notes.txt").write_text("mine")
    store.begin("gpt", 1)
    done = rankfold("check", tmp_path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "gpt: checkpoint 1-1: ok"
    assert lines[1].startswith("gpt: checkpoint 1-2: DAMAGED: ") and "is not JSON" in lines[1]
    assert lines[2].startswith("gpt: checkpoint 1-3: DAMAGED: ") and "does not exist" in lines[2]
    assert f"1-4: DAMAGED: {file}: " in lines[3] and "of rank 0" in lines[3]
    assert "checkpoint 1-5 is being saved, or was interrupted: 0 bytes so far" in lines[4]
    assert "notes.txt was not written by rankfold: ignored" in done.stdout
    assert lines[-1] == "1 of 4 checkpoints are sound"
    found = json.loads(rankfold("check", tmp_path, "-o", "json").stdout)["found"]
    assert [(each["id"], each["sound"]) for each in found if each["id"]] == [
        ("1-1", True),
        ("1-2", False),
        ("1-3", False),
        ("1-4", False),
    ]
    assert rankfold("list", tmp_path).returncode == 1
    newest = store.newest("gpt")
    assert newest.checkpoint and newest.checkpoint.manifest.id == Id(1, 1)
    # The next save stores the damaged units again.
    manifest = saved(store, "gpt", 1, example(3))
    assert store.checkpoint("gpt", manifest.id).verify() == []


def test_a_store_that_hangs_is_named(tmp_path: Path) -> None:
    """Reading a manifest never ends, as on a file system that hangs: the command does."""
    manifest = saved(opened(str(tmp_path)), "gpt", 1, example(1))
    file = tmp_path / f"jobs/gpt/manifests/{manifest.id}.json"
    file.unlink()
    os.mkfifo(file)
    limit = float(f"{scaled(0.6):.2g}")  # it is also the limit for opening the store
    commands = [
        subprocess.Popen(
            [sys.executable, "-m", "rankfold", "store", command, str(tmp_path)],
            env={**os.environ, "RANKFOLD_STUCK": str(limit)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in ("list", "check")
    ]
    for each in commands:
        told = each.communicate(timeout=scaled(30))[1]
        assert each.returncode == 1
        assert f"waiting for {file}: no answer for {limit / 2:g} s\n" in told
        assert f"rankfold: {file}: no answer within {limit:g} s; make sure that it is" in told


def test_no_store_is_no_store(tmp_path: Path) -> None:
    for command in ("list", "check"):
        done = rankfold(command, tmp_path / "none")
        assert done.returncode == 1 and "has no checkpoints" in done.stderr
    process = [sys.executable, "-m", "rankfold", "store", "check", str(tmp_path / "none")]
    assert subprocess.run(process, capture_output=True).returncode == 1
