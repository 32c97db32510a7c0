"""Where ranks and others use the same names, a restore touches nothing of others, and follows no
link to them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from support import privileges
from support.leaks import State

from .conftest import Launched
from .test_files import Tree, seen
from .test_rest import kill, refusal, save

PROGRAM = Path(__file__).parent / "foreign_program.py"


class Shared(Tree):
    """A tree in which others have files, too."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        elsewhere = self.tree / "elsewhere"
        elsewhere.mkdir(mode=0o711)
        for each in ("file", "short-lived", "made", "open"):
            (elsewhere / each).write_text(f"{each} of others")

    def start(self, name: str, *arguments: str, **fields: int) -> Launched:
        folders = (str(self.work), str(self.tree))
        return self.launch(sys.executable, str(PROGRAM), name, *folders, *arguments, **fields)


@pytest.fixture
def place(state: State) -> Shared:
    privileges.need_criu()
    return Shared(state.folder)


def theirs(place: Shared) -> dict[str, object]:
    """The content of ``elsewhere``, with its times."""
    folder = place.tree / "elsewhere"
    times = {path.name: path.stat().st_ctime_ns for path in (folder, *folder.iterdir())}
    return {"seen": seen(folder), "times": times}


@pytest.mark.parametrize("rig", [0, 1], ids=["again", "elsewhere"])
def test_links_of_the_rank_in_the_place_of_folders_are_put_right(place: Shared, rig: int) -> None:
    (place.tree / "theirs").mkdir(mode=0o750)
    (place.tree / "theirs/file").write_text("theirs")
    (place.tree / "theirs/untouched").write_text("untouched")
    launched = place.start("linked")
    save(launched, place.saved)
    before, others = seen(place.tree), theirs(place)
    place.changes(launched)
    assert (place.tree / "own").is_symlink() and (place.tree / "theirs").is_symlink()
    fresh = place.restored(rig)
    assert theirs(place) == others
    assert seen(place.tree) == before
    assert place.output(fresh) == ["own theirs, appended"]


@pytest.mark.parametrize("name", ["own", "theirs"])
def test_a_link_of_others_in_the_place_of_a_folder_is_named_and_not_followed(
    place: Shared, name: str
) -> None:
    (place.tree / "theirs").mkdir()
    (place.tree / "theirs/file").write_text("theirs")
    launched = place.start("linked")
    save(launched, place.saved)
    before, others = seen(place.tree), theirs(place)
    place.changes(launched)
    for each in ("own", "theirs"):
        (place.tree / each).unlink()
        (place.tree / f"{each} of old").rename(place.tree / each)
    (place.tree / name).rename(place.tree / "moved away")
    (place.tree / name).symlink_to("elsewhere")
    changed = seen(place.tree)
    fresh = place.empty(0)
    with fresh.client() as client:
        error = refusal(client, "restore", folder=str(place.saved))
        assert error.code == "snapshot" and f"{place.tree / name} is a link" in error.message
        assert client.request("status")[0]["state"] == "empty"
    assert seen(place.tree) == changed and theirs(place) == others
    (place.tree / name).unlink()
    (place.tree / "moved away").rename(place.tree / name)
    with fresh.client() as client:
        client.request("restore", folder=str(place.saved))
    assert seen(place.tree) == before and theirs(place) == others
    assert place.output(fresh) == ["own theirs, appended"]


@pytest.mark.parametrize("first", [0, 1])
def test_changes_to_another_rank_s_files_are_undone(place: Shared, first: int) -> None:
    works, launched = [], []
    for rank, name in enumerate(("owner", "usurper")):
        place.work = place.tree.parent / f"work-{rank}"
        place.work.mkdir()
        works.append(place.work)
        launched.append(place.start(name, rank=rank))
    for rank, each in enumerate(launched):
        save(each, place.saved / f"rank-{rank}")
    before, others = seen(place.tree), theirs(place)
    with launched[0].client() as client:
        client.request("thaw")
    place.changes(launched[1])
    kill(launched[0])
    fresh = [place.empty(rank=rank) for rank in range(2)]
    for rank in (first, 1 - first):
        with fresh[rank].client() as client:
            client.request("restore", folder=str(place.saved / f"rank-{rank}"))
    assert seen(place.tree) == before and theirs(place) == others
    for rank, expected in enumerate(("own", "for now")):
        place.work = works[rank]
        assert place.output(fresh[rank]) == [expected]


def test_a_file_with_several_names_stays_one_if_the_rank_knows_only_one(place: Shared) -> None:
    for name in ("given", "first"):
        (place.tree / name).write_text(name)
    (place.tree / "second").hardlink_to(place.tree / "first")
    launched = place.start("links")
    save(launched, place.saved)
    before = seen(place.tree)
    place.changes(launched)
    fresh = place.restored()
    assert seen(place.tree) == before
    for one, other in (("given", "linked"), ("first", "second")):
        assert (place.tree / one).samefile(place.tree / other)
    assert place.output(fresh) == ["given first, appended"]


def test_the_target_of_a_link_of_the_rank_is_not_saved(place: Shared) -> None:
    launched = place.start("linked_before")
    save(launched, place.saved)
    kill(launched)
    (place.tree / "elsewhere/file").write_text("changed by others")
    others = theirs(place)
    fresh = place.restored()
    assert theirs(place) == others
    assert place.output(fresh) == ["own"]


def test_a_folder_that_is_moved_and_linked_is_saved_where_it_is(place: Shared) -> None:
    launched = place.start("continues")
    journal = Path(launched.config["exit_file"]).with_suffix(".files")
    while not journal.exists() or f"{place.tree}/place/open" not in journal.read_text():
        time.sleep(0.01)
    (place.tree / "place").rename(place.tree / "moved")
    (place.tree / "place").symlink_to("moved")
    save(launched, place.saved)
    before = seen(place.tree)
    place.changes(launched)
    assert (place.tree / "moved/file").read_text() == "changed"
    fresh = place.restored()
    assert seen(place.tree) == before
    assert place.output(fresh) == ["written"]


def test_names_that_the_rank_has_given_up_may_be_used_by_others(place: Shared) -> None:
    launched = place.start("scratch")
    save(launched, place.saved)
    before = seen(place.tree)
    place.changes(launched)
    (place.tree / "replaced later").unlink()
    (place.tree / "folder").mkdir()
    for name in ("theirs by now", "replaced later", "folder/inside"):
        (place.tree / name).write_text("of others")
    fresh = place.restored()
    after = seen(place.tree)
    for name in ("theirs by now", "replaced later", "folder/inside", "folder"):
        assert after.pop(name)
    assert after == before
    assert place.output(fresh) == []


@pytest.mark.parametrize("rig", [0, 1], ids=["again", "elsewhere"])
def test_a_foreign_file_renamed_by_the_rank_gets_its_name_back(place: Shared, rig: int) -> None:
    (place.tree / "given").write_text("of others")
    (place.tree / "data/deeper").mkdir(parents=True)
    (place.tree / "data/deeper/file").write_text("of others, too")
    launched = place.start("renames")
    save(launched, place.saved)
    before = seen(place.tree)
    number = os.stat(place.tree / "data").st_ino
    place.changes(launched)
    assert (place.tree / "data of old").exists() and not (place.tree / "given").exists()
    fresh = place.restored(rig)
    assert seen(place.tree) == before
    assert os.stat(place.tree / "data").st_ino == number
    assert place.output(fresh) == ["['deeper', 'made']"]
