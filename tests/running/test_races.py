"""A program is told which of its accesses nothing orders; one without races hears nothing."""

from __future__ import annotations

import re

import cuda
import pytest

from rankfold.paths import REPOSITORY
from support import guest
from support.command import Rankfold
from support.leaks import State

RANGE = re.compile(r"0x([0-9a-f]+) to 0x([0-9a-f]+)")


@pytest.fixture
def rankfold(state: State) -> Rankfold:
    return Rankfold(state, guest.job_environment(HOME=str(state.folder), PYTHONPATH=""))


def reports(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if line.startswith("rankfold: race: ")]


@pytest.mark.parametrize(
    ("asked", "verdicts"), [("--check-order", {"race"}), ("--possible-races", {"race", "may"})]
)
def test_each_race_is_told_and_nothing_else(
    rankfold: Rankfold, asked: str, verdicts: set[str]
) -> None:
    program = cuda.build(cuda.PROGRAMS / "races.cu")
    done = rankfold.run("run", "--world-size", "1", "--name", "job", asked, "--", str(program))
    assert done.returncode == 0, done.stderr
    cases = {}
    for line in done.stdout.splitlines():
        verdict, name, begin, end = line.split()
        cases[name] = (verdict, int(begin, 16), int(end, 16))
    racing: set[str] = set()
    for told in reports(done.stderr):
        there = [
            {name for name, (_v, begin, end) in cases.items() if begin <= int(low, 16) < end}
            for low, _high in RANGE.findall(told)
        ]
        assert len(there) == 2 and there[0] == there[1] and len(there[0]) == 1, told
        assert not there[0] & racing, told
        racing |= there[0]
    assert racing == {name for name, (verdict, *_rest) in cases.items() if verdict in verdicts}
    job = rankfold.job("job")
    condition = next(c for c in job["conditions"] if c["type"] == "Races")
    assert condition["reason"] == "AccessesNotOrdered" and "rank 0: " in condition["message"]
    assert len(re.findall(r"\bRace\b", rankfold("events"))) == len(racing)
    rankfold.end()


def test_parameters_that_are_gathered_while_they_are_updated(rankfold: Rankfold) -> None:
    """ZeRO-1 as llm.c has it; the step's five launches and gatherings are one pair."""
    run = ["run", "--world-size", "2", "--gpus", "1", "--name", "zero", "--check-order", "--"]
    program = [str(cuda.build(cuda.PROGRAMS / "zero.cu")), "4"]
    done = rankfold.run(*run, *program)
    told = sorted(reports(done.stderr))
    assert done.returncode == 0 and len(told) == 2, done.stderr
    for rank, each in enumerate(told):
        assert each.startswith(f"rankfold: race: rank {rank}: kernel "), each
        assert "update" in each and "writes" in each and "ncclAllGather" in each, each
    done = rankfold.run(*run, *program, "ordered")
    assert done.returncode == 0 and not reports(done.stderr), done.stderr
    rankfold.end()


@pytest.mark.parametrize("asked", ["--check-order", "--possible-races"])
def test_who_trains_without_races_hears_nothing(rankfold: Rankfold, asked: str) -> None:
    gpt = REPOSITORY / "examples/gpt"
    train = [str(cuda.build(gpt / "train_gpt.cu")), "--steps", "2", "--data",
             str(gpt / "text/genesis.txt"), "--out", f"{rankfold.state.folder}/params"]  # fmt: skip
    sharded = [str(cuda.build(cuda.PROGRAMS / "mlp_sharded.cu")), "4"]
    for program in (train, sharded):
        done = rankfold.run("run", "--world-size", "2", "--name", "job", asked, "--", *program)
        assert done.returncode == 0 and not reports(done.stderr), done.stderr
    rankfold.end()


def test_who_does_not_ask_hears_nothing(rankfold: Rankfold) -> None:
    program = cuda.build(cuda.PROGRAMS / "races.cu")
    done = rankfold.run("run", "--world-size", "1", "--name", "job", "--", str(program))
    assert done.returncode == 0 and not reports(done.stderr)
    assert "Races" not in {c["type"] for c in rankfold.job("job")["conditions"]}
    rankfold.end()
