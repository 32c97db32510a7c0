"""The trainings that the demo can run: their desired state, their programs, their lengths."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .fleet import FleetError

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "examples/gpt/text/genesis.txt"
PROGRAM = ROOT / "build/examples/train_gpt"
TORCH = ROOT / "build/torch/python"


@dataclass(frozen=True)
class Training:
    """A program that `command` starts, and the folder `specs` with the job that it is.

    Its options --steps and --out, and what it prints and writes, are those of examples/gpt.
    """

    source: str  # its folder
    specs: Path
    command: tuple[str, ...]
    steps: int
    least_steps: int
    parts: int  # a change comes after so many steps: steps // parts
    out: Path
    build: Callable[[], None]  # raises FleetError


def build_gpt() -> None:
    """Build the program in CUDA C++, with any available CUDA compiler."""
    done = subprocess.run(
        [
            "make",
            "--no-print-directory",
            "-C",
            "examples/gpt",
            "NVCC=../../tools/nvcc",
            "ARCH=compute_75",
            f"OUT=../../{PROGRAM.relative_to(ROOT)}",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise FleetError(f"examples/gpt does not build:\n{done.stdout}")


def need_torch() -> None:
    """Check that PyTorch can be imported."""
    if not TORCH.exists():
        raise FleetError(f"{TORCH.relative_to(ROOT)} is missing: `make torch` prepares PyTorch")
    done = subprocess.run([TORCH, "-c", "import torch"], capture_output=True, text=True)
    if done.returncode:
        raise FleetError(f"PyTorch cannot be imported; try `make torch`:\n{done.stderr}")


TRAININGS = {
    "gpt": Training(
        source="examples/gpt",
        specs=ROOT / "specs",
        command=(str(PROGRAM), "--data", str(TEXT)),
        steps=300,
        least_steps=50,
        parts=12,
        out=ROOT / "build/demo",
        build=build_gpt,
    ),
    "torch": Training(
        source="examples/torch",
        specs=ROOT / "examples/torch/fleet",
        command=(str(TORCH), str(ROOT / "examples/torch/train_gpt.py"), "--data", str(TEXT)),
        steps=400,
        least_steps=200,
        parts=40,  # the job is to run until 3 GB of it are in the store
        out=ROOT / "build/demo-torch",
        build=need_torch,
    ),
}
