"""Parsed YAML documents of a source's files, kept until its next reading: after one of a thousand
files was edited, only that one is parsed."""

from __future__ import annotations

from rankfold.reconciler.source import yamldoc
from rankfold.reconciler.source.schemas import ENV

Result = tuple[list[yamldoc.Document], list[yamldoc.Problem]]


class ParseCache:
    """The documents of each text of the last set of files. For one thread."""

    def __init__(self) -> None:
        self._last: dict[str, Result] = {}
        self._used: dict[str, Result] = {}

    def parse(self, text: str) -> Result:
        """As `yamldoc.parse`. The caller changes nothing in the result except `checked`."""
        if (found := self._last.get(text)) is None:
            found = yamldoc.parse(text, secret=ENV[-1])
        self._used[text] = found
        return found

    def keep_used(self) -> None:
        """All files of a set were read: forget the texts that are in none of them."""
        self._last, self._used = self._used, {}
