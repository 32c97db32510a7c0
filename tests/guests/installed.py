"""Virtual environments of programs from PyPI, below build/guests."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from rankfold.paths import REPOSITORY

BUILD = REPOSITORY / "build/guests"


def environment(requirements: Path) -> Path:
    """A virtual environment with what that file says, made once for each content of the file."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = BUILD / f"{requirements.parent.name}-{digest}"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip(folder, "install", "--requirement", str(requirements))
        (folder / ".complete").touch()
    return folder


def pip(folder: Path, *arguments: str) -> None:
    """The pip of a virtual environment."""
    command = [str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True)


def site_packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python3.*/site-packages")
    return found
