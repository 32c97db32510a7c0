"""Ranks that do to files what no one reckons with: nothing hangs, nothing of others is touched, and
what cannot be saved is said by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.interpose.launcher.files import journal
from rankfold.interpose.launcher.files.journal import Name
from support import privileges
from support.leaks import State

from .conftest import Launched
from .test_files import Tree, seen
from .test_rest import kill, refusal, save

PROGRAM = Path(__file__).parent / "hostile_program.py"


class Hostile(Tree):
    def start(self, name: str, *arguments: str) -> Launched:
        folders = (str(self.work), str(self.tree))
        return self.launch(sys.executable, str(PROGRAM), name, *folders, *arguments)


@pytest.fixture
def place(state: State) -> Iterator[Hostile]:
    privileges.need_criu()
    place = Hostile(state.folder)
    yield place
    for command in ("chattr -R -f -i -a", "rm -rf"):  # shutil does not get that deep
        subprocess.run([*command.split(), str(place.tree)], check=False)


@pytest.mark.usual("elsewhere")
@pytest.mark.parametrize("rig", [0, 1], ids=["again", "elsewhere"])
def test_whatever_can_have_a_name_comes_back_under_it(place: Hostile, rig: int) -> None:
    launched = place.start("names")
    save(launched, place.saved)
    before = seen(place.tree)
    assert len(before) > 330
    place.changes(launched)
    fresh = place.restored(rig)
    assert seen(place.tree) == before
    assert os.stat(place.tree / "null").st_rdev == os.makedev(1, 3)
    assert place.output(fresh) == [str(len(os.listdir(place.tree)))]


def test_a_folder_without_a_usable_name_is_reported_until_it_is_gone(place: Hostile) -> None:
    launched = place.start("too_deep")
    with launched.client() as client:
        client.request("freeze")
        try:
            error = refusal(client, "snapshot", folder=str(place.saved))
        finally:  # before a test looks for it by its name
            client.request("thaw")
            (place.work / "on").write_text("x")
            while not (place.work / "changed").exists():
                time.sleep(0.01)
    assert error.code == "undumpable", error
    assert f"{place.tree}/{'p' * 250}" in error.message and "too long" in error.message
    save(launched, place.saved)
    with launched.client() as client:
        client.request("thaw")
    assert place.output(launched) == []


def test_a_file_of_a_terabyte_that_is_a_hole_comes_back(place: Hostile) -> None:
    launched = place.start("huge")
    assert save(launched, place.saved) < 1 << 30
    place.changes(launched)
    fresh = place.restored()
    assert (place.tree / "huge").stat().st_blocks < 1000
    assert place.output(fresh) == ["b'middle' True"]


def flags(tree: Path) -> list[str]:
    told = subprocess.run(["lsattr", "-R", str(tree)], capture_output=True, text=True, check=True)
    return sorted(line for line in told.stdout.splitlines() if line)


def test_immutable_files_are_set_back(place: Hostile) -> None:
    launched = place.start("immutable")
    save(launched, place.saved)
    before, flagged = seen(place.tree), flags(place.tree)
    place.changes(launched)
    fresh = place.restored()
    assert seen(place.tree) == before
    assert flags(place.tree) == flagged
    cannot = [f"{name} cannot be written" for name in ("stays", "changed", "no more", "log")]
    assert place.output(fresh) == cannot


def test_a_rank_that_renames_without_a_pause_comes_back(place: Hostile) -> None:
    launched = place.start("restless")
    save(launched, place.saved)
    before = seen(place.tree)
    with launched.client() as client:
        client.request("thaw")
    time.sleep(0.2)
    kill(launched)
    fresh = place.restored()
    assert seen(place.tree) == before
    assert place.output(fresh) == ["['one', 'two']", "restless"]


def test_a_journal_that_tells_of_renames_in_another_order_is_enough(place: Hostile) -> None:
    """The kernel reports the same rename once, however often it happens between two polls; and the
    last one of all happens when nothing looks any more."""
    launched = place.start("halfway")
    save(launched, place.saved)
    before = seen(place.tree)
    kill(launched)
    path = Path(launched.config["exit_file"]).with_suffix(".files")
    life, names = journal.read(path)
    one, two, between = (f"{place.tree}/{name}" for name in ("one", "two", "between"))
    second, first = names[one].node, names[between].node
    told = {
        between: Name(True, second, one),
        one: Name(True, first, two),
        two: Name(True, second),
    }
    assert life and first and second and names.keys() >= told.keys()
    journal.write(path, life, names | told)
    os.rename(between, two)
    fresh = place.restored()
    assert seen(place.tree) == before
    assert place.output(fresh) == ["['one', 'two']"]


def test_a_file_of_others_to_which_the_rank_has_a_link_is_not_changed(place: Hostile) -> None:
    theirs = place.tree.parent / "outside"
    theirs.mkdir()
    for name in ("read", "written"):
        (theirs / name).write_text(name)
    launched = place.start("outside")
    save(launched, place.saved)
    kill(launched)
    (theirs / "read").write_text("read, and changed by others")
    fresh = place.restored()
    assert (theirs / "read").read_text() == "read, and changed by others"
    assert (theirs / "written").samefile(place.tree / "written")
    assert place.output(fresh) == ["read written, appended"]


def test_a_rank_that_has_removed_its_folder_comes_back(place: Hostile) -> None:
    launched = place.start("homeless")
    save(launched, place.saved)
    before = seen(place.tree)
    kill(launched)
    fresh = place.restored()
    assert seen(place.tree) == before
    assert place.output(fresh) == ["False"]
