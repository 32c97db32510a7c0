"""A program is told which of its accesses nothing orders, and a program without races hears nothing.
"""

from __future__ import annotations

import re

import cuda
import pytest

from support import guest
from support.command import Rankfold
from support.leaks import State

RANGE = re.compile(r"0x([0-9a-f]+) to 0x([0-9a-f]+)")


@pytest.fixture
def rankfold(state: State) -> Rankfold:
    return Rankfold(state, guest.job_environment(HOME=str(state.folder), PYTHONPATH=""))


def reports(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if line.startswith("rankfold: race: ")]


def test_each_race_is_told_and_nothing_else(rankfold: Rankfold) -> None:
    program = cuda.build(cuda.PROGRAMS / "races.cu")
    done = rankfold.run("run", "--world-size", "1", "--name", "races", "--check-order", "--",
                        str(program))  # fmt: skip
    assert done.returncode == 0, done.stderr
    cases = {}
    for line in done.stdout.splitlines():
        verdict, name, begin, end = line.split()
        cases[name] = (verdict, int(begin, 16), int(end, 16))
    racing = set()
    for told in reports(done.stderr):
        there = [
            {name for name, (_v, begin, end) in cases.items() if begin <= int(low, 16) < end}
            for low, _high in RANGE.findall(told)
        ]
        assert len(there) == 2 and there[0] == there[1] and len(there[0]) == 1, told
        assert not there[0] & racing, told
        racing |= there[0]
    assert racing == {name for name, (verdict, *_rest) in cases.items() if verdict == "race"}
    job = rankfold.job("races")
    condition = next(c for c in job["conditions"] if c["type"] == "Races")
    assert condition["reason"] == "AccessesNotOrdered" and "rank 0: " in condition["message"]
    assert len(re.findall(r"\bRace\b", rankfold("events"))) == len(racing)
    rankfold.end()


def test_who_does_not_ask_hears_nothing(rankfold: Rankfold) -> None:
    program = cuda.build(cuda.PROGRAMS / "races.cu")
    done = rankfold.run("run", "--world-size", "1", "--", str(program))
    assert done.returncode == 0 and "race" not in done.stderr
    rankfold.end()
