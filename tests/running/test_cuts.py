"""Consistent cuts of running jobs, asked at 200 seeded moments.

At a cut all ranks have issued and completed the same collectives, nothing is in flight, and the
program cannot tell. The moments fall anywhere: inside overlapped buckets, between a group's
records, and (a job is started anew for every few cuts) inside communicator initialisation.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold.paths import REPOSITORY
from support.fleet import Fleet, MiB, RunningJob
from support.leaks import State

GPT = REPOSITORY / "examples/gpt/train_gpt.cu"
# program, its arguments, ranks, do all ranks issue the same collectives?
SUBJECTS: list[tuple[Path, list[str], int, bool]] = [
    (PROGRAMS / "mlp_sharded.cu", ["40"], 4, True),
    (PROGRAMS / "conv_mixed.cu", ["25"], 3, True),
    (PROGRAMS / "subgroups.cu", ["30"], 4, False),
    (PROGRAMS / "ring.cu", ["40"], 3, False),
    (GPT, ["--steps", "12"], 2, True),
]
CUTS = 40
CUTS_PER_RUN = 8


def check_cut(job: RunningJob, same_collectives: bool) -> None:
    """What must hold at a cut, as the devices tell it."""
    rounds, collectives = set(), set()
    for device in job.devices:
        (told,) = [j for j in job.fleet.status(device)["jobs"] if j["job"] == job.name]
        assert told["state"] == "cut"
        dump = job.fleet.dump(device)
        for line in dump.splitlines():
            if line.startswith("job "):
                rounds.add(line.split("round ")[1].split()[0])
                assert line.endswith("collectives quiet"), dump
            if line.startswith("rank "):
                assert "items 0, replies 0, pending 0, inflight 0" in line, dump
        running = [rank for rank in told["ranks"] if rank["state"] == "attached"]
        collectives |= {rank["collectives"] for rank in running}
    assert len(rounds) == 1
    if same_collectives:
        assert len(collectives) <= 1, collectives


def lines(job: RunningJob) -> int:
    return sum(job.output(rank).count("\n") for rank in range(job.world_size))


def cut_again_and_again(job: RunningJob, chance: random.Random, same: bool, most: int) -> int:
    """Cuts one job until it ends: how often. Half of the cuts go on in place, half elsewhere."""
    for count in range(most):
        time.sleep(chance.choice([0.0, 0.001, 0.003, 0.01, 0.03]))  # the moment is what is tested
        if any(job.exit_status(rank) is not None for rank in range(job.world_size)):
            return count
        printed = lines(job)
        try:
            job.stop([chance.choice(job.devices)])
        except AssertionError:
            if any(job.exit_status(rank) is None for rank in range(job.world_size)):
                raise
            # It ended meanwhile, there is nobody to stop. A request that was lost would show here.
            assert lines(job) - printed <= lines(job) // 8, "it ran on, though it was to stop"
            return count
        check_cut(job, same)
        if chance.random() < 0.5:
            job.ask(job.devices[0], "barrier", action="withdraw")
        else:
            job.detach()
            job.place([chance.choice(job.fleet.names) for _ in range(job.world_size)])
    return most


@pytest.mark.parametrize(
    ("source", "arguments", "ranks", "same"), SUBJECTS, ids=[s[0].stem for s in SUBJECTS]
)
def test_a_cut_at_any_moment(
    state: State, source: Path, arguments: list[str], ranks: int, same: bool
) -> None:
    program = build(source)
    command = [str(program), *arguments]
    if source == GPT:
        command += ["--data", str(REPOSITORY / "examples/gpt/text/genesis.txt")]
    chance = random.Random(source.stem)
    cuts = runs = 0
    reference: list[str] | None = None
    with Fleet(state, 2, memory=128 * MiB) as fleet:
        while cuts < CUTS or reference is None:
            # The first run is the undisturbed one.
            placement = [rank % 2 for rank in range(ranks)]
            job = fleet.start(f"run-{runs}", command, placement)
            if reference is not None:
                cuts += cut_again_and_again(job, chance, same, CUTS_PER_RUN)
            assert job.wait() == [0] * ranks, [job.errors(rank) for rank in range(ranks)]
            outputs = [job.output(rank) for rank in range(ranks)]
            reference = reference or outputs
            assert outputs == reference
            job.detach(discard=True)
            runs += 1
            assert runs < 4 * CUTS, "the jobs end before they can be cut"
