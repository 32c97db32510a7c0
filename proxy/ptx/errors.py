"""What can be wrong with a module or a kernel."""

from __future__ import annotations

import re

INVALID_IMAGE = 200
NO_BINARY_FOR_GPU = 209
INVALID_PTX = 218
NOT_FOUND = 500
NOT_SUPPORTED = 801


class ModuleError(Exception):
    """A CUresult number, and what it means here, for people. `about`: the PTX that it is about, if
    that is a place, with other blanks maybe. `line`: of the module's text; 0: not known."""

    line = 0

    def __init__(self, code: int, message: str, about: str = ""):
        super().__init__(message)
        self.code, self.message, self.about = code, message, about


def place_of(text: str, about: str, at: int = 0) -> int | None:
    """Where an error's `about` begins in a text that may have other blanks, from `at` on."""
    letters = "".join(about.split())
    found = re.compile(r"\s*".join(map(re.escape, letters))).search(text, at) if letters else None
    return found.start() if found else None


def line_at(text: str, at: int) -> int:
    """The number of the line that holds a place of a text."""
    return text.count("\n", 0, at) + 1


def unsupported(what: str, kernel: str) -> ModuleError:
    return ModuleError(NOT_SUPPORTED, f"kernel {kernel}: {what} is not supported")
