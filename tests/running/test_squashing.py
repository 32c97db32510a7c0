"""Promise: folded programs share what their ranks hold alike and update it once for all of them,
and compute the same bits as with a device for each rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold.paths import REPOSITORY
from support.fleet import Fleet, MiB
from support.leaks import State

GPT = REPOSITORY / "examples/gpt/train_gpt.cu"
MLP = REPOSITORY / "benchmarks/splicing_mlp.cu"
UPDATES = 3  # kernels of a step of the GPT that write parameters and moments, one for each bucket


def run(
    state: State, source: Path, arguments: list[str], where: list[int]
) -> tuple[list[str], int]:
    """The output of each rank, and the number of kernels that were squashed."""
    with Fleet(state, devices=max(where) + 1, memory=256 * MiB) as fleet:
        placement = [fleet.names[device] for device in where]
        name = f"{source.stem.replace('_', '-')}-{len(set(where))}"
        job = fleet.start(name, [str(build(source)), *arguments], placement, workdir=source.parent)
        assert job.wait() == [0] * len(where), job.errors(0)
        squashed = sum(fleet.status(each)["squashed"] for each in fleet.names)
        printed = [job.output(rank) for rank in range(len(where))]
        job.detach(discard=True)
    return printed, squashed


@pytest.mark.usual("gpt")
@pytest.mark.parametrize(
    ("source", "arguments", "least"),
    [
        (GPT, ["--steps", "4"], 2 * UPDATES),
        (MLP, ["6", "8", "0", "256", "1024", "256"], 4),  # one for each step
        (PROGRAMS / "mlp_sharded.cu", ["12"], 0),  # each rank updates a part of its own
    ],
    ids=["gpt", "mlp", "mlp-sharded"],
)
def test_folded_is_unfolded(state: State, source: Path, arguments: list[str], least: int) -> None:
    apart, none = run(state, source, arguments, [0, 1])
    assert none == 0
    folded, squashed = run(state, source, arguments, [0, 0])
    assert folded == apart
    assert squashed >= least
