"""Removes what is no syntax from PTX, and takes the bodies out of large modules.

A framework's module has tens of megabytes and hundreds of kernels, few of which are launched. Its
outline has the same module scope and the same lines, and a mark in place of each body. Only the
bodies that are used are then read as PTX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|("(?:[^"\\]|\\.)*")', re.S)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*(?:\.(?:loc|file)\b|#)[^\n]*$", re.M)
_PRAGMA = re.compile(r'\.pragma\s*"[^"]*"(?:\s*,\s*"[^"]*")*\s*;')
_FUNCTION = re.compile(r"\.(?:entry|func)\b")
MARK = "\x01"


def strip(text: str) -> str:
    """Remove comments, source positions and pragmas. Every line keeps its number."""
    text = _COMMENT.sub(lambda m: m.group(1) or " " + "\n" * m.group().count("\n"), text)
    return _PRAGMA.sub(lambda m: "\n" * m.group().count("\n"), _LINE_DIRECTIVE.sub("", text))


def outline(text: str) -> tuple[str, list[str]]:
    """Returns the text with each function's body replaced by `MARK`, its number and its line ends,
    and the bodies as they are written.

    Returns the text unchanged, and no bodies, where a comment or a string may hold a brace: then
    braces alone do not show where a body ends.
    """
    if MARK in text or "/*" in text:
        return text, []
    parts: list[str] = []
    bodies: list[str] = []
    at = depth = begin = 0
    for brace in _braces(text):
        before = text[text.rfind("\n", 0, brace) + 1 : brace]
        if "//" in before or '"' in before:
            return text, []
        if text[brace] == "{":
            if depth == 0:
                begin = brace + 1
            depth += 1
            continue
        depth -= 1
        if depth < 0:
            return text, []
        if depth == 0 and _ends_in_header(text[at : begin - 1]):
            body = text[begin:brace]
            parts += [text[at:begin], f"{MARK}{len(bodies)}{MARK}", "\n" * body.count("\n")]
            bodies.append(body)
            at = brace
    return ("".join([*parts, text[at:]]), bodies) if depth == 0 else (text, [])


def _braces(text: str) -> Iterator[int]:
    """The positions of all braces, in order. Faster than a regular expression by far."""
    opening, closing = text.find("{"), text.find("}")
    while opening >= 0 or closing >= 0:
        if closing < 0 or 0 <= opening < closing:
            yield opening
            opening = text.find("{", opening + 1)
        else:
            yield closing
            closing = text.find("}", closing + 1)


def _ends_in_header(before: str) -> bool:
    """Whether text before a brace ends in a function's header."""
    header = max(before.rfind(";"), before.rfind("}")) + 1
    return bool(_FUNCTION.search(strip(before[header:])))
