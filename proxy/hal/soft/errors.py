"""What can be wrong with a module or a kernel."""

from __future__ import annotations

INVALID_IMAGE = 200
NO_BINARY_FOR_GPU = 209
INVALID_PTX = 218
NOT_FOUND = 500
NOT_SUPPORTED = 801


class ModuleError(Exception):
    """A CUresult number, and what it means here, for people."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code, self.message = code, message


_TEXTURES = "it has no textures: let kernels read and write linear memory"
_WARP_GROUPS = "its tensor cores are those of a warp: build for compute_90, not compute_90a"
_SPARSE = "its tensor cores multiply whole matrices: give zeros too"
INSTEAD = {
    **dict.fromkeys(("tex", "tld4", "txq", "suld", "sust", "sured", "suq"), _TEXTURES),
    **dict.fromkeys(("wgmma", "tcgen05"), _WARP_GROUPS),
}  # of a refused instruction, by its first word: what to do


def unsupported_instruction(text: str, op: str, kernel: str) -> ModuleError:
    instead = f" ({INSTEAD[op]})" if op in INSTEAD else ""
    if text.startswith("mma.sp"):
        instead = f" ({_SPARSE})"
    error = unsupported(f"the instruction {text!r}", kernel)
    return ModuleError(error.code, error.message + instead)


def unsupported(what: str, kernel: str) -> ModuleError:
    return ModuleError(
        NOT_SUPPORTED, f"kernel {kernel}: {what} is not supported by the software GPU"
    )
