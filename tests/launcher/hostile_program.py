"""Ranks with which no launcher reckons: ``hostile_program.py NAME FOLDER TREE``, with the phases of
writing_program.py."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

from writing_program import phases, say, wait_for  # type: ignore[import-not-found]


def names(folder: Path, tree: Path) -> None:
    """Names of all kinds of bytes and lengths, and whatever else may have a name."""
    os.chdir(tree)
    odd = [
        b"new\nline",
        b"\xff\xfe",
        b"x" * 255,
        b'"quoted\\',
        b"[1, true]",
        b"gone (deleted)",
        b"-n",
        b"\x01\x7f",
        " \u2028 ".encode(),
        b".rankfold-x",
    ]
    for name in odd:
        Path(os.fsdecode(name)).write_bytes(name)
        Path(os.fsdecode(b"folder " + name[:200]), "a").mkdir(parents=True)
    deep = tree.joinpath(*("d" for _ in range(300)))
    deep.mkdir(parents=True)
    (deep / "file").write_text("deep")
    long = tree
    while len(os.fsencode(long)) < 4095 - 257:
        long = long / ("l" * 250)
    long = long / ("l" * (4095 - 6 - len(os.fsencode(long))))
    long.mkdir(parents=True)
    (long / "file").write_text("long")
    for loop, target in (("a", "b"), ("b", "a"), ("self", "self"), ("here", "."), ("empty", " ")):
        os.symlink(target, f"loop {loop}")
    os.symlink("x" * 4095, "link")
    os.mkfifo("pipe", 0o640)
    os.mknod("null", 0o620 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod("block", 0o600 | stat.S_IFBLK, os.makedev(7, 77))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("left socket")
    with socket.socket(socket.AF_UNIX) as held:
        held.bind("held socket")
        held.listen()
        told, _ = phases(folder)
        if told:
            for at, folders, names in os.walk(tree):
                for path in (Path(at, name) for name in (*folders, *names)):
                    if not stat.S_ISDIR(path.lstat().st_mode):
                        path.unlink()
            shutil.rmtree("d")
            Path("null").write_text("a file now")
            Path("left socket").symlink_to("loop a")
            say(folder, "changed")
            wait_for(folder / "go")
        print(len(os.listdir(".")))


def too_deep(folder: Path, tree: Path) -> None:
    """A folder whose name is longer than any call takes; then it goes away."""
    os.chdir(tree)
    for _ in range(20):
        os.mkdir("p" * 250)
        os.chdir("p" * 250)
    Path("file").write_text("too deep")
    say(folder, "ready")
    wait_for(folder / "on")
    Path("file").unlink()
    for _ in range(20):
        os.chdir("..")
        os.rmdir("p" * 250)
    say(folder, "changed")
    wait_for(folder / "go")


def huge(folder: Path, tree: Path) -> None:
    with (tree / "huge").open("w+b") as file:
        file.truncate(1 << 40)
        os.pwrite(file.fileno(), b"middle", 1 << 39)
        told, _ = phases(folder)
        if told:
            file.truncate(5)
            say(folder, "changed")
            wait_for(folder / "go")
        print(os.pread(file.fileno(), 6, 1 << 39), os.fstat(file.fileno()).st_size == 1 << 40)


def immutable(folder: Path, tree: Path) -> None:
    def flag(how: str, *names: str) -> None:
        subprocess.run(["chattr", how, *(str(tree / name) for name in names)], check=True)

    for name in ("stays", "changed", "no more", "later as well"):
        (tree / name).write_text(name)
    (tree / "log").write_text("line\n")
    (tree / "folder").mkdir()
    (tree / "folder/inside").write_text("inside")
    flag("+i", "stays", "changed", "no more", "folder")
    flag("+a", "log")
    told, _ = phases(folder)
    if told:
        flag("-i", "changed", "no more", "folder")
        (tree / "changed").write_text("changed again")
        (tree / "folder/later").write_text("later")
        (tree / "later").write_text("later")
        with (tree / "log").open("a") as file:
            file.write("another\n")
        flag("+i", "changed", "folder", "folder/later", "later", "later as well")
        say(folder, "changed")
        wait_for(folder / "go")
    for name in ("stays", "changed", "no more", "log"):
        try:
            (tree / name).write_text("x")
            print(name, "can be written")
        except PermissionError:
            print(name, "cannot be written")
    flag("-i", "stays", "changed", "no more", "folder")
    flag("-a", "log")


def restless(folder: Path, tree: Path) -> None:
    """Renames without a pause, also when it is frozen."""
    (tree / "folder 0").mkdir()
    (tree / "folder 0/file").write_text("restless")
    (tree / "one").write_text("one")
    (tree / "two").write_text("two")
    number = 0
    while not (folder / "go").exists():
        (tree / f"folder {number % 2}").rename(tree / f"folder {(number + 1) % 2}")
        (tree / "one").rename(tree / "between")
        (tree / "two").rename(tree / "one")
        (tree / "between").rename(tree / "two")
        number += 1
        if number == 1000:
            say(folder, "ready")
    print(sorted((tree / name).read_text() for name in ("one", "two")))
    print((tree / f"folder {number % 2}/file").read_text())


def halfway(folder: Path, tree: Path) -> None:
    """Saved while two files change their names."""
    (tree / "one").write_text("one")
    (tree / "two").write_text("two")
    (tree / "one").rename(tree / "between")
    (tree / "two").rename(tree / "one")
    phases(folder)
    print([(tree / name).read_text() for name in ("between", "one")])


def outside(folder: Path, tree: Path) -> None:
    """Names of files that others have elsewhere."""
    (tree / "read").hardlink_to(tree.parent / "outside/read")
    (tree / "written").hardlink_to(tree.parent / "outside/written")
    with (tree / "written").open("a") as file:
        file.write(", appended")
    phases(folder)
    print((tree / "read").read_text(), (tree / "written").read_text())


def homeless(folder: Path, tree: Path) -> None:
    """It removes the folder that it works in."""
    home = tree / "home"
    home.mkdir()
    os.chdir(home)
    (home / "file").write_text("x")
    shutil.rmtree(home)
    phases(folder)
    print(os.path.exists(home))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
