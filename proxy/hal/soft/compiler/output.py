"""Keeps the stages of compilations for people: with RANKFOLD_COMPILER_OUTPUT=DIR, a folder per
kernel hash.

An error here is reported once and never fails a compilation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SWITCH = "RANKFOLD_COMPILER_OUTPUT"
FILES = {
    "ptx": "kernel.ptx",
    "flat": "flat.txt",
    "llvm": "lowered.ll",
    "optimised": "optimised.ll",
    "asm": "kernel.s",
}  # of codegen.STAGES


def folder(environ: Mapping[str, str] = os.environ) -> tuple[Path | None, str]:
    """Returns the folder or None, and the reason if it was requested and cannot be used."""
    chosen = environ.get(SWITCH, "")
    if not chosen:
        return None, ""
    if not os.path.isabs(chosen):
        return None, f"{SWITCH}={chosen}: nothing is kept: not an absolute path"
    try:
        Path(chosen).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return None, f"{SWITCH}={chosen}: nothing is kept: {error.strerror}"
    if not os.access(chosen, os.W_OK | os.X_OK):
        return None, f"{SWITCH}={chosen}: nothing is kept: the folder may not be written"
    return Path(chosen), ""


class StageFiles:
    """Writes each stage of one compilation to a file as soon as it is complete, so that it
    exists if the next stage fails or crashes. `failed`: why a stage could not be written."""

    def __init__(self, folder: Path | None, key: str, name: str):
        self.folder = folder / key if folder else None
        self.failed = ""
        self._write("name", f"{name}\n")

    def keep(self, stage: str, text: str) -> None:
        self._write(FILES[stage], text)

    def _write(self, file: str, text: str) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / file).write_text(text)
        except OSError as error:
            self.failed = f"{SWITCH}: nothing more is kept: {self.folder / file}: {error.strerror}"
            self.folder = None
