"""Each program runs on a fleet of real processes."""

from __future__ import annotations

from support.fixtures import rankfold, specs

__all__ = ["rankfold", "specs"]
