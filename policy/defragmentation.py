"""Jobs that move to other devices, so that another one has its devices in one node or domain, or a
node or domain has no job. moving.py finds those with the shortest pauses."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rankfold.policy.decided import Decided, Move, Option
from rankfold.policy.lending import Wanting, is_elastic, least_of
from rankfold.policy.moving import Mover, Way, make_way
from rankfold.policy.places import Places
from rankfold.policy.precedence import is_protected, terms_of
from rankfold.policy.vocabulary import GUARANTEED, Job, Locality


class Defragmentation:
    """line: jobs in the order of their turn; now: seconds, on the clock of `Job.since`; spent: jobs
    that have been disturbed as often as they may be; exempt: jobs that do not move."""

    def __init__(
        self,
        decided: Decided,
        places: Places,
        line: Sequence[Wanting],
        now: float,
        spent: Collection[str],
        exempt: Collection[str],
    ):
        self._decided, self._places, self._line, self._now = decided, places, line, now
        self._spent, self._exempt = spent, frozenset(exempt)
        self._all_movers: dict[int, list[Mover]] | None = None

    def make_way(
        self, wanting: Wanting, options: Sequence[Option], wanted: int
    ) -> tuple[Option, list[Job], list[int]] | None:
        """Let others move, so that a job that fits the free devices has its own in one node or
        domain. Returns where, the jobs, and the devices that they give up; None if that cannot be.
        """
        job, places, so_far = wanting.job, self._places, self._decided
        level = wanting.alike.precedence[0]
        free = {
            at: so_far.free.of(at)
            for at in range(len(so_far.groups))
            if at not in so_far.claimed and so_far.free.of(at)
        }
        best: tuple[Option, Way] | None = None
        for option in options:
            if so_far.could_have(option.all) < wanted:
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
        places, so_far = self._places, self._decided
        waits = any(not so_far.decisions[each.job.name].devices for each in self._line)
        if waits or so_far.moved or so_far.lending is not None:
            return
        kinds: tuple[Locality, Locality] = ("domain", "node")
        for locality in kinds:
            units = places.units(tuple(range(len(so_far.groups))), locality)
            used = {unit: so_far.could_have(unit) - so_far.free.count(unit) for unit in units}
            partly = [unit for unit, number in used.items() if number > 0]
            best: tuple[tuple[int, ...], Way] | None = None
            for unit in partly:
                others = (at for other in partly if other is not unit for at in other)
                free = {at: so_far.free.of(at) for at in others if so_far.free.of(at)}
                leave = frozenset(unit)
                movers = [each for each in self._movers(leave) if self._may_leave(each.job)]
                cost = best[1].cost if best else None
                if (way := make_way(places, movers, leave, used[unit], free, cost)) is not None:
                    best = (unit, way)
            if best is not None:
                unit, way = best
                name = places.name(unit, locality) or "without a name"
                self._leave(way, frozenset(unit), f"leaves {locality} {name}, so that it is free")
                so_far.move()
                return

    def _may_leave(self, job: Job) -> bool:
        """Whether a job moves although that places no other one."""
        protected = job.on_devices and is_protected(job, self._now)
        return job.basis != GUARANTEED and job.name not in self._spent and not protected

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
        found: dict[int, list[Mover]] = {}
        places = self._places
        for each in self._line:
            job, own = each.job, tuple(sorted(each.own))
            enough = len(own) == job.devices or (is_elastic(job) and len(own) >= least_of(job))
            kept = job.blocked or job.late or job.name in self._exempt
            if not own or not enough or kept:
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
        name, so_far = mover.job.name, self._decided
        if name in so_far.moved or (so_far.lending is not None and name in so_far.lending.lent):
            return False
        decision = so_far.decisions.get(name)
        return decision is None or (
            decision.outcome == "granted" and set(decision.devices or ()) == set(mover.own)
        )

    def _moves_for(self, mover: Mover) -> int:
        """The lowest level for whose jobs it moves."""
        job = mover.job
        protected = job.on_devices and job.min_runtime > 0 and is_protected(job, self._now)
        return terms_of(job, protected, job.name in self._spent).moves_for

    def _leave(self, way: Way, leave: frozenset[int], reason: str) -> list[int]:
        """Note that jobs leave some groups; returns the devices of these that they give up."""
        given: list[int] = []
        self._decided.changes += 1
        for mover, parts in way.moves:
            new = self._decided.free.take_from(parts)
            gives = self._places.within(mover.own, leave)
            given += gives
            if len(new) < len(mover.own):
                new += [each for each in mover.own if each not in gives]
            self._decided.moved[mover.job.name] = Move(mover.job, tuple(sorted(new)), reason)
        return given
