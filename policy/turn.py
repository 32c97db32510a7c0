"""Which devices a job gets in its turn. If there are too few, others give up some (lending.py) or
move (defragmentation.py), or it waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rankfold.plural import count
from rankfold.policy.causes import LITTLE_MEMORY, cause_of_loan, named, of_drained, too_few
from rankfold.policy.decided import Decided, Option
from rankfold.policy.host_memory import Ledger, host_need
from rankfold.policy.lending import (
    Lender,
    Lending,
    Loan,
    Wanting,
    is_among,
    is_elastic,
    least_of,
    sizes_of,
)
from rankfold.policy.precedence import Precedence
from rankfold.policy.vocabulary import Decision, Disturbance, Fleet, Job, Outcome

if TYPE_CHECKING:
    from rankfold.policy.defragmentation import Defragmentation


class Turn(Decided):
    """Gives jobs devices, one after another. `begin` starts another turn with the devices that are
    free then; incremental.py does.

    lend: finds the devices that jobs may give up; None: there are none.
    moves: lets others move for a job; None: all devices are of one node.
    patient: jobs that have not waited long enough for others to give up devices.
    spent: jobs that have been disturbed as often as they may be.
    awaited: for each job that waits until others have given up devices, the groups of these.
    suspended: groups of jobs that are suspended for one before them in line.
    """

    def __init__(self, fleet: Fleet, memory: Ledger, backfill: bool):
        super().__init__(fleet.groups, memory)
        self.lend: Callable[[], Lending] | None = None
        self.moves: Defragmentation | None = None
        self.patient: set[str] = set()
        self.spent: set[str] = set()
        self.awaited: list[set[int]] = []
        self.suspended: set[int] = set()
        # Decisions on jobs that wait, by what they depend on as long as nothing of the fleet
        # changes: the devices, claims and loans, and host memory.
        self._waits: dict[tuple[object, ...], Decision] = {}
        self._waits_at = (0, 0)  # changes before these decisions
        self._backfill = backfill

    def begin(self) -> None:
        self.decisions = {}
        self.claimed.clear()
        self.changes += 1

    def suspend(self, job: Job) -> None:
        """Note that a job has lent all its devices."""
        self.suspended.update(job.groups)
        self.changes += 1

    def give(self, wanting: Wanting) -> None:
        """Decide on a job that wants devices. An elastic job gets the fewest that it needs, if it
        has fewer: idle.py gives it more."""
        job, own = wanting.job, wanting.own
        number = len(own)
        if not own and not job.on_devices:
            self._start(wanting)
            return
        if job.drained and job.on_devices and (units := self._coming(job, own)):
            reason = f"{of_drained(job)}; others for it are being started"
            self.stay(job, "devices", self.free.count(job.groups), reason=reason)
            self._claim(list(chain.from_iterable(units)), wanting.alike.precedence)
            return
        enough = number >= least_of(job)
        if enough and self.free.places is not None and job.locality != "any":
            enough = self.unit_with(job, own) is not None
        if not (enough and self.memory_allows(job, number)):
            self._give_more(wanting)
            return
        free = self.free.count(self._unclaimed(wanting) if self.claimed else job.groups)
        devices = tuple(sorted(own))
        if number == job.placed and devices == job.own:  # nothing changes: the same, but faster
            self.decisions[job.name] = Decision(
                job.own, "granted", False, free, 0, number, None, "", (), "", job.admitted
            )
            if job.rank_memory or job.need:
                self.note(job, number)
        else:
            self.place(job, devices, "granted", free)

    def _start(self, wanting: Wanting) -> None:
        """Decide on a job that has no device. One that waits does so as another one that is like
        it."""
        job = wanting.job
        key = (
            id(wanting.alike), job.groups, job.devices, job.guarantee, job.world_size,
            job.shrinks, job.rank_memory, job.need, job.min_runtime > 0, job.name in self.spent,
            job.name in self.patient, job.locality, job.late, job.admitted,
        )  # fmt: skip
        at = (self.changes, self.memory.changes)
        if at != self._waits_at:
            self._waits, self._waits_at = {}, at
        elif (decision := self._waits.get(key)) is not None:
            self.decisions[job.name] = decision
            return
        self._give_more(wanting)
        if at == (self.changes, self.memory.changes):
            self._waits[key] = self.decisions[job.name]

    def _give_more(self, wanting: Wanting) -> None:
        """Decide on a job that lacks devices or host memory."""
        job, all_own = wanting.job, wanting.own
        wanted = self._wanted(job, all_own)
        if (option := self._find(wanting, wanted)) is None:
            return
        own, groups = option.own, option.groups
        fewest = fewest_of(job, wanted, sum(self.groups[group].bad for group in option.all))
        free_count = self.free.count(groups)
        there = min(wanted, len(own) + free_count)
        held = min(wanted, job.placed) if job.on_devices and not job.drained else 0
        if there < max(fewest, held):
            self._wait(job, all_own, too_few(wanted, free_count, self._where(job)), free_count)
            if not self._backfill:  # the first in line is not overtaken
                for unit in self.units(job):
                    if self.could_have(unit) >= fewest:
                        self._claim(unit, wanting.alike.precedence)
            return
        if not self.memory_allows(job, there):
            others = self.memory.others(job.name)
            if job.drained and job.on_devices:
                self._leave_drained(job, free_count)
            elif job.on_devices:
                self.stay(job, "memory", free_count, others, there)
            else:
                self.refuse(job, "memory", free_count, others, there, LITTLE_MEMORY)
            return
        self.changes += 1
        new = self.free.take(groups, there - len(own))
        outcome: Outcome = "granted" if there == wanted else "fewer"
        self.place(job, tuple(sorted([*own, *new])), outcome, free_count)

    def _find(self, wanting: Wanting, wanted: int) -> Option | None:
        """The place in which a job gets the devices that it wants, or else lacks the fewest. None
        if others have to give up devices or move first; that it waits for them is decided then."""
        options = self._options(wanting, wanted)
        first = options[0]
        if wanted <= len(first.own) + first.free:
            return first
        if (way := self._make_way(wanting, options, wanted)) is not None:
            option, jobs, devices = way
            if self._receive(devices):
                return option
            self._wait_for(wanting, option, wanted, "waits until these jobs have moved", jobs)
            return None
        for option in options:
            missing = wanted - len(option.own) - option.free
            if (loan := self._borrow(wanting, option.groups, wanted, missing)) is not None:
                if self._receive(loan.devices):
                    return option
                jobs = [lender.job for lender in loan.lenders]
                reason = "waits until these jobs give up some"
                self._wait_for(wanting, option, wanted, reason, jobs)
                return None
        return first

    def _make_way(
        self, wanting: Wanting, options: Sequence[Option], wanted: int
    ) -> tuple[Option, list[Job], list[int]] | None:
        """As `Defragmentation.make_way`, if others may be moved for this job and it fits the free
        devices."""
        job, groups = wanting.job, self._unclaimed(wanting)
        if self.moves is None or job.locality == "any":
            return None
        if not self._may_disturb(job, groups, wanted):
            return None
        if self.free.count(groups) + len(wanting.own) < wanted or self.awaited:
            return None
        return self.moves.make_way(wanting, options, wanted)

    def _options(self, wanting: Wanting, wanted: int) -> list[Option]:
        """The places in which a job may be, the best first: the node or domain in which it lacks
        the fewest devices, then the one where it has the most, then the one that has the fewest
        free."""
        job, own = wanting.job, wanting.own
        groups = self._unclaimed(wanting)
        if self.free.places is None or job.locality == "any":
            return [Option(job.groups, groups, own, self.free.count(groups))]
        found = []
        allowed, every = set(groups), len(groups) == len(job.groups)
        for at, unit in enumerate(self.free.places.units_of(job)):
            those = unit if every else [group for group in unit if group in allowed]
            its, free = self.free.places.within(own, unit), self.free.count(those)
            missing = max(0, wanted - len(its) - free)
            never = missing > 0 and self.could_have(unit) < wanted
            found.append(((never, missing, -len(its), free, at), (unit, those, its, free)))
        return [Option(*each) for _, each in sorted(found)]

    def _unclaimed(self, wanting: Wanting) -> Sequence[int]:
        """The groups from which a job may get devices."""
        job, claimed = wanting.job, self.claimed
        if not claimed:
            return job.groups
        # No device is kept from a job that will give it up at once.
        terms = wanting.alike.terms(job, job.min_runtime > 0, job.name in self.spent)
        above = terms.suspended_above
        return [group for group in job.groups if group not in claimed or claimed[group] > above]

    def _claim(self, groups: Sequence[int], precedence: Precedence) -> None:
        for group in groups:
            if self.claimed.get(group) != precedence:
                self.claimed[group] = precedence
                self.changes += 1

    def _coming(self, job: Job, own: Sequence[int]) -> list[Sequence[int]]:
        """Nodes or domains, or all groups of a job, in which it will soon have as many devices as
        it is on; none if it can have them now."""
        found: list[Sequence[int]] = []
        for unit in self.units(job):
            its = own
            if self.free.places is not None and job.locality != "any":
                its = self.free.places.within(own, unit)
            lacks = min(job.placed, job.devices) - len(its) - self.free.count(unit)
            if lacks <= 0:
                return []
            if lacks <= sum(self.groups[group].coming for group in unit):
                found.append(unit)
        return found

    def _wait(
        self,
        job: Job,
        own: Sequence[int],
        reason: str,
        free: int,
        disturbs: tuple[Disturbance, ...] = (),
    ) -> None:
        """Decide that a job waits for devices, on those that it has, if any."""
        if job.on_devices and job.drained and not disturbs:
            self._leave_drained(job, free)
        elif job.on_devices:
            self.stay(job, "devices", free, reason=reason)
        elif own and self.memory_allows(job, len(own)) and self.unit_with(job, own) is not None:
            # In the middle of a move, another job got the devices: it continues as before.
            self.place(job, tuple(own), "devices", free, reason=reason)
        else:
            self.refuse(job, free=free, reason=reason)
        if disturbs:
            decision = self.decisions[job.name]
            self.decisions[job.name] = replace(decision, disturbs=decision.disturbs + disturbs)

    def _leave_drained(self, job: Job, free: int) -> None:
        """Decide that a job waits without devices, since too few are left to which it could move;
        it stays as long as its ranks would need too much host memory."""
        if self.memory_allows(job, 0):
            reason = f"{of_drained(job)}, and too few others are free for it"
            self.place(job, (), "devices", free, reason=reason)
        else:
            self.stay(job, "memory", free, self.memory.others(job.name))

    def _where(self, job: Job) -> str:
        """The kind of place that a job has all its devices in, for people; empty for any."""
        return "" if self.free.places is None or job.locality == "any" else job.locality

    def _wanted(self, job: Job, own: Sequence[int]) -> int:
        """The number of devices that a job needs in its turn."""
        if not is_elastic(job):
            return job.devices
        if len(own) >= least_of(job) and self.unit_with(job, own) is not None:
            return len(own)
        sizes = sizes_of(job)
        return next((size for size in sizes if self.memory_allows(job, size)), sizes[0])

    def _may_disturb(self, job: Job, groups: Sequence[int], wanted: int) -> bool:
        """Whether others may be disturbed so that this job gets devices of these groups."""
        if self.lend is None or job.blocked or job.late or job.name in self.patient:
            return False
        if not self.memory_allows(job, wanted):
            return False
        # A job before it in line takes any devices of its groups when they are free, also those
        # that others would give up for this one: unless this one can use all of these, it is too
        # early.
        if self.awaited and any(
            not each.isdisjoint(groups) and not each.issubset(groups) for each in self.awaited
        ):
            return False
        # One that is suspended now waits from the next turn on, before this job in line: it would
        # take these devices, or have a claim on them.
        return self.suspended.isdisjoint(groups)

    def _borrow(
        self, wanting: Wanting, groups: Sequence[int], wanted: int, missing: int
    ) -> Loan | None:
        """Devices that elastic jobs give up so that this job has all that it wants."""
        job = wanting.job
        if self.lend is None or missing <= 0 or not self._may_disturb(job, groups, wanted):
            return None
        need = host_need(job.world_size, job.rank_memory, wanted)
        if self.lending is None:
            self.lending = self.lend()
        return self.lending.lend(wanting, groups, missing, need)

    def _receive(self, devices: Collection[int]) -> bool:
        """Return devices to those that are free; whether all of them can be given away now."""
        there = 0
        self.changes += 1
        for number, group in enumerate(self.groups):
            given = [device for device in devices if is_among(device, group.free)]
            self.free.put(number, given)
            there += len(given)
        return there == len(devices)

    def _wait_for(
        self, wanting: Wanting, option: Option, wanted: int, what: str, jobs: Sequence[Job]
    ) -> None:
        """Decide that a job waits until others have given up devices, or moved. Free devices are
        kept for it: no other job gets them meanwhile. what: for people, before their names."""
        job, own, groups = wanting.job, wanting.own, option.groups
        self.changes += 1
        free = self.free.count(groups)
        self.free.take(groups, min(free, wanted - len(option.own)))
        self.awaited.append(set(groups))
        names = ", ".join(each.name for each in jobs)
        where = f" of one {self._where(job)}" if self._where(job) else ""
        reason = f"needs {count(wanted, 'device')}{where}; {what}: {names}"
        disturbs = tuple(Disturbance(each.name, each.pause) for each in jobs if each.on_devices)
        self._wait(job, own, reason, free, disturbs)

    def bar(self, job: Job, why: str) -> bool:
        """Decide that a job has no device; whether that can be done."""
        if not job.on_devices:
            self.refuse(job, reason=why)
            return True
        if not self.memory_allows(job, 0):
            return False
        self.place(job, (), "devices", cause="quota", reason=why)
        return True

    def give_up(self, lender: Lender) -> None:
        """Decide on a job that gives up devices."""
        job, names = lender.job, ", ".join(named(each, lender.job) for each in lender.borrowers)
        given = len(job.own) - len(lender.kept)
        reason = f"gives up {count(given, 'device')} for {names}"
        cause = cause_of_loan(lender)
        self.place(job, tuple(lender.kept), cause=cause, reason=reason)
        if not lender.kept:
            decision = self.decisions[job.name]
            self.decisions[job.name] = replace(decision, outcome="devices")

    def number(self, line: Iterable[Job]) -> None:
        """Number the jobs that wait without devices."""
        decisions = self.decisions
        waits = [job.name for job in line if not decisions[job.name].devices]
        for position, name in enumerate(waits, 1):
            decisions[name] = replace(decisions[name], position=position)


def fewest_of(job: Job, wanted: int, bad: int) -> int:
    """The fewest devices with which a job that wants some starts, or continues, while `bad` devices
    are bad."""
    return max(1, wanted - bad) if job.shrinks and not is_elastic(job) else wanted
