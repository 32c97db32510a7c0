"""A script's logical workers have the bits of stock DistributedDataParallel over gloo, in any
number of processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support.patience import scaled

FOLDER = REPOSITORY / "build/torch-cpu"
LIMIT_S = 120.0
LONG = {"EPOCHS": "40"}
LONG_FEATURES = ("accumulate", "workers")


class Python:
    """Runs Python with the CPU build of PyTorch, in an empty folder. Programs are forks of one
    process that has imported PyTorch, which takes seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{FOLDER}:{REPOSITORY}",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "warm_torch.py")],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def close(self) -> None:
        with self._process as process:
            process.kill()

    def _line(self, limit: float) -> str | None:
        """None if it does not arrive in time."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], limit)
        if not ready:
            return None
        line = self._process.stdout.readline().decode()
        assert line, "PyTorch's process has ended"
        return line

    def __call__(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        out, err = (self.folder / name for name in ("stdout", "stderr"))
        limit = scaled(float(variables.get("LIMIT_S", LIMIT_S)))
        words = [str(each) for each in arguments]
        command = {
            "arguments": words,
            "folder": str(self.folder),
            "environment": {**self._environment, **variables},
            "out": str(out),
            "err": str(err),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        pid = self._line(limit)
        status = self._line(limit)
        if pid is not None and status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            self._line(limit)
        assert status is not None, f"timed out: {err.read_text()}"
        return subprocess.CompletedProcess(words, int(status), out.read_text(), err.read_text())


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    if not (FOLDER / "torch").is_dir():
        pytest.skip("build/torch-cpu is missing: `make torch-cpu` fetches PyTorch's CPU build")
    found = Python(tmp_path_factory.mktemp("python"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def long(python: Python, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of stock processes of a job that lasts for some seconds."""
    folder, here = tmp_path_factory.mktemp("long"), Path(__file__).parent
    done = python(here / "stock.py", 3, folder, here / "features.py", *LONG_FEATURES, **LONG)
    found = {each.name: each.read_text() for each in sorted(folder.glob("rank-*.*"))}
    assert (done.returncode, done.stderr) == (0, ""), found
    return found
