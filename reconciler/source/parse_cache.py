"""Caches the parsed YAML documents of a source's files until the next reading: if one of a thousand
files was edited, only that one is parsed."""

from __future__ import annotations

from rankfold.reconciler.source import yamldoc
from rankfold.reconciler.source.schemas import ENV

Result = tuple[list[yamldoc.Document], list[yamldoc.Problem]]


class ParseCache:
    """The documents of each text in the last set of files. For use by one thread."""

    def __init__(self) -> None:
        self._last: dict[str, Result] = {}
        self._used: dict[str, Result] = {}

    def parse(self, text: str) -> Result:
        """As `yamldoc.parse`. The caller must not change the result, except `checked`."""
        if (parsed := self._last.get(text)) is None:
            parsed = yamldoc.parse(text, secret=ENV[-1])
        self._used[text] = parsed
        return parsed

    def keep_used(self) -> None:
        """Drop all texts that were not used since the last call. Call when a whole set was read."""
        self._last, self._used = self._used, {}
