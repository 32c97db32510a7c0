"""Devices that jobs give up for jobs that wait.

An elastic job has a guarantee; the devices that it has beyond that are on loan. A job that lacks
devices gets them from as few jobs as possible, and only if that is enough for it to be placed.
Elastic jobs are shrunk first, those of its own level and of lower ones; then jobs of lower
precedence are suspended (precedence.py). Both are done in the same order: the lowest level first,
then the lowest priority, then the job that is the furthest ahead of its fraction, then the one
that stands still for the shortest time, then the last in line. Each keeps a number of devices with
which it is worth running (sizes.py).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from rankfold.policy.host_memory import Ledger, host_need
from rankfold.policy.precedence import Alike, Precedence, Terms, is_protected
from rankfold.policy.sizes import largest, useful
from rankfold.policy.vocabulary import Group, Job

if TYPE_CHECKING:
    from rankfold.policy.places import Places

K = TypeVar("K")


class Wanting(Struct, frozen=True, gc=False):
    """A job that wants devices, and those of its own that it may keep, in the order of its
    ranks."""

    job: Job
    own: Sequence[int]
    alike: Alike


class Lender(Struct, eq=False):
    """A job that has devices.

    kept: devices that it keeps, in the order of its ranks.
    turn: its place in line.
    borrowers: jobs for which it gives up devices.
    """

    job: Job
    kept: Sequence[int]
    terms: Terms
    turn: int
    borrowers: list[Job] = field(default_factory=list)

    @property
    def place(self) -> tuple[tuple[float, ...], float, int]:
        """The least gives up devices first."""
        return (self.terms.importance, self.job.pause, -self.turn)

    @property
    def least(self) -> int:
        """The fewest devices to which it can be shrunk."""
        return min(len(self.kept), least_of(self.job))

    @property
    def spare(self) -> int:
        return len(self.kept) - self.least

    @property
    def beyond(self) -> int:
        """Spare devices beyond its quota."""
        if self.job.covered is None:
            return 0
        return max(0, len(self.kept) - max(self.least, self.job.covered))

    def gives(self, level: int) -> int:
        """The devices by which a job of this level may shrink it."""
        if level >= self.terms.shrinks_for:
            return self.spare
        return self.beyond if level >= self.terms.shrinks_beyond else 0


class _Part(Struct, eq=False):
    """Lenders with the same terms, for the same groups, and their devices. turns: their places in
    line. spare: devices by which they can be shrunk, within their quotas; beyond: the same, beyond
    their quotas; least: those that they have after that."""

    terms: Terms
    groups: tuple[int, ...]
    turns: list[int] = field(default_factory=list)
    spare: int = 0
    beyond: int = 0
    least: int = 0
    _lenders: list[Lender] | None = None

    def lenders(self, line: Sequence[Wanting]) -> list[Lender]:
        """The same objects each time."""
        if self._lenders is None:
            found = ((line[turn], turn) for turn in self.turns)
            self._lenders = [Lender(each.job, each.own, self.terms, turn) for each, turn in found]
        return self._lenders

    def add(self, lender: Lender, sign: int) -> None:
        beyond = lender.beyond
        self.spare += sign * (lender.spare - beyond)
        self.beyond += sign * beyond
        self.least += sign * lender.least


class Loan(Struct, frozen=True):
    """devices: those that jobs give up; lenders: these jobs."""

    devices: list[int]
    lenders: list[Lender]


def is_elastic(job: Job) -> bool:
    return job.guarantee is not None


def least_of(job: Job) -> int:
    """The fewest devices on which a job runs."""
    return job.devices if job.guarantee is None else max(1, job.guarantee)


def sizes_of(job: Job) -> tuple[int, ...]:
    """The numbers of devices with which an elastic job is worth running, ascending."""
    return useful(job.world_size, least_of(job), job.devices)


class Lending:
    """The devices that can be lent in one moment. line: jobs in the order of their turn. now:
    seconds, on the clock of `Job.since`. spent: jobs that have been disturbed as often as they may
    be. moved: jobs that are moved, and give up nothing else.

    lent: the jobs that give up devices.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        memory: Ledger,
        line: Sequence[Wanting],
        now: float,
        spent: Collection[str] = (),
        places: Places | None = None,
        moved: Collection[str] = (),
    ):
        self._groups, self._memory, self._places = groups, memory, places
        self._line, self._moved = line, moved
        self.lent: dict[str, Lender] = {}
        # Parts of each importance, and their lenders once one of them is considered, in the order
        # of their places: the last gives up devices first.
        self._parts: list[dict[tuple[float, ...], list[_Part]]] = [{} for _ in groups]
        self._sorted: dict[tuple[int, tuple[float, ...]], list[Lender]] = {}
        # Upper bounds, so that a job that cannot be helped takes no time for each lender: devices
        # by the lowest level that gets them, and by the precedence that must be exceeded.
        self._spare: list[dict[int, int]] = [{} for _ in groups]
        self._last: list[dict[Precedence, int]] = [{} for _ in groups]
        self._most_of: dict[tuple[tuple[int, ...], Precedence], int] = {}  # found by `_most`
        self._refused: dict[tuple[tuple[int, ...], Precedence, int], int] = {}
        for part in _parts(line, now, spent):
            self._bound(part)
            for group in part.groups:
                self._parts[group].setdefault(part.terms.importance, []).append(part)

    def lenders(self) -> list[Lender]:
        """The jobs that give up devices; the one that does so first comes last."""
        return sorted(self.lent.values(), key=lambda each: each.place, reverse=True)

    def lend(self, wanting: Wanting, groups: Sequence[int], number: int, need: int) -> Loan | None:
        """Devices of these groups for a job; None if there are fewer than `number`. need: bytes of
        host memory that the job may need when it has them. They are noted with the loan: neither
        the jobs that give up devices nor later ones in line take them."""
        job, precedence = wanting.job, wanting.alike.precedence
        key = (tuple(groups), precedence, need)
        if number >= self._refused.get(key, number + 1) or number > self._most(groups, precedence):
            return None
        self._memory.note(job.name, max(job.need, need))
        useless: set[str] = set()  # lenders whose ranks would need too much host memory
        while (chosen := self._choose(wanting, groups, number, useless)) is not None:
            if (without := self._note(chosen)) is None:
                return self._commit(job, groups, chosen)
            useless.add(without)
        self._memory.note(job.name, job.need)
        self._refused[key] = number
        return None

    def _most(self, groups: Sequence[int], precedence: Precedence) -> int:
        """An upper bound of the devices that a job of this precedence gets."""
        key = (tuple(groups), precedence)
        if (found := self._most_of.get(key)) is None:
            found = self._most_of[key] = sum(
                sum(each for level, each in self._spare[group].items() if level <= precedence[0])
                + sum(each for above, each in self._last[group].items() if above < precedence)
                for group in groups
            )
        return found

    # ---- which jobs

    def _choose(
        self, borrower: Wanting, groups: Sequence[int], number: int, useless: set[str]
    ) -> list[tuple[Lender, int]] | None:
        """Jobs that give up `number` devices together, and how many devices each keeps."""
        precedence = borrower.alike.precedence
        found: dict[str, tuple[Lender, int]] = {}  # job → it, how many devices it gives up
        missing = number
        for suspend in (False, True):
            for lender in self._in_order(groups):
                if missing <= 0:
                    break
                its = lender.job
                if its.name in useless or its.name in self._moved or its is borrower.job:
                    continue
                if suspend:
                    above = lender.terms.suspended_above
                    given = self._in(lender, groups) if precedence > above else 0
                else:
                    gives = lender.gives(precedence[0])
                    given = min(gives, self._in(lender, groups)) if gives else 0
                before = found[its.name][1] if its.name in found else 0
                if given > before:
                    found[its.name] = (lender, given)
                    missing -= given - before
        if missing > 0:
            return None
        chosen = list(found.values())
        for each in list(chosen):  # those that the others make unnecessary keep theirs
            if each[1] <= -missing:
                chosen.remove(each)
                missing += each[1]
        kept = []
        for lender, given in chosen:
            if number > 0:
                left = largest(sizes_of(lender.job), len(lender.kept) - min(given, number))
                kept.append((lender, left))
                # It gives up devices of these groups first; the borrower cannot use its others.
                number -= min(len(lender.kept) - left, self._in(lender, groups))
        return kept

    def _in_order(self, groups: Sequence[int]) -> Iterator[Lender]:
        """Jobs in the order in which they give up devices."""
        if len(groups) == 1:
            yield from self._of(groups[0])
            return
        before = None
        for lender in heapq.merge(*map(self._of, groups), key=lambda each: each.place):
            if lender is not before:
                yield lender
            before = lender

    def _of(self, group: int) -> Iterator[Lender]:
        """The same, for one group."""
        by_importance = self._parts[group]
        for importance in sorted(by_importance):
            lenders = self._sorted.get((group, importance))
            if lenders is None:
                every = [part.lenders(self._line) for part in by_importance[importance]]
                lenders = [lender for lenders in every for lender in lenders]
                lenders.sort(key=lambda each: each.place, reverse=True)
                self._sorted[group, importance] = lenders
            while lenders and not lenders[-1].kept:
                lenders.pop()
            yield from reversed(lenders)

    def _in(self, lender: Lender, groups: Sequence[int]) -> int:
        if len(self._groups) == 1:
            return len(lender.kept)
        if self._places is not None:
            return len(self._places.within(lender.kept, groups))
        return sum(self._is_in(position, groups) for position in lender.kept)

    def _is_in(self, device: int, groups: Sequence[int]) -> bool:
        return any(
            is_among(device, self._groups[group].members or self._groups[group].free)
            for group in groups
        )

    # ---- what follows

    def _note(self, chosen: Sequence[tuple[Lender, int]]) -> str | None:
        """Note the host memory that jobs need on fewer devices; returns the first for which that
        is too much. Then nothing is noted."""
        noted: list[tuple[Lender, int]] = []
        for lender, left in chosen:
            job, memory = lender.job, self._memory
            if not memory.allows(job.name, job.world_size, job.rank_memory, left, job.need):
                for each, devices in noted:
                    self._note_need(each.job, devices)
                return job.name
            noted.append((lender, len(lender.kept)))
            self._note_need(job, left)
        return None

    def _note_need(self, job: Job, devices: int) -> None:
        self._memory.note(job.name, host_need(job.world_size, job.rank_memory, devices))

    def _commit(
        self, borrower: Job, groups: Sequence[int], chosen: Sequence[tuple[Lender, int]]
    ) -> Loan:
        devices: list[int] = []
        for lender, left in chosen:
            change = _Part(lender.terms, lender.job.groups)
            change.add(lender, -1)
            order = sorted(
                lender.kept, key=lambda position: (not self._is_in(position, groups), -position)
            )
            given = order[: len(order) - left]
            lender.kept = [position for position in lender.kept if position not in given]
            lender.borrowers.append(borrower)
            self.lent[lender.job.name] = lender
            devices += given
            change.add(lender, 1)
            self._bound(change)
        return Loan(devices, [lender for lender, _ in chosen])

    def _bound(self, part: _Part) -> None:
        self._most_of.clear()
        for group in part.groups:
            _add(self._spare[group], part.terms.shrinks_for, part.spare)
            _add(self._spare[group], part.terms.shrinks_beyond, part.beyond)
            _add(self._last[group], part.terms.suspended_above, part.least)


def _parts(line: Sequence[Wanting], now: float, spent: Collection[str]) -> Iterable[_Part]:
    """The jobs that can be shrunk, or suspended for the first one in line."""
    first = line[0].alike.precedence
    parts: dict[tuple[Alike, tuple[int, ...], bool, bool], _Part] = {}
    for turn, each in enumerate(line):
        if not (number := len(each.own)):
            continue
        job = each.job
        protected = job.min_runtime > 0 and is_protected(job, now)
        key = (each.alike, job.groups, protected, job.name in spent)
        if (part := parts.get(key)) is None:
            part = parts[key] = _Part(each.alike.terms(job, *key[2:]), job.groups)
        least = least_of(job)
        if number <= least and first <= part.terms.suspended_above:
            continue
        part.turns.append(turn)
        if job.covered is None:
            part.least += min(number, least)
            part.spare += max(0, number - least)
        else:
            part.add(Lender(job, each.own, part.terms, turn), 1)
    return parts.values()


def _add(sums: dict[K, int], key: K, number: int) -> None:
    sums[key] = sums.get(key, 0) + number


def is_among(device: int, devices: Sequence[int]) -> bool:
    """devices: ascending."""
    index = bisect_left(devices, device)
    return index < len(devices) and devices[index] == device
