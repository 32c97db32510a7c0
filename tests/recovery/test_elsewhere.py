"""A job is saved at a moment chosen at random, all of it is killed, and it continues under another
state directory on other devices: outputs, files and parameters are those of an undisturbed run. On
request no step is done twice."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import cuda
import pytest

from rankfold.reconciler.layout import Layout
from support import guest
from support.command import Rankfold, Specs
from support.leaks import State
from support.patience import scaled
from support.wheels import nvrtc

from .conftest import GPT
from .test_life import POLICY, kill_everything

HERE = Path(__file__).parent
TESTS = HERE.parent
ENDS_S = 240.0


@dataclass
class Subject:
    """A program, and how many lines each of its ranks prints before it may be saved."""

    command: list[str]
    ranks: int
    lines: int
    env: dict[str, str] = field(default_factory=dict)
    files: str = "*"  # that it leaves, beside what it prints


def gpt(_: Path) -> Subject:
    program = str(cuda.build(GPT / "train_gpt.cu"))
    text = str(GPT / "text/genesis.txt")
    return Subject([program, "--steps", "120", "--data", text, "--out", "params"], 2, 40)


def mlp(_: Path) -> Subject:
    return Subject([str(cuda.build(cuda.PROGRAMS / "mlp_sharded.cu")), "4000"], 3, 800)


def tinygrad(folder: Path) -> Subject:
    env = {
        "DEV": "CUDA",
        "LD_LIBRARY_PATH": nvrtc(folder / "nvrtc"),
        "CACHELEVEL": "0",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PARALLEL": "2",  # workers that share named semaphores
    }
    return Subject([sys.executable, str(TESTS / "tinygrad_job/train.py"), "800"], 2, 100, env)


def installed(folder: Path, job: str, steps: int, lines: int) -> Subject:
    """`train.py` of one of the folders of tests/, with what its requirements say."""
    python = guest.environment(TESTS / job / "requirements.txt") / "bin/python"
    env = {"HOME": str(folder), "PYTHONPATH": ""}
    # Else NumPy's own products may differ: a job does not have the shell's environment.
    env["OPENBLAS_CORETYPE"] = "Haswell"
    return Subject([str(python), str(TESTS / job / "train.py"), str(steps)], 2, lines, env)


def numba(folder: Path) -> Subject:
    return installed(folder, "numba_job", 8000, 300)


def drjit(folder: Path) -> Subject:
    return installed(folder, "drjit_job", 4000, 300)


def taichi(folder: Path) -> Subject:
    return installed(folder, "taichi_job", 1500, 300)


def openmm(folder: Path) -> Subject:
    return installed(folder, "openmm_job", 6000, 30)


def busy(_: Path) -> Subject:
    """Threads, a child, TCP between the ranks, SQLite (whose files are never the same bytes)."""
    rounds = round(scaled(150))  # so that the job has not ended before it is killed
    command = [sys.executable, str(HERE / "busy_program.py"), str(rounds)]
    return Subject(command, 2, 90, files="log-*")


SLOW, INSTALLS = pytest.mark.slow, pytest.mark.installs
SUBJECTS = [
    *(pytest.param(each, marks=SLOW) for each in (gpt, mlp, tinygrad)),
    *(
        pytest.param(each, marks=[SLOW, INSTALLS, pytest.mark.timeout(1800)])
        for each in (numba, drjit, taichi, openmm)
    ),
    busy,
]


class Running:
    """A job under one state directory."""

    def __init__(self, subject: Subject, rankfold: Rankfold, specs: Specs, folder: Path):
        self.subject, self.rankfold, self.specs, self.folder = subject, rankfold, specs, folder
        self.name = "job"

    def apply(self, gpus: int, suspend: str = "false") -> None:
        env = ", ".join(f"{name}: '{value}'" for name, value in self.subject.env.items())
        extra = f"workdir: {self.folder}\n  env: {{{env}}}\n  suspend: {suspend}"
        self.specs.program(self.subject.command, self.name, gpus, extra, self.subject.ranks)
        self.rankfold("apply", "-f", str(self.specs.folder), "--wait")

    @property
    def phase(self) -> str:
        return str(self.rankfold.job(self.name)["phase"])

    def printed(self) -> list[str]:
        logs = Layout(self.rankfold.state.path).logs(self.name)
        files = [logs / f"rank-{rank}.out" for rank in range(self.subject.ranks)]
        return [file.read_text() if file.exists() else "" for file in files]

    def reaches(self, lines: int) -> None:
        self.rankfold.until(lambda: min(text.count("\n") for text in self.printed()) >= lines)

    def results(self) -> tuple[list[str], dict[str, bytes]]:
        self.rankfold.until(lambda: self.phase in ("Succeeded", "Failed"))
        assert self.phase == "Succeeded", self.rankfold("events", self.name)
        return self.printed(), contents(self.folder, self.subject.files)


def contents(folder: Path, pattern: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob(pattern))}


def undisturbed(subject: Subject, state: State) -> tuple[list[str], dict[str, bytes]]:
    work, place = state.folder / "undisturbed", state.folder / "alone"
    work.mkdir()
    env = {**os.environ, **subject.env, "RANKFOLD_STATE": str(place), "RANKFOLD_LINGER": "0.5"}
    subprocess.run(
        [
            sys.executable,
            "-m",
            "rankfold",
            "run",
            "--world-size",
            str(subject.ranks),
            "--name",
            "job",
            "--memory",
            "64MiB",
            "--",
            *subject.command,
        ],
        env=env,
        cwd=work,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=scaled(ENDS_S),
    )
    logs = Layout(place).logs("job")
    texts = [(logs / f"rank-{rank}.out").read_text() for rank in range(subject.ranks)]
    return texts, contents(work, subject.files)


@pytest.mark.parametrize("make", SUBJECTS)
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "on request"])
def test_a_job_continues_elsewhere_with_the_same_bits(
    make: Callable[[Path], Subject], killed: bool, state: State, rankfold: Rankfold, specs: Specs
) -> None:
    subject = make(state.folder)
    expected = undisturbed(subject, state)
    store = state.folder / "store"
    specs.write("policy.yaml", POLICY.format(url=store))
    work = state.folder / "work"
    work.mkdir()
    job = Running(subject, rankfold, specs, work)
    job.apply(gpus=subject.ranks)
    moment = random.randint(1, subject.lines)
    print(f"saved after {moment} lines")
    job.reaches(moment)
    if killed:
        id = rankfold("checkpoint", job.name, "--wait").strip()
        kill_everything(rankfold, job.name)
    else:
        rankfold("suspend", job.name, "--store", "--override")
        rankfold.until(lambda: rankfold.job(job.name)["suspendedIn"] == "store")
        (id,) = [each["id"] for each in rankfold.job(job.name)["checkpoints"]]
        before = job.printed()
        rankfold("stop")
        shutil.rmtree(work)  # what the ranks wrote comes out of the store

    place = replace(state, path=state.folder / "elsewhere")
    other = Rankfold(place, {**rankfold.environment, "RANKFOLD_STATE": str(place.path)})
    there = Running(subject, other, specs, work)
    try:
        other("store", "adopt", str(store))
        there.apply(gpus=1, suspend="true")
        other("resume", job.name, "--from", id, "--override")
        assert there.results() == expected
        if not killed:
            after = there.printed()
            assert all(a.startswith(b) for a, b in zip(after, before, strict=True))
    finally:
        other.end()
