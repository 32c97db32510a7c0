"""The elastic runtime with tensors on a GPU: of a software GPU, with PyTorch's own kernels, in a
process that uses the device as any program does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support.command import Rankfold

HERE = Path(__file__).parent
WORLD = 3
OPTIONS = ("--compute-capability", "9.0", "--gpus", "1", "--memory", "512MiB")
LINES = 6 * 4 * WORLD


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_logical_workers_have_the_bits_of_gloo_with_tensors_on_the_device(
    torch: Path, rankfold: Rankfold, tmp_path: Path
) -> None:
    """A run that was killed has them when it continues from the state that it has saved."""
    train = [str(HERE / "elastic_train.py"), str(REPOSITORY)]
    rankfold.environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    command = ["run", *OPTIONS, "--world-size", str(WORLD), "--", str(torch), *train]
    stock = sorted(line.partition("] ")[2] for line in rankfold(*command).splitlines())
    assert len(stock) == LINES
    for folder, options, ends in (
        ("whole", [], [([], 0)]),
        ("killed", ["--checkpoint-every", "1"], [(["kill"], 137), ([], 0)]),
    ):
        for number, (arguments, status) in enumerate(ends):
            run = [str(HERE / "elastic_run.py"), str(REPOSITORY), "run", "--world", str(WORLD)]
            run += ["--gpus", "0", "--state", str(tmp_path / folder), *options]
            run += ["--resume"] * number
            command = ["run", *OPTIONS, "--world-size", "1", "--", str(torch), *run, *train]
            rankfold(*command, *arguments, code=status)
        logs = sorted((tmp_path / folder).glob("rank-*.out"))
        found = sorted(line for log in logs for line in log.read_text().splitlines())
        assert found == stock, folder
