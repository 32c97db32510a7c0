"""Programs whose files are saved and restored: ``writing_program.py NAME FOLDER TREE``.

Each says "ready" when it has written what a snapshot is to hold, and changes all of it when it gets
"on"; then it says "changed". On "go" it prints what it finds and exits.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def say(folder: Path, what: str) -> None:
    (folder / what).write_text("x")


def phases(folder: Path) -> tuple[bool, bool]:
    """Whether it gets the word to change things, and then, whether to end."""
    say(folder, "ready")
    while not (folder / "on").exists():
        if (folder / "go").exists():
            return False, True
        time.sleep(0.01)
    return True, False


def names(folder: Path, tree: Path) -> None:
    """Makes, writes, renames, links and removes files and folders, in most ways there are."""
    (tree / "plain").write_text("plain\n")
    (tree / "mode").write_text("mode")
    (tree / "mode").chmod(0o640)
    (tree / "old name").write_text("renamed")
    (tree / "old name").rename(tree / "new name")
    (tree / "first").write_text("linked")
    (tree / "second").hardlink_to(tree / "first")
    (tree / "input").hardlink_to(tree / "linked input")
    (tree / "link").symlink_to("plain")
    (tree / "folder/deep/deeper").mkdir(parents=True)
    (tree / "folder/deep/deeper/file").write_text("deep")
    (tree / "folder/deep").rename(tree / "folder/moved")
    (tree / "given").rename(tree / "taken")
    (tree / "unwanted").unlink()
    (tree / "unwanted folder/inside").unlink()
    (tree / "unwanted folder").rmdir()
    os.truncate(tree / "truncated", 3)
    os.utime(tree / "plain", ns=(1_000_000_007, 1_500_000_003))
    os.mkfifo(tree / "pipe")
    (tree / os.fsdecode(b"not \xff UTF-8")).write_bytes(b"\xff\0")
    with (tree / "open").open("w") as file, (tree / "short-lived").open("w"):
        file.write("half a ")
        file.flush()
        (tree / "short-lived").unlink()
        told, _ = phases(folder)
        if told:
            change(tree)
            say(folder, "changed")
            wait_for(folder / "go")
        file.write("line")
    print((tree / "open").read_text(), flush=True)


def change(tree: Path) -> None:
    (tree / "plain").write_text("changed\n")
    (tree / "mode").chmod(0o600)
    (tree / "new name").rename(tree / "old name")
    (tree / "second").unlink()
    (tree / "second").write_text("of its own")
    (tree / "link").unlink()
    (tree / "link").mkdir()
    (tree / "link/below").write_text("later")
    (tree / "folder/moved/deeper/file").unlink()
    (tree / "folder/moved/later").write_text("later")
    (tree / "folder/moved").rename(tree / "folder/again")
    (tree / "taken").rename(tree / "given")
    (tree / "unwanted").write_text("wanted again")
    (tree / "unwanted folder").mkdir()
    (tree / "later/on").mkdir(parents=True)
    (tree / "later/on/file").write_text("later")
    (tree / "pipe").unlink()
    with (tree / "truncated").open("a") as file:
        file.write("appended")


def database(folder: Path, tree: Path) -> None:
    """In the middle of a transaction, with a rollback journal; another one in WAL mode."""
    connections = []
    for mode in ("delete", "wal"):
        connection = sqlite3.connect(tree / mode, isolation_level=None)
        connection.execute(f"pragma journal_mode={mode}")
        connection.execute("create table t (n integer, text text)")
        for number in range(50):
            connection.execute("insert into t values (?, ?)", (number, "x" * 500))
        connection.execute("begin")
        connection.execute("update t set text = 'half' where n % 2 = 0")
        connections.append(connection)
    told, _ = phases(folder)
    for connection in connections:
        connection.execute("update t set text = 'whole' where n % 2 = 1")
        connection.execute("commit")
        connection.execute("insert into t values (100, 'once')")
    if told:
        for connection in connections:
            connection.execute("begin")
            connection.execute("delete from t")
        say(folder, "changed")
        wait_for(folder / "go")
    for connection in connections:
        for row in connection.execute("select text, count(*), sum(n) from t group by 1 order by 1"):
            print(*row, flush=True)
        print(*connection.execute("pragma integrity_check").fetchone(), flush=True)


def moved_database(folder: Path, tree: Path, mode: str) -> None:
    """In the middle of a transaction, and then another one: SQLite knows the file by its number."""
    connection = sqlite3.connect(tree / "base", isolation_level=None)
    connection.execute(f"pragma journal_mode={mode}")
    connection.execute("create table t (n integer)")
    connection.execute("begin")
    connection.execute("insert into t values (1)")
    phases(folder)
    connection.execute("insert into t values (2)")
    connection.execute("commit")
    try:
        connection.execute("insert into t values (3)")
    except sqlite3.OperationalError as error:
        print(error, flush=True)
        connection.close()
        connection = sqlite3.connect(tree / "base", isolation_level=None)
        connection.execute("insert into t values (3)")
    print(*connection.execute("select group_concat(n) from t").fetchone(), flush=True)
    print(*connection.execute("pragma integrity_check").fetchone(), flush=True)


def lines(folder: Path, tree: Path) -> None:
    """A log that is opened anew for each line, and one that stays open."""
    with (tree / "kept open").open("a") as kept:
        number = 0
        while not (folder / "go").exists():
            for file in (kept, (tree / "opened anew").open("a")):
                file.write(f"{number}\n")
                file.flush()
            number += 1
            if number == 100:
                say(folder, "ready")
            time.sleep(0.001)
    for name in ("kept open", "opened anew"):
        found = (tree / name).read_text().split()
        print(found == [str(each) for each in range(number)], flush=True)


def package(folder: Path, tree: Path) -> None:
    """Installs a package and loads only a part of it."""
    for wheel in sorted(tree.glob("*.whl")):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--no-index",
                "--no-deps",
                "-q",
                "--disable-pip-version-check",
                "--target",
                str(tree / "site"),
                str(wheel),
            ],
            check=True,
        )
    sys.path.insert(0, str(tree / "site"))
    import parcel  # type: ignore[import-not-found]

    told, _ = phases(folder)
    if told:
        for path in sorted((tree / "site").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        say(folder, "changed")
        wait_for(folder / "go")
    import parcel.later  # type: ignore[import-not-found]

    print(parcel.NAME, parcel.later.NAME, flush=True)


def large(folder: Path, tree: Path, megabytes: str) -> None:
    """A sparse file and a dense one, open, and one that is mapped."""
    size = int(megabytes) << 20
    with (tree / "sparse").open("w+b") as sparse, (tree / "dense").open("w+b") as dense:
        sparse.truncate(size)
        os.pwrite(sparse.fileno(), b"middle", size // 2)
        for at in range(0, size, 1 << 20):
            dense.write(at.to_bytes(8, "little") * (1 << 17))
        dense.flush()
        told, _ = phases(folder)
        if told:
            dense.truncate(5)
            sparse.truncate(5)
            say(folder, "changed")
            wait_for(folder / "go")
        right = all(
            os.pread(dense.fileno(), 1 << 20, at) == at.to_bytes(8, "little") * (1 << 17)
            for at in range(0, size, 1 << 20)
        )
        numbers = os.fstat(sparse.fileno()).st_size, os.fstat(dense.fileno()).st_nlink
        print(right, os.pread(sparse.fileno(), 6, size // 2), *numbers)


def many(folder: Path, tree: Path) -> None:
    """Makes many files and changes two; one stays open, and one in memory is written there."""
    for number in range(40):
        (tree / f"small {number}").write_text(f"{number}" * 1000)
    for number in range(5):
        (tree / f"large {number}").write_text(f"{number}" * 200_000)
    in_memory = tree.parent / "memory/in memory"
    with (tree / "large open").open("w+") as kept, in_memory.open("w+b") as memory:
        kept.write("o" * 200_000)
        kept.flush()
        memory.write(bytes(100_000))
        memory.flush()
        told, _ = phases(folder)
        if told:
            (tree / "small 7").write_text("changed")
            (tree / "large 3").write_text("changed" * 100_000)
            with mmap.mmap(memory.fileno(), 0) as mapped:
                mapped[0] += 1
            say(folder, "changed")
            wait_for(folder / "go")
        memory.seek(0)
        print(memory.read(1))


def reads(folder: Path, tree: Path) -> None:
    """An input that stays open."""
    with (tree / "input").open() as file:
        file.read(1)
        phases(folder)
        print(file.read(), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
