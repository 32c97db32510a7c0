"""What is said of a field of desired state beside its type, in one row: see `Job` in desired.py.

The row stands in the dataclass, as the field's metadata. From it come the schema check and the
defaults (spec.py), what cannot change and what `plan` compares (revision.py), the journal (the
field's own type, the journal), and, compared by tests, schemas/ and docs/spec.md. Pure.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_KEY = "rankfold"


@dataclass(frozen=True)
class Written:
    """A field as people write it.

    path: where it stands in a document, such as ``spec.worldSize``. rule: its JSON Schema, with the
    description that messages quote, and the default, if it is a value. words: the same for the
    reference, and shown: the default there, if it is none or another field's. fixed: it cannot
    change once the job has started. read: from what is written to the attribute.
    """

    path: str
    rule: Mapping[str, Any]
    words: str
    shown: str = ""
    fixed: bool = False
    read: Callable[[Any], Any] = lambda value: value

    def value(self, document: Mapping[str, Any]) -> Any:
        """The attribute that a document gives, or the default; None if there is neither."""
        found: Any = document
        for part in self.path.split("."):
            found = found.get(part, ...) if isinstance(found, Mapping) else ...
        found = self.rule.get("default") if found is ... else found
        return None if found is None else self.read(found)

    def row(self) -> str:
        """Its line in the table of docs/spec.md."""
        words = f"{self.words}. *Fixed*" if self.fixed else self.words
        return f"| `{self.path}` | {self.shown}{' ' if self.shown else ''}| {words} |"


def written(path: str, rule: Mapping[str, Any], words: str, **more: Any) -> dict[str, Written]:
    """The metadata of a dataclass' field: as `Written`."""
    return {_KEY: Written(path, rule, words, **more)}


@functools.cache
def fields_of(kind: type) -> Mapping[str, Written]:
    """Attribute → how it is written, of those that people write."""
    return {f.name: f.metadata[_KEY] for f in dataclasses.fields(kind) if _KEY in f.metadata}
