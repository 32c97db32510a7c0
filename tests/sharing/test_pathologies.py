"""Jobs whose ranks are not quite alike compute the same bits wherever their ranks are.

Each kind of job (tests/programs/pathologies.cu) runs with a device per rank, where nobody can share
anything with anybody; with all ranks on one device, which does not hold them at once; and on two
with room for all, from where it is moved to one and to all.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import cuda
import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

RANKS, STEPS, HALF = 4, 8, 4
WIDE, ONE, TWO = [0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 0, 1]
# Whether all ranks have the same parameters to the end, or until when.
ALIKE = {
    "plain": STEPS, "scaled": 0, "every_third": 2, "skipped": 3, "random": 0,
    "local_norm": HALF + 1, "found_inf": HALF, "pointers": HALF, "printing": STEPS,
    "statistics": STEPS, "host_copy": HALF, "allocations": STEPS, "changed": HALF,
    "beside": STEPS, "past": STEPS, "astray": STEPS, "subgroup": 0, "meeting": STEPS,
    "buckets": STEPS, "fault": STEPS - 1,
}  # fmt: skip
# Whose updates run once for all ranks as long as these are alike; and whose ranks never come to the
# same again when they no longer are. Of others some ranks do, or nothing of them can be squashed.
TOGETHER = (
    "plain", "local_norm", "statistics", "host_copy", "allocations", "changed", "meeting",
    "buckets", "fault",
)  # fmt: skip
APART = (
    "scaled", "every_third", "random", "local_norm", "pointers", "host_copy", "changed", "subgroup",
)  # fmt: skip
FAST = ("host_copy", "beside", "buckets")  # the others take as long each


@pytest.fixture(autouse=True)
def compare_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_VALIDATE", "1")


def program() -> Path:
    return cuda.build(cuda.PROGRAMS / "pathologies.cu")


def parameters(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.split()[2:3] == ["parameters"]]


def ended(job: RunningJob) -> list[str]:
    """What the ranks printed, after checking that all ended well."""
    for rank, status in enumerate(job.wait()):
        assert status == 0, f"rank {rank}: {job.errors(rank)}"
    compared(job)
    job.detach(discard=True)
    return [job.output(rank) for rank in range(RANKS)]


def compared(job: RunningJob) -> None:
    """What its versions say is equal was looked at, and is."""
    told = [job.fleet.status(device) for device in job.devices]
    assert all(each["checked"] for each in told)
    assert not any(each["alarms"] for status in told for each in status["jobs"])


def over(job: RunningJob) -> bool:
    return any(job.exit_status(rank) is not None for rank in range(RANKS))


def move(job: RunningJob, steps: int, placement: list[int]) -> None:
    """When all have done so many steps."""
    until(lambda: over(job) or all(len(parameters(job.output(r))) >= steps for r in range(RANKS)),
          90, f"{steps} steps of {job.name}")  # fmt: skip
    assert not over(job), "it was faster than its mover"
    job.move([job.fleet.names[device] for device in placement])


def counted(kind: str, job: RunningJob) -> None:
    """Of a job on one device: its proxy's counters say that its ranks shared, and no longer than
    they were alike."""
    shared, squashed, over = 0, None, False
    while not over:
        over = all(job.exit_status(rank) is not None for rank in range(RANKS))
        unlike = all(len(parameters(job.output(r))) >= ALIKE[kind] + 2 for r in range(RANKS))
        status = job.fleet.status(job.devices[0])
        shared = max(shared, status["shared"])
        squashed = status["squashed"] if unlike and squashed is None else squashed
        time.sleep(0.01)
    if kind in TOGETHER:
        assert shared >= MiB and status["spared"] > 0
        assert status["squashed"] >= RANKS - 1
    if kind in APART:
        assert squashed in (None, status["squashed"])
        assert status["copies"] > 0
    ranks = next(each["ranks"] for each in status["jobs"] if each["job"] == job.name)
    assert sum(rank["squashed"] for rank in ranks) == status["squashed"]


def as_it_is(kind: str, outputs: list[str]) -> None:
    """The ranks differ when they should, or the job is not what it is called."""
    alike = next((k for k, lines in enumerate(zip(*map(parameters, outputs), strict=False))
                  if len(set(lines)) > 1), STEPS - (kind == "fault"))  # fmt: skip
    assert alike == ALIKE[kind]


def marks(kind: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (kind not in FAST)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind)) for kind in ALIKE])
def test_same_bits_wherever_the_ranks_are(kind: str, state: State) -> None:
    command = [str(program()), str(STEPS), kind]
    with Fleet(state, RANKS, memory=64 * MiB) as fleet:
        expected = ended(fleet.start("wide", command, WIDE))
        as_it_is(kind, expected)
        folded = fleet.start("folded", command, ONE)
        counted(kind, folded)
        assert ended(folded) == expected
    with Fleet(state, RANKS, memory=256 * MiB) as fleet:
        moved = fleet.start("moved", command, TWO)
        move(moved, 2, ONE)
        move(moved, 5, WIDE)
        assert ended(moved) == expected


OPAQUE_FAST = ("plain",)


def opaque(kinds: tuple[str, ...]) -> list[Any]:
    return [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in kinds)) for kind in ALIKE]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", opaque(OPAQUE_FAST))
def test_opaque_code_gives_the_same_bits_or_somebody_hears(
    kind: str, every: int, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of its kernels is hidden. Where each launch is measured, nothing is trusted."""
    command = [str(program()), str(STEPS), kind]
    with Fleet(state, RANKS, memory=64 * MiB) as fleet:
        expected = ended(fleet.start("wide", command, WIDE))
    monkeypatch.setenv("RANKFOLD_OPAQUE", "1")
    monkeypatch.setenv("RANKFOLD_VALIDATE", str(every))
    with Fleet(state, RANKS, memory=256 * MiB) as fleet:
        folded = fleet.start("folded", command, ONE)
        for rank, status in enumerate(folded.wait()):
            assert status == 0, f"rank {rank}: {folded.errors(rank)}"
        told = fleet.status(folded.devices[0])
        (job,) = told["jobs"]
        assert job["guard"]["measured"] > 0
        if kind == "plain" and every > 1:
            assert job["guard"]["alike"] > 0 and told["squashed"] >= 3 * (RANKS - 1)
        folded.detach(discard=True)
        same = [folded.output(rank) for rank in range(RANKS)] == expected
    heard = [text for text in job["alarms"] if text.startswith("opaque code: ")]
    assert same or heard
    assert every > 1 or not heard
