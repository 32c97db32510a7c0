"""Changes that ranks make to files are part of their snapshots, and a restore puts them back."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfold import fanotify
from rankfold.interpose.launcher.files import saving
from rankfold.interpose.launcher.rank import process, progress
from support import leaks, privileges
from support.leaks import State

from .conftest import Launched
from .test_rest import Place, kill, refusal, save

PROGRAM = Path(__file__).parent / "writing_program.py"
RAW = Path(__file__).parent / "raw_calls.c"


class Tree(Place):
    """Beside what `Place` has: a tree that the program writes to."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.tree = folder / "tree"
        self.tree.mkdir()

    def start(self, name: str, *arguments: str) -> Launched:
        folders = (str(self.work), str(self.tree))
        return self.launch(sys.executable, str(PROGRAM), name, *folders, *arguments)

    def changes(self, launched: Launched) -> None:
        """Let go, it changes what was saved."""
        (self.work / "on").write_text("x")
        with launched.client() as client:
            client.request("thaw")
        exit_file = Path(launched.config["exit_file"])
        journal = exit_file.with_suffix(".files")
        while f"{self.work}/changed" not in journal.read_text():
            assert not exit_file.exists(), launched.text("err")
            time.sleep(0.01)
        kill(launched)
        (self.work / "on").unlink()

    def restored(self, rig: int = 0) -> Launched:
        """Frozen, under a fresh launcher."""
        fresh = self.empty(rig)
        with fresh.client() as client:
            client.request("restore", folder=str(self.saved))
        return fresh

    def output(self, launched: Launched) -> list[str]:
        """Lets the program continue and end. The launcher answers first: it exits with it."""
        with launched.client() as client:
            client.request("thaw")
        self.go()
        assert launched.end()["exit_status"] == 0, launched.text("err")
        return launched.text("out").splitlines()


@pytest.fixture
def place(state: State) -> Tree:
    privileges.need_criu()
    return Tree(state.folder)


def seen(folder: Path) -> dict[str, Any]:
    """All that there is below a folder, except for the times of folders that are not written
    down."""
    found: dict[str, Any] = {}
    for path in leaks.below_folder(folder):
        status = path.lstat()
        what: list[Any] = [stat.filemode(status.st_mode), status.st_uid, status.st_nlink]
        if path.is_symlink():
            what.append(os.readlink(path))
        elif path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            what += [digest, status.st_size, status.st_mtime_ns]
        found[str(path.relative_to(folder))] = what
    return found


def create_files(tree: Path) -> None:
    """Creates the files that exist before the rank starts."""
    for name in ("linked input", "given", "unwanted", "truncated", "untouched"):
        (tree / name).write_text(f"{name} of old")
    (tree / "unwanted folder").mkdir()
    (tree / "unwanted folder/inside").write_text("unwanted, too")


def test_looking_ends_while_a_process_keeps_writing(tmp_path: Path) -> None:
    privileges.need_criu()
    with contextlib.closing(fanotify.Group()) as group:
        group.mark(str(tmp_path))
        with (tmp_path / "written").open("w") as file:
            file.write("x")
            file.flush()
            looked = 0
            for event in group.events():
                looked += event.pid == os.getpid()
                assert looked < 100, "one look has no end"
                file.write("x")
                file.flush()
        assert looked > 0 and list(group.events()), "what came meanwhile is for the next look"


def test_files_in_an_ignored_folder_are_not_heard_of(tmp_path: Path) -> None:
    privileges.need_criu()
    ignored = tmp_path / "ignored"
    ignored.mkdir()
    with contextlib.closing(fanotify.Group()) as group:
        group.mark(str(tmp_path))
        group.ignore(str(ignored))
        for folder in (ignored, tmp_path):
            with (folder / f"in {folder.name}").open("a") as file:
                list(group.events())
                file.write("x")
        heard = [event for event in group.events() if event.pid == os.getpid()]
    names = [event.place.name for event in heard if event.place]
    assert names and set(names) == {f"in {tmp_path.name}"}


def test_output_of_ranks_wakes_no_launcher(place: Tree) -> None:
    launched = place.start("lines")
    logs = f"fanotify ino:{os.stat(launched.config['logs']).st_ino:x} "
    marks = [
        line
        for info in Path(f"/proc/{launched.pid}/fdinfo").iterdir()
        for line in info.read_text().splitlines()
        if line.startswith(logs)
    ]
    kill(launched)
    assert len(marks) == 1
    assert int(marks[0].partition("ignored_mask:")[2].split()[0], 16) & fanotify.MODIFY


@pytest.mark.parametrize("rig", [0, 1], ids=["again", "elsewhere"])
def test_files_are_set_back_to_what_they_were(place: Tree, rig: int) -> None:
    create_files(place.tree)
    launched = place.start("names")
    save(launched, place.saved)
    before = seen(place.tree)
    assert "folder/moved/deeper/file" in before and "short-lived" not in before
    place.changes(launched)
    assert seen(place.tree) != before
    (place.tree / "later/of others").parent.mkdir(exist_ok=True)
    (place.tree / "later/of others").write_text("theirs")
    if rig == 1:  # that launcher does not know the later files
        shutil.rmtree(place.tree / "later")
        shutil.rmtree(place.tree / "folder/again")
        (place.tree / "link/below").unlink()
    fresh = place.restored(rig)
    after = seen(place.tree)
    if rig == 0:
        assert after.pop("later/of others") and after.pop("later")
    assert after == before
    assert (place.tree / "first").samefile(place.tree / "second")
    assert place.output(fresh) == ["half a line"]


def test_files_come_back_in_a_tree_that_has_only_the_inputs(place: Tree) -> None:
    create_files(place.tree)
    launched = place.start("names")
    save(launched, place.saved)
    before = seen(place.tree)
    kill(launched)
    shutil.rmtree(place.tree)
    place.tree.mkdir()
    create_files(place.tree)
    os.utime(place.tree / "untouched", ns=(0, before["untouched"][-1]))
    fresh = place.restored(1)
    after = seen(place.tree)
    # An input and the rank's name of it are two files by now: the input is not the rank's.
    assert {k: v for k, v in after.items() if "input" not in k} == {
        k: v for k, v in before.items() if "input" not in k
    }
    assert place.output(fresh) == ["half a line"]


def test_a_database_comes_back_in_the_middle_of_a_transaction(place: Tree) -> None:
    launched = place.start("database")
    save(launched, place.saved)
    before = seen(place.tree)
    place.changes(launched)
    assert seen(place.tree) != before
    fresh = place.restored()
    assert seen(place.tree) == before
    assert place.output(fresh) == 2 * ["half 25 600", "once 1 100", "whole 25 625", "ok"]


MOVED = "attempt to write a readonly database"  # known-flaws.md


@pytest.mark.parametrize(
    ("mode", "said"),
    [("wal", []), ("memory", []), ("delete", [MOVED]), ("truncate", [MOVED]), ("persist", [MOVED])],
)
def test_a_database_in_another_tree_has_all_that_was_committed(
    place: Tree, mode: str, said: list[str]
) -> None:
    launched = place.start("moved_database", mode)
    save(launched, place.saved)
    kill(launched)
    place.tree.rename(place.tree.parent / "as it was")  # its file's number stays taken
    place.tree.mkdir()
    assert place.output(place.restored(1)) == [*said, "1,2,3", "ok"]


def test_each_line_of_a_log_is_there_once(place: Tree) -> None:
    launched = place.start("lines")
    save(launched, place.saved)
    before = seen(place.tree)
    with launched.client() as client:
        client.request("thaw")
    while seen(place.tree) == before:
        time.sleep(0.01)
    kill(launched)
    assert place.output(place.restored(1)) == ["True", "True"]


@pytest.mark.slow
def test_an_installed_package_comes_back(place: Tree) -> None:
    with zipfile.ZipFile(place.tree / "parcel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("parcel/__init__.py", "NAME = 'parcel'\n")
        wheel.writestr("parcel/later.py", "NAME = 'later'\n")
        wheel.writestr("parcel-1.0.dist-info/METADATA", "Name: parcel\nVersion: 1.0\n")
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("parcel-1.0.dist-info/WHEEL", kind)
        names = (
            "parcel/__init__.py",
            "parcel/later.py",
            "parcel-1.0.dist-info/METADATA",
            "parcel-1.0.dist-info/WHEEL",
            "parcel-1.0.dist-info/RECORD",
        )
        wheel.writestr("parcel-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in names))
    launched = place.start("package")
    save(launched, place.saved)
    before = seen(place.tree)
    place.changes(launched)
    fresh = place.restored()
    assert seen(place.tree) == before
    assert place.output(fresh) == ["parcel later"]


@pytest.mark.parametrize("megabytes", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_large_files_come_back(place: Tree, megabytes: int) -> None:
    launched = place.start("large", str(megabytes))
    save(launched, place.saved)
    assert sum(path.stat().st_blocks for path in place.saved.rglob("*")) < megabytes * 3 << 10
    before = seen(place.tree)
    place.changes(launched)
    fresh = place.restored(1)
    assert seen(place.tree) == before
    assert (place.tree / "sparse").stat().st_blocks < 100
    assert place.output(fresh) == [f"True b'middle' {megabytes << 20} 1"]


def test_changes_by_raw_system_calls_are_restored(place: Tree) -> None:
    program = place.work.parent / "raw_calls"
    subprocess.run(["cc", "-static", "-O1", "-o", str(program), str(RAW)], check=True)
    launched = place.launch(str(program), str(place.work), str(place.tree))
    save(launched, place.saved)
    before = seen(place.tree)
    place.changes(launched)
    assert not (place.tree / "made").exists() and (place.tree / "later").exists()
    fresh = place.restored()
    assert seen(place.tree) == before
    (place.work / "on").write_text("x")
    assert place.output(fresh) == ["b"]


def copied(folder: Path, earlier: Path | None = None) -> dict[str, int]:
    """Bytes of each file in a snapshot whose content is not in the earlier snapshot, by name."""
    entries = json.loads((folder / "files.json").read_text())["entries"]
    known = {path.stat().st_ino for path in (earlier / "files").iterdir()} if earlier else set()
    return {
        Path(each["path"]).name: each["was"][3]
        for each in entries
        if each.get("content") and (folder / "files" / each["content"]).stat().st_ino not in known
    }


@pytest.fixture
def memory(place: Tree) -> Iterator[Path]:
    """A file system in memory, which reports fewer changes."""
    folder = place.tree.parent / "memory"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_files_unchanged_since_the_last_snapshot_are_not_copied_again(
    place: Tree, memory: Path
) -> None:
    launched = place.start("many")
    times = [place.saved / str(number) / "rank-0" for number in range(4)]

    def save_next(folder: Path) -> None:
        time.sleep(0.1)  # who changes a file at once again does not change its time
        save(launched, folder)

    always = {"large open", "in memory"}  # changes of these cannot be seen
    save_next(times[0])
    assert len(copied(times[0])) == 40 + 5 + 2 + 1
    with launched.client() as client:
        client.request("thaw")
    save_next(times[1])
    assert copied(times[1], times[0]).keys() == always
    shutil.rmtree(times[0])
    with launched.client() as client:
        client.request("thaw")
        (place.work / "on").write_text("x")
        while not (place.work / "changed").exists():
            time.sleep(0.01)
    save_next(times[2])
    assert copied(times[2], times[1]).keys() == always | {"small 7", "large 3", "changed"}
    shutil.rmtree(times[1])
    with launched.client() as client:
        client.request("thaw")
    save_next(times[3])
    assert copied(times[3], times[2]).keys() == always
    shutil.rmtree(times[2])
    before = seen(place.tree)
    with (memory / "in memory").open("r+b") as file:  # by another process
        file.write(b"\x05")
    kill(launched)
    shutil.rmtree(place.tree)
    place.tree.mkdir()
    fresh = place.empty()
    with fresh.client() as client:
        client.request("restore", folder=str(times[3]))
    assert seen(place.tree) == before
    save(fresh, place.saved / "again/rank-0")
    kept = Path(fresh.config["exit_file"]).with_suffix(".kept")
    assert kept.exists()
    assert place.output(fresh) == ["b'\\x01'"]
    assert not kept.exists()


@pytest.mark.parametrize("how", ["longer", "other", "gone", "a pipe", "a link"])
def test_an_input_that_differs_is_named_and_nothing_is_changed(place: Tree, how: str) -> None:
    source = place.tree / "input"
    source.write_text("input")
    launched = place.start("reads")
    save(launched, place.saved)
    kill(launched)
    (place.work / "ready").write_text("changed by another process")
    if how in ("longer", "other"):
        source.write_text({"longer": "input and more", "other": "INPUT"}[how])
    else:
        source.unlink()
    if how == "a pipe":  # it has no writer, so opening it may block forever
        os.mkfifo(source)
    elif how == "a link":
        source.symlink_to(place.tree / "elsewhere")
    fresh = place.empty()
    with fresh.client() as client:
        error = refusal(client, "restore", folder=str(place.saved))
        assert error.code == "snapshot" and str(source) in error.message
        assert client.request("status")[0]["state"] == "empty"
    assert (place.work / "ready").read_text() == "changed by another process"
    source.unlink(missing_ok=True)
    source.write_text("input")  # the same content, at another time
    with fresh.client() as client:
        client.request("restore", folder=str(place.saved))
    assert place.output(fresh) == ["nput"]


def test_ranks_that_share_a_file_are_both_set_back(place: Tree) -> None:
    programs = [place.work.parent / f"work-{rank}" for rank in range(2)]
    launched = []
    for rank, work in enumerate(programs):
        work.mkdir()
        place.work = work
        launched.append(
            place.launch(
                sys.executable, str(PROGRAM), "large", str(work), str(place.tree), "4", rank=rank
            )
        )
    for each in launched:
        with each.client() as client:
            client.request("freeze")
    for rank, each in enumerate(launched):
        time.sleep(0.1)
        with each.client() as client:
            client.request("snapshot", folder=str(place.saved / f"rank-{rank}"))
    copies = [sorted((place.saved / f"rank-{rank}/files").glob("[0-9]")) for rank in range(2)]
    assert [copy.stat().st_nlink for copy in copies[0]] == [2, 2]
    before = seen(place.tree)
    for each in launched:
        kill(each)
    with (place.tree / "dense").open("rb"):  # while it is open no other file gets its inode number
        (place.tree / "dense").unlink()
        (place.tree / "dense").write_text("another")
        fresh = [place.empty(1, rank=rank) for rank in range(2)]
        for rank, each in enumerate(fresh):
            with each.client() as client:
                client.request("restore", folder=str(place.saved / f"rank-{rank}"))
    assert seen(place.tree) == before
    for work, each in zip(programs, fresh, strict=True):
        place.work = work
        assert place.output(each) == [f"True b'middle' {4 << 20} 1"]


def test_a_rank_that_waits_for_another_rank_s_copies_is_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That rank may copy large files for minutes; one that makes no progress is killed itself."""
    monkeypatch.setenv("RANKFOLD_CRIU_STUCK", "0.4")
    snapshot = tmp_path / "rank-1"
    program = (
        "from pathlib import Path; import sys\n"
        "from rankfold.interpose.launcher.files.saving import shared_notes\n"
        "with shared_notes(Path(sys.argv[1])) as notes: sys.exit(len(notes['taken']))"
    )
    with saving.shared_notes(snapshot) as notes:
        notes["taken"] = {"name": 1, "other": 2}
        waiting = subprocess.Popen([sys.executable, "-c", program, str(snapshot)])
        while process.opened(waiting.pid, str(tmp_path)) == []:
            assert waiting.poll() is None
            time.sleep(0.001)
        looking = progress.Stuck(lambda: {waiting.pid})
        for _ in range(3 * progress._LOOKS):
            time.sleep(looking.pause_s)
            if looking.look():
                waiting.kill()
    assert waiting.wait() == 2
