"""What the last snapshot had of a rank's files, so that the next one copies only what has changed.

A folder of the launcher's own with hard links to contents in that snapshot: nobody writes to these
any more, and who removes a snapshot removes its own links. ``list.json`` says of which file, as it
then was, each is. It holds for as long as the launcher lives: after a start of the machine nobody
knows what of it had reached the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

_LIST = "list.json"
SMALL = "small"  # begins the name of a content that holds several files
_WASTE_MAX = 2  # what is kept of small files may be so many times what is needed of it


class Content(NamedTuple):
    """Where a file's content lies: a name in the folder, and where it begins there."""

    name: str
    offset: int


class Kept:
    """`contents`: by the identity of the file. `next`: a number that no content's name has. Raises
    nothing: what is not there is copied."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.contents: dict[str, Content] = {}
        self.next = 1
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads((folder / _LIST).read_text())
            self.next = int(found["next"])
            self.contents = {key: Content(*each) for key, each in found["contents"].items()}

    def link(self, content: Content, target: Path) -> bool:
        """Have it in a snapshot, too: whether that could be done."""
        try:
            os.link(self.folder / content.name, target)
        except FileExistsError:
            pass  # another small file's
        except OSError:  # on another file system, or it has too many links
            return False
        return True

    def thin(self, sizes: dict[str, int]) -> None:
        """Forget contents of small files where most of them is of no use any more: `sizes` of the
        files that have their content there still."""
        small = {key: each for key, each in self.contents.items() if each.name.startswith(SMALL)}
        needed = sum(sizes.get(key, 0) for key in small)
        with contextlib.suppress(OSError):
            names = {each.name for each in small.values()}
            there = sum((self.folder / name).stat().st_size for name in names)
            if there <= _WASTE_MAX * needed:
                return
        for key in small:
            del self.contents[key]

    def renew(self, contents: dict[str, Content], snapshot: Path) -> None:
        """From now on it is these, which lie in `snapshot`."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            names = {content.name for content in contents.values()}
            known = {content.name for content in self.contents.values()}
            for name in names - known:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.folder / name)
                os.link(snapshot / name, self.folder / name)
            half = self.folder / f"{_LIST}.new"
            half.write_text(json.dumps({"next": self.next, "contents": contents}))
            half.rename(self.folder / _LIST)
            for path in self.folder.iterdir():
                if path.name not in (*names, _LIST):
                    path.unlink()
        except OSError:  # on another file system: then all is copied
            with contextlib.suppress(OSError):
                os.unlink(self.folder / _LIST)
