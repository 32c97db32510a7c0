"""A script's logical workers have the bits of stock DistributedDataParallel over gloo, in any
number of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support.patience import scaled

FOLDER = REPOSITORY / "build/torch-cpu"
LIMIT_S = 120.0  # the import of PyTorch takes the most of it


class Python:
    """Runs Python with the CPU build of PyTorch, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{FOLDER}:{REPOSITORY}",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=scaled(LIMIT_S),
        )


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    if not (FOLDER / "torch").is_dir():
        pytest.skip("build/torch-cpu is missing: `make torch-cpu` fetches PyTorch's CPU build")
    return Python(tmp_path_factory.mktemp("python"))
