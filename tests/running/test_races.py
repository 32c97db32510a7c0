"""A program gets a report which of its accesses nothing orders; one without races hears nothing."""

from __future__ import annotations

import re

import cuda
import pytest
from running.test_programs import CASES, Case

from rankfold.paths import REPOSITORY
from support.command import Rankfold, job_environment
from support.leaks import State
from support.patience import scaled

RANGE = re.compile(r"0x([0-9a-f]+) to 0x([0-9a-f]+)")


@pytest.fixture
def rankfold(state: State) -> Rankfold:
    return Rankfold(state, job_environment(HOME=str(state.folder), PYTHONPATH=""))


def run(rankfold: Rankfold, *arguments: str, ranks: int = 1) -> tuple[str, str]:
    """Runs a job, which must succeed, and returns its stdout and stderr. A GPT takes long."""
    process = rankfold.start("run", "--world-size", str(ranks), "--name", "job", *arguments)
    out, errors = process.communicate(timeout=scaled(400.0))
    assert process.returncode == 0, errors
    return out, errors


def reports(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if line.startswith("rankfold: race: ")]


@pytest.mark.usual("--possible-races-verdicts1")
@pytest.mark.parametrize(
    ("asked", "verdicts"), [("--check-order", {"race"}), ("--possible-races", {"race", "may"})]
)
def test_each_race_is_reported_and_nothing_else(
    rankfold: Rankfold, asked: str, verdicts: set[str]
) -> None:
    program = cuda.build(cuda.PROGRAMS / "races.cu")
    out, errors = run(rankfold, asked, "--", str(program))
    cases = {}
    for line in out.splitlines():
        verdict, name, begin, end = line.split()
        cases[name] = (verdict, int(begin, 16), int(end, 16))
    racing: set[str] = set()
    for told in reports(errors):
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


@pytest.mark.slow
def test_parameters_that_are_gathered_while_they_are_updated(rankfold: Rankfold) -> None:
    """ZeRO-1 as llm.c has it; the step's five launches and gatherings are one pair."""
    program = [str(cuda.build(cuda.PROGRAMS / "zero.cu")), "4"]
    _out, errors = run(rankfold, "--gpus", "1", "--check-order", "--", *program, ranks=2)
    told = sorted(reports(errors))
    assert len(told) == 2, errors
    for rank, each in enumerate(told):
        assert each.startswith(f"rankfold: race: rank {rank}: kernel "), each
        assert "update" in each and "writes" in each and "ncclAllGather" in each, each
    program.append("ordered")
    _out, errors = run(rankfold, "--gpus", "1", "--check-order", "--", *program, ranks=2)
    assert not reports(errors), errors
    rankfold.end()


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["--check-order", "--possible-races"])
def test_a_training_without_races_reports_none(rankfold: Rankfold, asked: str) -> None:
    gpt = REPOSITORY / "examples/gpt"
    train = [
        str(cuda.build(gpt / "train_gpt.cu")),
        "--steps",
        "2",
        "--data",
        str(gpt / "text/genesis.txt"),
        "--out",
        f"{rankfold.state.folder}/params",
    ]
    sharded = [str(cuda.build(cuda.PROGRAMS / "mlp_sharded.cu")), "4"]
    for program in (train, sharded):
        _out, errors = run(rankfold, asked, "--", *program, ranks=2)
        assert not reports(errors), errors
    rankfold.end()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_hear_nothing(rankfold: Rankfold, case: Case) -> None:
    memory = str(case.capacity or case.memory * case.world_size)
    options = ["--gpus", "1", "--memory", memory, "--check-order"]
    _out, errors = run(rankfold, *options, "--", *case.command(), ranks=case.world_size)
    assert not reports(errors), errors
    rankfold.end()


def test_races_are_not_reported_without_the_option(rankfold: Rankfold) -> None:
    program = cuda.build(cuda.PROGRAMS / "races.cu")
    _out, errors = run(rankfold, "--", str(program))
    assert not reports(errors)
    assert "Races" not in {c["type"] for c in rankfold.job("job")["conditions"]}
    rankfold.end()
