"""Modules below the script's folder, as they were when a process of the run first imported them.

Each stage's processes import them again. Somebody may have edited one meanwhile, and a run of two
versions would be neither. So the first process that imports a module keeps its source in a folder
of the run, and the others read it there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Mapping
from importlib import machinery
from pathlib import Path
from typing import Any

import torch

FOLDER = "modules"  # below that of the saved states
INSTALLED = ("site-packages", "dist-packages")  # with other people's modules


class _Kept(machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, folder: Path) -> None:
        super().__init__(name, path)
        self._folder = folder

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"{path} is compiled by each process: bytecode would be of the edited file")

    def get_data(self, path: str) -> bytes:
        kept = self._folder / hashlib.sha256(os.fsencode(path)).hexdigest()
        with contextlib.suppress(FileNotFoundError):
            return kept.read_bytes()
        data = super().get_data(path)
        written = kept.with_suffix(f".{os.getpid()}")
        try:
            written.write_bytes(data)
            os.link(written, kept)
        except FileExistsError:  # another process was first
            return kept.read_bytes()
        except OSError:  # the disk is full, for example
            return data
        finally:
            written.unlink(missing_ok=True)
        return data


def keep(scripts: Path, folder: Path) -> None:
    """From now on this process imports modules below `scripts` as described above."""
    libraries = Path(torch.__file__).parents[1]
    finder = machinery.FileFinder.path_hook(
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (lambda name, path: _Kept(name, path, folder), machinery.SOURCE_SUFFIXES),  # type: ignore[arg-type]
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )

    def hook(path: str) -> Any:
        place = Path(path).resolve()
        installed = place.is_relative_to(libraries) or {*INSTALLED} & {*place.parts}
        if installed or not place.is_relative_to(scripts):
            raise ImportError(f"{path} has no modules of the script")
        return finder(path)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
