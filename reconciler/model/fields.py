"""Describes a field of desired state, except its type, in one row: see `Job` in desired.py.

The row is in the field's annotation. These are based on it: the schema check and the defaults
(spec.py), which fields cannot change and which ones `plan` compares (revision.py), and, compared by
tests, schemas/ and docs/spec.md. The journal uses the field's own type. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from msgspec import Struct


class Written(Struct, frozen=True):
    """A field as a file has it.

    path: its place in a document, such as ``spec.worldSize``.
    rule: its JSON Schema, with the description that messages quote, and with the default if that is
        a value.
    words: the description in the reference.
    shown: the default in the reference, if it is not a value or is another field's.
    fixed: it cannot change once the job has started.
    read: converts the document's value to the attribute.
    """

    path: str
    rule: Mapping[str, Any]
    words: str
    shown: str = ""
    fixed: bool = False
    read: Callable[[Any], Any] = lambda value: value

    def value(self, document: Mapping[str, Any]) -> Any:
        """The attribute as a document gives it, or the default; None if there is neither."""
        found: Any = document
        for part in self.path.split("."):
            found = found.get(part, ...) if isinstance(found, Mapping) else ...
        found = self.rule.get("default") if found is ... else found
        return None if found is None else self.read(found)

    def row(self) -> str:
        """The field's line in the table of docs/spec.md."""
        words = f"{self.words}. *Fixed*" if self.fixed else self.words
        return f"| `{self.path}` | {self.shown}{' ' if self.shown else ''}| {words} |"


@functools.cache
def fields_of(kind: type) -> Mapping[str, Written]:
    """Attribute → its `Written`, of the fields that a file may have."""
    annotations = get_type_hints(kind, include_extras=True)
    rows = ((name, each) for name, kind in annotations.items() for each in get_args(kind))
    return {name: each for name, each in rows if isinstance(each, Written)}
