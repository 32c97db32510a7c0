"""Differences between an installed rankfold and a checkout.

A wheel contains a generated module, which `setup.py` writes: the commit, and the contracts of
`records.py`. A checkout reads both from its source, so that they are never outdated.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from rankfold import paths

NAME = "_generated"  # its name in this package


@functools.cache
def generated() -> ModuleType | None:
    """The generated module: ``COMMIT`` and ``CONTRACTS``. None in a checkout."""
    try:
        return importlib.import_module(f"rankfold.{NAME}")
    except ModuleNotFoundError:
        return None


def commit() -> str:
    """The commit of the source, with ``-dirty`` if files differ from it. Empty if unknown."""
    if module := generated():
        return str(module.COMMIT)
    import subprocess  # takes longer than some commands that do not need it

    try:
        done = subprocess.run(
            [
                "git",
                "-C",
                str(paths.REPOSITORY),
                "describe",
                "--always",
                "--dirty",
                "--abbrev=12",
                "--exclude=*",
            ],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
