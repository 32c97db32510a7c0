"""What `make` gives the commands that it runs."""

from __future__ import annotations

import os
import subprocess

from rankfold.paths import REPOSITORY


def test_python_keeps_its_bytecode_wherever_it_is_told_not_to() -> None:
    """Else each process compiles all of its source again: it starts in twice the time."""
    done = subprocess.run(
        ["make", "--silent", "--eval=shown: ; @env", "shown"],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"},
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "PYTHONUNBUFFERED=1" in done.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout
