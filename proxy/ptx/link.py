"""Links PTX texts into one: the objects of a program that was built with `nvcc -rdc=true`, or the
inputs of the driver's linker.

A text calls functions and uses variables that another one defines. Names that a text does not
export are its own, so they get other names where several texts use them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import INVALID_PTX, ModuleError
from .module import spread, variables
from .outline import strip

_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)")
_TARGET = re.compile(r"\.target\s+((?:sm|compute)_(\d+)\w*)")
_ADDRESS_SIZE = re.compile(r"\.address_size\s+64\b")
_FUNCTION = re.compile(r"\.(?:entry|func)\s*(?:\([^)]*\))?\s*([\w$%]+)")
_LINKAGE = re.compile(r"\.(extern|visible|weak|common)\b")
_BOUNDARY = re.compile(r"[{};]")


@dataclass
class _Statement:
    """A declaration or a definition of module scope."""

    text: str  # ends with a semicolon or a brace
    header: str  # before the body; all of a variable
    name: str
    linkage: str  # extern, visible, weak, common; "": only its text knows it
    function: bool

    @property
    def defines(self) -> bool:
        return self.text.endswith("}") if self.function else self.linkage != "extern"

    @property
    def declares_variable(self) -> bool:
        return self.linkage == "extern" and not self.function

    @property
    def strong(self) -> bool:
        return self.linkage == "visible"


def link(texts: list[str]) -> str:
    """One text with the content of all. Raises ModuleError if two define the same name."""
    if len(texts) == 1:
        return texts[0]
    objects = [list(_statements(strip(text))) for text in texts]
    _separate(objects)
    chosen = _definitions(objects)
    forward: dict[str, str] = {}
    definitions = []
    for statement in (statement for each in objects for statement in each):
        definition = chosen.get(statement.name) if statement.linkage else None
        if not definition or statement is definition or statement.declares_variable:
            definitions.append(statement.text)
        elif ".func" in definition.header:  # may be called before its definition
            forward[statement.name] = definition.header.strip() + "\n;"
    return "\n".join([_head(texts), *forward.values(), *dict.fromkeys(definitions), ""])


def _head(texts: list[str]) -> str:
    """The directives of a text: the newest version, and the newest architecture."""
    heads = [text[: match.end()] for text in texts if (match := _ADDRESS_SIZE.search(text))]
    versions = [match.groups() for head in heads if (match := _VERSION.search(strip(head)))]
    targets = [match for head in heads if (match := _TARGET.search(head))]
    if not len(versions) == len(targets) == len(texts):
        raise ModuleError(INVALID_PTX, "not PTX: no .version, .target or .address_size 64")
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    target = max(targets, key=lambda match: int(match[2]))[1]
    return f".version {major}.{minor}\n.target {target}\n.address_size 64"


def _statements(text: str) -> Iterator[_Statement]:
    """The statements of a text without comments. Debug information is left out."""
    head = _ADDRESS_SIZE.search(text)
    begin = head.end() if head else 0
    depth, opened = 0, begin
    for boundary in _BOUNDARY.finditer(text, begin):
        if boundary.group() == "{":
            opened = opened if depth else boundary.start()
            depth += 1
            continue
        depth -= boundary.group() == "}"
        header = spread(text[begin : boundary.start() if boundary.group() == ";" else opened])
        body = boundary.group() == "}" and "=" not in header
        if depth or not (body or boundary.group() == ";"):
            continue
        whole = text[begin : boundary.end()].strip()
        begin = boundary.end()
        if whole != ";" and not header.lstrip().startswith(".section"):
            yield _statement(whole, header)


def _statement(text: str, header: str) -> _Statement:
    found = _FUNCTION.search(header.partition("=")[0])
    linkage = match[1] if (match := _LINKAGE.search(header)) else ""
    if found:
        entry = ".entry" in header
        return _Statement(text, header, found[1], linkage or ("visible" if entry else ""), True)
    if header.lstrip().startswith(".alias"):
        return _Statement(text, header, "", "", False)
    return _Statement(text, header, variables(header)[0].name, linkage, False)


def _separate(objects: list[list[_Statement]]) -> None:
    """Renames what a text does not export where another text has the same name."""
    users = Counter(name for each in objects for name in {statement.name for statement in each})
    for number, each in enumerate(objects):
        own = {s.name for s in each if not s.linkage and s.name and users[s.name] > 1}
        if not own:
            continue
        names = "|".join(re.escape(name) for name in sorted(own))
        use = re.compile(rf"(?<![\w$%])(?:{names})(?![\w$])")
        for statement in each:
            for part in ("text", "header", "name"):
                renamed = use.sub(rf"\g<0>$in{number}", getattr(statement, part))
                setattr(statement, part, renamed)


def _definitions(objects: list[list[_Statement]]) -> dict[str, _Statement]:
    """The definition of each exported name: a strong one replaces weak ones."""
    chosen: dict[str, _Statement] = {}
    for statement in (statement for each in objects for statement in each):
        if not statement.linkage or not statement.defines:
            continue
        known = chosen.get(statement.name)
        if known and known.strong and statement.strong:
            raise ModuleError(INVALID_PTX, f"{statement.name} is defined in two linked objects")
        if not known or statement.strong:
            chosen[statement.name] = statement
    return chosen
