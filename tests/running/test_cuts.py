"""Consistent cuts of running jobs, asked at 200 seeded moments.

At a cut all ranks have issued and completed the same collectives, nothing is in flight, and the
program cannot tell. The moments are random; that enough of them fall inside communicator
initialisation (a job is started anew for every few cuts) and inside collectives that overlap with
other work, is counted.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold.paths import REPOSITORY
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

GPT = REPOSITORY / "examples/gpt/train_gpt.cu"


@dataclass(frozen=True)
class Subject:
    """A program; do all of its ranks issue the same collectives? `at_least`: so many cuts have to
    be asked while ranks are like that (see `moment`)."""

    source: Path
    arguments: list[str]
    ranks: int
    same_collectives: bool
    at_least: dict[str, int] = field(default_factory=dict)


SUBJECTS = [
    Subject(PROGRAMS / "mlp_sharded.cu", ["40"], 4, True, {"joining": 3}),
    Subject(PROGRAMS / "conv_mixed.cu", ["25"], 3, True, {"joining": 3}),
    Subject(PROGRAMS / "subgroups.cu", ["30"], 4, False, {"joining": 3}),
    Subject(PROGRAMS / "ring.cu", ["40"], 3, False, {"joining": 3}),
    Subject(GPT, ["--steps", "12"], 2, True, {"in collectives": 10}),
]
CUTS = 40
CUTS_PER_RUN = 8
JOIN_APART_MS = 40


@dataclass(frozen=True)
class Look:
    """The devices' report on a job: whether collectives are in progress, and for each rank whether
    it is inside communicator initialisation and how many collectives it has completed."""

    busy: bool
    joining: frozenset[int]
    completed: dict[int, int]


def look(job: RunningJob) -> Look:
    text = "".join(job.fleet.debug_text(device) for device in job.devices)
    found = re.findall(r"^rank (\d+):.* joining (\d+), collectives (\d+)", text, re.MULTILINE)
    return Look(
        "collectives busy" in text,
        frozenset(int(rank) for rank, joining, _ in found if int(joining)),
        {int(rank): int(completed) for rank, _, completed in found},
    )


def moment(before: Look, behind: Look) -> str:
    """The job's state between two looks, as far as they show it."""
    if before.joining & behind.joining:
        return "joining"
    if before.busy and behind.busy and before.completed == behind.completed:
        return "in collectives"
    return "elsewhere"


def check_cut(job: RunningJob, same_collectives: bool) -> None:
    """Checks the invariants of a cut in the devices' reports."""
    rounds, collectives = set(), set()
    for device in job.devices:
        (told,) = [j for j in job.fleet.status(device)["jobs"] if j["job"] == job.name]
        assert told["state"] == "cut"
        dump = job.fleet.debug_text(device)
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


def has_ended(job: RunningJob) -> bool:
    return any(job.exit_status(rank) is not None for rank in range(job.world_size))


def cut_again_and_again(job: RunningJob, chance: random.Random, subject: Subject) -> list[str]:
    """Cuts one job until it ends: in which moments. Half of the cuts continue in place, half
    elsewhere."""
    moments: list[str] = []
    if "joining" in subject.at_least and chance.random() < 0.5:
        until(lambda: look(job).joining or lines(job), what="a rank joins, or has long done so")
    while len(moments) < CUTS_PER_RUN:
        time.sleep(chance.choice([0.0, 0.001, 0.003, 0.01, 0.03]))  # the moment is what is tested
        if has_ended(job):
            return moments
        printed, before = lines(job), look(job)
        job.request_barrier([chance.choice(job.devices)])
        at = moment(before, look(job))
        try:
            job.reach_cut()
        except AssertionError:
            if not has_ended(job):
                raise
            # It ended meanwhile: no rank is left to stop. A lost request would show here.
            assert lines(job) - printed <= lines(job) // 8, "it ran on, though it was to stop"
            return moments
        check_cut(job, subject.same_collectives)
        moments.append(at)
        if chance.random() < 0.5:
            job.request(job.devices[0], "barrier", action="withdraw")
        else:
            job.detach()
            job.place([chance.choice(job.fleet.names) for _ in range(job.world_size)])
    return moments


@pytest.mark.usual("train_gpt")
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.source.stem)
def test_a_cut_at_any_moment(state: State, subject: Subject) -> None:
    program, ranks = build(subject.source), subject.ranks
    command = [str(program), *subject.arguments]
    if subject.source == GPT:
        command += ["--data", str(REPOSITORY / "examples/gpt/text/genesis.txt")]
    chance = random.Random(subject.source.stem)
    asked: Counter[str] = Counter()
    runs = 0
    reference: list[str] | None = None
    with Fleet(state, 2, memory=128 * MiB) as fleet:
        while reference is None or asked.total() < CUTS or not asked >= Counter(subject.at_least):
            # The first run is the undisturbed one.
            placement = [rank % 2 for rank in range(ranks)]
            # On a busy machine a look takes longer than what is looked for.
            env = {"JOIN_APART_MS": str(JOIN_APART_MS << min(runs // 8, 6))}
            job = fleet.start(f"run-{runs}", command, placement, env)
            if reference is not None:
                asked.update(cut_again_and_again(job, chance, subject))
            assert job.wait() == [0] * ranks, [job.errors(rank) for rank in range(ranks)]
            outputs = [job.output(rank) for rank in range(ranks)]
            reference = reference or outputs
            assert outputs == reference
            job.detach(discard=True)
            runs += 1
            assert runs < 4 * CUTS, f"the jobs end before they can be cut: {asked}"
    print(f"{runs} runs, cuts asked {dict(asked)}")
