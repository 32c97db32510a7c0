"""Writes the parts of documents that are generated from the source: `make documents`.

A test fails if a part is not what this writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rankfold import paths
from rankfold.paths import REPOSITORY
from rankfold.reconciler.model.states import AT_ANY_TIME, STATES, TRANSITIONS

# ---- the JSON of status ------------------------------------------------------------------------


def referred(schema: Any, rule: Any) -> Any:
    """A rule, or what it refers to."""
    return schema["$defs"][rule["$ref"].rpartition("/")[2]] if "$ref" in rule else rule


def rows_of(schema: Any, rule: Any, path: str) -> Iterator[str]:
    """A row for each field: its path, its type, what it is."""
    for name, each in rule.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        whole = (
            {**schema["$defs"][each["$ref"].rpartition("/")[2]], **each} if "$ref" in each else each
        )
        yield f"| `{here}` | {type_of(whole)} | {whole['description']} |"
        items = referred(schema, whole.get("items", {}))
        if isinstance(values := whole.get("additionalProperties"), dict):
            yield from rows_of(schema, referred(schema, values), f"{here}.NAME")
        if "$ref" not in each or path == "":  # what was described above is not described again
            yield from rows_of(schema, whole, here)
            yield from rows_of(schema, items, f"{here}[]")


def type_of(rule: Any) -> str:
    if "enum" in rule:
        return ", ".join("null" if v is None else f"`{v}`" for v in rule["enum"])
    if "const" in rule:
        return f"`{rule['const']}`"
    kinds = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    words = {"object": "mapping", "array": "list", "string": "text", "integer": "whole number"}
    return " or ".join(words.get(str(kind), str(kind)) for kind in kinds)


def fields_of(kind: str) -> str:
    schema = json.loads(paths.schema(kind).read_text())
    return table("| field | type | |", rows_of(schema, schema, ""))


# ---- the states of a job -----------------------------------------------------------------------


def diagram_of_states() -> str:
    arrows = [f"  {each.source} --> {each.target}: {each.cause}" for each in TRANSITIONS]
    always = [f"  live --> {each.target}: {each.cause}" for each in AT_ANY_TIME]
    live = '  state "any state but new and ended" as live'
    return "\n".join(
        ["stateDiagram-v2", "  [*] --> new", *arrows, live, *always, "  ended --> [*]", ""]
    )


def table_of_states() -> str:
    return table("| state | |", (f"| `{state}` | {what} |" for state, what in STATES.items()))


# ---- documents ---------------------------------------------------------------------------------


def table(head: str, rows: Iterator[str]) -> str:
    line = "|---" * (head.count("|") - 1) + "|"
    return "\n".join([head, line, *rows, ""])


FIELDS = r"^\| field \| type \| \|\n(?:\|.*\n)+"
# Document → the expression for each generated part of it, and what to write there.
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/status.md": {FIELDS: partial(fields_of, "status")},
    "docs/simulate.md": {FIELDS: partial(fields_of, "simulation")},
    "docs/architecture.md": {
        r"^stateDiagram-v2\n(?:.+\n)+?(?=```)": diagram_of_states,
        r"^\| state \| \|\n(?:\|.*\n)+": table_of_states,
    },
}


def written(name: str) -> str:
    """The text of a document with its generated parts as they must be."""
    text = (REPOSITORY / name).read_text()
    for pattern, part in PARTS[name].items():
        new = part()
        text, found = re.subn(pattern, lambda _: new, text, flags=re.MULTILINE)  # noqa: B023
        if found != 1:
            raise ValueError(f"{name} has {found} parts that match {pattern}; it must have one")
    return text


if __name__ == "__main__":
    for name in PARTS:
        (REPOSITORY / name).write_text(written(name))
