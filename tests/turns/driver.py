"""Programs of ranks that share memory (support/shared_programs.py) in an order that is drawn: of
what they post, of turns of the loop, of what the device does, and of time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import cycle

from hypothesis import strategies as st

from support import shared_programs as shared
from support.devices import Devices, only_saved
from support.ring_client import DEVICE_SYNC
from support.shared_programs import (
    BEGINNING,
    BUFFERS,
    KERNELS,
    VARIABLES,
    Op,
    Program,
    Rank,
    Step,
    programs,
)

from .world import JOB, Library, World, world

US, MS = 1000, 1_000_000
TIMES = (0, 100 * US, 300 * US, 1500 * US, 25 * MS, 300 * MS, 31_000 * MS)


@dataclass(frozen=True)
class Move:
    """`count` times what `kind` says: "post", "turn", "step" (of the device), "wait", or "cut": the
    job stops, and continues when it has. `which`: a rank, a queue or a time."""

    kind: str
    which: int = 0
    count: int = 1


def schedules(longest: int) -> st.SearchStrategy[list[Move]]:
    moves = st.one_of(
        st.builds(Move, st.just("post"), st.integers(0, 3), st.integers(1, 6)),
        st.builds(Move, st.just("turn"), st.just(0), st.integers(1, 4)),
        st.builds(Move, st.just("step"), st.integers(0, 11), st.integers(1, 4)),
        st.builds(Move, st.just("wait"), st.integers(0, len(TIMES) - 1)),
        st.builds(Move, st.sampled_from(["turn"] * 7 + ["cut"])),
    )
    return st.lists(moves, min_size=16, max_size=longest)


@dataclass(frozen=True)
class Setting:
    """The features and settings of the device."""

    beneath: bool = True
    quantum_ns: int = 0


settings = st.builds(
    Setting, st.sampled_from([True, True, False]), st.sampled_from([0, 0, 1500 * US])
)


def twisted(longest: int) -> st.SearchStrategy[Program]:
    """Programs in which more often a rank does nearly the same as the others."""
    twists = st.tuples(
        st.integers(0, longest), st.integers(0, 3), st.sampled_from(["nothing", "value", "out"])
    )
    return st.builds(_twist, programs(longest), st.lists(twists, max_size=5))


def _twist(program: Program, twists: list[tuple[int, int, str]]) -> Program:
    steps = list(program.steps)
    for at, rank, how in twists:
        step = steps[at % len(steps)]
        if step.op.kind not in (*KERNELS, "fill"):
            continue
        other = {
            "nothing": None,
            "value": replace(step.op, value=step.op.value + 1),
            "out": replace(step.op, out=(step.op.out + 1) % len(BUFFERS)),
        }[how]
        steps[at % len(steps)] = Step(step.op, rank, other)
    return replace(program, steps=steps)


class Driver(shared.Driver):
    """`posted` counts actions. Each is made when the schedule says so, which is gone through again
    and again."""

    def __init__(self, here: World, ranks: list[Rank], schedule: list[Move]) -> None:
        super().__init__(Devices([here.native], [here.told]), ranks, [])
        self.world, self.length = here, len(schedule)
        self.moves = cycle(schedule)
        self.posted = 0

    def post_all(self) -> None:
        while any(rank.actions or rank.waits for rank in self.ranks):
            before = self.posted
            for _ in range(self.length):
                self.make(next(self.moves))
            if self.posted == before:
                self.continue_somehow()
        if self.cutting:
            self.world.until_state("cut")
            self.cut()

    def make(self, move: Move) -> None:
        for _ in range(move.count):
            match move.kind:
                case "post":
                    self.post_next(self.ranks[move.which % len(self.ranks)])
                case "turn":
                    self.world.turn()
                    self.look()
                case "step":
                    self.world.step(move.which)
                case "wait":
                    self.world.wait(TIMES[move.which])
                    self.world.native.hurry(JOB)
                case "cut" if not self.cutting:
                    self.cutting = "cut"
                    self.world.native.barrier(JOB, True)
        if self.cutting:
            self.cut()

    def post_next(self, rank: Rank) -> None:
        if rank.actions and not rank.waits:
            rank.waits = rank.actions.pop(0)()
            self.posted += 1

    def look(self) -> None:
        for rank in self.ranks:
            if rank.waits and rank.waits():
                rank.waits = None

    def continue_somehow(self) -> None:
        """No one has posted anything for long: who can does. If none can, all that some wait for
        must have come."""
        posted = self.posted
        self.world.settle()
        self.look()
        for rank in self.ranks:
            self.post_next(rank)
        if self.cutting and self.posted == posted:
            self.world.until_state("cut")
            self.cut()
            return
        waits = any(rank.waits for rank in self.ranks)
        assert not waits or self.posted > posted, f"they wait\n{self.world.native.debug_text()}"

    def cut(self) -> None:
        native = self.world.native
        status = native.job_status(JOB)
        if not status or status["state"] != "cut":
            return
        saves, self.cutting = self.cutting == "save", ""
        if saves:
            self.save()
        native.barrier(JOB, False)
        for rank in self.ranks:
            rank.client.ring()

    def save(self) -> None:
        assert self.world.native.job_save(JOB)
        self.world.settle()
        assert [event.text for event in only_saved(self.world.told)][self.saves :] == [""]
        self.compare()
        self.saves += 1

    def finish(self) -> None:
        """Each has what it would have alone; the counts are right."""
        alive = [rank for rank in self.ranks if not rank.ended]
        for rank in alive:
            assert rank.client.call(DEVICE_SYNC) == 0
        for rank in alive:
            rank.check()


@dataclass(frozen=True)
class Found:
    """`kernels` were launched, `ran` of them on the device; `squashed` also counts copies and
    fills."""

    kernels: int
    ran: int
    squashed: int
    let_go: int


def check(
    library: Library, program: Program, schedule: list[Move], setting: Setting = Setting()
) -> Found:
    """Runs it, and compares what each rank reads and leaves with what it would alone."""
    with world(library, program.ranks, VARIABLES, program.chunks, **asdict(setting)) as here:
        ranks = [Rank(client) for client in here.clients]
        for rank in ranks:
            rank.load()
        assert [client.finish() for client in here.clients] == [0] * len(ranks)
        driver = Driver(here, ranks, schedule)
        driver.run(BEGINNING + program.steps)
        if program.ends:
            if any(step.op.kind == "reduce" for step in program.steps):
                driver.run([Step(Op("sync"))])  # no rank calls a collective with an exited one
            driver.end(*program.ends)
            driver.run(program.tail)
        driver.finish()
        status = here.native.status()
        found = Found(
            status["kernels"],
            here.device.kernels,
            status["squashed"],
            here.lib.turns_let_go(here.native._proxy),
        )
        if not program.ends:
            assert found.kernels == sum(rank.launches for rank in ranks)
        assert 0 <= found.kernels - found.ran <= found.squashed
        for rank in ranks:
            if here.native.rank_status(JOB, rank.client.rank):
                here.native.rank_exited(JOB, rank.client.rank, shared.CLEAN)
        here.settle()
        assert here.native.status()["used"] == len(here.device.content) == 0
    return found
