"""llm.c's multi-GPU trainer, unmodified: the twin's numbers, and the same files however it ran."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rankfold.paths import REPOSITORY
from support.command import Rankfold, job_environment
from support.leaks import State

from .llmc import small
from .table import named

LLMC = named("llmc")
CHECKOUT = os.environ.get(LLMC.checkout, "")
FLAGS = "-O3 -std=c++17 -t=0 --use_fast_math -DMULTI_GPU -arch=compute_80".split()
LIBRARIES = ["-lcublas", "-lcublasLt", "-lnccl"]
WORLD = LLMC.ranks
TIMEOUT_S = 900.0
GENERATOR = 2520  # bytes of its random generator, which ends a state file
WAYS = ["-e fp32.bin", "-e fp32.bin -ge 1 -r 0", "-e bf16.bin -ge 2 -r 2 -d 512"]  # to train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.installs,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not CHECKOUT, reason=f"{LLMC.checkout} names no checkout of llm.c"),
]


class Trainer:
    """The program in both precisions, and a folder with what it reads."""

    def __init__(self, folder: Path):
        self.folder, self.errors = folder, ""  # errors: what the last run printed there
        small.write(folder)
        for precision in ("fp32", "bf16"):
            subprocess.run(
                [
                    REPOSITORY / "tools/nvcc",
                    *FLAGS,
                    f"-DENABLE_{precision.upper()}",
                    "train_gpt2.cu",
                    *LIBRARIES,
                    "-o",
                    folder / precision,
                ],
                cwd=CHECKOUT,
                check=True,
            )

    def train(
        self, state: State, name: str, options: str, gpus: int, moves: int = 0, *more: str
    ) -> Path:
        """Where a run leaves its files. `moves`: how often its number of devices changes."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(self.folder / f"{name}.id", ignore_errors=True)
        program = self.folder / ("bf16" if "bf16" in options else "fp32")
        command = [*LLMC.command(), str(program), str(self.folder), name, *options.split()]
        rankfold = Rankfold(state, job_environment(HOME=str(state.folder), PYTHONPATH=""))
        memory = ("--memory", LLMC.memory)
        run = ["run", "--world-size", str(WORLD), "--gpus", str(gpus), *memory, *more]
        process = rankfold.start(*run, "--name", name, "--", *command)
        try:
            for move in range(moves):
                line = f"s:{move} trl"
                rankfold.until(lambda: process.poll() is not None or line in log(out))  # noqa: B023
                rankfold("scale", name, "--gpus", str(1 + move % 2))
            _, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            rankfold.end()
        assert process.returncode == 0, errors
        self.errors = errors
        return out


def log(out: Path) -> str:
    file = out / "main.log"
    return file.read_text() if file.exists() else ""


def digests(out: Path) -> dict[str, str]:
    """The digest of every file. llm.c leaves eight bytes of a state file unset (its generator's
    `seed_`), which count as zeros."""
    found = {}
    for path in sorted(out.iterdir()):
        content = bytearray(path.read_bytes())
        if path.name.startswith("state"):
            content[-GENERATOR : 8 - GENERATOR] = bytes(8)
        found[path.name] = hashlib.sha256(content).hexdigest()
    return found


def learns(out: Path) -> None:
    losses = [float(line.split(":")[-1]) for line in log(out).splitlines() if " tel:" in line]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True), losses


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("llmc"))


def test_the_first_step_is_the_twin_s(trainer: Trainer, state: State) -> None:
    out = trainer.train(state, "twin", "-e fp32.bin -a 1 -x 1 -n 1", gpus=WORLD)
    loss, gradient = small.twin_gradient(WORLD)
    words = log(out).splitlines()[1].split()
    assert float(words[1].removeprefix("trl:")) == pytest.approx(loss, abs=1e-4)
    norm = float(words[3].removeprefix("norm:"))
    # AdamW's first moments after the first step: a tenth of the gradient, clipped to norm 1.
    state_file = out / "state_00000001_00000.bin"
    moments = np.fromfile(state_file, np.float32, sum(small.SIZES), offset=4 * small.HEADER)
    found = small.to_twin(moments.astype(np.float64) * 10.0 * max(norm, 1.0))
    for name, values in gradient.items():
        error = np.abs(found[name] - values).max()
        # The norm is printed with two digits.
        assert error <= 0.01 * np.abs(values).max(), f"{name} is off by {error:g}"


@pytest.mark.parametrize("options", WAYS)
def test_folded_as_unfolded_as_moved(trainer: Trainer, state: State, options: str) -> None:
    options += " -x 4 -n 4"
    unfolded = trainer.train(state, "unfolded", options, gpus=WORLD)
    learns(unfolded)
    wanted = digests(unfolded)
    assert {"model_00000004.bin", "state_00000004_00001.bin"} <= set(wanted)
    assert digests(trainer.train(state, "folded", options, gpus=1)) == wanted
    assert digests(trainer.train(state, "moved", options, gpus=WORLD, moves=2)) == wanted


def test_zero_trains(trainer: Trainer, state: State) -> None:
    """It does not learn to the same bits: it gathers parameters on a stream that no event orders
    after the one that updates them, so that some are gathered before they are updated."""
    options = "-e fp32.bin -z 1 -x 4 -n 4"
    learns(trainer.train(state, "unfolded", options, gpus=WORLD))
    learns(trainer.train(state, "folded", options, WORLD // 2, 0, "--check-order"))
    races = [line for line in trainer.errors.splitlines() if line.startswith("rankfold: race: ")]
    assert {race.split(": ")[2] for race in races} == {"rank 0", "rank 1"}
    for race in races:
        assert "ncclAllGather" in race and "adamw" in race, race


@pytest.mark.parametrize("options", WAYS)
def test_without_zero_there_is_no_race(trainer: Trainer, state: State, options: str) -> None:
    trainer.train(state, "fine", f"{options} -x 2 -n 2", WORLD, 0, "--check-order")
    assert "rankfold: race: " not in trainer.errors
