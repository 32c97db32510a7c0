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

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter

from rankfold.policy.host_memory import Ledger
from rankfold.policy.lending import Lending, Wanting, is_elastic, sizes_of
from rankfold.policy.precedence import Alike, AlikeJobs, is_spent
from rankfold.policy.sizes import largest
from rankfold.policy.turn import Turn
from rankfold.policy.vocabulary import Decision, Fleet, Job, Rules


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
        return _decide(fleet, treated, rules, now, backfill, needs, barred)
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
    if turn.free.places is not None:
        from rankfold.policy.defragmentation import Defragmentation  # likewise

        turn.moves = Defragmentation(turn, turn.free.places, wanted, now, turn.spent, rules.exempt)
    moved = turn.moved
    for each in wanted:
        if moved and each.job.name in moved:
            continue
        lender = turn.lending.lent.get(each.job.name) if turn.lending else None
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
        alone = [each for each in wanted if is_elastic(each.job) and each.job.name not in lent]
        if alone:
            from rankfold.policy.idle import grow  # likewise

            grow(turn, alone, turn.spent, rules.growth_delay, now)
        if rules.compacts and turn.moves is not None:
            turn.moves.compact()
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
    line_of: dict[Alike, list[Wanting]] = {}
    for each in wanted:
        alike = each.alike
        if (line := line_of.get(alike)) is None:
            line = line_of[alike] = lines.setdefault(alike.first, [])
        line.append(each)
    return [each for first in sorted(lines, reverse=True) for each in lines[first]]


def _own(turn: Turn, jobs: Sequence[Job], barred: Mapping[str, str]) -> list[Wanting]:
    """Jobs that want devices, and which of its devices each keeps. These are not free."""
    wanted: list[Wanting] = []
    alike_jobs = AlikeJobs()
    everything = [job.own for job in jobs if job.own]
    every = set[int]().union(*everything)
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
    if turn.free.any_of(every):
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
