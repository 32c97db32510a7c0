"""Contents of a rank's files in its last snapshot, so that the next one copies only changed files.

The launcher has a folder of its own with hard links to contents in that snapshot. No process writes
to these any more, and removing a snapshot only removes its own links. ``list.json`` records to
which file, in which state, each content belongs. The folder is valid for the launcher's life: after
a reboot it is unknown which parts of it had reached the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

_LIST = "list.json"
SMALL = "small"  # prefix of the name of a content that holds several files
_WASTE_MAX = 2  # kept contents of small files may be this many times as large as needed


class Content(NamedTuple):
    """Where a file's content is: a name in the folder, and the offset at which it begins."""

    name: str
    offset: int


class Previous:
    """The kept contents. `contents`: by the identity of the file. `next`: an unused number for a
    content's name. Raises nothing: a missing content is copied."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.contents: dict[str, Content] = {}
        self.next = 1
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            listed = json.loads((folder / _LIST).read_text())
            self.next = int(listed["next"])
            self.contents = {key: Content(*each) for key, each in listed["contents"].items()}

    def link(self, content: Content, target: Path) -> bool:
        """Link the content into a snapshot. Returns whether that succeeded."""
        try:
            os.link(self.folder / content.name, target)
        except FileExistsError:
            pass  # linked already, for another small file
        except OSError:  # on another file system, or it has too many links
            return False
        return True

    def thin(self, sizes: dict[str, int]) -> None:
        """Forget the contents of small files if most of their bytes are no longer needed. `sizes`:
        of the files whose content is still current."""
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
        """Keep these contents, which are in `snapshot`, from now on."""
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
        except OSError:  # on another file system: the next snapshot copies everything
            with contextlib.suppress(OSError):
                os.unlink(self.folder / _LIST)
