"""First come, first served, with or without backfill: which job gets which devices.

Jobs first keep what they have; then free devices are given in the order of tier, priority
(precedence.py) and creation. The first job that waits has a claim on the free devices that it could
use, so that no later one overtakes it, except one that it can suspend again; with backfill it has
none. A job that has begun continues with fewer devices than it requests if only bad devices are
missing: if those were usable and free, it would have enough.

An elastic job waits for the fewest devices on which it runs. It grows into devices that are free
when all jobs have had their turn, also those on which another job has a claim: it gives them up
when a job can be placed with them (lending.py). Jobs without a guarantee have their turn after
others of their tier and priority.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from rankfold.plural import count
from rankfold.policy.free import Free
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
from rankfold.policy.precedence import (
    AlikeJobs,
    Precedence,
    is_protected,
    is_spent,
    terms_of,
    tier_of,
)
from rankfold.policy.sizes import largest
from rankfold.policy.vocabulary import (
    AGED,
    BORROWS,
    GUARANTEED,
    PRIORITY_MAX,
    WITHIN,
    Cause,
    Decision,
    Disturbance,
    Fleet,
    Job,
    Locality,
    Outcome,
    Rules,
)

if TYPE_CHECKING:
    from rankfold.policy.moving import Mover, Way


def decide(
    fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float, *, backfill: bool = False
) -> dict[str, Decision]:
    """As decide.decide. Takes time in proportion to jobs and devices."""
    all_jobs = sorted(jobs, key=attrgetter("created", "name"))
    if not (rules.quotas or rules.max_wait):
        return _with_fractions(fleet, all_jobs, rules, now, backfill, {})
    from rankfold.policy import quotas  # here: commands start faster without it

    found = quotas.treated(fleet, all_jobs, rules, now)
    decisions = _with_fractions(fleet, found.jobs, rules, now, backfill, found.barred)
    return quotas.with_limits(decisions, found)


def _with_fractions(
    fleet: Fleet,
    all_jobs: list[Job],
    rules: Rules,
    now: float,
    backfill: bool,
    barred: Mapping[str, str],
) -> dict[str, Decision]:
    if any(rules.fractions):
        from rankfold.policy import fractions  # here: commands start faster without it

        needs = fractions.admitted(fleet, all_jobs, rules)
        treated = fractions.as_guaranteed(all_jobs, needs, rules)
        decisions = _decide(fleet, treated, rules, now, backfill, needs, barred)
        return fractions.with_admission(decisions, all_jobs, needs, rules)
    return _decide(fleet, all_jobs, rules, now, backfill, (), barred)


def _decide(
    fleet: Fleet,
    all_jobs: Sequence[Job],
    rules: Rules,
    now: float,
    backfill: bool,
    guaranteed: Collection[str],
    barred: Mapping[str, str],
) -> dict[str, Decision]:
    """all_jobs: in the order of creation; guaranteed: jobs to which their fraction is; barred: jobs
    that may have no device, and why."""
    if not any(job.rates for job in all_jobs):
        return _in_turn(fleet, all_jobs, rules, now, backfill, guaranteed, barred)
    from rankfold.policy import rates  # here: commands start faster without it

    found = rates.limits(all_jobs, _spent(all_jobs, rules, now), now)
    jobs = rates.limited(all_jobs, found) if found else all_jobs
    decisions = _in_turn(fleet, jobs, rules, now, backfill, guaranteed, barred)
    return rates.with_reasons(decisions, all_jobs, found)


def _spent(jobs: Iterable[Job], rules: Rules, now: float) -> set[str]:
    """Jobs that have been disturbed as often as they may be."""
    if all(each is None for each in rules.disturbances):
        return set()
    return {job.name for job in jobs if is_spent(job, rules, now)}


def _in_turn(
    fleet: Fleet,
    all_jobs: Sequence[Job],
    rules: Rules,
    now: float,
    backfill: bool,
    guaranteed: Collection[str],
    barred: Mapping[str, str],
) -> dict[str, Decision]:
    """As `_decide`, whatever was measured."""
    needs = {job.name: job.need for job in all_jobs if job.need}
    memory = Ledger(needs, fleet.host_memory, rules.ranks_on_a_device)
    turn = Turn(fleet, memory, backfill)
    wanted = _in_line(_own(turn, all_jobs, barred))
    turn.spent = _spent((each.job for each in wanted), rules, now)
    if rules.preemption_delay:
        patient = {each.job.name for each in wanted if _is_patient(each.job, rules, now)}
        turn.patient = patient.difference(guaranteed)
    turn.lend = partial(
        Lending, fleet.groups, memory, wanted, now, turn.spent, turn.free.places, turn.moved
    )
    turn.line, turn.now, turn.exempt = wanted, now, frozenset(rules.exempt)
    moved = turn.moved
    for each in wanted:
        if moved and each.job.name in moved:
            continue
        lender = turn.lending.lender(each.job.name) if turn.lending else None
        if lender is None:
            turn.give(each)
        elif not lender.kept:
            turn.suspend(each.job)
    lenders = turn.lending.lenders() if turn.lending else []
    for lender in lenders:
        turn.give_up(lender)
    turn.move()
    lent = {lender.job.name for lender in lenders}.union(turn.moved)
    if turn.free.any():
        alone = (each for each in wanted if is_elastic(each.job) and each.job.name not in lent)
        turn.grow(alone, rules.growth_delay, now)
        if rules.compacts:
            turn.compact()
    turn.number(each.job for each in wanted)
    return turn.decisions


def _is_patient(job: Job, rules: Rules, now: float) -> bool:
    """Whether a job has not waited for the preemption delay yet."""
    return (
        not job.on_devices and 0 <= now - max(job.created, job.waits_since) < rules.preemption_delay
    )


def _in_line(wanted: Iterable[Wanting]) -> list[Wanting]:
    """Jobs in the order of their turn; equal ones in the order that they have."""
    lines: dict[tuple[object, ...], list[Wanting]] = {}
    for each in wanted:
        lines.setdefault(each.alike.first, []).append(each)
    return [each for first in sorted(lines, reverse=True) for each in lines[first]]


def _own(turn: Turn, jobs: Sequence[Job], barred: Mapping[str, str]) -> list[Wanting]:
    """Jobs that want devices, and which of its devices each keeps. These are not free."""
    wanted: list[Wanting] = []
    alike_jobs = AlikeJobs()
    everything = [job.own for job in jobs if job.own]
    every = set(chain.from_iterable(everything))
    distinct = len(every) == sum(map(len, everything))
    taken: set[int] = set()
    for job in jobs:
        if barred and job.name in barred and turn.bar(job, barred[job.name]):
            continue
        if job.wants == "devices":
            own = job.own
            if not distinct:
                own = tuple(each for each in dict.fromkeys(own) if each not in taken)
                own = _kept(job, own)
                taken.update(own)
            elif own and not (job.on_devices and len(own) == job.placed <= job.devices):
                own = _kept(job, own)
            wanted.append(Wanting(job, own, alike_jobs.of(job)))
        elif job.wants == "none":
            turn.place(job, ())
        elif job.wants == "nothing":
            taken.update(job.own)
            if job.on_devices:
                turn.stay(job)
    if turn.free.any():
        if distinct:
            taken.update(chain.from_iterable([each.own for each in wanted]))
        turn.free.remove(taken)
    return wanted


def _kept(job: Job, own: tuple[int, ...]) -> tuple[int, ...]:
    """Those of its devices that a job keeps. One that has to move anyway keeps none that would not
    make it faster."""
    if is_elastic(job) and not (job.on_devices and len(own) == job.placed <= job.devices):
        return own[: largest(sizes_of(job), len(own)) or len(own)]
    return own[: job.devices]


class _Move(NamedTuple):
    """A job that moves, its new devices, and why."""

    job: Job
    devices: tuple[int, ...]
    reason: str


class _Option(NamedTuple):
    """A place in which a job may be: all groups of a node or domain, or of the fleet; those from
    which it may get devices now; its own devices that are there; and how many are free."""

    all: Sequence[int]
    groups: Sequence[int]
    own: Sequence[int]
    free: int


class Turn:
    """The decisions of one moment, job by job. `begin` starts another one with the devices that
    are free then; incremental.py does.

    claimed: groups whose free devices a job that waits has a claim on, with its precedence; if
        there are several such jobs, that of the last.
    lend: finds the devices that jobs may give up; None: there are none. lending: these, once a
        job lacks devices.
    patient: jobs that have not waited long enough for others to give up devices.
    spent: jobs that have been disturbed as often as they may be.
    line: jobs in the order of their turn; now: seconds, on the clock of `Job.since`.
    moved: jobs that move, so that another one is placed in one node or domain; exempt: jobs that
        do not move for that.
    awaited: for each job that waits until others have given up devices, the groups of these.
    suspended: groups of jobs that are suspended for one before them in line.
    """

    def __init__(self, fleet: Fleet, memory: Ledger, backfill: bool):
        self.decisions: dict[str, Decision] = {}
        self.free = Free(fleet.groups)
        self.claimed: dict[int, Precedence] = {}
        self.lend: Callable[[], Lending] | None = None
        self.lending: Lending | None = None
        self.patient: set[str] = set()
        self.spent: set[str] = set()
        self.awaited: list[set[int]] = []
        self.line: Sequence[Wanting] = ()
        self.now = 0.0
        self.moved: dict[str, _Move] = {}
        self.exempt: frozenset[str] = frozenset()
        self._all_movers: dict[int, list[Mover]] | None = None
        self.suspended: set[int] = set()
        # Decisions on jobs that wait, by what they depend on as long as nothing of the fleet
        # changes: the devices, claims and loans, and host memory.
        self._waits: dict[tuple[object, ...], Decision] = {}
        self._waits_at = (0, 0)  # changes before these decisions
        self._changes = 0  # of devices, claims and loans
        self._groups, self._memory, self._backfill = fleet.groups, memory, backfill

    def begin(self) -> None:
        self.decisions = {}
        self.claimed.clear()
        self._changes += 1

    def suspend(self, job: Job) -> None:
        """Note that a job has lent all its devices."""
        self.suspended.update(job.groups)
        self._changes += 1

    def give(self, wanting: Wanting) -> None:
        """Decide on a job that wants devices. An elastic job gets the fewest that it needs, if it
        has fewer: `grow` gives it more."""
        job, own = wanting.job, wanting.own
        number = len(own)
        enough = number == job.devices or (is_elastic(job) and number >= least_of(job))
        if not own and not job.on_devices:
            self._start(wanting)
            return
        if job.drained and job.on_devices and (units := self._coming(job, own)):
            reason = f"{_of_drained(job)}; others for it are being started"
            self.stay(job, "devices", self.free.count(job.groups), reason=reason)
            self._claim(list(chain.from_iterable(units)), wanting.alike.precedence)
            return
        if enough and self.free.places is not None and job.locality != "any":
            enough = self._unit_with(job, own) is not None
        if not (enough and self._memory_allows(job, number)):
            self._give_more(wanting)
            return
        free = self.free.count(job.groups)
        if free and self.claimed:
            free = self.free.count(self._unclaimed(wanting))
        devices = tuple(sorted(own))
        if number == job.placed and devices == job.own:  # nothing changes: the same, but faster
            self.decisions[job.name] = Decision(devices, "granted", False, free, 0, number)
            if job.rank_memory or job.need:
                self._note(job, number)
        else:
            self.place(job, devices, "granted", free)

    def _start(self, wanting: Wanting) -> None:
        """Decide on a job that has no device. One that waits does so as another one that is like
        it."""
        job = wanting.job
        key = (
            id(wanting.alike), job.groups, job.devices, job.guarantee, job.world_size,
            job.shrinks, job.rank_memory, job.need, job.min_runtime > 0, job.name in self.spent,
            job.name in self.patient, job.locality, job.late,
        )  # fmt: skip
        at = (self._changes, self._memory.changes)
        if at != self._waits_at:
            self._waits, self._waits_at = {}, at
        elif (decision := self._waits.get(key)) is not None:
            self.decisions[job.name] = decision
            return
        self._give_more(wanting)
        if at == (self._changes, self._memory.changes):
            self._waits[key] = self.decisions[job.name]

    def _unclaimed(self, wanting: Wanting) -> Sequence[int]:
        """The groups from which a job may get devices."""
        job, claimed = wanting.job, self.claimed
        if not claimed:
            return job.groups
        # No device is kept from a job that will give it up at once.
        terms = wanting.alike.terms(job, job.min_runtime > 0, job.name in self.spent)
        above = terms.suspended_above
        return [group for group in job.groups if group not in claimed or claimed[group] > above]

    def _give_more(self, wanting: Wanting) -> None:
        """Decide on a job that lacks devices or host memory."""
        job, all_own = wanting.job, wanting.own
        wanted = self._wanted(job, all_own)
        if (option := self._find(wanting, wanted)) is None:
            return
        own, groups = option.own, option.groups
        fewest = fewest_of(job, wanted, sum(self._groups[group].bad for group in option.all))
        free_count = self.free.count(groups)
        there = min(wanted, len(own) + free_count)
        held = min(wanted, job.placed) if job.on_devices and not job.drained else 0
        if there < max(fewest, held):
            self._wait(job, all_own, _too_few(wanted, free_count, self._where(job)), free_count)
            if not self._backfill:  # the first in line is not overtaken
                for unit in self._units(job):
                    if self._could_have(unit) >= fewest:
                        self._claim(unit, wanting.alike.precedence)
            return
        if not self._memory_allows(job, there):
            others = self._memory.others(job.name)
            if job.drained and job.on_devices:
                self._leave_drained(job, free_count)
            elif job.on_devices:
                self.stay(job, "memory", free_count, others, there)
            else:
                self.decisions[job.name] = Decision(
                    None, "memory", False, free_count, others, there, reason=_LITTLE_MEMORY
                )
            return
        self._changes += 1
        new = self.free.take(groups, there - len(own))
        outcome: Outcome = "granted" if there == wanted else "fewer"
        self.place(job, tuple(sorted([*own, *new])), outcome, free_count)

    def _find(self, wanting: Wanting, wanted: int) -> _Option | None:
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

    # ---- nodes and domains

    def _make_way(
        self, wanting: Wanting, options: Sequence[_Option], wanted: int
    ) -> tuple[_Option, list[Job], list[int]] | None:
        """Let others move, so that a job has its devices in one node or domain; only if it fits
        the free devices. Returns where, the jobs, and the devices that they give up."""
        job, places, groups = wanting.job, self.free.places, self._unclaimed(wanting)
        if places is None or job.locality == "any" or not self._may_disturb(job, groups, wanted):
            return None
        if self.free.count(groups) + len(wanting.own) < wanted or self.awaited:
            return None
        from rankfold.policy.moving import make_way  # here: commands start faster without it

        level = wanting.alike.precedence[0]
        free = {
            at: self.free.of(at)
            for at in range(len(self._groups))
            if at not in self.claimed and self.free.of(at)
        }
        best: tuple[_Option, Way] | None = None
        for option in options:
            if self._could_have(option.all) < wanted:
                continue
            leave = frozenset(option.groups)
            movers = [each for each in self._movers(leave) if level >= self._moves_for(each)]
            missing = wanted - len(option.own) - option.free
            cost = best[1].cost if best else None
            if (way := make_way(places, movers, leave, missing, free, cost)) is not None:
                best = (option, way)
        if best is None:
            return None
        option, way = best
        name = places.name(option.all, job.locality)
        where = f"{job.locality} {name}" if name else f"one {job.locality}"
        devices = self._leave(way, frozenset(option.groups), f"makes way for {job.name} on {where}")
        return option, [mover.job for mover, _ in way.moves], devices

    def compact(self) -> None:
        """Let jobs move so that a domain more, or else a node more, has no job; those with the
        shortest pauses. They go where other jobs are already. Nothing is done while a job waits, or
        is moved or disturbed for another one."""
        places = self.free.places
        waits = any(not self.decisions[each.job.name].devices for each in self.line)
        if places is None or waits or self.moved or self.lending is not None:
            return
        from rankfold.policy.moving import make_way

        kinds: tuple[Locality, Locality] = ("domain", "node")
        for locality in kinds:
            units = places.units(tuple(range(len(self._groups))), locality)
            used = {unit: self._could_have(unit) - self.free.count(unit) for unit in units}
            partly = [unit for unit, number in used.items() if number > 0]
            best: tuple[tuple[int, ...], Way] | None = None
            for unit in partly:
                others = (at for other in partly if other is not unit for at in other)
                free = {at: self.free.of(at) for at in others if self.free.of(at)}
                leave = frozenset(unit)
                movers = [each for each in self._movers(leave) if self._may_leave(each.job)]
                cost = best[1].cost if best else None
                if (way := make_way(places, movers, leave, used[unit], free, cost)) is not None:
                    best = (unit, way)
            if best is not None:
                unit, way = best
                name = places.name(unit, locality) or "without a name"
                self._leave(way, frozenset(unit), f"leaves {locality} {name}, so that it is free")
                self.move()
                return

    def _may_leave(self, job: Job) -> bool:
        """Whether a job moves although that places no other one."""
        protected = job.on_devices and is_protected(job, self.now)
        return job.basis != GUARANTEED and job.name not in self.spent and not protected

    def _movers(self, groups: Collection[int]) -> list[Mover]:
        """Jobs that may move and have devices of these groups."""
        if self._all_movers is None:
            self._all_movers = self._find_movers()
        found = {
            mover.job.name: mover for group in groups for mover in self._all_movers.get(group, ())
        }
        return [each for name, each in found.items() if self._stays_there(each)]

    def _find_movers(self) -> dict[int, list[Mover]]:
        """Group → the jobs that have devices of it, have all that they want, and may move."""
        from rankfold.policy.moving import Mover

        found: dict[int, list[Mover]] = {}
        places = self.free.places
        for each in self.line:
            job, own = each.job, tuple(sorted(each.own))
            enough = len(own) == job.devices or (is_elastic(job) and len(own) >= least_of(job))
            kept = job.blocked or job.late or job.name in self.exempt
            if places is None or not own or not enough or kept:
                continue
            has = places.counts(own)
            units = places.units_of(job)
            if not any(has.keys() <= set(unit) for unit in units):
                continue
            mover = Mover(job, own, has, job.pause if job.on_devices else 0.0, units)
            for group in has:
                found.setdefault(group, []).append(mover)
        return found

    def _stays_there(self, mover: Mover) -> bool:
        """Whether nothing else has been decided for a job than that it keeps its devices."""
        name = mover.job.name
        if name in self.moved or (self.lending is not None and self.lending.lender(name)):
            return False
        decision = self.decisions.get(name)
        return decision is None or (
            decision.outcome == "granted" and set(decision.devices or ()) == set(mover.own)
        )

    def _moves_for(self, mover: Mover) -> int:
        """The lowest level for whose jobs it moves."""
        job = mover.job
        protected = job.on_devices and job.min_runtime > 0 and is_protected(job, self.now)
        return terms_of(job, protected, job.name in self.spent).moves_for

    def _leave(self, way: Way, leave: frozenset[int], reason: str) -> list[int]:
        """Note that jobs leave some groups; returns the devices of these that they give up."""
        given: list[int] = []
        self._changes += 1
        for mover, parts in way.moves:
            new = self.free.take_from(parts)
            gives = self._within(mover.own, leave)
            given += gives
            if len(new) < len(mover.own):
                new += [each for each in mover.own if each not in gives]
            self.moved[mover.job.name] = _Move(mover.job, tuple(sorted(new)), reason)
        return given

    def _within(self, own: Sequence[int], groups: Collection[int]) -> list[int]:
        return [] if self.free.places is None else self.free.places.within(own, groups)

    def move(self) -> None:
        """Decide on the jobs that move."""
        for each in self.moved.values():
            self.place(each.job, each.devices, cause="defragmentation", reason=each.reason)

    def _options(self, wanting: Wanting, wanted: int) -> list[_Option]:
        """The places in which a job may be, the best first: the node or domain in which it lacks
        the fewest devices, then the one where it has the most, then the one that has the fewest
        free."""
        job, own = wanting.job, wanting.own
        groups = self._unclaimed(wanting)
        if self.free.places is None or job.locality == "any":
            return [_Option(job.groups, groups, own, self.free.count(groups))]
        found = []
        allowed, every = set(groups), len(groups) == len(job.groups)
        for at, unit in enumerate(self.free.places.units_of(job)):
            those = unit if every else [group for group in unit if group in allowed]
            its, free = self.free.places.within(own, unit), self.free.count(those)
            missing = max(0, wanted - len(its) - free)
            never = missing > 0 and self._could_have(unit) < wanted
            found.append(((never, missing, -len(its), free, at), (unit, those, its, free)))
        return [_Option(*each) for _, each in sorted(found)]

    def _units(self, job: Job) -> Sequence[tuple[int, ...]]:
        """The groups of each node or domain in which a job may be."""
        return (job.groups,) if self.free.places is None else self.free.places.units_of(job)

    def _unit_with(self, job: Job, own: Sequence[int]) -> tuple[int, ...] | None:
        """The groups of the node or domain that all these devices are in; None if there is none."""
        if self.free.places is None or job.locality == "any":
            return job.groups
        has = self.free.places.counts(own)
        return next((each for each in self._units(job) if has.keys() <= set(each)), None)

    def _where(self, job: Job) -> str:
        """The kind of place that a job has all its devices in, for people; empty for any."""
        return "" if self.free.places is None or job.locality == "any" else job.locality

    def _claim(self, groups: Sequence[int], precedence: Precedence) -> None:
        for group in groups:
            if self.claimed.get(group) != precedence:
                self.claimed[group] = precedence
                self._changes += 1

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
        elif own and self._memory_allows(job, len(own)) and self._unit_with(job, own) is not None:
            # In the middle of a move, another job got the devices: it continues as before.
            self.place(job, tuple(own), "devices", free, reason=reason)
        else:
            self.decisions[job.name] = Decision(None, "devices", free=free, reason=reason)
        if disturbs:
            decision = self.decisions[job.name]
            self.decisions[job.name] = replace(decision, disturbs=decision.disturbs + disturbs)

    def _coming(self, job: Job, own: Sequence[int]) -> list[Sequence[int]]:
        """Nodes or domains, or all groups of a job, in which it will soon have as many devices as
        it is on; none if it can have them now."""
        found: list[Sequence[int]] = []
        for unit in self._units(job):
            its = own
            if self.free.places is not None and job.locality != "any":
                its = self.free.places.within(own, unit)
            lacks = min(job.placed, job.devices) - len(its) - self.free.count(unit)
            if lacks <= 0:
                return []
            if lacks <= sum(self._groups[group].coming for group in unit):
                found.append(unit)
        return found

    def _leave_drained(self, job: Job, free: int) -> None:
        """Decide that a job waits without devices, since too few are left to which it could move;
        it stays as long as its ranks would need too much host memory."""
        if self._memory_allows(job, 0):
            reason = f"{_of_drained(job)}, and too few others are free for it"
            self.place(job, (), "devices", free, reason=reason)
        else:
            self.stay(job, "memory", free, self._memory.others(job.name))

    # ---- elastic jobs

    def _wanted(self, job: Job, own: Sequence[int]) -> int:
        """The number of devices that a job needs in its turn."""
        if not is_elastic(job):
            return job.devices
        if len(own) >= least_of(job) and self._unit_with(job, own) is not None:
            return len(own)
        sizes = sizes_of(job)
        return next((size for size in sizes if self._memory_allows(job, size)), sizes[0])

    def _may_disturb(self, job: Job, groups: Sequence[int], wanted: int) -> bool:
        """Whether others may be disturbed so that this job gets devices of these groups."""
        if self.lend is None or job.blocked or job.late or job.name in self.patient:
            return False
        if not self._memory_allows(job, wanted):
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
        self._changes += 1
        for number, group in enumerate(self._groups):
            given = [device for device in devices if is_among(device, group.free)]
            self.free.put(number, given)
            there += len(given)
        return there == len(devices)

    def _wait_for(
        self, wanting: Wanting, option: _Option, wanted: int, what: str, jobs: Sequence[Job]
    ) -> None:
        """Decide that a job waits until others have given up devices, or moved. Free devices are
        kept for it: no other job gets them meanwhile. what: for people, before their names."""
        job, own, groups = wanting.job, wanting.own, option.groups
        self._changes += 1
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
            self.decisions[job.name] = Decision(None, "devices", reason=why)
            return True
        if not self._memory_allows(job, 0):
            return False
        self.place(job, (), "devices", cause="quota", reason=why)
        return True

    def give_up(self, lender: Lender) -> None:
        """Decide on a job that gives up devices."""
        job, names = lender.job, ", ".join(_named(each, lender.job) for each in lender.borrowers)
        given = len(job.own) - len(lender.kept)
        reason = f"gives up {count(given, 'device')} for {names}"
        cause = _cause_of_loan(lender)
        self.place(job, tuple(lender.kept), cause=cause, reason=reason)
        if not lender.kept:
            decision = self.decisions[job.name]
            self.decisions[job.name] = replace(decision, outcome="devices")

    def grow(self, line: Iterable[Wanting], delay: float, now: float) -> None:
        """Give elastic jobs that have a place what is left, as far as that makes them faster: first
        those of the highest tier and priority, among these as growth.py shares devices. A job that
        would have to move has been where it is for `delay` seconds."""
        alike: dict[tuple[object, tuple[int, ...]], list[Job]] = {}
        for each in line:
            job = each.job
            if self._may_grow(job, delay, now):
                groups: tuple[int, ...] | None = job.groups
                if self.free.places is not None:
                    groups = self._unit_with(job, self.decisions[job.name].devices or ())
                if groups is not None:
                    key = (each.alike.precedence[:2], groups)
                    alike.setdefault(key, []).append(job)
        for (_, groups), grow in alike.items():
            if free := self.free.count(groups):
                from rankfold.policy.growth import growing, share  # here: commands start faster

                sizes = [growing(j.world_size, self._have(j), sizes_of(j), free) for j in grow]
                share(sizes, free)
                for job, grown in zip(grow, sizes, strict=True):
                    if grown.at:
                        self._grow_to(job, groups, grown.size)

    def _have(self, job: Job) -> int:
        return len(self.decisions[job.name].devices or ())

    def _may_grow(self, job: Job, delay: float, now: float) -> bool:
        decision = self.decisions[job.name]
        if not decision.devices or decision.stays or decision.outcome != "granted":
            return False
        if not _stays(job, decision.devices):
            return True
        if job.late:
            return False
        return job.name not in self.spent and not 0 <= now - job.since < delay

    def _grow_to(self, job: Job, groups: Sequence[int], size: int) -> None:
        decision = self.decisions[job.name]
        have = self._have(job)
        if size <= have or decision.devices is None or not self._memory_allows(job, size):
            return
        new = self.free.take(groups, size - have)
        # Also in the middle of its move: while it keeps the devices that it is on, and others.
        grows = job.placed > 0 and cause_of(job, decision.devices) is None
        self.place(
            job,
            tuple(sorted([*decision.devices, *new])),
            cause="growth" if grows else None,
            reason="devices are idle" if grows else "",
        )

    def number(self, line: Iterable[Job]) -> None:
        """Number the jobs that wait without devices."""
        position, decisions = 0, self.decisions
        for job in line:
            decision = decisions[job.name]
            if not decision.devices:
                position += 1
                decisions[job.name] = replace(decision, position=position)

    # ---- decisions

    def _could_have(self, groups: Sequence[int]) -> int:
        return sum(self._groups[group].to_come for group in groups)

    def _memory_allows(self, job: Job, devices: int) -> bool:
        return self._memory.allows(job.name, job.world_size, job.rank_memory, devices, job.need)

    def place(
        self,
        job: Job,
        devices: tuple[int, ...],
        outcome: Outcome = "granted",
        free: int = 0,
        *,
        cause: Cause | None = None,
        reason: str = "",
    ) -> None:
        """cause: why its placement changes, if it does; None: as `cause_of` finds."""
        found = cause_of(job, devices)
        cause = found and (cause or found)
        if cause == "drain":
            reason = reason or _of_drained(job)
        stops = cause is not None and job.on_devices
        disturbs = (Disturbance(job.name, job.pause),) if stops else ()
        number = len(devices)
        self.decisions[job.name] = Decision(
            devices, outcome, False, free, 0, number, cause, reason, disturbs
        )
        self._note(job, number)

    def stay(
        self,
        job: Job,
        outcome: Outcome = "granted",
        free: int = 0,
        others: int = 0,
        number: int = 0,
        reason: str = "",
    ) -> None:
        self.decisions[job.name] = Decision(
            job.own,
            outcome,
            True,
            free,
            others,
            number,
            reason=_LITTLE_MEMORY if outcome == "memory" else reason,
        )
        self._note(job, job.placed)

    def _note(self, job: Job, devices: int) -> None:
        needed = job.rank_memory and (devices or job.in_memory)
        need = host_need(job.world_size, job.rank_memory, devices) if needed else 0
        self._memory.note(job.name, need)


def _of_drained(job: Job) -> str:
    verb = "is" if job.drained == 1 else "are"
    return f"{job.drained} of its {count(job.placed, 'device')} {verb} drained"


_LITTLE_MEMORY = "its ranks would need too much host memory"


def _too_few(wanted: int, free: int, where: str) -> str:
    """where: node or domain that all these devices are in; empty for any."""
    if where:
        return f"needs {count(wanted, 'device')} of one {where}; most that are free: {free}"
    return f"needs {count(wanted, 'device')}; free for it now: {free}"


def _cause_of_loan(lender: Lender) -> Cause:
    if any(each.serving for each in lender.borrowers):
        return "serving"
    if any(_reclaims(each, lender.job) for each in lender.borrowers):
        return "quota"
    higher = any(tier_of(each) > tier_of(lender.job) for each in lender.borrowers)
    return "tier" if higher else "order"


def _reclaims(job: Job, other: Job) -> bool:
    """Whether a job gets back devices of its quota that another one has borrowed."""
    borrows = other.covered is not None and other.covered < other.placed
    return bool(job.covered) and borrows and job.quota != other.quota


def _named(job: Job, other: Job) -> str:
    """A job, and of what quota, tier or priority it is if that is why `other` gives up devices for
    it."""
    if job.basis == AGED:
        return f"{job.name} (has waited too long)"
    if _reclaims(job, other):
        return f"{job.name} ({f'quota {job.quota}' if job.quota else 'no quota'})"
    if job.basis == WITHIN and other.basis == BORROWS:
        return f"{job.name} (within its quota)"
    if job.tier != other.tier:
        return f"{job.name} ({job.tier})"
    if job.priority > other.priority:
        if job.priority > PRIORITY_MAX:  # it is admitted, and `other` takes turns
            return f"{job.name} (guaranteed)"
        return f"{job.name} (priority {job.priority})"
    if job.behind > other.behind:
        return f"{job.name} (its turn)"
    return job.name


def _stays(job: Job, devices: tuple[int, ...]) -> bool:
    """Whether a job runs on these devices, and nothing has to be done."""
    return job.on_devices and cause_of(job, devices) is None


def cause_of(job: Job, devices: tuple[int, ...]) -> Cause | None:
    """Why a job is placed on these devices, if that changes its placement."""
    if len(devices) == job.placed and (devices == job.own or set(devices) == set(job.own)):
        return None
    if job.drained and job.wants == "devices":
        return "drain"
    lost = len(job.own) < min(job.placed, job.devices)
    if job.wants == "devices" and lost:
        return "fault"
    return "serving" if job.serving else "spec"


def fewest_of(job: Job, wanted: int, bad: int) -> int:
    """The fewest devices with which a job that wants some starts, or continues, while `bad` devices
    are bad."""
    return max(1, wanted - bad) if job.shrinks and not is_elastic(job) else wanted
