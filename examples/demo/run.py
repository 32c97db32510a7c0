"""One run of the job: starts the fleet, follows the job, and makes the planned changes.

A change is committed when the job has made one of `parts` equal parts of its steps since the
previous change completed; one that resumes the job, as soon as the fleet reports that it is
suspended. After the last change the job is saved; some steps later every process of the fleet is
killed at once, and `rankfold watch` is started again.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .fleet import Fleet, FleetError, Json, Repository
from .verdict import parse_line, to_float

JOB = "gpt"
WORLD_SIZE = 4
POLL_S = 0.05  # between reads of the ranks' output
STATUS_S = 0.2  # between queries of the fleet
CRASH_AFTER = 10  # steps after the checkpoint
STALL_S = 120.0  # without any progress for so long, the run fails
COMPILING_S = (
    600.0  # the same before the first step: the largest kernels take 12 s of CPU time each
)


@dataclass(frozen=True)
class Change:
    """A commit: the fields that it sets in the job's file, and the resulting number of devices."""

    title: str
    fields: dict[str, str]
    gpus: int  # 0: suspended


CHANGES = (
    Change("fold onto one device", {"gpus": "1"}, 1),
    Change("spread over two", {"gpus": "2"}, 2),
    Change("back to four", {"gpus": "4"}, 4),
    Change("three, which does not divide four", {"gpus": "3"}, 3),
    Change("suspend", {"suspend": "true"}, 0),
    Change("resume", {"suspend": "false"}, 3),
)


@dataclass(frozen=True)
class Sample:
    """The fleet's status at a time (seconds since the start of the run)."""

    time: float
    phase: str
    placement: dict[int, str]
    status: Json


@dataclass(frozen=True)
class Committed:
    """A committed change, its time, and the number of steps of the slowest rank."""

    change: Change
    commit: str
    time: float
    step: int


@dataclass(frozen=True)
class Recovery:
    """A crash, and its cost."""

    checkpoint: str  # its ID
    killed: int  # processes
    time: float  # when they were killed
    step: int  # printed by the slowest rank
    again: int  # repeated steps, excluding those that were never seen
    seconds: float  # from the crash until each rank had printed something new


@dataclass
class Record:
    """Everything that was observed during a run."""

    steps: int
    samples: list[Sample] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    losses: dict[int, list[float]] = field(default_factory=dict)  # step → of each rank
    step_times: list[float] = field(default_factory=list)  # when all ranks had printed it
    settled: list[tuple[float, dict[int, str]]] = field(default_factory=list)  # since when, where
    compiled: int = 0  # kernels in the cache
    steps_while_suspended: int = 0
    recovery: Recovery | None = None
    seconds: float = 0.0  # since the first commit

    @property
    def last(self) -> Sample:
        return self.samples[-1]

    def job(self) -> Json:
        return job_of(self.last.status)


Show = Callable[[Record, str], None]  # the record so far, and a line to keep, or ""


def job_of(status: Json) -> Json:
    """The demo's job in a status; {} before it is known."""
    return next((job for job in status["jobs"] if job["name"] == JOB), {})


class Run:
    """Follows one run in `folder`. Writes only below that folder."""

    def __init__(
        self,
        folder: Path,
        specs: Path,
        command: Sequence[str],
        steps: int,
        show: Show,
        parts: int = 12,
    ):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder, self.show = folder, show
        self._between = steps // parts  # steps from one change to the next
        self.repository = Repository(folder / "fleet", specs)
        self.repository.edit(
            "gpt.yaml",
            {
                "command": json.dumps([*command, "--steps", str(steps), "--out", "params"]),
                "workdir": f'"{folder}"',
            },
        )
        self.fleet = Fleet(folder / "state", folder / "watch.log")
        self.record = Record(steps)
        self._offsets = [0] * WORLD_SIZE
        self._printed = [0] * WORLD_SIZE  # steps
        self._moved_at = 0.0  # when something last changed
        self._cache = Path(os.environ.get("RANKFOLD_CACHE") or self.fleet.state / "cache/kernels")
        self._asker = ThreadPoolExecutor(1)  # queries the fleet without blocking the loop
        self._answer: Future[Json] | None = None
        self._answered_at = float("-inf")

    def go(self, changes: tuple[Change, ...], crash: bool = False) -> Record:
        """Run from the first commit to the last rank's end. Raises FleetError if it fails.

        `crash`: kill everything after the last change.
        """
        self._start = time.monotonic()
        self.repository.commit(f"gpt on {WORLD_SIZE} devices")
        with self._asker, self.fleet.watching(self.repository.path):
            self._until(lambda: self._steps() >= 1 and self._placed(), "the first step")
            self.record.settled.append((self.record.step_times[0], self.record.last.placement))
            for change in changes:
                self._make(change)
            if crash:
                self._crash()
            self._until(lambda: self._phase() == "Succeeded", "the end of the job")
            self._read_output()
            self.record.seconds = self._now()
        for rank in range(WORLD_SIZE):
            shutil.copyfile(self.fleet.output(JOB, rank), self.folder / f"rank-{rank}.out")
        return self.record

    # ---- changes

    def _make(self, change: Change) -> None:
        before = self._steps()
        if self._phase() != "Suspended":
            self._until(lambda: self._steps() >= before + self._between, "some steps")
        if self._steps() >= self.record.steps:
            raise FleetError("the job ended before all changes were made: give it more --steps")
        self.repository.edit("gpt.yaml", change.fields)
        commit = self.repository.commit(f"gpt: {change.title}")
        made = Committed(change, commit, self._now(), self._steps())
        self.record.committed.append(made)
        self._tell(f"step {made.step}: commit {commit[:8]}, {change.title}")
        self._until(lambda: self._converged(len(self.record.committed)), change.title)
        cost = job_of(self.record.last.status)["changes"][-1]
        self.record.settled.append((made.time + cost["converge_s"], self.record.last.placement))
        where = f"on {change.gpus} of 4 devices" if change.gpus else "suspended in memory"
        self._tell(
            f"step {self._steps()}: {where}; paused for {cost['pause_s']:.3f} s, "
            f"{cost['converge_s']:.2f} s after the commit"
        )
        if change.gpus == 0:
            self._rest()

    def _converged(self, count: int) -> bool:
        changes = self.record.job().get("changes", [])
        return len(changes) >= count and changes[-1]["converge_s"] is not None

    def _rest(self) -> None:
        """Check that nothing moves while suspended: counts output over two status replies."""
        before, count = sum(self._printed), len(self.record.samples)
        self._until(lambda: len(self.record.samples) >= count + 2, "two answers of the fleet")
        self.record.steps_while_suspended += sum(self._printed) - before

    # ---- the crash

    def _crash(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            saving = pool.submit(self.fleet.checkpoint, JOB)
            self._until(saving.done, "the checkpoint")
            saving.result()
        self._until(lambda: bool(self.record.job().get("checkpoints")), "the checkpoint's ID")
        saved = self.record.job()["checkpoints"][-1]["id"]
        before = self._steps()
        self._tell(f"step {before}: checkpoint {saved} is in the store")
        self._until(lambda: self._steps() >= before + CRASH_AFTER, "some steps")
        if self._answer:  # the running query would be killed, too
            self._note(self._answer.result())
            self._answer = None
        lines, at = self._lines(), self._now()
        killed = self.fleet.crash()
        self._tell(f"step {min(lines)}: killed all {killed} processes with -9")
        self.fleet.continues(self.repository.path)
        least = lines

        def continues() -> bool:
            nonlocal least
            now = self._lines()
            least = list(map(min, least, now))
            restarted = self.record.job().get("restarts", 0) > 0 and self._placed()
            return restarted and all(n > least[rank] for rank, n in enumerate(now))

        self._until(continues, "the restart")
        again = max(was - now for was, now in zip(lines, least, strict=True))
        self.record.recovery = Recovery(
            saved, killed, at, min(lines), again, round(self._now() - at, 3)
        )
        self.record.settled += [(at, {}), (self._now(), self.record.last.placement)]
        self._tell(
            f"step {min(least)}: continues from checkpoint {saved}, {self._now() - at:.1f} s "
            f"after the crash; {again} steps are made again"
        )

    def _lines(self) -> list[int]:
        """The number of lines in each rank's present output: a restart truncates it."""
        return [
            self.fleet.output(JOB, rank).read_bytes().count(b"\n") for rank in range(WORLD_SIZE)
        ]

    # ---- observation

    def _now(self) -> float:
        return time.monotonic() - self._start

    def _steps(self) -> int:
        return min(self._printed)

    def _phase(self) -> str:
        return self.record.last.phase if self.record.samples else "Pending"

    def _tell(self, line: str) -> None:
        self.show(self.record, line)

    def _until(self, done: Callable[[], bool], what: str) -> None:
        self._moved_at = self._now()
        while not done():
            self._look()
            if self._phase() == "Failed":
                raise FleetError(f"the job failed: {self._complaint()}")
            allowed = STALL_S if self.record.step_times else COMPILING_S
            if self._now() - self._moved_at > allowed:
                raise FleetError(
                    f"waiting for {what}, nothing changed for {allowed:g} s: {self._complaint()}"
                )
            time.sleep(POLL_S)

    def _look(self) -> None:
        self._read_output()
        if not self.record.step_times:  # the first step waits for the compiler
            compiled = sum(1 for _ in self._cache.glob("*/*"))
            if compiled != self.record.compiled:
                self.record.compiled, self._moved_at = compiled, self._now()
        if self._answer and self._answer.done():
            self._note(self._answer.result())
            self._answer, self._answered_at = None, self._now()
        elif not self._answer and self._now() - self._answered_at >= STATUS_S:
            self._answer = self._asker.submit(self.fleet.status)
        self.record.seconds = self._now()
        self._tell("")

    def _note(self, status: Json) -> None:
        job = job_of(status)
        placement = {int(rank): device for rank, device in job.get("placement", {}).items()}
        sample = Sample(self._now(), job.get("phase", "Pending"), placement, status)
        if not self.record.samples or self.record.last.phase != sample.phase:
            self._moved_at = self._now()
        self.record.samples.append(sample)

    def _placed(self) -> bool:
        return bool(self.record.samples) and len(self.record.last.placement) == WORLD_SIZE

    def _read_output(self) -> None:
        """Read the complete new lines of every rank."""
        for rank in range(WORLD_SIZE):
            path = self.fleet.output(JOB, rank)
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[rank])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[rank] += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                self._take(rank, line)

    def _take(self, rank: int, line: str) -> None:
        parsed = parse_line(line)
        if parsed is None:
            raise FleetError(f"rank {rank} printed {line!r}")
        step, bits = parsed
        losses = self.record.losses.setdefault(step, [])
        losses.append(to_float(bits))
        if len(losses) == WORLD_SIZE:
            self.record.step_times.append(self._now())
        self._printed[rank] += 1
        self._moved_at = self._now()

    def _complaint(self) -> str:
        """A description of a failure, for the user."""
        conditions = self.record.job().get("conditions", []) if self.record.samples else []
        said = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions]
        for rank in range(WORLD_SIZE):
            path = self.fleet.output(JOB, rank, "err")
            if path.exists() and (text := path.read_text(errors="replace").strip()):
                said.append(f"rank {rank}: {text[-500:]}")
        said.append(f"all files are in {self.folder}")
        return "\n  ".join(said)
