"""The kernels of the hostile tests serve here too."""

from __future__ import annotations

from hostile.conftest import kernels

__all__ = ["kernels"]
