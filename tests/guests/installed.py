"""Virtual environments of programs from PyPI, below build/guests."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rankfold.paths import REPOSITORY

BUILD = REPOSITORY / "build/guests"


def environment(requirements: Path) -> Path:
    """A virtual environment with what that file says, made once for each content of the file."""

    def fill(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip(folder / "bin/python", "install", "--requirement", str(requirements))

    return _made_once(requirements, fill)


def packages(requirements: Path, python: str) -> Path:
    """A folder for PYTHONPATH with the wheels of that file, without their dependencies, for another
    version of Python ("3.13"); made once for each content of the file."""

    def fill(folder: Path) -> None:
        wheels = ["--only-binary", ":all:", "--no-deps", "--python-version", python]
        target = ["--target", str(folder), "--requirement", str(requirements)]
        pip(Path(sys.executable), "install", *wheels, *target)

    return _made_once(requirements, fill)


def _made_once(requirements: Path, fill: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = BUILD / f"{requirements.parent.name}-{digest}"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        fill(folder)
        (folder / ".complete").touch()
    return folder


def pip(python: Path, *arguments: str) -> None:
    """The pip of an environment's interpreter."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True)


def site_packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python3.*/site-packages")
    return found
