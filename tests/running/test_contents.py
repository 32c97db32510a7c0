"""Promise: what ranks' versions call equal is equal, byte for byte, in programs that really run."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold.paths import REPOSITORY
from support.contents import Image, check_equal_versions, images
from support.fleet import Fleet, MiB, until
from support.leaks import State

GPT = REPOSITORY / "examples/gpt/train_gpt.cu"
CUTS = 4


def run_with_cuts(fleet: Fleet, source: Path, arguments: list[str], placement: list[int]) -> None:
    """Images are compared at each; then it continues anywhere."""
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


@pytest.mark.usual("conv_mixed-arguments1-3", "train_gpt-arguments5-2")
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


PARAMETERS = 430_592  # bytes; as many gradients, first and second moments


@pytest.mark.slow
def test_replicas_of_the_gpt_are_known_to_hold_the_same(
    state: State,
) -> None:
    """It updates its parameters bucket by bucket, while gradients of others are averaged. Tokens
    lead where gradients of the embedding go: so a fence is needed, which is where ranks share."""
    with Fleet(state, devices=2, memory=256 * MiB) as fleet:
        job = fleet.start(
            "gpt", [str(build(GPT)), "--steps", "60"], fleet.names[:2], workdir=GPT.parent
        )
        seen = 0
        until(lambda: "step 3 " in job.output(0), 120, "three steps")
        for _ in range(CUTS):
            time.sleep(0.2)
            if any(job.exit_status(rank) is not None for rank in range(2)):
                break
            job.stop()
            job.save()
            with images(job.folder) as found:
                seen += known_equal(*found) if len(found) == 2 else 0
            job.detach()
            job.place(fleet.names[:2])
        assert job.wait() == [0, 0], job.errors(0)
        job.detach(discard=True)
        assert seen


def known_equal(one: Image, other: Image) -> int:
    """Checks that shared content of replicas has equal versions, too. Returns the number of its
    buffers."""
    seen = 0
    for at, size in one.buffers:
        if size != PARAMETERS or one.read(at, size) != other.read(at, size):
            continue  # gradients of their own
        assert one.content(at, size) == other.content(at, size), hex(at)
        seen += any(run.period == 0 for run in one.content(at, size))
    return seen
