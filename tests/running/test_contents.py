"""Promise: what ranks' versions call equal is equal, byte for byte, in programs that really run."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold.paths import REPOSITORY
from support.contents import check_equal_versions, images
from support.fleet import Fleet, MiB
from support.leaks import State

GPT = REPOSITORY / "examples/gpt/train_gpt.cu"
CUTS = 4


def run_with_cuts(fleet: Fleet, source: Path, arguments: list[str], placement: list[int]) -> None:
    """Images are compared at each; then it goes on anywhere."""
    chance = random.Random(f"{source.name}{placement}")
    job = fleet.start(
        source.stem, [str(build(source)), *arguments], placement, workdir=source.parent
    )
    for _ in range(CUTS):
        time.sleep(chance.uniform(0.02, 0.4))  # the moment is what is tested
        if any(job.exit_status(rank) is not None for rank in range(job.world_size)):
            break
        job.stop()
        job.save()
        with images(job.folder) as found:
            gone = any(job.exit_status(rank) is not None for rank in range(job.world_size))
            assert gone or len(found) == job.world_size
            check_equal_versions(found)
        job.detach()
        job.place([chance.choice(fleet.names) for _ in placement])
    assert job.wait() == [0] * job.world_size, job.errors(0)
    job.detach(discard=True)


@pytest.mark.parametrize(
    ("source", "arguments", "ranks"),
    [
        (PROGRAMS / "mlp_sharded.cu", ["40"], 4),
        (PROGRAMS / "conv_mixed.cu", ["25"], 3),
        (PROGRAMS / "subgroups.cu", ["30"], 4),
        (PROGRAMS / "ring.cu", ["40"], 3),
        (PROGRAMS / "mlp_blas.cu", [], 2),
        (GPT, ["--steps", "12"], 2),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else None,
)
def test_equal_versions_are_equal_bytes(
    state: State, source: Path, arguments: list[str], ranks: int
) -> None:
    with Fleet(state, devices=2, memory=256 * MiB) as fleet:
        run_with_cuts(fleet, source, arguments, [rank % 2 for rank in range(ranks)])
