"""Devices that elastic jobs give up for jobs that wait.

An elastic job has a guarantee; the devices that it has beyond that are on loan. A job that lacks
devices gets them from as few jobs as possible, the last in line first, and only if that is enough
for it to be placed. Jobs are shrunk first; those without a guarantee then also give up their last
devices, but not to each other. Each keeps a number of devices with which it is worth running
(sizes.py).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rankfold.policy.host_memory import Ledger, host_need
from rankfold.policy.sizes import largest, useful
from rankfold.policy.vocabulary import Group, Job


@dataclass(eq=False)
class Lender:
    """An elastic job that has devices.

    place: its place in line, 0 for the first.
    kept: devices that it keeps, in the order of its ranks.
    borrowers: jobs for which it gives up devices.
    """

    job: Job
    place: int
    kept: list[int]
    borrowers: list[str] = field(default_factory=list)

    @property
    def least(self) -> int:
        """The fewest devices to which it can be shrunk."""
        return min(len(self.kept), least_of(self.job))

    @property
    def spare(self) -> int:
        return len(self.kept) - self.least


@dataclass(frozen=True)
class Loan:
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
    devices that they may keep."""

    def __init__(
        self, groups: Sequence[Group], memory: Ledger, line: Sequence[tuple[Job, list[int]]]
    ):
        self._groups, self._memory = groups, memory
        self.lenders: dict[str, Lender] = {}
        self._of_group: list[list[Lender]] = [[] for _ in groups]
        # Upper bounds, so that a job that cannot be helped takes no time for each lender:
        self._spare = [0] * len(groups)
        self._last = [0] * len(groups)
        self._refused: dict[tuple[tuple[int, ...], bool, int], int] = {}
        for place, (job, own) in enumerate(line):
            if is_elastic(job) and len(own) >= least_of(job):
                lender = self.lenders[job.name] = Lender(job, place, own)
                for group in job.groups:
                    self._of_group[group].append(lender)
                self._bound(lender, 1)

    def has_lent(self, name: str) -> bool:
        return name in self.lenders and bool(self.lenders[name].borrowers)

    def lend(self, job: Job, groups: Sequence[int], number: int, need: int) -> Loan | None:
        """Devices of these groups for a job; None if there are fewer than `number`. need: bytes of
        host memory that the job may need when it has them. They are noted with the loan: neither
        the jobs that give up devices nor later ones in line take them."""
        suspend = job.guarantee != 0
        key = (tuple(groups), suspend, need)
        most = sum(self._spare[at] + (self._last[at] if suspend else 0) for at in groups)
        if number > most or number >= self._refused.get(key, number + 1):
            return None
        self._memory.note(job.name, max(job.need, need))
        useless: set[str] = set()  # lenders whose ranks would need too much host memory
        while (chosen := self._choose(job.name, groups, number, suspend, useless)) is not None:
            if (without := self._note(chosen)) is None:
                return self._commit(job.name, groups, chosen)
            useless.add(without)
        self._memory.note(job.name, job.need)
        self._refused[key] = number
        return None

    # ---- which jobs

    def _choose(
        self, name: str, groups: Sequence[int], number: int, suspend: bool, useless: set[str]
    ) -> list[tuple[Lender, int]] | None:
        """Jobs that give up `number` devices together, and how many devices each keeps."""
        found: dict[str, tuple[Lender, int]] = {}  # job → it, how many devices it gives up
        missing = number
        for last in (False, True) if suspend else (False,):
            for lender in self._last_in_line_first(groups):
                if missing <= 0:
                    break
                its = lender.job
                if its.name in useless or its.name == name or (last and its.guarantee):
                    continue
                given = self._in(lender, groups)
                given = given if last else min(lender.spare, given)
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
                number -= len(lender.kept) - left
        return kept

    def _last_in_line_first(self, groups: Sequence[int]) -> Iterator[Lender]:
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
        return sum(self._is_in(at, groups) for at in lender.kept)

    def _is_in(self, device: int, groups: Sequence[int]) -> bool:
        return any(
            is_among(device, self._groups[at].members or self._groups[at].free) for at in groups
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
        self, name: str, groups: Sequence[int], chosen: Sequence[tuple[Lender, int]]
    ) -> Loan:
        devices: list[int] = []
        for lender, left in chosen:
            self._bound(lender, -1)
            order = sorted(lender.kept, key=lambda at: (not self._is_in(at, groups), -at))
            given = order[: len(order) - left]
            lender.kept = [at for at in lender.kept if at not in given]
            lender.borrowers.append(name)
            devices += given
            self._bound(lender, 1)
        return Loan(devices, [lender for lender, _ in chosen])

    def _bound(self, lender: Lender, sign: int) -> None:
        for group in lender.job.groups:
            self._spare[group] += sign * lender.spare
            if lender.job.guarantee == 0:
                self._last[group] += sign * lender.least


def is_among(device: int, devices: Sequence[int]) -> bool:
    """devices: ascending."""
    at = bisect_left(devices, device)
    return at < len(devices) and devices[at] == device
