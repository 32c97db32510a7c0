"""Measures how long a PyTorch program takes to start: importing torch, and the first step.

Question. A rank's libraries are preloaded into every process, and its kernels are compiled when
they are first used. How much longer does `import torch` take, and how long does the first step
take: with no compiled kernel, and when another fleet has compiled them?

Method. `rankfold run` starts examples/torch/train_gpt.py (one rank, one software GPU, the
capability at which PyTorch uses FlashAttention) in a fleet of its own, through pytorch_started.py,
which reports times and does nothing else.
  import  The processor time of `import torch` in a rank, and without rankfold, alternately; the
          median ratio counts. Other load makes wall-clock times incomparable.
  cold    The time from the end of the import to the first step's line, with an empty cache.
  warm    The same with the cache that the cold run has filled, in fleets of their own; the
          quietest of several runs.

Noise. The times of steps are wall-clock times: they hold for idle cores, and grow with other load,
which the result records. The processor time of the rank in the same period is given with them.

Estimate before measuring. The import itself opens no device. The example uses 50 kernels of 26
modules with 160 MB of fatbins, whose PTX takes some seconds to decompress and divide; compiling
takes a minute of processor time, half of it for the two kernels of FlashAttention, on two cores. A
warm start copies the fatbins through the channel and opens their prepared modules: below 1 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.report import Figure
from rankfold.paths import REPOSITORY

HERE = Path(__file__).parent
STARTED = HERE / "pytorch_started.py"
PYTHON = REPOSITORY / "build/torch/python"
EXAMPLE = REPOSITORY / "examples/torch/train_gpt.py"
CAPABILITY = "9.0"
LIMIT_S = 1800.0

Times = dict[str, tuple[float, float]]  # of each report: wall-clock and processor time, in seconds


def times(said: str) -> Times:
    rows = [line.split() for line in said.splitlines() if line.startswith("started ")]
    return {name: (float(wall), float(spent)) for _, name, wall, spent in rows}


def in_rank(program: Sequence[str], cache: Path) -> Times:
    """The times of a program as the only rank of a fleet of its own."""
    with tempfile.TemporaryDirectory(prefix="rf-") as folder:
        environment = clean() | {
            "RANKFOLD_STATE": f"{folder}/state",
            "RANKFOLD_RUNTIME": f"{folder}/run",
            "RANKFOLD_CACHE": str(cache),
        }
        Path(folder, "run").mkdir(mode=0o700)
        rankfold = [sys.executable, "-m", "rankfold"]
        options = ["--world-size", "1", "--gpus", "1", "--compute-capability", CAPABILITY]
        command = [*rankfold, "run", *options, "--", str(PYTHON), str(STARTED), *program]
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        stop = [*rankfold, "stop", "--cancel"]
        subprocess.run(stop, env=environment, capture_output=True, timeout=LIMIT_S)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(program)}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return times(ran.stdout + ran.stderr)


def clean() -> dict[str, str]:
    """The environment without PYTHONPATH: programs must not find packages of tests."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def alone() -> Times:
    """The times of `import torch` without rankfold."""
    command = [str(PYTHON), str(STARTED)]
    ran = subprocess.run(command, env=clean(), capture_output=True, text=True, check=True)
    return times(ran.stderr)


def import_s(found: Times) -> float:
    return found["torch"][1] - found["python"][1]


def import_figure(rounds: int, cache: Path) -> Figure:
    pairs = [(import_s(in_rank([], cache)), import_s(alone())) for _ in range(rounds)]
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    how = (
        f"median of {rounds} rounds: {ours:.2f} s of processor time in a rank, {theirs:.2f} s alone"
    )
    return Figure(ratio, "", 1.1, "lower", how)


def step_figures(rounds: int, cache: Path) -> dict[str, Figure]:
    program = [str(EXAMPLE), "--steps", "2", "--workers", "0"]

    def described(found: Times, what: str) -> str:
        spent = found["step"][1] - found["torch"][1]
        return f"{what}; the rank's processor time {spent:.2f} s, load {os.getloadavg()[0]:.1f}"

    cold = in_rank(program, cache)
    warm = min((in_rank(program, cache) for _ in range(rounds)), key=lambda each: each["step"])
    said = f"quietest of {rounds} runs, compiled before"
    return {
        "torch_first_step_cold": Figure(
            cold["step"][0], "s", 60.0, "lower", described(cold, "nothing compiled")
        ),
        "torch_first_step_warm": Figure(warm["step"][0], "s", 3.0, "lower", described(warm, said)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.pytorch_start", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only shows that it works")
    parser.add_argument("--only", default="import,step")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    rounds, machine, figures = 1 if options.quick else 5, report.machine(), dict[str, Figure]()
    try:
        with tempfile.TemporaryDirectory(prefix="rf-cache-") as cache:
            if "import" in options.only:
                figures["torch_import_ratio"] = import_figure(rounds, Path(cache))
            if "step" in options.only:
                figures |= step_figures(rounds, Path(cache))
        print(report.table(figures))
    finally:
        print(report.write("torch-start", machine, figures, options.out))


if __name__ == "__main__":
    main()
