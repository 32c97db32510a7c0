"""Errors in a module or a kernel."""

from __future__ import annotations

import re

INVALID_IMAGE = 200
NO_BINARY_FOR_GPU = 209
INVALID_PTX = 218
NOT_FOUND = 500
NOT_SUPPORTED = 801
UNKNOWN = 999  # the core fails the rank, also if the program ignores the error


class ModuleError(Exception):
    """A CUresult number, and a message for people.

    `about`: the PTX text that the error concerns, if it concerns a place; its whitespace may
    differ. `line`: in the module's text; 0: unknown.
    """

    line = 0

    def __init__(self, code: int, message: str, about: str = ""):
        super().__init__(message)
        self.code, self.message, self.about = code, message, about


def place_of(text: str, about: str, offset: int = 0) -> int | None:
    """The position of an error's `about` in a text with other whitespace, searched from `at`."""
    letters = "".join(about.split())
    match = (
        re.compile(r"\s*".join(map(re.escape, letters))).search(text, offset) if letters else None
    )
    return match.start() if match else None


def line_at(text: str, offset: int) -> int:
    """The line number of a position in a text."""
    return text.count("\n", 0, offset) + 1


def unsupported(subject: str, kernel: str) -> ModuleError:
    return ModuleError(NOT_SUPPORTED, f"kernel {kernel}: {subject} is not supported")
