"""The on-disk record of what a rank has done with names: a restore of an earlier moment, after all
processes were killed, finds here what came later.

The first line is the *life*, which the rank's snapshots name, too: a journal with another life is
about other files that happen to have the same names. Each further line is about one name; the last
line about a name holds.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from rankfold.interpose.launcher.files import nofollow


class Name(NamedTuple):
    """The changes of a rank to one name.

    `made`: the rank was the first to use the name and made it: it did not exist before. `node`: the
    object that the rank last made under or renamed to it, as in `fanotify.Node.text`; empty: none.
    `origin`: the old name of that object, if it is not the rank's own but was renamed by it.
    `wrote`: the rank has opened it for writing, and not only made a link to it.
    """

    made: bool
    node: str = ""
    origin: str = ""
    wrote: bool = False


def lines(names: dict[str, Name]) -> bytes:
    return "".join(f"{json.dumps([path, *name])}\n" for path, name in names.items()).encode()


def head(life: str) -> bytes:
    return f"{json.dumps(life)}\n".encode()


def write(journal: Path, life: str, names: dict[str, Name]) -> None:
    """Replace the journal in one step. Raises OSError."""
    half = journal.with_name(f"{journal.name}.new")
    half.write_bytes(head(life) + lines(names))
    half.rename(journal)


def read(journal: Path) -> tuple[str, dict[str, Name]]:
    """Read life and names, the latest names last; both are empty if there is no journal. Raises
    OSError."""
    life, names = "", dict[str, Name]()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with open(nofollow.file(str(journal), os.O_RDONLY), "rb") as file:
            first, *others = file.read().splitlines() or [b""]
        with contextlib.suppress(ValueError):
            life = str(json.loads(first))
        for line in others:
            with contextlib.suppress(ValueError, TypeError):  # the last line may be incomplete
                path, *rest = json.loads(line)
                names.pop(path, None)
                names[path] = Name(*rest)
    return life, names
