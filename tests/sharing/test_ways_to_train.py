"""Programs that train as many do compute the same bits wherever their ranks are, and share.

three_ways.cu: data, tensor and pipeline parallel, so only replicas share, in the midst of a
pipeline. amp.cu: mixed precision, whose update depends on flags and scales on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import cuda
import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

SECONDS = 240.0
THREE_WAYS, AMP = 8, 4  # ranks


@dataclass(frozen=True)
class Case:
    name: str
    placement: list[int]  # of each rank: its device
    memory: int = 512 * MiB  # of each device
    moves: list[list[int]] = field(default_factory=list)  # one behind each second step

    @property
    def ranks(self) -> int:
        return len(self.placement)

    @property
    def program(self) -> str:
        return "three_ways" if self.ranks == THREE_WAYS else "amp"


FAST = [
    Case("pipeline-on-one-device", [0] * THREE_WAYS),
    Case("amp-on-one-device", [0] * AMP),
]
SLOW = [
    Case("pipeline-with-little-memory", [0] * THREE_WAYS, 64 * MiB),
    Case("replicas-together", [0, 1] * 4),
    Case("replicas-apart", [0, 0, 1, 1] * 2),
    Case("a-device-for-each-stage", [0] * 4 + [1] * 4, 128 * MiB),
    Case("pipeline-moved", [0, 1, 2, 3] * 2, moves=[[0] * 8, list(range(8))]),
    Case("amp-with-little-memory", [0] * AMP, 48 * MiB),
    Case("amp-on-two-devices", [0, 1] * 2),
    Case("amp-moved", [0, 0, 1, 1], moves=[[0] * AMP, list(range(AMP))]),
]


@pytest.fixture(autouse=True)
def compare_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_VALIDATE", "1")


def steps(job: RunningJob) -> int:
    """That all ranks have done."""
    return min(job.output(rank).count("parameters") for rank in range(job.world_size))


def printed(case: Case, fleet: Fleet, name: str) -> list[str]:
    """The output of each rank. In a folded case, checks that the ranks have shared."""
    ranks = case.ranks
    program = cuda.build(cuda.PROGRAMS / f"{case.program}.cu")
    job = fleet.start(name, [str(program), "8"], case.placement)
    for number, placement in enumerate(case.moves):
        until(lambda: steps(job) > 2 * number, SECONDS, f"{name}: step {2 * number}")  # noqa: B023
        job.move([fleet.names[device] for device in placement])
    for rank, status in enumerate(job.wait(SECONDS)):
        assert status == 0, f"rank {rank}: {job.errors(rank)}"
    told = [fleet.status(device) for device in job.devices]
    assert all(each["checked"] and not each["unforeseen"] for each in told)
    assert not any(job["alarms"] for each in told for job in each["jobs"])
    if not case.moves and case.placement[0] == case.placement[2]:  # replicas, in both programs
        assert sum(each["squashed"] for each in told) >= ranks
    job.detach(discard=True)
    return [job.output(rank) for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)],
    ids=[case.name for case in FAST + SLOW],
)
@pytest.mark.timeout(600)
def test_same_bits_wherever_the_ranks_are(case: Case, state: State) -> None:
    wide = Case("wide", list(range(case.ranks)))
    with Fleet(state, case.ranks, memory=case.memory) as fleet:
        expected = printed(wide, fleet, "wide")
        folded = printed(case, fleet, "folded")
    assert folded == expected
    assert all(text.count("parameters") == 8 for text in expected)


@pytest.mark.slow
def test_only_replicas_have_the_same_parameters(state: State) -> None:
    """Checks that three_ways.cu trains in three ways."""
    with Fleet(state, THREE_WAYS) as fleet:
        outputs = printed(Case("wide", list(range(THREE_WAYS))), fleet, "wide")
    parameters = [[line for line in text.splitlines() if "parameters" in line] for text in outputs]
    assert len({tuple(each) for each in parameters}) == 4
    for rank in (0, 1, 4, 5):
        assert parameters[rank] == parameters[rank + 2]
