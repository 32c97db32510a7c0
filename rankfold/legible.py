"""Makes text from outside safe to print: characters that would control a terminal are escaped.

File names, messages of other programs and the ends of logs reach terminals, tables, events and log
files. A control character in them could clear the screen, retitle the window, hide a line or
reverse it; bytes that are not UTF-8 cannot be written at all.
"""

from __future__ import annotations

import json
import os
import re


def legible(text: str) -> str:
    """Escape text of one or more lines, as in ``\\x1b``. Line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def name(path: str | os.PathLike[str]) -> str:
    """A file's name on one line, as UTF-8. Different names stay different: a backslash is
    doubled."""
    text = os.fspath(path)
    return "".join(c if c.isprintable() and c != "\\" else _escape(c) for c in text)


def is_utf8(text: str) -> bool:
    """Whether text can be stored as UTF-8: a file's name may not be valid text."""
    return not re.search("[\ud800-\udfff]", text)


def json_text(encoded: str) -> str:
    """Escape JSON without changing its meaning: control characters occur only in its strings."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in encoded)


def _escape(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:  # Python represents undecodable bytes as U+DC80 to U+DCFF
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
