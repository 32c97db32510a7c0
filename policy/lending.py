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
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct, field

from rankfold.policy.host_memory import Ledger, host_need
from rankfold.policy.precedence import (
    Precedence,
    is_protected,
    level_beyond_quota,
    level_of,
    level_of_growth,
    level_when_spent,
    precedence_of,
    suspended_above,
)
from rankfold.policy.sizes import largest, useful
from rankfold.policy.vocabulary import BORROWS, Group, Job

K = TypeVar("K")


class Lender(Struct, eq=False):
    """A job that has devices.

    kept: devices that it keeps, in the order of its ranks.
    protected: whether its minimum run time is not over.
    spent: whether it has been disturbed as often as it may be.
    place: its place among those that give up devices, 0 for the last of them.
    borrowers: jobs for which it gives up devices.
    """

    job: Job
    kept: list[int]
    protected: bool
    spent: bool = False
    place: int = 0
    borrowers: list[Job] = field(default_factory=list)

    @property
    def shrinks_for(self) -> int:
        """The lowest level whose jobs may shrink it."""
        level = level_of_growth(self.job) + self.protected
        return max(level, level_when_spent(self.job.basis == BORROWS)) if self.spent else level

    @property
    def shrinks_beyond(self) -> int:
        """The same, for devices beyond its quota."""
        level = level_beyond_quota(self.job) + self.protected
        return max(level, level_when_spent(borrows=True)) if self.spent else level

    @property
    def suspended_above(self) -> Precedence:
        return suspended_above(self.job, self.protected, self.spent)

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
        if level >= self.shrinks_for:
            return self.spare
        return self.beyond if level >= self.shrinks_beyond else 0


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
    """The devices that can be lent in one moment. line: jobs in the order of their turn, with the
    devices that they may keep. now: seconds, on the clock of `Job.since`. spent: jobs that have
    been disturbed as often as they may be."""

    def __init__(
        self,
        groups: Sequence[Group],
        memory: Ledger,
        line: Sequence[tuple[Job, list[int]]],
        now: float,
        spent: Collection[str] = (),
    ):
        self._groups, self._memory = groups, memory
        self.lenders: dict[str, Lender] = {}
        self._of_group: list[list[Lender]] = [[] for _ in groups]
        # Upper bounds, so that a job that cannot be helped takes no time for each lender: devices
        # by the lowest level that gets them, and by the precedence that must be exceeded.
        self._spare: list[dict[int, int]] = [{} for _ in groups]
        self._last: list[dict[Precedence, int]] = [{} for _ in groups]
        self._refused: dict[tuple[tuple[int, ...], Precedence, int], int] = {}
        first = precedence_of(line[0][0]) if line else None
        lenders: list[tuple[int, Lender]] = []
        for at, (job, own) in enumerate(line):
            if own:
                lender = Lender(job, own, is_protected(job, now), job.name in spent)
                if lender.spare or (first is not None and first > lender.suspended_above):
                    lenders.append((at, lender))
        lenders.sort(key=lambda each: (_importance(each[1].job), each[1].job.pause, -each[0]))
        for place, (_, lender) in enumerate(reversed(lenders)):
            lender.place = place
            self.lenders[lender.job.name] = lender
            for group in lender.job.groups:
                self._of_group[group].append(lender)
            self._bound(lender, 1)

    def has_lent(self, name: str) -> bool:
        return name in self.lenders and bool(self.lenders[name].borrowers)

    def lend(self, job: Job, groups: Sequence[int], number: int, need: int) -> Loan | None:
        """Devices of these groups for a job; None if there are fewer than `number`. need: bytes of
        host memory that the job may need when it has them. They are noted with the loan: neither
        the jobs that give up devices nor later ones in line take them."""
        precedence = precedence_of(job)
        key = (tuple(groups), precedence, need)
        if number >= self._refused.get(key, number + 1) or number > self._most(groups, precedence):
            return None
        self._memory.note(job.name, max(job.need, need))
        useless: set[str] = set()  # lenders whose ranks would need too much host memory
        while (chosen := self._choose(job, groups, number, useless)) is not None:
            if (without := self._note(chosen)) is None:
                return self._commit(job, groups, chosen)
            useless.add(without)
        self._memory.note(job.name, job.need)
        self._refused[key] = number
        return None

    def _most(self, groups: Sequence[int], precedence: Precedence) -> int:
        """An upper bound of the devices that a job of this precedence gets."""
        return sum(
            sum(number for level, number in self._spare[group].items() if level <= precedence[0])
            + sum(number for above, number in self._last[group].items() if above < precedence)
            for group in groups
        )

    # ---- which jobs

    def _choose(
        self, borrower: Job, groups: Sequence[int], number: int, useless: set[str]
    ) -> list[tuple[Lender, int]] | None:
        """Jobs that give up `number` devices together, and how many devices each keeps."""
        precedence = precedence_of(borrower)
        found: dict[str, tuple[Lender, int]] = {}  # job → it, how many devices it gives up
        missing = number
        for suspend in (False, True):
            for lender in self._in_order(groups):
                if missing <= 0:
                    break
                its = lender.job
                if its.name in useless or its.name == borrower.name:
                    continue
                if suspend:
                    given = self._in(lender, groups) if precedence > lender.suspended_above else 0
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
        for group in groups:
            lenders = self._of_group[group]
            while lenders and not lenders[-1].kept:
                lenders.pop()
        lists = [reversed(self._of_group[group]) for group in groups]
        before = None
        for lender in heapq.merge(*lists, key=lambda each: -each.place):
            if lender is not before:
                yield lender
            before = lender

    def _in(self, lender: Lender, groups: Sequence[int]) -> int:
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
            self._bound(lender, -1)
            order = sorted(
                lender.kept, key=lambda position: (not self._is_in(position, groups), -position)
            )
            given = order[: len(order) - left]
            lender.kept = [position for position in lender.kept if position not in given]
            lender.borrowers.append(borrower)
            devices += given
            self._bound(lender, 1)
        return Loan(devices, [lender for lender, _ in chosen])

    def _bound(self, lender: Lender, sign: int) -> None:
        for group in lender.job.groups:
            beyond = lender.beyond
            _add(self._spare[group], lender.shrinks_for, sign * (lender.spare - beyond))
            if beyond:
                _add(self._spare[group], lender.shrinks_beyond, sign * beyond)
            _add(self._last[group], lender.suspended_above, sign * lender.least)


def _importance(job: Job) -> tuple[float, ...]:
    """The least gives up devices first: the lowest level, the lowest priority, the job that is the
    furthest ahead of its fraction, or whose quota is of its share."""
    return (level_of(job), job.priority, job.behind)


def _add(sums: dict[K, int], key: K, number: int) -> None:
    sums[key] = sums.get(key, 0) + number


def is_among(device: int, devices: Sequence[int]) -> bool:
    """devices: ascending."""
    index = bisect_left(devices, device)
    return index < len(devices) and devices[index] == device
