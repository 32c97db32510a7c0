"""A policy decides within the fleet; one that is not built in is installed as users install it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Installs a module of plugins/ as a package that has some of its functions as policies."""

    def installed(module: str, *policies: str) -> Path:
        folder = tmp_path / "packages"
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        shutil.copy(PLUGINS / f"{module}.py", folder)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        rows = "".join(f"{name} = {module}:{name}\n" for name in policies)
        (info / "entry_points.txt").write_text(f"[rankfold.policies]\n{rows}")
        monkeypatch.syspath_prepend(folder)
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        monkeypatch.setenv("PYTHONPATH", path)
        return folder

    return installed
