"""Jobs that move to other devices, so that a node or domain has enough free ones: those whose
pauses add up to the least time.

The search is exact as long as it takes at most STEPS_MAX steps for a node or domain; then it keeps
the best that it has found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from rankfold.policy.places import Places, Units
from rankfold.policy.vocabulary import Job

STEPS_MAX = 2000

Parts = list[tuple[int, int]]  # groups, and how many free devices of each
Cost = tuple[float, int, int]  # seconds of pauses, jobs, devices


class Mover(Struct, frozen=True, eq=False):
    """A job that may be moved.

    own: its devices; has: how many of these each group has.
    seconds: for which it stands still; 0 if it does so already.
    units: the groups of each node or domain in which it may be.
    """

    job: Job
    own: tuple[int, ...]
    has: Counter[int]
    seconds: float
    units: Units

    @property
    def kind(self) -> tuple[object, ...]:
        """Movers of one kind can be exchanged."""
        return (self.seconds, tuple(sorted(self.has.items())), self.units)


class Way(Struct, frozen=True):
    """moves: jobs that move, each with the groups of the devices that it gets in place of those
    that it gives up."""

    moves: list[tuple[Mover, Parts]]
    cost: Cost


def make_way(
    places: Places,
    movers: Sequence[Mover],
    leave: frozenset[int],
    missing: int,
    free: Mapping[int, int],
    better_than: Cost | None = None,
) -> Way | None:
    """The moves that make `missing` more devices of the groups `leave` free; None if there are
    none, or none that are better than others. free: numbers of free devices of the groups from
    which jobs may get some, without those of `leave`."""
    return _Search(places, movers, leave, free, better_than).found(missing)


class _Search:
    """Branch and bound over the jobs, those with the shortest pause per device first."""

    def __init__(
        self,
        places: Places,
        movers: Sequence[Mover],
        leave: frozenset[int],
        free: Mapping[int, int],
        best: Cost | None,
    ):
        self._places, self._leave, self._free, self._best = places, leave, free, best
        found = [(mover, sum(mover.has[at] for at in leave)) for mover in movers]
        self._movers = sorted(
            (each for each in found if each[1]),
            key=lambda each: (each[0].seconds / each[1], -each[1]),
        )
        self._way: Way | None = None
        self._steps = 0

    def found(self, missing: int) -> Way | None:
        left = [0]
        for _, gives in reversed(self._movers):
            left.append(left[-1] + gives)
        self._left = left[::-1]  # devices that a mover and all after it give up
        self._choose(0, [], missing, (0.0, 0, 0))
        return self._way

    def _choose(self, at: int, chosen: list[Mover], missing: int, cost: Cost) -> None:
        self._steps += 1
        if missing <= 0:
            if (self._best is None or cost < self._best) and (moves := self._place(chosen)):
                self._best, self._way = cost, Way(moves, cost)
            return
        if self._left[at] < missing or self._steps > STEPS_MAX:
            return
        mover, gives = self._movers[at]
        least = (cost[0] + missing * mover.seconds / gives, cost[1] + 1, cost[2] + 1)
        if self._best is not None and least >= self._best:
            return
        more = (cost[0] + mover.seconds, cost[1] + 1, cost[2] + gives)
        self._choose(at + 1, [*chosen, mover], missing - gives, more)
        kind = mover.kind
        while at < len(self._movers) and self._movers[at][0].kind == kind:
            at += 1
        self._choose(at, chosen, missing, cost)

    def _place(self, chosen: Sequence[Mover]) -> list[tuple[Mover, Parts]] | None:
        """A place for each of these jobs at once; those that can go to the fewest come first."""
        order = sorted(chosen, key=lambda each: (-len(each.units), -len(each.own)))
        return self._place_from(order, 0, dict(self._free))

    def _place_from(
        self, order: Sequence[Mover], at: int, free: dict[int, int]
    ) -> list[tuple[Mover, Parts]] | None:
        if at == len(order):
            return []
        for parts in self._ways(order[at], free):
            self._steps += 1
            left = dict(free)
            for group, number in parts:
                left[group] -= number
            if (rest := self._place_from(order, at + 1, left)) is not None:
                return [(order[at], parts), *rest]
            if self._steps > STEPS_MAX:
                return None
        return None

    def _ways(self, mover: Mover, free: Mapping[int, int]) -> Iterator[Parts]:
        """The places to which a job can go, the one that has the fewest free devices first."""
        found = []
        for at, unit in enumerate(mover.units):
            groups = [group for group in unit if group not in self._leave]
            need = len(mover.own) - sum(mover.has[group] for group in groups)
            there = [group for group in groups if group in free]
            if need <= (most := sum(free[group] for group in there)):
                found.append((need, most, at, there))
        for need, _, _, there in sorted(found):
            yield self._places.best_fit(there, need, lambda group: free[group])
