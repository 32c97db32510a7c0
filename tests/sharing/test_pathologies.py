"""Jobs whose ranks are not quite alike compute the same bits wherever their ranks are.

Each kind of job (tests/programs/pathologies.cu) runs with a device per rank, where no rank can
share anything; with two ranks on each of two devices, which do not hold both at once; with all
ranks on one device, which does not either; and on two with room for all, from where it is moved to
one and to all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuda
import pytest

from rankfold.control import Message
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

RANKS, STEPS, HALF, CLIPPED = 4, 8, 4, 37
WIDE, ONE, TWO = [0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 0, 1]
# Whether all ranks have the same parameters to the end, or until when.
ALIKE = {
    "plain": STEPS,
    "scaled": 0,
    "every_third": 2,
    "skipped": 3,
    "random": 0,
    "local_norm": CLIPPED,
    "found_inf": HALF,
    "pointers": HALF,
    "printing": STEPS,
    "statistics": STEPS,
    "host_copy": HALF,
    "allocations": STEPS,
    "changed": HALF,
    "adjacent": STEPS,
    "past": STEPS,
    "scattered": STEPS,
    "subgroup": 0,
    "meeting": STEPS,
    "buckets": STEPS,
    "fault": STEPS - 1,
}
# Programs that update once for all ranks as long as the ranks are equal, and whose ranks never
# become equal again.
TOGETHER = (
    "plain",
    "skipped",
    "local_norm",
    "statistics",
    "host_copy",
    "allocations",
    "changed",
    "meeting",
    "buckets",
    "fault",
)
APART = (
    "scaled",
    "every_third",
    "random",
    "local_norm",
    "pointers",
    "host_copy",
    "changed",
    "subgroup",
)
# Programs that repeat every step in each rank, though their ranks have equal parameters for long.
ALONE = {
    "found_inf": "whether it updates at all is read from a flag that is each rank's own",
    "printing": "what runs once for all prints one line, not one for each",
    "adjacent": "where the parameters end, what is the rank's own is in the same chunk",
    "past": "what each writes may be in the velocity, and in what is next to it",
    "scattered": "so it may, wherever it goes",
}
FOR_ONE = {"allocations": 44, "changed": 40}  # MiB: one rank, and not two; the others have 32
SECONDS = 240.0
TRIES = 3  # on a busy machine a rank runs alone because others do not wait long for it
FAST = ("host_copy", "adjacent", "buckets")  # the others take as long each


@pytest.fixture(autouse=True)
def compare_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_VALIDATE", "1")


def program() -> Path:
    return cuda.build(cuda.PROGRAMS / "pathologies.cu")


def parameters(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.split()[2:3] == ["parameters"]]


def ended(job: RunningJob) -> list[str]:
    """The output of each rank, after checking that all exited with 0."""
    for rank, status in enumerate(job.wait(SECONDS)):
        assert status == 0, f"rank {rank}: {job.errors(rank)}"
    compared(job)
    job.detach(discard=True)
    return [job.output(rank) for rank in range(RANKS)]


def compared(job: RunningJob) -> None:
    """Content with equal versions was compared, and is equal."""
    told = [job.fleet.status(device) for device in job.devices]
    assert all(each["checked"] for each in told)
    assert not any(each["alarms"] for status in told for each in status["jobs"])


def over(job: RunningJob) -> bool:
    return any(job.exit_status(rank) is not None for rank in range(RANKS))


def move(job: RunningJob, steps: int, placement: list[int]) -> None:
    """When all have done so many steps."""
    until(
        lambda: over(job) or all(len(parameters(job.output(r))) >= steps for r in range(RANKS)),
        SECONDS,
        f"{steps} steps of {job.name}",
    )
    assert not over(job), "it was faster than its mover"
    job.move([job.fleet.names[device] for device in placement])


def steps_of(kind: str) -> int:
    return CLIPPED + 5 if kind == "local_norm" else STEPS


class Held:
    """A job of one device whose ranks stop before some of their steps, to be looked at."""

    def __init__(self, job: RunningJob, folder: Path, steps: int):
        self.job, self.folder, self.steps = job, folder, steps
        self.shared = 0

    def after(self, steps: int) -> Message:
        """The proxy's status when all ranks have done `steps` steps, before any rank does
        another."""
        if steps < self.steps:
            until(lambda: self.seen(steps) or over(self.job), SECONDS, f"{steps} steps")
            assert self.seen(steps), "it has ended"
            status = self.job.fleet.status(self.job.devices[0])
            (self.folder / str(steps)).unlink()
            return status
        until(
            lambda: (
                self.seen(0)
                and all(self.job.exit_status(rank) is not None for rank in range(RANKS))
            ),
            SECONDS,
            "the end",
        )
        return self.job.fleet.status(self.job.devices[0])

    def seen(self, steps: int) -> bool:
        self.shared = max(self.shared, self.job.fleet.status(self.job.devices[0])["shared"])
        return all(len(parameters(self.job.output(rank))) >= steps for rank in range(RANKS))


def looked_at(kind: str) -> list[int]:
    """After which steps: before and after the ranks are unlike, or what they do is."""
    alike, steps = ALIKE[kind], steps_of(kind)
    at = {1, steps}
    if kind in TOGETHER:
        at.add(alike)
    if kind in APART or kind == "skipped":
        at.add(alike + (3 if kind == "skipped" else 2))
    return sorted(at)


def counted(kind: str, job: RunningJob, folder: Path) -> bool:
    """Checks, by the proxy's counters, that the ranks of a job on one device shared, and only while
    they were equal. Returns False if they rarely came to a step together."""
    held, alike, steps = Held(job, folder, steps_of(kind)), ALIKE[kind], steps_of(kind)
    at = {each: held.after(each) for each in looked_at(kind)}
    status = at[steps]
    done = {each: told["squashed"] for each, told in at.items()}
    well = kind not in TOGETHER or done[alike] - done[1] >= RANKS - 1
    assert held.shared >= MiB and status["spared"] > 0
    if kind == "skipped":  # the one that left out an update is not as the others any more
        assert status["copies"] > 0
        assert done[steps] - done[alike + 3] <= (RANKS - 2) * (steps - alike - 3)
        well = well and done[steps] > done[alike + 3]
    if kind in APART:
        assert done[steps] == done[alike + 2]
        assert status["copies"] > 0
    if kind in ALONE:
        assert done[steps] == done[1], ALONE[kind]
        assert status["copies"] > at[1]["copies"]
    if kind == "scattered":  # each rank in each step
        assert status["unforeseen"] >= RANKS * steps
    elif kind != "pointers":
        assert status["unforeseen"] == 0
    ranks = next(each["ranks"] for each in status["jobs"] if each["job"] == job.name)
    assert sum(rank["squashed"] for rank in ranks) == status["squashed"]
    return well


def as_it_is(kind: str, outputs: list[str]) -> None:
    """The ranks differ when they should, or the job is not what it is called."""
    alike = next(
        (
            k
            for k, lines in enumerate(zip(*map(parameters, outputs), strict=False))
            if len(set(lines)) > 1
        ),
        steps_of(kind) - (kind == "fault"),
    )
    assert alike == ALIKE[kind]


def folded_well(
    kind: str, command: list[str], expected: list[str], state: State, folder: Path
) -> bool:
    """With all ranks on a device, bits and counts are right. False: as `counted`."""
    folder.mkdir()
    for step in looked_at(kind)[:-1]:
        (folder / str(step)).touch()
    with Fleet(state, 1, memory=64 * MiB) as fleet:
        job = fleet.start(f"folded-{folder.name}", [*command, str(folder)], ONE)
        well = counted(kind, job, folder)
        assert ended(job) == expected
    return well


def on_two(kind: str, fleet: Fleet, command: list[str], expected: list[str]) -> None:
    """With two ranks on each of two devices, which do not hold both at once, bits are right."""
    assert ended(fleet.start("two", command, TWO)) == expected
    for told in (fleet.status(each) for each in fleet.names[:2]):
        assert told["squashed"] > 0 and told["spared"] > 0
        assert told["copies"] > 0 or kind not in ("host_copy", "buckets", "subgroup")


def marks(kind: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (kind not in FAST)


@pytest.mark.usual("adjacent")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind)) for kind in ALIKE])
@pytest.mark.timeout(600)
def test_same_bits_wherever_the_ranks_are(kind: str, state: State, tmp_path: Path) -> None:
    command = [str(program()), str(steps_of(kind)), kind]
    with Fleet(state, RANKS, memory=FOR_ONE.get(kind, 32) * MiB) as fleet:
        expected = ended(fleet.start("wide", command, WIDE))
        as_it_is(kind, expected)
        assert not any(fleet.status(each)["squashed"] for each in fleet.names)
        on_two(kind, fleet, command, expected)
    assert any(folded_well(kind, command, expected, state, tmp_path / f"{n}") for n in range(TRIES))
    with Fleet(state, RANKS, memory=256 * MiB) as fleet:
        moved = fleet.start("moved", command, TWO)
        move(moved, 2, ONE)
        move(moved, max(5, min(ALIKE[kind], steps_of(kind) - 3)), WIDE)
        assert ended(moved) == expected


OPAQUE_FAST = ("plain",)


def opaque(kinds: tuple[str, ...]) -> list[Any]:
    return [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in kinds)) for kind in ALIKE]


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", opaque(OPAQUE_FAST))
def test_opaque_code_gives_the_same_bits_or_raises_an_alarm(
    kind: str, every: int, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The knowledge of its kernels is hidden. If each launch is measured, nothing is trusted."""
    command = [str(program()), str(steps_of(kind)), kind]
    with Fleet(state, RANKS, memory=64 * MiB) as fleet:
        expected = ended(fleet.start("wide", command, WIDE))
    monkeypatch.setenv("RANKFOLD_OPAQUE", "1")
    monkeypatch.setenv("RANKFOLD_VALIDATE", str(every))
    with Fleet(state, RANKS, memory=256 * MiB) as fleet:
        folded = fleet.start("folded", command, ONE)
        for rank, status in enumerate(folded.wait(SECONDS)):
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
