"""Errors for what the software GPU does not support, and their remedies."""

from __future__ import annotations

from rankfold.proxy.ptx.errors import NOT_SUPPORTED, ModuleError

_TEXTURES = "it has no textures: let kernels read and write linear memory"
_WARP_GROUPS = "its tensor cores are those of a warp: build for compute_90, not compute_90a"
_SPARSE = "its tensor cores multiply whole matrices: give zeros too"
INSTEAD = {
    **dict.fromkeys(("tex", "tld4", "txq", "suld", "sust", "sured", "suq"), _TEXTURES),
    **dict.fromkeys(("wgmma", "tcgen05"), _WARP_GROUPS),
}  # remedy for a refused instruction, by its first word


def unsupported_instruction(text: str, op: str, kernel: str) -> ModuleError:
    instead = f" ({INSTEAD[op]})" if op in INSTEAD else ""
    if text.startswith("mma.sp"):
        instead = f" ({_SPARSE})"
    error = unsupported(f"the instruction {text!r}", kernel)
    return ModuleError(error.code, error.message + instead, text)


def unsupported(what: str, kernel: str) -> ModuleError:
    return ModuleError(
        NOT_SUPPORTED, f"kernel {kernel}: {what} is not supported by the software GPU"
    )
