"""Removes comments and source positions from PTX, and takes the bodies out of large modules.

A framework's module has tens of megabytes and hundreds of kernels, and programs launch few of them.
Its outline has the same module scope and the same lines, and a mark in place of each body. Only the
bodies of kernels that are launched are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|("(?:[^"\\]|\\.)*")', re.S)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*(?:\.(?:loc|file)\b|#)[^\n]*$", re.M)
_PRAGMA = re.compile(r'\.pragma\s*"[^"]*"(?:\s*,\s*"[^"]*")*\s*;')
_FUNCTION = re.compile(r"\.(?:entry|func)\b")
_LINE_MAX = 4096  # characters: compilers write short lines
MARK = "\x01"


def strip(text: str) -> str:
    """Remove comments, source positions and pragmas. Every line keeps its number."""
    text = _COMMENT.sub(lambda m: m.group(1) or " " + "\n" * m.group().count("\n"), text)
    return _PRAGMA.sub(lambda m: "\n" * m.group().count("\n"), _LINE_DIRECTIVE.sub("", text))


def outline(text: str) -> tuple[str, list[str]]:
    """Returns the text with each function's body replaced by `MARK`, its number, `MARK` and as
    many line ends as it had, and the bodies as they are written.

    Returns the text unchanged, and no bodies, where a comment or a string may contain a brace:
    then braces alone do not show where a body ends.
    """
    if MARK in text or "/*" in text:
        return text, []
    parts: list[str] = []
    bodies: list[str] = []
    written = 0  # the text before this position is in `parts`
    depth = begin = 0  # begin: after the last brace that opened a block at module scope
    header = 0  # after the last brace that closed one
    for brace in _braces(text):
        if not _is_syntax(text, brace):
            return text, []
        if text[brace] == "{":
            begin = begin if depth else brace + 1
            depth += 1
            continue
        depth -= 1
        if depth < 0:
            return text, []
        if depth == 0:
            if _ends_in_header(text[header : begin - 1]):
                body = text[begin:brace]
                mark = f"{MARK}{len(bodies)}{MARK}"
                parts += [text[written:begin], mark, "\n" * body.count("\n")]
                bodies.append(body)
                written = brace
            header = brace + 1
    return ("".join([*parts, text[written:]]), bodies) if depth == 0 else (text, [])


def _braces(text: str) -> Iterator[int]:
    """The positions of all braces, in order. Several times faster than a regular expression."""
    opening, closing = text.find("{"), text.find("}")
    while opening >= 0 or closing >= 0:
        if closing < 0 or 0 <= opening < closing:
            yield opening
            opening = text.find("{", opening + 1)
        else:
            yield closing
            closing = text.find("}", closing + 1)


def _is_syntax(text: str, brace: int) -> bool:
    """Whether it is certain that a brace is in no comment, string or line directive."""
    line = text.rfind("\n", max(0, brace - _LINE_MAX), brace) + 1
    if line == 0 and brace > _LINE_MAX:
        return False
    before = text[line:brace]
    return "//" not in before and '"' not in before and "#" not in before


def _ends_in_header(between: str) -> bool:
    """Whether the text between two blocks of module scope ends in a function's header."""
    between = strip(between)
    return bool(_FUNCTION.search(between, between.rfind(";") + 1))
