"""Every PTX instruction that the compiler knows, by its first word."""

from __future__ import annotations

from . import (  # noqa: F401 - each adds its instructions to OPS
    async_copy,
    bits,
    compare,
    convert,
    mbarrier,
    memory,
    video,
)
from .flow import CONTROL, WARP_CUTS
from .ops import HINTS, OPS

__all__ = ["OPS", "known"]

_OURS = frozenset(("pmov", "vprintf", "assertfail", "malloc", "free"))  # inline.py's, not PTX's


def known() -> dict[str, str]:
    """Each instruction: "translated", or "no effect" for hints, which change no result."""
    names = (frozenset(OPS) - _OURS) | CONTROL | WARP_CUTS | {"bar", "barrier"}
    return {name: "no effect" if name in HINTS else "translated" for name in sorted(names)}
