"""Promise: what a job is, outlives its processes: saved, stored, restored, restarted, bit for bit.

Nothing is replaced: the real reconciler, launchers, proxies, CRIU, the store, the GPT of examples/,
which pauses after each step until a test needs its results (programs/paced_gpt.cu).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import pytest

from rankfold.paths import REPOSITORY
from rankfold.reconciler.layout import Layout
from support import patience
from support.command import Rankfold, Specs
from support.fixtures import rankfold, specs
from support.fleet import KIND
from support.leaks import State

from .clock import Clock

__all__ = ["rankfold", "specs"]

GPT = REPOSITORY / "examples/gpt"
RANKS = 2
# The job pauses after each step, so that it runs for some 14 s and the commands of a test find it
# alive. PAUSE_S: the 20th pause.
STEPS, PAUSE_S = 120, 0.04
TEXT = GPT / "text/genesis.txt"
ARGUMENTS = [
    "--steps",
    str(STEPS),
    "--data",
    str(TEXT),
    "--out",
    "params",
    "--batch",
    "1",
    "--seq",
    "16",
]
PACE = "pace"  # a file next to the job's folder: see programs/paced_gpt.cu


@pytest.fixture
def clock(rankfold: Rankfold) -> Iterator[Clock]:
    found = Clock(rankfold.state.folder, rankfold)
    yield found
    found.end()


class Trained:
    """The GPT as a job of two ranks, in a folder of its own."""

    def __init__(self, rankfold: Rankfold, specs: Specs, program: Path, folder: Path):
        self.rankfold, self.specs, self.program, self.folder = rankfold, specs, program, folder
        self.name = folder.name
        self.wrapper: list[str] = []

    def apply(self, gpus: int = 2, extra: str = "", wait: bool = True) -> None:
        self.folder.mkdir(exist_ok=True)
        self.pause(PAUSE_S)
        command = [*self.wrapper, str(self.program), *ARGUMENTS]
        extra = f"workdir: {self.folder}\n  {extra}"
        self.specs.program(command, self.name, gpus, extra, RANKS)
        self.rankfold("apply", "-f", str(self.specs.folder), *(["--wait"] if wait else []))

    def pause(self, seconds: float) -> None:
        """Makes each rank pause for so long in every further step, until `results`."""
        (self.folder.parent / PACE).write_bytes(bytes(round(1000 * patience.scaled(seconds))))

    @property
    def status(self) -> Any:
        return self.rankfold.job(self.name)

    def lines(self, rank: int = 0) -> list[str]:
        file = Layout(self.rankfold.state.path).logs(self.name) / f"rank-{rank}.out"
        text = file.read_text() if file.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def reaches(self, step: int) -> None:
        """Wait until every rank has printed this step."""
        self.rankfold.until(lambda: all(len(self.lines(r)) > step for r in range(RANKS)))

    def is_in(self, phase: str) -> None:
        self.rankfold.until(lambda: self.status["phase"] == phase)

    def results(self) -> dict[str, bytes]:
        """All that it has printed and written, when it has ended well. It does not pause again."""
        (self.folder.parent / PACE).unlink(missing_ok=True)
        self.rankfold.until(lambda: self.status["phase"] in ("Succeeded", "Failed"))
        assert self.status["phase"] == "Succeeded", self.rankfold("events", self.name)
        logs = Layout(self.rankfold.state.path).logs(self.name)
        files = [*sorted(logs.glob("rank-*.out")), *sorted(self.folder.glob("params-*"))]
        assert len(files) == 2 * RANKS
        return {file.name: file.read_bytes() for file in files}


def watched(patience_s: int) -> list[str]:
    """The command line that runs a command under a watchdog."""
    return [sys.executable, str(Path(__file__).with_name("watched.py")), str(patience_s)]


@pytest.fixture(scope="session")
def program() -> Path:
    """Linked as nvcc does by default, so that static runtimes are saved and restored."""
    return cuda.build(cuda.PROGRAMS / "paced_gpt.cu", args=("-cudart", "static"))


@pytest.fixture
def job(rankfold: Rankfold, specs: Specs, program: Path, state: State) -> Trained:
    return Trained(rankfold, specs, program, state.folder / "gpt")


@pytest.fixture(scope="session")
def undisturbed(program: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that the job leaves when it runs undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    environment = {
        **os.environ,
        "RANKFOLD_STATE": str(folder / "state"),
        "RANKFOLD_CACHE": str(REPOSITORY / "build/tests/kernels"),
        "RANKFOLD_LINGER": "0.5",
        "RANKFOLD_NVIDIA_SHARE": "1",
    }
    work = folder / "work"
    work.mkdir()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "rankfold",
            "run",
            "--world-size",
            str(RANKS),
            "--name",
            "gpt",
            "--device",
            KIND,
            "--memory",
            "64MiB",
            "--",
            str(program),
            *ARGUMENTS,
        ],
        env=environment,
        cwd=work,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    logs = Layout(folder / "state").logs("gpt")
    files = [*sorted(logs.glob("rank-*.out")), *sorted(work.glob("params-*"))]
    return {file.name: file.read_bytes() for file in files}
