"""What can be wrong with a module or a kernel."""

from __future__ import annotations

INVALID_IMAGE = 200
NO_BINARY_FOR_GPU = 209
INVALID_PTX = 218
NOT_FOUND = 500
NOT_SUPPORTED = 801


class ModuleError(Exception):
    """A CUresult number, and what it means here, for people. `about`: the PTX that it is about, if
    that is a place, with other blanks maybe."""

    def __init__(self, code: int, message: str, about: str = ""):
        super().__init__(message)
        self.code, self.message, self.about = code, message, about


def unsupported(what: str, kernel: str) -> ModuleError:
    return ModuleError(NOT_SUPPORTED, f"kernel {kernel}: {what} is not supported")
