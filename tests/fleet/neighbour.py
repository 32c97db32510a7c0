"""A running job whose bits are known: what must continue, whatever happens next to it or to it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs
from support.fleet import Fleet, MiB
from support.leaks import State

NAME = "neighbour"
PERIOD = 16  # of tests/programs/until_told.cu


@dataclass
class Neighbour:
    """``until_told`` as a job of the fleet, described in its specs."""

    rankfold: Rankfold
    specs: Specs
    program: Path
    ranks: int = 2
    name: str = NAME
    told: Path = field(init=False)

    def __post_init__(self) -> None:
        self.told = self.specs.folder / f"told-{self.name}"

    def describe(self, gpus: int | str = 1, extra: str = "") -> None:
        command = [str(self.program), str(self.told)]
        self.specs.program(command, self.name, gpus, extra, self.ranks)

    def apply(self, gpus: int | str = 1, extra: str = "") -> None:
        """Bring the whole fleet to what is described, with the neighbour on `gpus` devices."""
        self.describe(gpus, extra)
        self.rankfold("apply", "-f", str(self.specs.folder), "--wait")

    def pids(self) -> list[int]:
        return [rank["pid"] for rank in self.rankfold.job(self.name)["ranks"]]

    def devices(self) -> set[str]:
        return set(self.rankfold.job(self.name).get("placement", {}).values())

    def lines(self, rank: int) -> list[str]:
        """Whole lines that a rank has printed."""
        path = Layout(self.rankfold.state.path).logs(self.name) / f"rank-{rank}.out"
        text = path.read_text() if path.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def printed(self) -> int:
        """Lines of the rank that is furthest behind."""
        return min(len(self.lines(rank)) for rank in range(self.ranks))

    def continues(self, steps: int = PERIOD) -> None:
        """Wait until every rank has done so many more steps."""
        seen = self.printed()
        self.rankfold.until(lambda: self.printed() >= seen + steps)

    def finish(self) -> None:
        """Let it end, and compare all it ever printed with an undisturbed run."""
        self.continues()
        self.told.touch()
        self.rankfold.until(lambda: self.rankfold.job(self.name)["phase"] == "Succeeded")
        self.check()

    def check(self) -> None:
        expected = undisturbed(self.rankfold.state, self.program, self.ranks)
        for rank in range(self.ranks):
            assert len(expected[rank]) == PERIOD
            found = self.lines(rank)
            assert found == list(itertools.islice(itertools.cycle(expected[rank]), len(found)))


_outputs: dict[tuple[Path, int], list[list[str]]] = {}


def undisturbed(state: State, program: Path, ranks: int) -> list[list[str]]:
    """One period of what each rank prints when each has a device and nothing disturbs them.

    Asked of devices without a reconciler, once per run of the tests.
    """
    if (program, ranks) not in _outputs:
        folder = state.folder / f"undisturbed-{ranks}"
        (folder / "state").mkdir(parents=True)
        own = State(folder, folder / "state", state.runtime, state.watch)
        with Fleet(own, ranks, memory=64 * MiB) as fleet:
            job = fleet.start("plain", [str(program), "/"], list(range(ranks)))
            assert job.wait() == [0] * ranks, job.errors(0)
            job.detach(discard=True)
            _outputs[program, ranks] = [job.output(rank).splitlines() for rank in range(ranks)]
    return _outputs[program, ranks]
