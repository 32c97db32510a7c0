"""The command and the folder of specs are those of tests/recovery."""

from __future__ import annotations

from recovery.conftest import rankfold, specs

__all__ = ["rankfold", "specs"]
