"""Ranks change files next to other users' files: ``foreign_program.py NAME FOLDER TREE``, with the
phases of writing_program.py. No rank may change ``elsewhere`` in the tree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from writing_program import phases, say, wait_for  # type: ignore[import-not-found]


def linked(folder: Path, tree: Path) -> None:
    """Puts links in the places of folders, one of its own and one of others."""
    (tree / "own").mkdir()
    (tree / "own/file").write_text("own")
    (tree / "own/short-lived").write_text("gone soon")
    (tree / "own/short-lived").unlink()
    with (tree / "theirs/file").open("a") as file:
        file.write(", appended")
    (tree / "theirs/made").write_text("made")
    told, _ = phases(folder)
    if told:
        for name in ("own", "theirs"):
            (tree / name).rename(tree / f"{name} of old")
            (tree / name).symlink_to("elsewhere")
        say(folder, "changed")
        wait_for(folder / "go")
    print((tree / "own/file").read_text(), (tree / "theirs/file").read_text())


def linked_before(folder: Path, tree: Path) -> None:
    """The same, but before it is saved: behind the link is nothing of its own."""
    (tree / "own").mkdir()
    (tree / "own/file").write_text("own")
    (tree / "own").rename(tree / "own of old")
    (tree / "own").symlink_to("elsewhere")
    phases(folder)
    print((tree / "own of old/file").read_text())


def scratch(folder: Path, tree: Path) -> None:
    """Uses names for a while, and some of them again later."""
    for name in ("theirs by now", "used again"):
        (tree / name).write_text("scratch")
        (tree / name).unlink()
    (tree / "folder").mkdir()
    (tree / "folder").rmdir()
    told, _ = phases(folder)
    if told:
        (tree / "used again").write_text("scratch, too")
        (tree / "later").write_text("later")
        (tree / "replaced later").write_text("later")
        say(folder, "changed")
        wait_for(folder / "go")


def renames(folder: Path, tree: Path) -> None:
    """Renames what others have, after it was saved."""
    (tree / "data/made").write_text("made")
    told, _ = phases(folder)
    if told:
        (tree / "given").rename(tree / "taken")
        (tree / "taken").rename(tree / "taken again")
        (tree / "data").rename(tree / "data of old")
        (tree / "data of old/made").unlink()
        (tree / "data of old/later").write_text("later")
        say(folder, "changed")
        wait_for(folder / "go")
    print(sorted(os.listdir(tree / "data")))


def links(folder: Path, tree: Path) -> None:
    """Changes files that have two names; the rank knows one of them."""
    (tree / "linked").hardlink_to(tree / "given")
    with (tree / "second").open("a") as file:
        file.write(", appended")
    told, _ = phases(folder)
    if told:
        (tree / "linked").unlink()
        (tree / "new").write_text("new")
        (tree / "new").rename(tree / "second")
        say(folder, "changed")
        wait_for(folder / "go")
    print((tree / "linked").read_text(), (tree / "second").read_text())


def owner(folder: Path, tree: Path) -> None:
    """Another rank takes what it has (`usurper`)."""
    (tree / "own").mkdir()
    (tree / "own/file").write_text("own")
    phases(folder)
    print((tree / "own/file").read_text())


def usurper(folder: Path, tree: Path) -> None:
    (tree / "usurped").write_text("for now")
    told, _ = phases(folder)
    if told:
        (tree / "own").rename(tree / "own of old")
        (tree / "own").symlink_to("elsewhere")
        (tree / "own of old/file").rename(tree / "usurped")
        say(folder, "changed")
        wait_for(folder / "go")
    print((tree / "usurped").read_text())


def continues(folder: Path, tree: Path) -> None:
    """Writes a file in a folder that is moved meanwhile."""
    (tree / "place").mkdir()
    (tree / "place/file").write_text("written")
    with (tree / "place/open").open("w") as file:
        file.write("open")
        file.flush()
        told, _ = phases(folder)
        if told:
            (tree / "place/file").write_text("changed")
            say(folder, "changed")
            wait_for(folder / "go")
    print((tree / "place/file").read_text())


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
