"""YAML text to plain values that remember their lines.

Used by `spec` only. PyYAML's loaders forget where a value stood and let a repeated key win
silently; people who edit desired state need both.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

_YAML_TAG = "tag:yaml.org,2002:"
NODES_MAX = 100_000  # after alias expansion: ends a "billion laughs" file
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    line: int
    path: Path  # () where it is the text that is wrong, not a value
    reason: str


@dataclass
class Document:
    """One document: its value, and the line of each path in it."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    unusable: bool = False  # holds a value that is reported as a problem and must go no further

    def line(self, path: Path) -> int:
        """Line of `path`, or of the nearest thing around it that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def dotted(path: Path) -> str:
    """``("spec", "devices", 0, "type")`` → ``spec.devices[0].type``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def parse(text: str) -> tuple[list[Document], list[Problem]]:
    """All documents of `text` that are not empty, and what is wrong with it as YAML."""
    problems: list[Problem] = []
    documents: list[Document] = []
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        return [], [Problem(1, (), f"not a text file: {error.reason}")]
    try:
        while loader.check_node():
            node = cast(yaml.Node, loader.get_node())
            document = Document(None)
            document.value = _Walk(loader, document, problems).plain(node, ())
            if document.value is not None:
                documents.append(document)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = _unquoted(str(error.problem or error.context))
        problems.append(Problem(line, (), f"not YAML: {problem}"))
    except _TooLarge as error:
        problems.append(Problem(1, (), f"not YAML: {error}"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problems.append(Problem(1, (), f"not YAML: {type(error).__name__}"))
    finally:
        loader.dispose()
    return documents, problems


def unusable(value: Any) -> str:
    """Why a scalar is none that a program, a file name or JSON can hold; empty if it is one."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if not isinstance(value, str):
        return ""
    if "\0" in value:
        return "must not hold a zero byte"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "must not hold half a character (an escape from \\ud800 to \\udfff)"
    return ""


class _TooLarge(Exception):
    pass


def _unquoted(problem: str) -> str:
    """What PyYAML says, without what it quotes of the text: that may be a secret. Single characters
    and its own words for what it met, such as '<block end>', stay."""
    return re.sub(r"'(?!<[a-z ]+>')[^']{2,}'", "…", problem.replace('"', "'"))


class _Walk:
    def __init__(self, loader: yaml.SafeLoader, document: Document, problems: list[Problem]):
        self.loader, self.document, self.problems = loader, document, problems
        self.count = 0

    def plain(self, node: yaml.Node, path: Path) -> Any:
        self.count += 1
        if self.count > NODES_MAX or len(path) > 50:
            raise _TooLarge(f"too large: over {NODES_MAX} values or 50 levels")
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(each, (*path, i)) for i, each in enumerate(node.value)]
        try:
            value = self.loader.construct_object(node, deep=True)
        except ValueError:  # Python's words quote it
            kind = node.tag.rpartition(":")[2] if node.tag.startswith(_YAML_TAG) else "value"
            self._unusable(node, path, f"is no {kind}: put it in quotes if it is a text")
            return None
        if reason := unusable(value):
            self._unusable(node, path, reason)
        return value

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self.loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            # As written: `on:` and `1:` stay the texts that they are.
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            line = key_node.start_mark.line + 1
            if key is None:
                self.problems.append(Problem(line, path, "a key must be a text"))
                continue
            if key in result:
                reason = "is there twice; which one is meant?"
                self.problems.append(Problem(line, (*path, key), reason))
            if reason := unusable(key):
                self._unusable(key_node, path, f"a key {reason}")
                continue
            self.document.lines[(*path, key)] = line
            result[key] = self.plain(value_node, (*path, key))
        return result

    def _unusable(self, node: yaml.Node, path: Path, reason: str) -> None:
        self.document.unusable = True
        self.problems.append(Problem(node.start_mark.line + 1, path, reason))
