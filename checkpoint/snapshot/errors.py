"""What is wrong with a snapshot, in words for people."""

from __future__ import annotations

from pathlib import Path


class Unfit(Exception):
    """A snapshot, or the parts of one, that cannot be what was written. Names the file."""

    def __init__(self, where: Path | str, what: str, remedy: str = "save again"):
        self.where, self.what, self.remedy = where, what, remedy
        super().__init__(f"{where}: {what}; {remedy}")
