"""Errors of snapshots, in words for people."""

from __future__ import annotations

from pathlib import Path


class Unfit(Exception):
    """A snapshot, or its parts in a checkpoint, cannot be what was written. The message names the
    file."""

    def __init__(self, where: Path | str, problem: str, remedy: str = "save again"):
        self.where, self.what, self.remedy = where, problem, remedy
        super().__init__(f"{where}: {problem}; {remedy}")
