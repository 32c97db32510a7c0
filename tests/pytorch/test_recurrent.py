"""Recurrent networks: cuDNN's are refused with what to do instead, and PyTorch's own are served."""

from __future__ import annotations

from pathlib import Path

import pytest
from guests.runner import Place, moved
from guests.table import Guest

from support.command import Rankfold, Specs
from support.leaks import State

PROGRAM = Path(__file__).with_name("recurrent.py")
REMEDY = "torch.backends.cudnn.enabled = False makes PyTorch use its own kernels"
RECURRENT = Guest(
    "torch-recurrent",
    "tests/pytorch/recurrent.py",
    ("60",),
    ranks=2,
    lines=20,
    interpreter="build/torch/python",
    capability="9.0",
    memory="1GiB",
)


@pytest.mark.torch
def test_cudnns_are_refused_with_a_remedy(torch: Path, rankfold: Rankfold) -> None:
    options = ["--world-size", "1", "--max-restarts", "0"]
    done = rankfold.run("run", *options, "--", str(torch), str(PROGRAM), "cudnn")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    named = "rankfold: cudnnCreateDropoutDescriptor: not supported by rankfold on this device; "
    assert f"{named}{REMEDY}" in lines
    (raised,) = (line for line in lines if line.startswith("RuntimeError: cuDNN error: "))
    assert REMEDY in raised


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_pytorchs_own_give_the_same_bits_when_they_are_moved(
    torch: Path, state: State, rankfold: Rankfold, specs: Specs
) -> None:
    place = Place(RECURRENT, state, rankfold, specs)
    expected = place.undisturbed()
    assert all("as on the CPU\n0 " in printed for printed in expected.printed)
    assert moved(place) == expected
