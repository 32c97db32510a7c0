"""Converts YAML text to plain values with the line of each.

Used by `spec` only. The text is read as YAML 1.2 with its core schema: ``yes`` and ``1_000`` are
texts, ``010`` is ten. Merge keys (``<<``) work, although YAML 1.2 no longer has them. A repeated
key, an unknown tag and a number that no field can hold are problems, each with its line.

PyYAML's loaders follow YAML 1.1, drop the line of a value and silently let the last repeated key
win. So only its libyaml parser is used here: it produces events and does not recurse.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from rankfold.legible import legible

_YAML_TAG = "tag:yaml.org,2002:"
TEXT_MAX = 4 << 20  # characters in a file
NODES_MAX = 100_000  # values in a document with aliases expanded: stops a "billion laughs" file
LEVELS_MAX = 50
DIGITS_MAX = 50  # in a whole number: Python refuses to print very long ones
SHOWN_MAX = 100  # characters of a key or a value in a message
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    line: int
    path: Path  # () if the text as a whole is wrong
    reason: str


@dataclass
class Document:
    """One document: its value, and the line of each path in it."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    unusable: list[Path] = field(default_factory=list)  # values that are reported as problems
    checked: list[tuple[Path, str]] | None = None  # violations of its schema, once checked

    def line(self, path: Path) -> int:
        """Line of `path`, or of its nearest enclosing value that has a line."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def excerpt(text: str) -> str:
    """The beginning of a text, on one line, for messages."""
    text = text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
    return legible(text).replace("\n", "\\n").replace("\t", "\\t")


def dotted(path: Path) -> str:
    """``("spec", "devices", 0, "type")`` → ``spec.devices[0].type``."""
    text = ""
    for part in path:
        name = excerpt(str(part))
        text += f"[{name}]" if isinstance(part, int) else (f".{name}" if text else name)
    return text


def parse(text: str, secret: str = "") -> tuple[list[Document], list[Problem]]:
    """All documents of `text` that are not empty, and its problems as YAML.

    No problem quotes text below a key `secret`.
    """
    problems: list[Problem] = []
    documents: list[Document] = []
    if len(text) > TEXT_MAX:
        return [], [Problem(1, (), f"too large: over {TEXT_MAX} characters")]
    try:
        for node in _Composer(text).documents():
            document = Document(None)
            document.value = _Walk(document, problems, secret).plain(node, ())
            if document.value is not None:
                documents.append(document)
    except yaml.reader.ReaderError as error:
        line = len((text.encode()[: error.position] + b".").splitlines())
        problems.append(Problem(line, (), f"not a text file: {error.reason}"))
    except UnicodeEncodeError:
        problems.append(Problem(1, (), "not a text file: it contains half a character"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        # libyaml's messages do not quote the text, which may be secret.
        problems.append(Problem(line, (), f"not YAML: {error.problem or error.context}"))
    except _Refused as error:
        problems.append(Problem(error.line, (), f"not YAML: {error}"))
    return documents, problems


def unusable(value: Any) -> str:
    """Why a scalar cannot be in a program's arguments, a file name or JSON; empty if it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if not isinstance(value, str):
        return ""
    if "\0" in value:
        return "must not contain a zero byte"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "must not contain half a character (an escape from \\ud800 to \\udfff)"
    return ""


class _Refused(Exception):
    """The rest of the text is not read."""

    def __init__(self, line: int, reason: str):
        super().__init__(reason)
        self.line = line


def _too_large(line: int) -> _Refused:
    return _Refused(line, f"too large: over {NODES_MAX} values or {LEVELS_MAX} levels")


# ---- text to nodes -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    """A value as written: `text`, `items` or `pairs`. An alias is its anchor's node."""

    line: int
    tag: str  # empty: none
    text: str | None = None
    plain: bool = False  # the text is not quoted: it may be a number
    items: list[_Node] | None = None
    pairs: list[tuple[_Node, _Node]] | None = None


class _Composer:
    """Makes nodes from the parser's events."""

    def __init__(self, text: str):
        self.parser = yaml.CBaseLoader(text)
        self.anchors: dict[str, _Node | None] = {}  # None: its value has not ended yet
        self.count = 0  # nodes of the document

    def documents(self) -> Iterator[_Node]:
        """The root node of each document."""
        while self.parser.check_event():
            if isinstance(self.parser.get_event(), yaml.DocumentStartEvent):
                self.anchors.clear()
                self.count = 0
                yield self._node(self.parser.get_event(), 1)

    def _node(self, event: Any, level: int) -> _Node:
        node = _Node(event.start_mark.line + 1, getattr(event, "tag", None) or "")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, node.line)
        self.count += 1
        if self.count > NODES_MAX or level > LEVELS_MAX:
            raise _too_large(node.line)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node.text, node.plain = event.value, event.implicit[0] and not node.tag
        elif isinstance(event, yaml.SequenceStartEvent):
            node.items = list(self._nodes(level + 1))
        else:
            inner = self._nodes(level + 1)
            node.pairs = list(zip(inner, inner, strict=True))
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _nodes(self, level: int) -> Iterator[_Node]:
        """The nodes in a list or a mapping, up to its end."""
        ends = (yaml.SequenceEndEvent, yaml.MappingEndEvent)
        while not isinstance(event := self.parser.get_event(), ends):
            yield self._node(event, level)

    def _alias(self, anchor: Any, line: int) -> _Node:
        if anchor not in self.anchors:
            raise _Refused(line, "an alias (*) names an anchor (&) that is not defined before it")
        if (node := self.anchors[anchor]) is None:
            raise _Refused(line, "an alias (*) is inside the value that it names")
        return node


# ---- nodes to values ---------------------------------------------------------------------------

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), ("null", None)),
    **dict.fromkeys(("true", "True", "TRUE"), ("bool", True)),
    **dict.fromkeys(("false", "False", "FALSE"), ("bool", False)),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), ("float", math.inf)),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), ("float", -math.inf)),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), ("float", math.nan)),
}
_SCALARS = ("str", "null", "bool", "int", "float")


def _resolved(text: str) -> tuple[str, Any]:
    """The kind and value of an unquoted scalar by the core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return "int", int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return "float", float(text)
    return "str", text


class _Walk:
    """Makes the value of one document from its nodes."""

    def __init__(self, document: Document, problems: list[Problem], secret: str):
        self.document, self.problems, self.secret = document, problems, secret
        self.count = 0

    def plain(self, node: _Node, path: Path) -> Any:
        self._enter(node, len(path))
        self.document.lines.setdefault(path, node.line)
        if node.pairs is not None:
            self._check_tag(node, path, "a mapping", ("map",))
            entries = self._entries(node, path, 0)
            self.document.lines.update({(*path, key): at for key, (at, _) in entries.items()})
            return {key: self.plain(value, (*path, key)) for key, (_, value) in entries.items()}
        if node.items is not None:
            self._check_tag(node, path, "a list", ("seq",))
            return [self.plain(each, (*path, at)) for at, each in enumerate(node.items)]
        return self._scalar(node, path, node.text or "")

    def _enter(self, node: _Node, level: int) -> None:
        self.count += 1
        if self.count > NODES_MAX or level > LEVELS_MAX:
            raise _too_large(node.line)

    def _check_tag(self, node: _Node, path: Path, kind: str, known: tuple[str, ...]) -> bool:
        """Report a tag that would be ignored; return whether there is none."""
        short = node.tag.removeprefix(_YAML_TAG)
        if node.tag in ("", "!") or (short != node.tag and short in known):
            return True
        shown = f" {excerpt(node.tag if short == node.tag else f'!!{short}')}"
        shown = "" if self.secret in path else shown  # it may be a value that begins with !
        self._unusable(node, path, f"the tag{shown} is not known for {kind}; leave it out")
        return False

    def _scalar(self, node: _Node, path: Path, text: str) -> Any:
        if not self._check_tag(node, path, "a text", _SCALARS):
            return None
        wanted = node.tag.removeprefix(_YAML_TAG) or ("" if node.plain else "str")
        if wanted in ("!", "str"):
            value: Any = text
        elif len(text) > DIGITS_MAX and _INT.fullmatch(text):
            self._unusable(node, path, f"has over {DIGITS_MAX} digits")
            return None
        else:
            kind, value = _resolved(text)
            if (wanted, kind) == ("float", "int"):
                kind, value = "float", float(value)
            if wanted not in ("", kind):  # the text may be a secret
                self._unusable(
                    node, path, f"is not a valid {wanted}: put it in quotes if it is a text"
                )
                return None
        if reason := unusable(value):
            self._unusable(node, path, reason)
        return value

    def _entries(self, node: _Node, path: Path, merges: int) -> dict[str, tuple[int, _Node]]:
        """Key → line and value of a mapping. Its own keys take precedence over merged ones, in any
        order; of several merged mappings, the first takes precedence."""
        result: dict[str, tuple[int, _Node]] = {}
        merged: list[_Node] | None = None
        for key_node, value in node.pairs or ():
            self._enter(key_node, merges)
            if (key := self._key(key_node, path)) is None:
                continue
            merges_here = key == "<<" and key_node.plain
            if key in result or (merges_here and merged is not None):
                reason = "appears twice; keep one"
                self.problems.append(Problem(key_node.line, (*path, key), reason))
            if merges_here:
                merged = self._to_merge(value, (*path, key))
            else:
                result[key] = key_node.line, value
        for each in merged or ():
            result = self._entries(each, path, merges + 1) | result
        return result

    def _to_merge(self, node: _Node, path: Path) -> list[_Node]:
        """The mappings that a merge key names."""
        given = [node] if node.items is None else node.items
        if any(each.pairs is None for each in given):
            self._unusable(node, path, "must name a mapping, or a list of mappings, to merge")
            return []
        for each in given:
            self._check_tag(each, path, "a mapping", ("map",))
        return given

    def _key(self, node: _Node, path: Path) -> str | None:
        """A key as written: `on` and `1` stay texts."""
        if node.text is None:
            self.problems.append(Problem(node.line, path, "a key must be a text"))
            return None
        if not self._check_tag(node, path, "a key", ("str",)):
            return None
        if reason := unusable(node.text):
            self._unusable(node, path, f"a key {reason}")
            return None
        return node.text

    def _unusable(self, node: _Node, path: Path, reason: str) -> None:
        self.document.unusable.append(path)
        self.problems.append(Problem(node.line, path, reason))
